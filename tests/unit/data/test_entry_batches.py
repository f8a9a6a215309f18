"""What a reader makes of the entries that it receives, also when they come again, in parts or damaged."""

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bulk.decryption import NO_KEYS
from magnetar.bulk.typed.choice import PAYLOADS
from magnetar.client.consuming.entry_feed import EntryFeed
from magnetar.client.consuming.message import ReceivedEntry
from magnetar.client.core.configuration import InitialPosition
from magnetar.data.entry_batches import EntryBatches, FollowOrder
from magnetar.data.positions import Marks, RowPlace
from magnetar.protocol.batches import encode_batch
from magnetar.protocol.errors import ChecksumError, EntryCorrupt
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.runtime.environment import Environment

TOPIC = "persistent://public/default/t-partition-0"


class Feed(EntryFeed):
    """Entries in the order in which the broker delivers them; then it ends with an error, or waits."""

    def __init__(self, entries: list[ReceivedEntry], end: Exception | None = None) -> None:
        self.entries = deque(entries)
        self._end = end

    def take(self) -> ReceivedEntry | None:
        return self.entries.popleft() if self.entries else None

    def first_chunk(self, topic: str) -> Position | None:
        return min([one.chunks[0].position for one in self.entries if one.chunks], default=None)

    async def receive(self) -> ReceivedEntry:
        if self.entries:
            return self.entries.popleft()
        if self._end is not None:
            raise self._end
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing sets that future")


@pytest.fixture
def env() -> Iterator[Environment]:
    made = Environment.real(threads_max=1)
    yield made
    made.close()


def batch(entry_id: int, count: int, ack_set: tuple[int, ...] = ()) -> ReceivedEntry:
    header = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count)
    payload = encode_batch([f"{entry_id}:{index}".encode() for index in range(count)])
    return ReceivedEntry(TOPIC, 0, 5, entry_id, header, payload, ack_set=ack_set)


def single(entry_id: int) -> ReceivedEntry:
    header = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return ReceivedEntry(TOPIC, 0, 5, entry_id, header, str(entry_id).encode())


def chunked(*entry_ids: int) -> ReceivedEntry:
    """A message whose chunks have these entries."""
    text = "-".join(map(str, entry_ids)).encode()
    parts: list[ReceivedEntry] = []
    for number, entry_id in enumerate(entry_ids):
        header = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uuid=f"p-{entry_ids[0]}")
        header.chunk_id, header.num_chunks_from_msg, header.total_chunk_msg_size = number, len(entry_ids), len(text)
        payload = text if number == 0 else b""
        parts.append(ReceivedEntry(TOPIC, 0, 5, entry_id, header, payload))
    parts[-1].chunks = tuple(parts)
    return parts[-1]


def order(rows: int | None = None, wait_s: float | None = 0.0, behind: Marks | None = None) -> FollowOrder:
    return FollowOrder(
        (TOPIC,), "s", PAYLOADS, NO_KEYS, rows, wait_s, 10, InitialPosition.Earliest, behind or {}, True, None, None
    )


def collect(env: Environment, feed: Feed, wanted: FollowOrder) -> list[tuple[list[str], RowPlace]]:
    """Batches until the feed ends: values, and the place of the last one."""
    found: list[tuple[list[str], RowPlace]] = []

    async def run() -> None:
        batches = EntryBatches(env, feed, wanted)
        while True:
            table, marks = await batches.next()
            values = [value.decode() for value in table.column("value").to_pylist()]
            found.append((values, marks[TOPIC]))

    with pytest.raises(ChecksumError, match="the end"):
        asyncio.run(run())
    return found


def values(found: list[tuple[list[str], RowPlace]]) -> list[str]:
    return [value for batch_values, _ in found for value in batch_values]


END = ChecksumError("the end")


def test_batches_have_their_size_and_end_inside_entries(env: Environment) -> None:
    feed = Feed([batch(0, 3), single(1), batch(2, 5)], END)
    assert collect(env, feed, order(4)) == [
        (["0:0", "0:1", "0:2", "1"], RowPlace(5, 1, -1, 0)),
        (["2:0", "2:1", "2:2", "2:3"], RowPlace(5, 2, 3, 5)),
        (["2:4"], RowPlace(5, 2, -1, 5)),
    ]


def test_places_name_the_first_chunk_of_a_message_whose_row_lies_behind(env: Environment) -> None:
    feed = Feed([single(1), single(3), chunked(0, 2, 4), chunked(5, 6), single(8), chunked(7, 9), single(10)], END)
    assert collect(env, feed, order(1)) == [
        (["1"], RowPlace(5, 1, -1, 0, (5, 0))),
        (["3"], RowPlace(5, 3, -1, 0, (5, 0))),
        (["0-2-4"], RowPlace(5, 4)),
        (["5-6"], RowPlace(5, 6)),
        (["8"], RowPlace(5, 8, -1, 0, (5, 7))),
        (["7-9"], RowPlace(5, 9)),
        (["10"], RowPlace(5, 10)),
    ]


