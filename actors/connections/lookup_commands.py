"""What a client asks before it has a producer or consumer: LOOKUP, PARTITIONED_METADATA, GET_SCHEMA,
GET_OR_CREATE_SCHEMA.

No answer here leaves anything behind, but for PARTITIONED_METADATA, which creates a missing topic where topics are
created as partitioned ones (`allowAutoTopicCreationType`). Others are created by PRODUCER and SUBSCRIBE.

There are no schemas. Yet clients ask for the schema of bytes, too, so the questions about that one are answered as
Pulsar answers them. Every refusal has the type of answer that the client waits for. C++ and Python clients do not match
an ERROR to a schema request, and would wait for their time-out.
"""

from ...protocol.commands import encode
from ...protocol.errors import MagnetarError, NotAllowedError, TopicNotFound, server_error_code
from ...protocol.pulsar_pb2 import (
    BaseCommand,
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchema,
    CommandGetSchemaResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    Schema,
    ServerError,
)
from ...protocol.topics import TopicName
from ..members.topic_lookup import check_listener
from .link import ClientLink, CommandFamily, CommandHandler

BYTES_SCHEMA_VERSION = bytes(8)
"""What Pulsar calls the schema of a topic whose only schema is that of bytes."""


class LookupCommands(CommandFamily):
    """Stateless but for its connection."""

    def __init__(self, connection: ClientLink) -> None:
        self._connection = connection

    def handlers(self) -> dict[int, CommandHandler]:
        return {
            BaseCommand.LOOKUP: self.lookup,
            BaseCommand.PARTITIONED_METADATA: self.partitioned_metadata,
            BaseCommand.GET_SCHEMA: self.schema,
            BaseCommand.GET_OR_CREATE_SCHEMA: self.get_or_create_schema,
        }

    def lookup(self, command: CommandLookupTopic) -> None:
        connection = self._connection

        async def answer() -> bytes:
            check_listener(command.advertised_listener_name)
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

    # -- schemas -------------------------------------------------------------------------------------------------

    def schema(self, command: CommandGetSchema) -> None:
        """For its version, the schema of bytes; else TopicNotFound, by which clients know a topic without schema."""
        if command.schema_version == BYTES_SCHEMA_VERSION:
            name = command.topic.partition("://")[2]
            answer = CommandGetSchemaResponse(
                request_id=command.request_id,
                schema=Schema(name=name, schema_data=b"", type=Schema.NoSchema),
                schema_version=BYTES_SCHEMA_VERSION,
            )
        else:
            error = TopicNotFound(f"Topic not found or no-schema {command.topic}")
            answer = CommandGetSchemaResponse(
                request_id=command.request_id,
                error_code=server_error_code(error),  # type: ignore[arg-type]
                error_message=str(error),
            )
        self._connection.write(encode(answer))

    def get_or_create_schema(self, command: CommandGetOrCreateSchema) -> None:
        """Nothing is to be kept for bytes, and nothing can be kept for others."""
        if command.schema.type == Schema.NoSchema:
            answer = CommandGetOrCreateSchemaResponse(request_id=command.request_id, schema_version=b"")
        else:
            kind = Schema.Type.Name(command.schema.type)
            error = NotAllowedError(f"schemas of type {kind} are not supported: this broker takes bytes only")
            answer = CommandGetOrCreateSchemaResponse(
                request_id=command.request_id,
                error_code=server_error_code(error),  # type: ignore[arg-type]
                error_message=str(error),
            )
        self._connection.write(encode(answer))


def _text(error: MagnetarError) -> str:
    """What the client is told. When a lookup gets ServiceNotReady, C++ and Python clients close the whole connection,
    unless they know the text from Pulsar.
    """
    not_ready = server_error_code(error) == ServerError.ServiceNotReady and not error.details.get("listener")
    return f"{error} (the topic is being unloaded)" if not_ready else str(error)
