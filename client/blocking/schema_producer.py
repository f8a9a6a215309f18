"""The blocking face of a producer that has a schema: values become payloads, and then go the way of all payloads.

Producers without a schema are of the plain class, and pay nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from ..core.configuration import ProducerConfiguration
from ..core.message_id import MessageId
from ..producing.outbox import SendCallback
from ..producing.values import encoded, encoded_without_key
from .intercepted_producer import InterceptedProducer
from .producer import Producer


class SchemaProducer(Producer):
    """See Producer."""

    def send(
        self,
        content: object,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: object = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """As in Producer."""
        payload, key = encoded(self._producer.configuration.schema, content, partition_key)
        return super().send(
            payload,
            properties,
            key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )

    def send_async(
        self,
        content: object,
        callback: SendCallback | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: object = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """As in Producer. Raises SchemaSerializationError at once, with a callback, too."""
        payload, key = encoded(self._producer.configuration.schema, content, partition_key)
        super().send_async(
            payload,
            callback,
            properties,
            key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )

    def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
        """As in Producer. A value that does not fit is refused before any is sent."""
        return super().send_many(encoded_without_key(self._producer.configuration.schema, payloads), callback)


class InterceptedSchemaProducer(SchemaProducer, InterceptedProducer):
    """The interceptors get payloads."""

    def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
        """One by one, so that `send` encodes each."""
        return InterceptedProducer.send_many(self, payloads, callback)


def producer_face(configuration: ProducerConfiguration) -> type[Producer]:
    """The class of a producer with these options."""
    if configuration.schema is None:
        return InterceptedProducer if configuration.interceptors else Producer
    return InterceptedSchemaProducer if configuration.interceptors else SchemaProducer