def test_what_lies_behind_a_chunk_that_is_not_here_is_not_acknowledged(env: Environment) -> None:
    batches = EntryBatches(env, Feed([]), order())
    assert batches.acknowledged_by(TOPIC, RowPlace(5, 3)) == RowPlace(5, 3)
    assert batches.acknowledged_by(TOPIC, RowPlace(5, 3, chunks_from=(5, 1))) == RowPlace(5, 0)
    assert batches.acknowledged_by(TOPIC, RowPlace(5, 3, chunks_from=(5, 0))) == RowPlace(5, -1)
    batches = EntryBatches(env, Feed([chunked(1, 4)]), order())
    assert batches.acknowledged_by(TOPIC, RowPlace(5, 3, chunks_from=(5, 1))).position == (5, 3)


moves = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=6)
"""Of each connection: where the broker goes back to, and how many new entries it delivers."""


@settings(max_examples=60, deadline=None)
@given(moves, st.integers(1, 9), st.integers(0, 14))
def test_what_is_delivered_again_comes_once(moved: list[tuple[int, int]], rows_max: int, begin: int) -> None:
    sizes = [number % 3 + 1 for number in range(8)]
    wanted = [f"{number}:{index}" for number, size in enumerate(sizes) for index in range(size)]

    def delivered() -> list[ReceivedEntry]:
        found: list[int] = []
        reached = 0
        for back, more in [*moved, (8, 8)]:
            start, reached = min(back, reached), min(reached + more, 8)
            found += range(start, reached)
        return [batch(number, sizes[number]) for number in found]

    made = Environment.real(threads_max=1)
    try:
        assert values(collect(made, Feed(delivered(), END), order(rows_max))) == wanted
        number, index = map(int, wanted[begin].split(":"))
        behind = {TOPIC: RowPlace(5, number, index)}
        assert values(collect(made, Feed(delivered(), END), order(rows_max, behind=behind))) == wanted[begin + 1 :]
    finally:
        made.close()


@given(st.sets(st.integers(0, 99), min_size=1))
@settings(max_examples=30, deadline=None)
def test_of_a_batch_comes_what_is_not_acknowledged(still: set[int]) -> None:
    words = tuple(sum(1 << one - 64 * word for one in still if one // 64 == word) for word in (0, 1))
    made = Environment.real(threads_max=1)
    try:
        found = collect(made, Feed([batch(3, 100, words)], END), order(7))
    finally:
        made.close()
    assert values(found) == [f"3:{index}" for index in sorted(still)]
    for batch_values, place in found[:-1]:
        assert (place.batch_index, place.batch_size) == (int(batch_values[-1].split(":")[1]), 100)
    assert found[-1][1] == RowPlace(5, 3, -1, 100)


@given(st.sets(st.integers(0, 69), min_size=1), st.integers(0, 69))
@settings(max_examples=30, deadline=None)
def test_of_a_batch_comes_what_is_neither_acknowledged_nor_behind(still: set[int], index: int) -> None:
    words = tuple(sum(1 << one - 64 * word for one in still if one // 64 == word) for word in (0, 1))
    made = Environment.real(threads_max=1)
    try:
        feed = Feed([batch(3, 70, words), batch(4, 1)], END)
        found = collect(made, feed, order(9, behind={TOPIC: RowPlace(5, 3, index)}))
    finally:
        made.close()
    assert values(found) == [*(f"3:{one}" for one in sorted(still) if one > index), "4:0"]


def test_rows_before_a_damaged_entry_leave_first_and_none_behind_it(env: Environment) -> None:
    damaged = batch(1, 2)
    damaged.payload = b"\xff" * 40

    async def run() -> None:
        batches = EntryBatches(env, Feed([batch(0, 2), damaged, batch(2, 2)]), order())
        table, marks = await batches.next()
        assert table.column("value").to_pylist() == [b"0:0", b"0:1"] and marks == {TOPIC: RowPlace(5, 0, -1, 2)}
        for _ in range(2):
            with pytest.raises(EntryCorrupt, match="entry 5:1"):
                await batches.next()

    asyncio.run(run())


def test_a_chunk_without_the_others_is_refused(env: Environment) -> None:
    lone = single(0)
    lone.metadata.num_chunks_from_msg = 3
    with pytest.raises(EntryCorrupt, match="one chunk of a larger message"):
        asyncio.run(EntryBatches(env, Feed([lone]), order()).next())


def test_a_batch_without_a_time_waits_until_it_is_full(env: Environment) -> None:
    async def run() -> None:
        feed = Feed([batch(0, 2)])
        batches = EntryBatches(env, feed, order(4, None))
        waiting = asyncio.ensure_future(batches.next())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done() and not feed.entries
        waiting.cancel()

    asyncio.run(run())
