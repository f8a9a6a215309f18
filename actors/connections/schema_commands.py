"""What a client asks about schemas: GET_SCHEMA, GET_OR_CREATE_SCHEMA.

Every refusal has the type of answer that the client waits for. C++ and Python clients do not match an ERROR to a schema
request, and would wait for their time-out.
"""

from typing import TYPE_CHECKING

from ...protocol.commands import encode
from ...protocol.errors import IncompatibleSchema, InvalidTopicName, MagnetarError, TopicNotFound, server_error_code
from ...protocol.pulsar_pb2 import (
    BaseCommand,
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchema,
    CommandGetSchemaResponse,
)
from ...protocol.schema_types import SchemaType
from ...protocol.topics import TopicName
from ..schemas.definition import VERSION, SchemaDefinition
from ..security.authorization import PRODUCE, TOPIC_USER
from .link import CommandFamily, Guarded, of_topic
from .topic_schemas import schema_of_producer

if TYPE_CHECKING:
    from .connection import ServerConnection


class SchemaCommands(CommandFamily):
    """Stateless but for its connection."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection

    def handlers(self) -> dict[int, Guarded]:
        return {
            BaseCommand.GET_SCHEMA: of_topic(TOPIC_USER, self.schema),
            BaseCommand.GET_OR_CREATE_SCHEMA: of_topic(PRODUCE, self.get_or_create_schema),
        }

    def schema(self, command: CommandGetSchema) -> None:
        """The schema of a version, or the latest. TopicNotFound is what clients know a topic without schema by."""

        def failed(error: MagnetarError) -> None:
            self._connection.write(
                encode(
                    CommandGetSchemaResponse(
                        request_id=command.request_id,
                        error_code=server_error_code(error),  # type: ignore[arg-type]
                        error_message=str(error),
                    )
                )
            )

        self._connection.start(self._schema(command), "schema", failed)

    async def _schema(self, command: CommandGetSchema) -> bytes:
        number: int | None = None
        if command.HasField("schema_version"):
            if len(command.schema_version) < VERSION.size:
                text = "a schema version has 8 bytes" if command.schema_version else "Empty schema version"
                raise IncompatibleSchema(text)
            (number,) = VERSION.unpack_from(command.schema_version)
        topic, schemas = TopicName.parse(command.topic), self._connection.host.schemas
        found = await (schemas.latest(topic) if number is None else schemas.version(topic, number))
        if found is None:
            raise TopicNotFound(f"Topic not found or no-schema {command.topic}")
        name = topic.without_partition().path.partition("/")[2]
        return encode(
            CommandGetSchemaResponse(
                request_id=command.request_id,
                schema=found.definition.to_wire(name),
                schema_version=VERSION.pack(found.version),
            )
        )

    def get_or_create_schema(self, command: CommandGetOrCreateSchema) -> None:
        """The version of a schema, which is added as a producer with this schema would add it."""

        def failed(error: MagnetarError) -> None:
            if isinstance(error, InvalidTopicName):
                error = TopicNotFound(str(error))
            self._connection.write(
                encode(
                    CommandGetOrCreateSchemaResponse(
                        request_id=command.request_id,
                        error_code=server_error_code(error),  # type: ignore[arg-type]
                        error_message=str(error),
                    )
                )
            )

        self._connection.start(self._get_or_create(command), "get or create schema", failed)

    async def _get_or_create(self, command: CommandGetOrCreateSchema) -> bytes:
        self._connection.audit("getOrCreateSchema", command.topic)
        host = self._connection.host
        definition = SchemaDefinition.of_wire(command.schema)
        topic = await host.topics.get(TopicName.parse(command.topic), create=False)
        wanted = definition if definition.type is not SchemaType.NONE else None
        version = await schema_of_producer(host.schemas, topic, wanted)
        return encode(CommandGetOrCreateSchemaResponse(request_id=command.request_id, schema_version=version))
