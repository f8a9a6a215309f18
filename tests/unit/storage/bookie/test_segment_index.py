"""Rows, index files, id ranges, checkpoints: the small pure pieces of a bookie's storage."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.errors import EntryCorrupt
from magnetar.runtime.rpc.messages import pack, unpack
from magnetar.storage.bookie.checkpoint import Checkpoint
from magnetar.storage.bookie.damage import without_entries
from magnetar.storage.bookie.held_ledgers import IdRanges
from magnetar.storage.bookie.segment import parse_segment_name, segment_name
from magnetar.storage.bookie.segment_index import Row, Rows, decode_table, encode_index

IDS = st.lists(st.integers(0, 60), max_size=40)


def rows_of(entry_ids):
    rows = Rows(0)
    for number, entry_id in enumerate(entry_ids):
        rows.put(entry_id, 100 + number, entry_id + 1, number, entry_id - 1)
    return rows


@given(IDS)
def test_rows_are_sorted_unique_and_the_latest_wins(entry_ids):
    rows = rows_of(entry_ids)
    latest = {entry_id: number for number, entry_id in enumerate(entry_ids)}
    assert list(rows.entries) == sorted(latest)
    assert rows.entry_bytes == sum(entry_id + 1 for entry_id in latest)
    for entry_id in range(61):
        number = latest.get(entry_id)
        assert rows.find(entry_id) == (None if number is None else Row(entry_id, 100 + number, entry_id + 1, number))


@given(IDS, st.integers(0, 60), st.integers(0, 60), st.integers(1, 50))
def test_rows_between_and_ranges_are_exact(entry_ids, first, last, count):
    rows = rows_of(entry_ids)
    inside = sorted({entry_id for entry_id in entry_ids if first <= entry_id <= last})
    assert [row.entry_id for row in rows.between(first, last, count)] == inside[:count]
    assert [n for low, high in rows.ranges(first, last) for n in range(low, high + 1)] == inside


def test_lost_entries_are_not_held():
    rows = rows_of([1, 2, 4])
    rows.put(3, 9, 0, 0, -1)
    assert rows.ranges(0, 9) == [(1, 2), (4, 4)]


def test_an_index_comes_back_and_every_flipped_byte_is_noticed():
    by_ledger = {7: rows_of([5, 3, 9]), 2: rows_of(range(20)), 8: Rows(0)}
    data, table = encode_index(11, 99, 5000, by_ledger)

    def read(source):
        return lambda offset, size: source[offset : offset + size]

    assert decode_table(read(data), 11, 99, 5000) == table and list(table) == [2, 7]
    for ledger_id, line in table.items():
        rows = Rows.decode(data[line.position : line.position + line.size], line)
        assert rows.entries == by_ledger[ledger_id].entries and rows.lac == line.lac
        assert (line.first, line.last) == (rows.entries[0], rows.entries[-1])
    for byte in range(len(data)):
        broken = bytearray(data)
        broken[byte] ^= 2
        with pytest.raises(EntryCorrupt):
            found = decode_table(read(bytes(broken)), 11, 99, 5000)
            for line in found.values():
                Rows.decode(bytes(broken[line.position : line.position + line.size]), line)
    for wrong in ((12, 99, 5000), (11, 98, 5000), (11, 99, 5001)):
        with pytest.raises(EntryCorrupt):
            decode_table(read(data), *wrong)
    with pytest.raises(EntryCorrupt):
        decode_table(read(data[:40]), 11, 99, 5000)


@given(IDS, st.integers(0, 60))
def test_id_ranges_are_a_set(ids, removed):
    ranges = IdRanges()
    for item in ids:
        ranges.add(item)
    assert [n for n in range(62) if n in ranges] == sorted(set(ids)) and ranges.count == len(set(ids))
    pairs = list(ranges)
    assert all(first <= last for first, last in pairs)
    assert all(pairs[n][1] + 1 < pairs[n + 1][0] for n in range(len(pairs) - 1)), "runs that touch are one"
    assert list(IdRanges([(item, item) for item in ids])) == pairs
    assert [n for n in range(62) if n in IdRanges(without_entries(pairs, [removed]))] == sorted(set(ids) - {removed})


def test_the_ranges_of_many_ids_take_no_memory_for_each():
    """Found by `tests/fuzz` (target files)."""
    ranges = IdRanges([(0, (1 << 63) - 1), (1 << 63, (1 << 64) - 1)])
    assert list(ranges) == [(0, (1 << 64) - 1)] and ranges.count == 1 << 64
    assert without_entries(ranges, [5]) == [(0, 4), (6, (1 << 64) - 1)]


@pytest.mark.parametrize(
    "field, value",
    [
        ("instance", 7),
        ("next_file_id", None),
        ("replay_from", -1),
        ("segments", [[1, ".journal"]]),
        ("segments", 3),
        ("journals", ["1"]),
        ("tombstones", bytes(8)),
        ("tombstones", bytes([9] + 15 * [0])),  # from 9 to 0
        ("fenced", bytes(7)),
        ("limbo", None),
        ("fence_floor", 1.5),
    ],
)
def test_a_checkpoint_of_another_make_is_corrupt_however_good_its_checksum(field, value):
    data = Checkpoint("i").encode()
    body = pack(unpack(data[12:]) | {field: value})
    with pytest.raises(EntryCorrupt, match="cannot be decoded"):
        Checkpoint.decode(data[:8] + crc32c(data[:8] + body).to_bytes(4, "big") + body)
    with pytest.raises(EntryCorrupt, match="cannot be decoded"):
        body = pack([1, 2])
        Checkpoint.decode(data[:8] + crc32c(data[:8] + body).to_bytes(4, "big") + body)


def test_a_checkpoint_comes_back_and_every_flipped_byte_is_noticed():
    made = Checkpoint(
        "i", 9, 8, [(1, ".journal", 50)], [8], {3: 7, 1 << 63: (1 << 64) - 1}, [3], IdRanges([(4, 9)]), "why", 17
    )
    data = made.encode()
    again = Checkpoint.decode(data)
    assert again.encode() == data and 6 in again.tombstones and again.fenced == made.fenced
    for byte in range(len(data)):
        broken = bytearray(data)
        broken[byte] ^= 8
        with pytest.raises(EntryCorrupt):
            Checkpoint.decode(bytes(broken))
    for size in range(len(data)):
        with pytest.raises(EntryCorrupt):
            Checkpoint.decode(data[:size])


def test_segment_names_are_told_from_others():
    assert parse_segment_name(segment_name(255, ".journal")) == (255, ".journal")
    for name in ("checkpoint", "0000.journal", "000000000000000g.journal", "00000000000000ff.journal.index", "cookie"):
        assert parse_segment_name(name) is None
