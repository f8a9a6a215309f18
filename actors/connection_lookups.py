"""What a client asks before it has a producer or consumer: LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE."""

from collections.abc import Callable
from typing import Any

from ..protocol.commands import encode
from ..protocol.errors import MagnetarError, server_error_code
from ..protocol.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)
from ..protocol.topics import TopicName
from .client_link import ClientLink


class LookupCommands:
    """Stateless but for its connection."""

    def __init__(self, connection: ClientLink) -> None:
        self._connection = connection

    def handlers(self) -> dict[int, Callable[[Any], None]]:
        return {
            BaseCommand.LOOKUP: self.lookup,
            BaseCommand.PARTITIONED_METADATA: self.partitioned_metadata,
            BaseCommand.GET_TOPICS_OF_NAMESPACE: self.topics_of_namespace,
        }

    def lookup(self, command: CommandLookupTopic) -> None:
        connection = self._connection

        async def answer() -> bytes:
            url = await connection.host.lookups.owner_url(TopicName.parse(command.topic))
            return encode(
                CommandLookupTopicResponse(
                    request_id=command.request_id,
                    response=CommandLookupTopicResponse.Connect,
                    brokerServiceUrl=url,
                    authoritative=True,
                )
            )

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
            create = command.metadata_auto_creation_enabled and connection.host.settings.allow_auto_topic_creation
            partitions = await connection.host.lookups.partitions(TopicName.parse(command.topic), create=create)
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

    def topics_of_namespace(self, command: CommandGetTopicsOfNamespace) -> None:
        connection = self._connection

        async def answer() -> bytes:
            topics: list[str] = []
            if command.mode != CommandGetTopicsOfNamespace.NON_PERSISTENT:
                topics = await connection.host.lookups.topics(command.namespace)
            return encode(CommandGetTopicsOfNamespaceResponse(request_id=command.request_id, topics=topics))

        connection.start(answer(), "topics of namespace", lambda error: connection.error(command.request_id, error))


def _text(error: MagnetarError) -> str:
    """What the client is told. C++ and Python clients give up the whole connection, with all that runs over it, when a
    lookup gets ServiceNotReady, unless the text is one that they know from Pulsar."""
    not_ready = server_error_code(error) == ServerError.ServiceNotReady
    return f"{error} (the topic is being unloaded)" if not_ready else str(error)
