"""Batches that are cut from entries: all rows in order, and the place of the last one of each partition."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from magnetar.data.positions import RowPlace
from magnetar.data.row_cutting import EntryPart, RowCutter

SCHEMA = pa.schema([pa.field("topic", pa.string()), pa.field("entry", pa.int64()), pa.field("index", pa.int64())])

entries = st.tuples(st.integers(0, 5), st.booleans())
"""Rows, and whether the entry may be divided."""
runs = st.lists(st.tuples(st.sampled_from("ab"), st.lists(entries, min_size=1, max_size=5)), max_size=6)


class Filled:
    """A cutter with runs, and the rows and entries in the order in which they were added."""

    def __init__(self, given_runs: list[tuple[str, list[tuple[int, bool]]]]) -> None:
        self.cutter = RowCutter(SCHEMA)
        self.rows: list[tuple[str, int, int]] = []
        self.sizes: dict[tuple[str, int], tuple[int, bool]] = {}
        following = dict.fromkeys("ab", 0)
        for topic, found in given_runs:
            rows: list[tuple[str, int, int]] = []
            parts: list[EntryPart] = []
            for size, is_divided in found:
                entry = following[topic]
                following[topic] += 1
                self.sizes[topic, entry] = (size, is_divided)
                parts.append(EntryPart(size, RowPlace(0, entry, -1, size), 0 if is_divided else -1))
                rows += [(topic, entry, index) for index in range(size)]
            names, numbers, indexes = zip(*rows, strict=True) if rows else ((), (), ())
            columns = [pa.array(names, pa.string()), pa.array(numbers, pa.int64()), pa.array(indexes, pa.int64())]
            self.cutter.add(topic, pa.RecordBatch.from_arrays(columns, schema=SCHEMA), parts)
            self.rows += rows

    def behind(self, topic: str, place: RowPlace) -> list[tuple[str, int, int]]:
        """The rows of a partition that lie behind a place."""
        return [
            row
            for row in self.rows
            if row[0] == topic and not place.covers(RowPlace(0, row[1], row[2] if place.batch_index >= 0 else -1))
        ]


@given(runs, st.lists(st.integers(1, 7), min_size=1, max_size=10))
def test_rows_leave_in_order_and_each_place_is_exact(
    given_runs: list[tuple[str, list[tuple[int, bool]]]], wanted: list[int]
) -> None:
    filled = Filled(given_runs)
    left = list(filled.rows)
    marks: dict[str, RowPlace] = {}
    turn = 0
    while not filled.cutter.is_empty:
        rows_max = wanted[turn % len(wanted)]
        turn += 1
        table, found = filled.cutter.take(rows_max)
        taken = [tuple(row.values()) for row in table.to_pylist()]
        assert taken == left[: len(taken)] and found
        del left[: len(taken)]
        marks.update(found)
        assert filled.cutter.rows == len(left)
        if len(taken) > rows_max:  # only one undivided entry
            assert len({row[:2] for row in taken}) == 1 and not filled.sizes[taken[0][0], taken[0][1]][1]
        for topic in "ab":
            still = [row for row in left if row[0] == topic]
            begun = marks.get(topic, RowPlace(-1, -1))
            assert filled.behind(topic, begun) == still
    assert not left
    last = {topic: max([entry for name, entry in filled.sizes if name == topic], default=-1) for topic in "ab"}
    assert {topic: place.entry for topic, place in marks.items()} == {t: e for t, e in last.items() if e >= 0}
    assert all(place.batch_index < 0 for place in marks.values())


def test_a_batch_is_as_large_as_it_may_be() -> None:
    cutter = Filled([("a", [(4, True), (4, True)]), ("b", [(4, True)])]).cutter
    table, marks = cutter.take(6)
    assert table.num_rows == 6 and marks == {"a": RowPlace(0, 1, 1, 4)}
    table, marks = cutter.take(100)
    assert table.num_rows == 6 and marks == {"a": RowPlace(0, 1, -1, 4), "b": RowPlace(0, 0, -1, 4)}


def test_an_undivided_entry_is_left_for_the_next_batch() -> None:
    cutter = Filled([("a", [(2, True), (5, False)])]).cutter
    assert [cutter.take(4)[0].num_rows for _ in range(2)] == [2, 5]
