"""What a client asks before it has a producer or consumer: LOOKUP, PARTITIONED_METADATA.

No answer here leaves anything behind, but for PARTITIONED_METADATA, which creates a missing topic where topics are
created as partitioned ones (`allowAutoTopicCreationType`, or the policy `autoTopicCreation`). Others are created by
PRODUCER and SUBSCRIBE.
"""

from typing import TYPE_CHECKING

from ...protocol.commands import encode
from ...protocol.errors import MagnetarError, NoSuchListener, server_error_code
from ...protocol.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)
from ...protocol.topics import TopicName
from ..security.authorization import TOPIC_USER
from .link import CommandFamily, Guarded, of_topic

if TYPE_CHECKING:
    from .connection import ServerConnection


class LookupCommands(CommandFamily):
    """Stateless but for its connection. `listener` is that of the connection's socket, for lookups that name none."""

    def __init__(self, connection: "ServerConnection", listener: str = "") -> None:
        self._connection = connection
        self._listener = listener

    def handlers(self) -> dict[int, Guarded]:
        return {
            BaseCommand.LOOKUP: of_topic(TOPIC_USER, self.lookup),
            BaseCommand.PARTITIONED_METADATA: of_topic(TOPIC_USER, self.partitioned_metadata),
        }

    def lookup(self, command: CommandLookupTopic) -> None:
        connection = self._connection

        async def answer() -> bytes:
            lookups = connection.host.lookups
            owner = await lookups.owner_url(TopicName.parse(command.topic))
            found = lookups.reach(owner, command.advertised_listener_name.strip() or self._listener)
            if connection.tls:
                found = found.with_tls()
            answered = CommandLookupTopicResponse(
                request_id=command.request_id,
                response=CommandLookupTopicResponse.Connect,
                authoritative=True,
            )
            if found.url:
                answered.brokerServiceUrl = found.url
            if found.url_tls:
                answered.brokerServiceUrlTls = found.url_tls
            if found.through_proxy:
                answered.proxy_through_service_url = True
            return encode(answered)

        def failed(error: MagnetarError) -> None:
            connection.write(
                encode(
                    CommandLookupTopicResponse(
                        request_id=command.request_id,
                        response=CommandLookupTopicResponse.Failed,
                        error=server_error_code(error),  # type: ignore[arg-type]
                        message=_text(error),
                    )
                )
            )

        connection.start(answer(), "lookup", failed)

    def partitioned_metadata(self, command: CommandPartitionedTopicMetadata) -> None:
        connection = self._connection

        async def answer() -> bytes:
            partitions = await connection.host.lookups.partitions(
                TopicName.parse(command.topic), create=command.metadata_auto_creation_enabled
            )
            return encode(
                CommandPartitionedTopicMetadataResponse(
                    request_id=command.request_id,
                    response=CommandPartitionedTopicMetadataResponse.Success,
                    partitions=partitions,
                )
            )

        def failed(error: MagnetarError) -> None:
            connection.write(
                encode(
                    CommandPartitionedTopicMetadataResponse(
                        request_id=command.request_id,
                        response=CommandPartitionedTopicMetadataResponse.Failed,
                        error=server_error_code(error),  # type: ignore[arg-type]
                        message=_text(error),
                    )
                )
            )

        connection.start(answer(), "partitioned metadata", failed)


def _text(error: MagnetarError) -> str:
    """What the client is told. When a lookup gets ServiceNotReady, C++ and Python clients close the whole connection,
    unless they know the text from Pulsar.
    """
    not_ready = server_error_code(error) == ServerError.ServiceNotReady and not isinstance(error, NoSuchListener)
    return f"{error} (the topic is being unloaded)" if not_ready else str(error)
