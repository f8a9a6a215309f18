"""What `magnetar produce` does: it reads texts and files, and sends them in order, a window of them at a time.

With a schema, the contents are encoded already, as by Java's AUTO_PRODUCE_BYTES. They are checked before they are sent.
Only a text for an Avro schema is encoded here: it is the value as JSON.
Sending ends when the last message has its receipt, or with the first error. It says how many messages were stored.
"""

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from ...client.aio.client import AsyncClient
from ...client.aio.producer import AsyncProducer
from ...client.core.message_id import MessageId
from ...client.core.results import Result
from ...client.producing.partition_producer import Failing
from ...client.schemas.automatic import ProducedBytes
from ...client.schemas.avro_schema import AvroSchema
from ...client.schemas.key_value import KeyValueEncodingType, KeyValueSchema
from ...client.schemas.primitives import StringSchema
from ...client.schemas.schema import Schema, SchemaInfo
from ...protocol.errors import InvalidConfiguration, MagnetarError
from ...protocol.plain_values import is_text_map
from ...protocol.schema_types import SchemaType
from .addresses import ClientOptions
from .failures import errors
from .pacing import Pace, Tally, live

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Contents:
    """Messages to send, in order. With `pairs` the key is a part of the value."""

    payloads: Sequence[bytes]
    key: bytes | None = None
    properties: dict[str, str] = field(default_factory=dict[str, str])
    schema: Schema | None = None
    pairs: bool = False

    def value(self, payload: bytes) -> object:
        """What a producer with the schema takes."""
        return (self.key, payload) if self.pairs else payload

    @property
    def message_key(self) -> str | None:
        """The key of the message itself. Raises InvalidConfiguration for one that is no text."""
        if self.pairs or self.key is None:
            return None
        try:
            return self.key.decode()
        except UnicodeDecodeError:
            raise InvalidConfiguration("the key is no text in UTF-8: pass --key-value-encoding-type") from None


def payloads(texts: Iterable[str], files: Iterable[str], separator: str, value_schema: str) -> list[bytes]:
    """The texts, split at the separator, then the files. Raises InvalidConfiguration, OSError."""
    encode = _encoder(value_schema)
    parts = [part for text in texts for part in (text.split(separator) if separator else [text])]
    paths = [path for given in files for path in given.split(",")]
    return [encode(part) for part in parts] + [_file(path) for path in paths]


def properties_of(given: Iterable[str]) -> dict[str, str]:
    """`name=value`, several of them with commas. Raises InvalidConfiguration."""
    found: dict[str, str] = {}
    for pair in (pair for text in given for pair in text.split(",")):
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InvalidConfiguration(f"{pair!r} is not a property: write NAME=VALUE")
        found[name] = value
    return found


def schema_of(value: str, key: str, encoding: str | None) -> Schema | None:
    """The schema of a producer. Raises InvalidConfiguration."""
    found = _info(value)
    if encoding is None:
        return None if found is None else ProducedBytes(found)
    try:
        where = KeyValueEncodingType[encoding.upper()]
    except KeyError:
        raise InvalidConfiguration(
            f"--key-value-encoding-type is separated or inline, not {encoding!r}: choose one"
        ) from None
    return KeyValueSchema(ProducedBytes(_info(key)), ProducedBytes(found), where)


def _encoder(schema: str) -> "_Encode":
    name, _, definition = schema.partition(":")
    return _Encode(AvroSchema(None, _definition(schema, definition)) if name.lower() == "avro" else None)


@dataclass(frozen=True)
class _Encode:
    schema: Schema | None

    def __call__(self, text: str) -> bytes:
        if self.schema is None:
            return text.encode("utf-8", "surrogateescape")  # bytes of the command line that are no text
        try:
            return self.schema.encode(json.loads(text))
        except ValueError as error:
            raise InvalidConfiguration(f"a message for an Avro schema is its value as JSON: {error}") from None


def _info(schema: str) -> SchemaInfo | None:
    """What is registered; None for bytes."""
    name, _, definition = schema.partition(":")
    match name.lower():
        case "bytes":
            return None
        case "string":
            return StringSchema().info
        case "avro" | "json" as kind:
            _definition(schema, definition)
            return SchemaInfo("client", SchemaType[kind.upper()], definition.encode())
        case _:
            raise InvalidConfiguration(
                f"there is no schema {schema[:40]!r}: write bytes, string, avro:DEFINITION or json:DEFINITION"
            )


def _definition(schema: str, text: str) -> dict[str, object]:
    try:
        found = cast("object", json.loads(text))
    except ValueError as error:
        raise InvalidConfiguration(f"the definition in {schema[:40]!r} is no JSON: {error}") from None
    if not is_text_map(found):
        raise InvalidConfiguration(f"the definition in {schema[:40]!r} is no object: write an Avro record")
    return dict(found)


def _file(path: str) -> bytes:
    return sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()


WINDOW = 1_000
"""Messages without a receipt at a time."""


@dataclass(frozen=True)
class Sending:
    """What is sent, and how."""

    topic: str
    contents: Contents
    times: int
    rate: float
    options: dict[str, object]
    """Of the producer."""


async def send(service_url: str, sending: Sending, client_options: ClientOptions) -> None:
    """Send everything. Raises what creating the producer and the first failed message raise."""
    tally = Tally()
    try:
        async with AsyncClient(service_url, **client_options) as client:
            producer = await client.create_producer(
                sending.topic,
                schema=sending.contents.schema,
                max_pending_messages=WINDOW,
                **sending.options,  # type: ignore[arg-type]
            )
            async with live(tally, "produced", errors.print):
                await _send_all(producer, sending, tally)
            await producer.close()
    finally:
        print(f"{tally.messages} messages successfully produced", flush=True)


async def _send_all(producer: AsyncProducer, sending: Sending, tally: Tally) -> None:
    contents = sending.contents
    key, pace, window = contents.message_key, Pace(sending.rate), Window(WINDOW, tally)
    for _ in range(sending.times):
        for payload in contents.payloads:
            await pace.turn()
            receipt = await window.place(len(payload))
            producer.send_async(
                contents.value(payload), receipt, properties=contents.properties or None, partition_key=key
            )
    await window.drain(producer)


class Window:
    """Bounds the messages without a receipt, counts those that were stored, and keeps the first error."""

    def __init__(self, size: int, tally: Tally) -> None:
        self.tally = tally
        self.error: MagnetarError | None = None
        self._size = size
        self._places = asyncio.Semaphore(size)

    async def place(self, size_bytes: int) -> "Receipt":
        """Wait for a place; returns the callback of one message. Raises the first error."""
        await self._places.acquire()
        if self.error is not None:
            raise self.error
        return Receipt(self, size_bytes)

    async def drain(self, producer: AsyncProducer) -> None:
        """Wait until all have their receipts. Raises the first error."""
        await producer.flush()
        for _ in range(self._size):
            await self._places.acquire()
        if self.error is not None:
            raise self.error

    def free(self) -> None:
        self._places.release()


class Receipt(Failing):
    """The callback of one message."""

    __slots__ = ("_size_bytes", "_window")

    def __init__(self, window: Window, size_bytes: int) -> None:
        self._window = window
        self._size_bytes = size_bytes

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._window.tally.add(self._size_bytes)
        self._window.free()

    def fail(self, error: MagnetarError) -> None:
        if self._window.error is None:
            self._window.error = error
        self._window.free()
