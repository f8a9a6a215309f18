"""Messages in chunks: whatever splits and bounds a read has, its rows are what a consumer gets that starts there."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bulk import chunks, look_back, range_reader, read_plan
from magnetar.bulk.arrow_decoding import TimeWindow
from magnetar.bulk.decryption import ReadKeys
from magnetar.bulk.read_plan import Bounds, PartitionPlan, parse_bounds, split_by_size
from magnetar.bulk.typed.columns import COLUMNS
from magnetar.client.core.message_id import MessageId
from magnetar.client.crypto.encryption import MessageEncryptor
from magnetar.client.crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader
from magnetar.protocol.compacted_entries import encode_compacted
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import EntryCorrupt, MessageTooBig, NoSuchEntry
from magnetar.protocol.message_id import Position, WireMessageId
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.clients.plain_reading import messages_of, rows_of
from support.files.key_files import write_key_files
from support.stores.entries_of_producers import chunks_of, random_log
from support.stores.topic_in_memory import LedgersInMemory, RangeReaderInMemory

TOPIC = "persistent://public/default/films-partition-2"
PARTITION = 2
EVERYTHING = Bounds()
PLAIN = build_entry(MessageMetadata(producer_name="q", sequence_id=1, publish_time=1), b"plain")


class StoredLog:
    """A log in ledgers, the last of which may be open; perhaps with its beginning in a compacted ledger."""

    def __init__(self, env: Environment, bodies: list[bytes], cuts: list[int], *, compacted: int = 0) -> None:
        self.store = LedgersInMemory()
        self.reader = RangeReaderInMemory(env, self.store)
        self.log: list[tuple[Position, bytes]] = []
        self.ledgers: list[LedgerMetadata] = []
        ends = sorted({*cuts, len(bodies)})
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            part = bodies[start:end]
            self.ledgers.append(self.store.store(10 + 3 * number, part, closed=end < len(bodies)))
            self.log += [((10 + 3 * number, entry_id), body) for entry_id, body in enumerate(part)]
        self.first = self.log[compacted][0] if compacted < len(self.log) else (self.log[-1][0][0], 1 << 20)
        self.compacted = None
        if compacted:
            kept = [encode_compacted(*one) for one in self.log[:compacted]]
            self.compacted = self.store.store(5, kept)

    def plan(self, bounds: Bounds) -> PartitionPlan:
        last = self.log[-1][0]
        return PartitionPlan(
            TOPIC, PARTITION, tuple(self.ledgers), self.first, last, bounds, self.compacted, open_entry_bytes=100
        )


@pytest.fixture(scope="module")
def env() -> Iterator[Environment]:
    made = Environment.real(threads_max=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def key_reader(tmp_path_factory: pytest.TempPathFactory) -> CryptoKeyReader:
    return CryptoKeyReader(*write_key_files(tmp_path_factory.mktemp("keys")))


@pytest.fixture(scope="module")
def encryptor(env: Environment, key_reader: CryptoKeyReader) -> MessageEncryptor:
    made = MessageEncryptor(["k"], key_reader, env.random)
    made.renew()
    return made


def chunked(count: int, sequence_id: int = 0, publish_time: int = 1_000) -> list[bytes]:
    """The entries of a message whose payload is `01…`."""
    header = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=publish_time)
    return chunks_of(b"".join(b"%d" % index for index in range(count)), [1] * count, header)


def read(stored: StoredLog, bounds: Bounds = EVERYTHING, split_bytes: int = 1, **options: object) -> list[object]:
    """The values of a read in splits of about so many bytes, and so of single entries."""
    splits = split_by_size([replace(stored.plan(bounds), **options)], split_bytes)
    return [row["value"] for row in asyncio.run(stored.reader.table(splits, ["value"]))]


def draw_place(random: Random, stored: StoredLog) -> bytes:
    """The serialized id of a message or of an entry."""
    whole = messages_of(stored.log, TOPIC, PARTITION, MessageId.earliest, WireMessageId.latest, CONSUMING)
    if whole and random.random() < 0.8:
        return random.choice(whole).message_id().serialize()
    return WireMessageId(*random.choice(stored.log)[0], PARTITION).serialize()


CONSUMING = ReadKeys(None, ConsumerCryptoFailureAction.CONSUME)


@settings(max_examples=250)
@given(st.integers(0, 1 << 60))
def test_a_read_has_what_a_consumer_gets_that_starts_there(
    env: Environment, encryptor: MessageEncryptor, key_reader: CryptoKeyReader, seed: int
) -> None:
    random = Random(seed)
    bodies = random_log(random, random.choice((None, encryptor)))
    cuts = [random.randrange(1, len(bodies) + 1) for _ in range(random.randint(0, 4))]
    stored = StoredLog(env, bodies, cuts, compacted=random.choice((0, 0, random.randint(1, len(bodies)))))
    keys = random.choice(
        (ReadKeys(key_reader), CONSUMING, ReadKeys(None, ConsumerCryptoFailureAction.DISCARD), ReadKeys(key_reader))
    )
    start = draw_place(random, stored) if random.random() < 0.6 else None
    end = draw_place(random, stored) if random.random() < 0.4 else None
    window = TimeWindow(*random.choice(((None, None), (1_010, None), (None, 1_040), (1_010, 1_040))))
    bounds = parse_bounds(start or "earliest", end or "latest", [PARTITION])[PARTITION].within(window)
    columns = random.sample(COLUMNS, random.randint(1, len(COLUMNS)))
    splits = split_by_size([stored.plan(bounds)], random.choice((1, 300, 2_000, 1 << 20)))
    with (
        patch.object(chunks, "KEPT_MAX_BYTES", random.choice((0, 50, 1 << 20))),
        patch.object(look_back, "PIECE_SIZE_BYTES", random.choice((1, 500, 1 << 20))),
        patch.object(look_back, "PIECE_ENTRIES_UNKNOWN", random.choice((1, 64))),
        patch.object(range_reader, "BATCH_SIZE_BYTES", random.choice((1, 1 << 20))),
    ):
        rows = asyncio.run(stored.reader.table(splits, columns, keys))
    begin = MessageId.earliest if start is None else MessageId.deserialize(start)
    last = WireMessageId.latest if end is None else WireMessageId.deserialize(end)
    expected = rows_of(messages_of(stored.log, TOPIC, PARTITION, begin, last, keys), window)
    assert rows == [{name: row[name] for name in columns} for row in expected]


@settings(max_examples=100)
@given(st.integers(0, 1 << 60))
def test_reads_that_go_on_one_behind_the_other_have_what_one_has(env: Environment, seed: int) -> None:
    random = Random(seed)
    bodies = random_log(random)
    stored = StoredLog(env, bodies, [random.randrange(1, len(bodies) + 1) for _ in range(random.randint(0, 4))])
    begin = random.randrange(len(bodies))
    borders = sorted({begin, len(bodies), *(random.randint(begin, len(bodies)) for _ in range(4))})
    since = WireMessageId(*stored.log[begin][0])
    rows: list[dict[str, object]] = []
    for first, behind in pairwise(borders):
        bounds = Bounds(WireMessageId(*stored.log[first][0]), WireMessageId(*stored.log[behind - 1][0]))
        plan = replace(stored.plan(bounds), chunks_from=since)
        rows += asyncio.run(stored.reader.table(split_by_size([plan], random.choice((1, 1_000)))))
    place = MessageId(PARTITION, *since.position)
    assert rows == rows_of(messages_of(stored.log, TOPIC, PARTITION, place, WireMessageId.latest))


@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_bounds_and_copies(env: Environment, split_bytes: int) -> None:
    first, second = chunked(3), chunked(2, sequence_id=1)
    stored = StoredLog(
        env, [first[0], PLAIN, second[0], first[1], first[1], second[1], first[2], *first[1:], PLAIN], [1, 4]
    )
    assert read(stored, split_bytes=split_bytes) == [b"plain", b"01", b"012", b"plain"]
    behind_the_first = Bounds(WireMessageId(*stored.log[1][0]))
    assert read(stored, behind_the_first, split_bytes) == [b"plain", b"01", b"plain"]
    before_the_last = Bounds(last=WireMessageId(*stored.log[5][0]))
    assert read(stored, before_the_last, split_bytes) == [b"plain", b"01"]


@pytest.mark.parametrize(
    ("order", "values"),
    [
        ("0121012", [b"012", b"012"]),  # the producer began again after a crash
        ("012012", [b"012", b"012"]),
        ("00112", [b"012"]),
        ("01012", [b"012"]),
        ("01212", [b"012"]),
        ("02", []),
        ("0212", []),
        ("12", []),
        ("0123", [b"0123"]),
        ("02123", []),
        ("0213", []),
        ("0120123", [b"0123"]),
    ],
)
@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_which_chunks_make_a_message(env: Environment, order: str, values: list[bytes], split_bytes: int) -> None:
    entries = chunked(int(max(order)) + 1)
    assert read(StoredLog(env, [entries[int(index)] for index in order], []), split_bytes=split_bytes) == values


def test_a_split_that_meets_no_chunk_reads_nothing_twice(env: Environment) -> None:
    stored = StoredLog(env, [PLAIN] * 20, [5, 9])
    assert len(read(stored)) == 20
    assert set(stored.store.reads.values()) == {1}


def test_a_beginning_is_looked_for_once_and_only_at_the_end_of_a_message(env: Environment) -> None:
    messages = [chunked(4, sequence_id=number) for number in range(5)]
    interwoven = [message[index] for index in range(4) for message in messages]
    stored = StoredLog(env, interwoven, [8])
    plan = stored.plan(Bounds())
    early, middle, late = split_by_size([plan], 1)[:10], split_by_size([plan], 1)[10:15], split_by_size([plan], 1)[15:]
    assert asyncio.run(stored.reader.table([*early, *middle], ["value"])) == []
    assert set(stored.store.reads.values()) == {1}
    stored.store.reads.clear()
    ranges = tuple(part for one in late for part in one.ranges)
    whole = late[0]._replace(ranges=ranges)
    assert len(asyncio.run(stored.reader.table([whole], ["__key"]))) == 5
    assert set(stored.store.reads.values()) == {1}, "what was found is remembered, and no payload is needed"
    assert len(asyncio.run(stored.reader.table([whole], ["value"]))) == 5
    assert max(stored.store.reads.values()) == 3, "read once, and then looked at once and read once for its payload"


def test_a_beginning_beyond_the_bound_is_an_error_that_says_what_to_do(env: Environment) -> None:
    first, *others = chunked(3)
    stored = StoredLog(env, [first, *[PLAIN] * 30, *others], [])
    assert read(stored)[-1] == b"012"
    with patch.object(read_plan, "LOOK_BACK_MAX_BYTES", 1_000):
        with pytest.raises(NoSuchEntry, match=r"10 entries before its split.*maxBytesPerSplit") as caught:
            read(stored)
        assert (caught.value.details["ledger_id"], caught.value.details["entry_id"]) == (10, 32)
        assert read(stored, split_bytes=1 << 20)[-1] == b"012", "a split that has all of it looks for nothing"
        missing = StoredLog(env, others, [])
        assert read(missing) == [], "the read begins within the bound"
    with patch.object(look_back, "CHUNKS_MAX", 3), pytest.raises(NoSuchEntry):
        noise = [chunked(2, sequence_id=number)[0] for number in range(1, 90)]
        read(StoredLog(env, [first, *noise, *others], []))
    with patch.object(look_back, "CHUNKS_MAX", 0):
        assert read(StoredLog(env, [*chunked(2, sequence_id=9)[1:], *others], [])) == [], "all was looked at"
    with patch.object(read_plan, "LOOK_BACK_RANGES_MAX", 2), pytest.raises(NoSuchEntry):
        read(StoredLog(env, [first, PLAIN, *others], [1, 2, 3]))


def test_a_stream_whose_beginning_was_trimmed_ends_or_passes_over_the_message(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    stored = StoredLog(env, [PLAIN, *chunked(3), PLAIN], [1, 3])
    del stored.ledgers[:2]  # the first chunks are gone
    bounds, since = Bounds(WireMessageId(16, 0)), WireMessageId(10, 0)
    with pytest.raises(NoSuchEntry, match="failOnDataLoss"):
        read(stored, bounds, chunks_from=since)
    assert read(stored, bounds, chunks_from=since, loss_is_ignored=True) == [b"plain"]
    assert "a message is left out: entry 16:0" in caplog.text
    assert read(stored, bounds) == [b"plain"], "a read that begins there does not miss it"


def test_a_search_ends_at_a_last_chunk_since_nothing_is_left_behind_it(env: Environment) -> None:
    first, second, third = chunked(3)
    stored = StoredLog(env, [first, second, third, second, third, PLAIN], [2])
    del stored.ledgers[0]
    assert read(stored, Bounds(WireMessageId(13, 1)), chunks_from=WireMessageId(10, 0)) == [b"plain"]
    assert (10, 0) not in stored.store.reads


def test_a_message_counts_by_the_publish_time_of_its_last_chunk(env: Environment) -> None:
    early, late = chunked(2, publish_time=100), chunked(2, publish_time=200)
    stored = StoredLog(env, [early[0], late[1], early[0], early[1]], [])
    assert read(stored, Bounds(window=TimeWindow(150, None))) == [b"01"]
    assert read(stored, Bounds(window=TimeWindow(None, 150))) == [b"01"]
    assert read(stored, Bounds(window=TimeWindow(100, 100))) == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"uuid": ""}, "chunk 1 of 2"),
        ({"chunk_id": 5}, "chunk 5 of 2"),
        ({"chunk_id": -1}, "chunk -1 of 2"),
        ({"total_chunk_msg_size": 7}, "its message's first chunk"),
        ({"num_messages_in_batch": 1}, "it is a batch"),
    ],
)
@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_chunks_that_make_no_sense_are_damage(
    env: Environment, change: dict[str, object], error: str, split_bytes: int
) -> None:
    header = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    described = {"uuid": "p-0", "chunk_id": 1, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
    header.MergeFrom(MessageMetadata(**{**described, **change}))  # type: ignore[arg-type]
    stored = StoredLog(env, [chunked(2)[0], build_entry(header, b"1")], [])
    with pytest.raises(EntryCorrupt, match=f"entry 10:1 .*{error}"):
        read(stored, split_bytes=split_bytes)


@pytest.mark.parametrize(("size", "claimed"), [(1, 3), (200, 2)])
def test_a_message_has_as_many_bytes_as_its_chunks_claim(env: Environment, size: int, claimed: int) -> None:
    entries: list[bytes] = []
    for index in range(2):
        header = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uuid="u", chunk_id=index)
        header.num_chunks_from_msg, header.total_chunk_msg_size = 2, claimed
        entries.append(build_entry(header, bytes(size)))
    with pytest.raises(EntryCorrupt, match="claim"):
        read(StoredLog(env, entries, []))


def test_a_message_that_is_too_large_is_an_error_unless_nobody_needs_it(env: Environment) -> None:
    stored = StoredLog(env, chunked(5), [])
    with patch.object(chunks, "WHOLE_MAX_BYTES", 4):
        with pytest.raises(MessageTooBig, match="5 bytes, and a bulk read takes 4"):
            read(stored)
        splits = split_by_size([stored.plan(Bounds())], 1)
        assert len(asyncio.run(stored.reader.table(splits, ["__key"]))) == 1


def test_payloads_that_are_let_go_are_read_again(env: Environment) -> None:
    first, second = chunked(3), chunked(3, sequence_id=1)
    stored = StoredLog(env, [first[0], second[0], second[1], first[1], second[2], first[2]], [])
    with patch.object(chunks, "KEPT_MAX_BYTES", 2):
        assert read(stored, split_bytes=1 << 20) == [b"012", b"012"]
    assert [stored.store.reads[place] for place, _ in stored.log] == [2, 2, 2, 1, 1, 1]


def test_an_id_of_a_message_in_chunks_names_both_of_its_ends() -> None:
    (found,) = parse_bounds(chunk_id := bytes.fromhex("080a10073a04080a1002"), chunk_id, [-1]).values()
    assert (found.first, found.last) == (WireMessageId(10, 2), WireMessageId(10, 7))
