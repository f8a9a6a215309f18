"""The admin's paths of schemas, `/admin/v2/schemas/…`.

Any live broker reads and writes schemas, so the first that answers is asked. Statuses and bodies are Pulsar's 4.2.4,
with these exceptions. A wrong request is refused with 422 or 400, where Pulsar answers 500: no such type, no schema in
the body, a version that is no number. `compatibility` answers 409 or 422 for an incompatible or
invalid schema, where Pulsar answers 500. `metadata` names no ledgers: schemas are not stored in ledgers.
"""

import json
from collections.abc import Mapping
from typing import cast

from aiohttp import web

from ...protocol.errors import InvalidSchema, TopicNotFound
from ...protocol.plain_values import is_text_map
from ...protocol.schema_types import SchemaType
from ...protocol.topics import TopicName
from ..members.contracts_broker import SchemaRow
from ..schemas.definition import (
    AVRO_TYPES,
    SchemaDefinition,
    key_and_value,
    pack_parts,
    type_named,
)
from ..security.authorization import PRODUCE, TOPIC_ADMIN, TOPIC_USER
from .requests import Owners, flag, json_answer, json_body, topic_of
from .routes import FLAG, FORCE, TEXT, WHOLE, Route, ValueSchema, delete, get, post
from .shapes import list_of, map_of, object_of

NO_PLACE = {"ledgerId": -1, "entryId": -1}

SCHEMA = object_of(version=WHOLE, type=TEXT, timestamp=WHOLE, data=TEXT, properties=map_of(TEXT))
DEFINITION: ValueSchema = {
    "type": "object",
    "properties": {"type": TEXT, "schema": TEXT, "properties": {"type": "object"}},
    "required": ["type", "schema"],
}
_PLACE = object_of(ledgerId=WHOLE, entryId=WHOLE, version=WHOLE)
METADATA = object_of(info=_PLACE, index=list_of(_PLACE))
COMPATIBILITY = object_of(schemaCompatibilityStrategy=TEXT, compatibility=FLAG)


class SchemaRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def routes(self) -> list[Route]:
        topic = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
        return [
            get(TOPIC_USER, topic + "/schema", self.latest, SCHEMA),
            post(PRODUCE, topic + "/schema", self.put, DEFINITION, answer=object_of(version=object_of(version=WHOLE))),
            delete(TOPIC_ADMIN, topic + "/schema", self.delete, query=(FORCE,), answer=object_of(version=WHOLE)),
            get(TOPIC_USER, topic + "/schema/{version}", self.version, SCHEMA),
            get(TOPIC_USER, topic + "/schemas", self.versions, object_of(getSchemaResponses=list_of(SCHEMA))),
            get(TOPIC_USER, topic + "/metadata", self.metadata, METADATA, may_be_empty=True),
            post(
                TOPIC_USER, topic + "/compatibility", self.compatibility, DEFINITION, answer=COMPATIBILITY, status=202
            ),
            post(TOPIC_USER, topic + "/version", self.find, DEFINITION, answer=object_of(version=WHOLE)),
        ]

    async def latest(self, request: web.Request) -> web.Response:
        """Return the latest schema of a topic: version, type, time, data and properties."""
        found = await self._rows(topic_of(request))
        if not found:
            raise TopicNotFound("Schema not found")
        return json_answer(_shown(found[-1]))

    async def version(self, request: web.Request) -> web.Response:
        """Return one version of a topic's schema."""
        text = request.match_info["version"]
        try:
            number = int(text)
        except ValueError:
            raise web.HTTPBadRequest(text=f"a version is a whole number, not {text[:40]!r}") from None
        for row in await self._rows(topic_of(request)):
            if row.version == number:
                return json_answer(_shown(row))
        raise TopicNotFound("Schema not found")

    async def versions(self, request: web.Request) -> web.Response:
        """Return all versions of a topic's schema since the last deletion, oldest first."""
        return json_answer({"getSchemaResponses": [_shown(row) for row in await self._rows(topic_of(request))]})

    async def metadata(self, request: web.Request) -> web.Response:
        """Return the numbers of the versions. The body is empty if there are none."""
        places = [{**NO_PLACE, "version": row.version} for row in await self._rows(topic_of(request))]
        return json_answer({"info": places[-1], "index": places}) if places else web.Response()

    async def put(self, request: web.Request) -> web.Response:
        """Add a schema. Body: `{"type": …, "schema": …, "properties": {…}}`. The answer is its version."""
        topic, new = topic_of(request).full, await _definition(request)
        version = await self._owners.ask_any(
            lambda broker: broker.put_schema(
                topic=topic, type=int(new.type), data=new.data, properties=dict(new.properties)
            )
        )
        return json_answer({"version": {"version": version}})

    async def delete(self, request: web.Request) -> web.Response:
        """Delete all versions; `force=true` lets versions begin with 0 again. The answer is the deletion's version."""
        topic, force = topic_of(request).full, flag(request, "force")
        version = await self._owners.ask_any(lambda broker: broker.delete_schemas(topic=topic, force=force))
        return json_answer({"version": version})

    async def compatibility(self, request: web.Request) -> web.Response:
        """Tell whether a topic may get a schema, and by which strategy. Body: as for adding it."""
        topic, new = topic_of(request).full, await _definition(request)
        strategy = await self._owners.ask_any(
            lambda broker: broker.check_schema(
                topic=topic, type=int(new.type), data=new.data, properties=dict(new.properties)
            )
        )
        return json_answer({"schemaCompatibilityStrategy": strategy, "compatibility": True}, status=202)

    async def find(self, request: web.Request) -> web.Response:
        """Return the version that has exactly this schema, -1 for none. Body: as for adding it."""
        topic, wanted = topic_of(request).full, await _definition(request)
        version = await self._owners.ask_any(
            lambda broker: broker.find_schema(topic=topic, type=int(wanted.type), data=wanted.data)
        )
        return json_answer({"version": version})

    async def _rows(self, topic: TopicName) -> list[SchemaRow]:
        return await self._owners.ask_any(lambda broker: broker.schemas(topic=topic.full))


