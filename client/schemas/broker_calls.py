"""What a client asks brokers about schemas: GET_SCHEMA of any broker, GET_OR_CREATE_SCHEMA of the topic's owner.

Both are repeated with back-off while a failure may pass and the operation's time-out has not passed. An incompatible
schema is refused at once, with the broker's reason.
"""

from typing import NamedTuple

from ...protocol.errors import TopicNotFound, exception_for_server_error
from ...protocol.pulsar_pb2 import (
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchema,
    CommandGetSchemaResponse,
    Schema,
)
from ..core.connection import ClientConnection
from ..core.lookup import Lookup


class TopicSchema(NamedTuple):
    """A schema that a topic has, and its version as messages carry it."""

    schema: Schema
    version: bytes


async def fetch_schema(lookup: Lookup, topic: str, version: bytes | None = None) -> TopicSchema | None:
    """The schema of that version, or the latest; None if the topic has none.

    Raises what the broker says, or Timeout.
    """

    async def ask(connection: ClientConnection) -> TopicSchema | None:
        request_id = connection.next_request_id()
        command = CommandGetSchema(topic=topic, request_id=request_id)
        if version is not None:
            command.schema_version = version
        answer = await lookup.ask(connection, command, request_id, CommandGetSchemaResponse)
        if not answer.HasField("error_code"):
            return TopicSchema(answer.schema, answer.schema_version)
        error = exception_for_server_error(answer.error_code, answer.error_message)
        if isinstance(error, TopicNotFound):
            return None
        raise error

    return await lookup.at_any_broker(f"fetching the schema of {topic}", ask)


async def version_of_schema(lookup: Lookup, topic: str, schema: Schema) -> bytes:
    """The version of a schema in a topic that exists. The broker adds the schema if it is new and may be added.

    Raises IncompatibleSchema, TopicNotFound, what else the broker says, or Timeout.
    """

    async def ask() -> bytes:
        connection = await lookup.connection(topic)
        request_id = connection.next_request_id()
        command = CommandGetOrCreateSchema(topic=topic, request_id=request_id, schema=schema)
        answer = await lookup.ask(connection, command, request_id, CommandGetOrCreateSchemaResponse)
        if answer.HasField("error_code"):
            raise exception_for_server_error(answer.error_code, answer.error_message)
        return answer.schema_version

    return await lookup.retry(f"asking for the version of a schema of {topic}", ask)
