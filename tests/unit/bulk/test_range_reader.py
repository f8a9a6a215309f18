"""Reading splits from bookies over loopback: everything in order, or an error; a lost copy is read elsewhere."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from magnetar.bulk import range_reader
from magnetar.bulk.access import ClusterAccess
from magnetar.bulk.arrow_decoding import TimeWindow
from magnetar.bulk.message_table import COLUMNS
from magnetar.bulk.range_reader import RangeReader
from magnetar.bulk.read_plan import LedgerRange, ReadSplit
from magnetar.bulk.typed.choice import PAYLOADS, RowShape
from magnetar.protocol.batches import encode_batch
from magnetar.protocol.bookie_wire import (
    BookieOp,
    BookieStatus,
    decode_read,
    encode_entry_header,
    encode_read_answer,
)
from magnetar.protocol.compacted_entries import encode_compacted
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import EntryCorrupt, EntryUnknown, InvalidConfiguration, NoSuchEntry
from magnetar.protocol.message_id import WireMessageId
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import RpcConnection
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.rpc.server import RpcServer
from magnetar.storage.ledger.bookie_directory import BookieInfo
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from support.servers.open_rpc import OpenService

KEYS = RootKeys(b"s" * 32)
ACCESS = ClusterAccess("cluster", KEYS, ("127.0.0.1", 1))
TOPIC = "persistent://public/default/t"
BATCH = 10
Key = tuple[int, int]


class Bookie(OpenService):
    """Answers reads of range from a dictionary; counts them."""

    def __init__(self, env: Environment, bookie_id: str) -> None:
        self.entries: dict[Key, bytes] = {}
        self.reads = 0
        self.server = RpcServer(env, Identity("cluster", "bookie", bookie_id, "1"), KEYS, self, frame_size_max=8 << 20)

    def data_request(self, connection: RpcConnection, op: int, request_id: int, payload: bytes) -> None:
        assert op == BookieOp.READ
        self.reads += 1
        request = decode_read(payload)
        found: list[bytes] = []
        size = 0
        entry_id = request.first
        while entry_id <= request.last and (not found or size < request.bytes_max):
            entry = self.entries.get((request.ledger_id, entry_id))
            if entry is not None:
                found.append(entry)
                size += len(entry)
            entry_id += 1
        if found:
            connection.respond(request_id, BookieStatus.OK, encode_read_answer(entry_id, found))
        else:
            connection.respond(request_id, BookieStatus.NO_SUCH_ENTRY)


def body(ledger_id: int, entry_id: int) -> bytes:
    payloads = [b"%d:%d:%d" % (ledger_id, entry_id, index) for index in range(BATCH)]
    metadata = MessageMetadata(
        producer_name="p", sequence_id=entry_id * BATCH, publish_time=1000 + entry_id, num_messages_in_batch=BATCH
    )
    return build_entry(metadata, encode_batch(payloads))


def ledger(ledger_id: int, entries: int) -> LedgerMetadata:
    fragment = Fragment(0, ("bookie-1", "bookie-2"))
    return LedgerMetadata(ledger_id, 2, 2, 2, (fragment,), LedgerState.CLOSED, entries - 1, entries * 200)


class Harness:
    def __init__(self, env: Environment) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.bookies = [Bookie(env, "bookie-1"), Bookie(env, "bookie-2")]
        self.reader = RangeReader(env, ACCESS)
        self.directory: list[BookieInfo] = []

    def store(self, ledger_id: int, entries: int) -> None:
        for entry_id in range(entries):
            stored = body(ledger_id, entry_id)
            entry = encode_entry_header(ledger_id, 0, entry_id, -1, 0, stored) + stored
            for bookie in self.bookies:
                bookie.entries[ledger_id, entry_id] = entry

    async def read(
        self, *ranges: LedgerRange, window: TimeWindow | None = None, columns: Sequence[str] = COLUMNS
    ) -> pa.Table:
        split = ReadSplit(TOPIC, -1, window or TimeWindow(), ranges)
        self.batches = [batch async for batch in self.reader.read(split, self.directory, RowShape(tuple(columns)))]
        return pa.Table.from_batches(self.batches)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    env = Environment.real()
    made = Harness(env)
    for number, bookie in enumerate(made.bookies, 1):
        host, port = await bookie.server.start("127.0.0.1", 0)
        made.directory.append(BookieInfo(f"bookie-{number}", host, port))
    yield made
    await made.reader.close()
    for bookie in made.bookies:
        await bookie.server.close()
    env.close()


def values(ledger_id: int, first: int, last: int) -> list[bytes]:
    return [b"%d:%d:%d" % (ledger_id, entry, index) for entry in range(first, last + 1) for index in range(BATCH)]


async def test_ranges_of_several_ledgers_come_in_order(harness: Harness) -> None:
    harness.store(5, 40)
    harness.store(8, 3)
    table = await harness.read(LedgerRange(ledger(5, 40), 7, 39), LedgerRange(ledger(8, 3), 0, 1))
    assert table["value"].to_pylist() == values(5, 7, 39) + values(8, 0, 1)
    assert len(harness.batches) == 1


async def test_bounds_inside_batches_apply_to_the_first_and_last_entry_only(harness: Harness) -> None:
    harness.store(5, 4)
    table = await harness.read(LedgerRange(ledger(5, 4), 1, 3, first_batch_index=4, last_batch_index=2))
    assert table["value"].to_pylist() == values(5, 1, 3)[4:-7]
    assert table["__messageId"][0].as_py() == WireMessageId(5, 1, -1, 4, BATCH).serialize()


async def test_entries_of_a_compacted_ledger_have_the_ids_that_they_had_in_the_topic(harness: Harness) -> None:
    for entry_id in range(6):
        stored = encode_compacted((3, 10 * entry_id), body(3, 10 * entry_id))
        entry = encode_entry_header(5, 0, entry_id, -1, 0, stored) + stored
        for bookie in harness.bookies:
            bookie.entries[5, entry_id] = entry
    between = (WireMessageId(3, 10, -1, 8), WireMessageId(3, 30, -1, 0))
    table = await harness.read(LedgerRange(ledger(5, 6), 0, 5, compacted_between=between))
    wanted = [(10, 8), (10, 9), *((20, index) for index in range(BATCH)), (30, 0)]
    assert table["value"].to_pylist() == [b"3:%d:%d" % one for one in wanted]
    ids = [WireMessageId.deserialize(one) for one in table["__messageId"].to_pylist()]
    assert [(one.ledger_id, one.entry_id, one.batch_index) for one in ids] == [(3, *one) for one in wanted]


async def test_large_splits_become_several_batches(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "BATCH_SIZE_BYTES", 4000)
    harness.store(5, 60)
    table = await harness.read(LedgerRange(ledger(5, 60), 0, 59))
    assert table["value"].to_pylist() == values(5, 0, 59)
    assert len(harness.batches) > 5


async def test_a_window_may_leave_nothing_and_then_there_is_no_batch(harness: Harness) -> None:
    harness.store(5, 4)
    split = ReadSplit(TOPIC, -1, TimeWindow(1, 2), (LedgerRange(ledger(5, 4), 0, 3),))
    assert [batch async for batch in harness.reader.read(split, harness.directory)] == []


@pytest.mark.parametrize(
    "columns", [("__publishTime",), ("__key", "__messageId"), ("value",), tuple(reversed(COLUMNS))]
)
async def test_columns_that_are_asked_for_are_those_of_a_whole_read(harness: Harness, columns: tuple[str, ...]) -> None:
    harness.store(5, 4)
    part = LedgerRange(ledger(5, 4), 1, 3, first_batch_index=4, last_batch_index=2)
    whole = await harness.read(part)
    assert (await harness.read(part, columns=columns)).equals(whole.select(columns))


async def test_a_column_that_does_not_exist_is_refused(harness: Harness) -> None:
    harness.store(5, 1)
    with pytest.raises(InvalidConfiguration, match="no column 'valeu': choose from value, __key"):
        await harness.read(LedgerRange(ledger(5, 1), 0, 0), columns=("valeu",))


async def test_a_copy_that_is_lost_or_damaged_is_read_from_the_other_bookie(harness: Harness) -> None:
    harness.store(5, 30)
    for entry_id in range(10, 20):
        del harness.bookies[0].entries[5, entry_id]
        damaged = bytearray(harness.bookies[1].entries[5, entry_id - 10])
        damaged[-1] ^= 1
        harness.bookies[1].entries[5, entry_id - 10] = bytes(damaged)
    table = await harness.read(LedgerRange(ledger(5, 30), 0, 29))
    assert table["value"].to_pylist() == values(5, 0, 29)


async def test_a_missing_entry_ends_the_read(harness: Harness) -> None:
    harness.store(5, 30)
    for bookie in harness.bookies:
        del bookie.entries[5, 17]
    with pytest.raises(NoSuchEntry, match="5:17"):
        await harness.read(LedgerRange(ledger(5, 30), 0, 29))


async def test_an_entry_damaged_everywhere_ends_the_read(harness: Harness) -> None:
    harness.store(5, 3)
    for bookie in harness.bookies:
        damaged = bytearray(bookie.entries[5, 2])
        damaged[-1] ^= 1
        bookie.entries[5, 2] = bytes(damaged)
    with pytest.raises(EntryCorrupt):
        await harness.read(LedgerRange(ledger(5, 3), 0, 2))


async def test_bookies_out_of_reach_are_an_error_that_may_pass_and_new_addresses_help(harness: Harness) -> None:
    harness.store(5, 3)
    listed = harness.directory
    harness.directory = [BookieInfo("bookie-1", "127.0.0.1", 9), BookieInfo("bookie-2", "127.0.0.1", 9)]
    with pytest.raises(EntryUnknown) as caught:
        await harness.read(LedgerRange(ledger(5, 3), 0, 2))
    assert caught.value.retriable
    harness.directory = listed
    assert (await harness.read(LedgerRange(ledger(5, 3), 0, 2))).num_rows == 30


def test_the_secret_is_not_shown() -> None:
    assert "ssss" not in repr(ACCESS)


async def test_a_patient_read_gives_each_batch_once_whatever_attempts_it_takes(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "BATCH_SIZE_BYTES", 4000)
    harness.store(5, 60)
    split, read, attempts = (
        ReadSplit(TOPIC, -1, TimeWindow(), (LedgerRange(ledger(5, 60), 0, 59),)),
        RangeReader.read,
        0,
    )

    async def interrupted(self: RangeReader, *arguments: Any) -> AsyncIterator[pa.RecordBatch]:
        nonlocal attempts
        attempts += 1
        given = 0
        async for batch in read(self, *arguments):
            if given == attempts < 4:
                raise EntryUnknown("the bookie restarts")
            given += 1
            yield batch

    async def locate() -> list[BookieInfo]:
        return harness.directory

    monkeypatch.setattr(RangeReader, "read", interrupted)
    batches = [batch async for batch in harness.reader.read_patiently(split, locate, PAYLOADS, 30.0)]
    assert pa.Table.from_batches(batches)["value"].to_pylist() == values(5, 0, 59)
    assert attempts == 4
    attempts = 1
    with pytest.raises(EntryUnknown):
        _ = [batch async for batch in harness.reader.read_patiently(split, locate, PAYLOADS, 0.0)]
