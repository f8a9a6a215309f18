"""Publish stage: a topic that requires encryption takes encrypted messages only.

Pulsar's broker refuses a producer that does not encrypt, with MetadataError, where `encryptionRequireOnProducer` or the
policy `encryption_required` asks for it. Under the policy only, it also refuses a message without encryption keys, with
MetadataError. With the broker's setting alone, a producer that says it encrypts may send plain text. Here the setting
covers both, so that no plain text is stored.
"""

from ...protocol.errors import BrokerMetadataError
from ...protocol.pulsar_pb2 import MessageMetadata
from ...protocol.topics import TopicName
from .producer import AttachedProducer, Publish
from .publishing import PublishStage, Refusal


class EncryptionRequired(PublishStage):
    """See the module."""

    def __init__(self, name: TopicName) -> None:
        self._name = name

    def check_producer(self, producer: AttachedProducer) -> None:
        """Raises BrokerMetadataError for a producer that does not encrypt."""
        if not producer.encrypted:
            raise BrokerMetadataError(f"Encryption is required in {self._name.full}")

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | None:
        if not metadata.encryption_keys:
            return Refusal(BrokerMetadataError("Messages must be encrypted"))
        return None