async def _definition(request: web.Request) -> SchemaDefinition:
    """The schema in a body. Raises HTTP 400, and IncompatibleSchema for what is no schema."""
    body = await json_body(request)
    if not is_text_map(body):
        raise web.HTTPBadRequest(text='the body is an object: {"type": …, "schema": …, "properties": {…}}')
    name, text, properties = body.get("type"), body.get("schema"), body.get("properties")
    if not isinstance(name, str) or not isinstance(text, str):
        raise web.HTTPUnprocessableEntity(text="the body lacks type or schema: both are texts")
    of = type_named(name)
    if properties is not None and not is_text_map(properties):
        raise web.HTTPBadRequest(text="properties is an object of texts")
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (properties or {}).items()}
    data = _packed_parts(text) if of is SchemaType.KEY_VALUE else text.encode(errors="replace")
    return SchemaDefinition(of, data, texts)


def _packed_parts(text: str) -> bytes:
    """The data of a KEY_VALUE schema from the JSON that Pulsar's tools send: an object with both definitions."""
    try:
        parts = cast("object", json.loads(text))
    except (ValueError, RecursionError):
        parts = None
    if not is_text_map(parts) or "key" not in parts or "value" not in parts:
        raise InvalidSchema("the schema of type KEY_VALUE is no object with key and value")
    return pack_parts(_part(parts["key"]), _part(parts["value"]))


def _part(value: object) -> bytes:
    return b"" if value == "" else json.dumps(value, separators=(",", ":")).encode()


def _shown(row: SchemaRow) -> Mapping[str, object]:
    schema = SchemaDefinition(SchemaType(row.type), row.data, row.properties)
    if schema.type is SchemaType.KEY_VALUE:
        key, value = (_shown_part(part) for part in key_and_value(schema))
        data = json.dumps({"key": key, "value": value}, separators=(",", ":"))
    else:
        data = row.data.decode(errors="replace")
    return {
        "version": row.version,
        "type": schema.type.name,
        "timestamp": row.created_ms,
        "data": data,
        "properties": row.properties,
    }


def _shown_part(part: SchemaDefinition) -> object:
    if part.type not in AVRO_TYPES and part.type is not SchemaType.PROTOBUF_NATIVE:
        return ""
    try:
        return cast("object", json.loads(part.data))
    except (ValueError, RecursionError):
        return part.data.decode(errors="replace")
