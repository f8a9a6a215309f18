"""Target: the records of the metadata store, read back from any bytes."""

import copy
from collections.abc import Callable
from dataclasses import asdict
from random import Random
from typing import Any, cast

import msgpack

from magnetar.protocol.errors import CookieMismatch, MetadataError
from magnetar.runtime.rpc.messages import pack, unpack
from magnetar.storage.bookie.cookie import Cookie, claim_directory
from magnetar.storage.managed.cursor_storage import CursorKind, CursorRecord
from magnetar.storage.managed.pins import PinRecord, Pins
from magnetar.storage.managed.record import LedgerInfo, ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.storage.metadata.schema_record import SchemaRecord, StoredSchema
from support.stores.memory_store import MemoryMetadataStore

from .loop import make_env, run
from .mutation import make_odd, mutate
from .target import Target, Wrong, quietly

_LEDGER = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(9, ("b1", "b4", "b3"))),
    state=LedgerState.CLOSED,
    last_entry=20,
    length=1000,
)
_TOPIC = ManagedLedgerRecord(3, (LedgerInfo(7, 1, 21, 1000, True, 5), LedgerInfo(8, 2, 0, 0, False, 0)), (5, 6), 8, 2)
_CURSORS = [
    CursorRecord(3, 9, None),
    CursorRecord(3, None, b"state"),
    CursorRecord(3, None, b"", CursorKind.COMPACTION),
    CursorRecord(3, 9, None, beside=(11, 12)),
]
_COOKIE = Cookie("b1", "c", "0123456789abcdef")
_PIN = PinRecord((7, 8), 60_000)
_SCHEMA = SchemaRecord(
    (StoredSchema(0, 4, b"first", b"mark", 7, {"a": "b"}), StoredSchema(1, 0, b"", b"", 9, deleted=True))
)


def _take_record(read: Callable[[bytes], Any], data: bytes) -> None:
    """A record comes out, and packs again to the same meaning, or MetadataError."""
    record: Any = quietly(read, data, allowed=(MetadataError,))
    if record is not None:
        try:
            again = read(record.pack())
        except (OverflowError, msgpack.PackOverflowError):
            return  # numbers above 64 bits cannot come from bytes in the first place
        if again != record:
            raise Wrong("a record is not what it was")


def _read_cursor(data: bytes) -> CursorRecord:
    record = CursorRecord.unpack(data)
    if type(record.ledger_id) not in (int, type(None)) or type(record.state) not in (bytes, type(None)):
        raise Wrong(f"no such cursor can be opened: {record}")
    return record


async def _take_pin(data: bytes) -> None:
    """A pin that cannot be read keeps everything from being trimmed; it is not passed over."""
    store = MemoryMetadataStore()
    await store.put(metadata_keys.pin("t", "p"), data, None)
    try:
        pinned = await Pins(make_env(), store, "t").pinned()
    except MetadataError:
        return
    if not all(type(ledger_id) is int for ledger_id in pinned.ledger_ids):
        raise Wrong(f"pinned are {pinned}")


async def _take_cookie(data: bytes) -> None:
    """An empty directory never takes the place of a bookie that the metadata knows, however badly."""
    store = MemoryMetadataStore()
    await store.put(metadata_keys.bookie("b1"), data, None)
    try:
        await claim_directory(make_env(), "/b", "b1", "c", store)
    except (CookieMismatch, MetadataError):
        return
    raise Wrong("a bookie began again although it is known")


_RECORDS: list[tuple[Callable[[bytes], None], list[bytes]]] = [
    (lambda data: _take_record(LedgerMetadata.unpack, data), [_LEDGER.pack()]),
    (lambda data: _take_record(ManagedLedgerRecord.unpack, data), [_TOPIC.pack()]),
    (lambda data: _take_record(_read_cursor, data), [record.pack() for record in _CURSORS]),
    (lambda data: run(_take_pin(data)), [_PIN.pack()]),
    (lambda data: _take_record(SchemaRecord.unpack, data), [_SCHEMA.pack()]),
    (lambda data: run(_take_cookie(data)), [pack(asdict(_COOKIE))]),
]


def make(random: Random) -> bytes:
    which = random.randrange(len(_RECORDS))
    data = random.choice(_RECORDS[which][1])
    if random.random() < 0.6:
        value = copy.deepcopy(unpack(data))
        make_odd(value, random)
        data = pack_odd(value)
    return bytes([which]) + (mutate(data, random) if random.random() < 0.5 else data)


def pack_odd(value: Any) -> bytes:
    """msgpack of anything, also of text that is no UTF-8."""
    return cast(bytes, msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape"))


def take(data: bytes) -> None:
    if data:
        _RECORDS[data[0] % len(_RECORDS)][0](data[1:])


TARGETS = [Target("records", make, take)]
