"""Sequence ids of rows: what they say, and what an attempt does with those that are stored."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bulk.writing.numbering import (
    BATCHES_PER_NAME,
    PARTITIONS_MAX,
    ROWS_MAX,
    RowNumber,
    RowsDiffer,
    StoredPrefix,
    partitions_to_use,
    producer_name,
)
from magnetar.protocol.errors import InvalidConfiguration

NUMBERS = st.builds(
    RowNumber,
    st.integers(0, BATCHES_PER_NAME - 1),
    st.integers(1, PARTITIONS_MAX),
    st.integers(0, ROWS_MAX - 1),
    st.integers(0, 4_095),
)
ROWS = [b"row %d" % number for number in range(40)]


@given(NUMBERS, NUMBERS)
def test_a_sequence_id_says_its_parts_and_rises_with_batch_and_row(one: RowNumber, other: RowNumber) -> None:
    assert RowNumber.parse(one.sequence_id) == one
    assert 0 <= one.sequence_id < 1 << 63
    assert (one < other) == (one.sequence_id < other.sequence_id)


def test_a_name_of_which_nothing_is_known_has_no_number() -> None:
    assert RowNumber.parse(-1) is None


def test_names_tell_writes_tasks_and_eras_apart() -> None:
    names = {producer_name("q", task, batch) for task in (0, 1) for batch in (None, 0, 4_095, 4_096, 8_192)}
    assert names == {f"q-{task}{era}" for task in (0, 1) for era in ("", "-0", "-1", "-2")}


def spread(rows: list[bytes], numbers: list[int]) -> tuple[Any, memoryview, Any]:
    own = [rows[number] for number in numbers]
    return np.array(numbers), memoryview(b"".join(own)), np.cumsum([len(one) for one in own])


def store(prefix: StoredPrefix, rows: list[bytes], numbers: list[int], entry_rows: int) -> list[int]:
    """Publish rows in entries of so many; the last sequence id of each."""
    found: list[int] = []
    for place in range(0, len(numbers), entry_rows):
        part = numbers[place : place + entry_rows]
        first, last = prefix.number(part[0], part[-1], spread(rows, part)[1])
        assert first <= last and (first < last) == (len(part) > 1) and (not found or found[-1] < first)
        found.append(last)
    return found


@pytest.mark.parametrize("numbers", [list(range(40)), list(range(1, 40, 3))])
@pytest.mark.parametrize("entry_rows", [1, 4, 100])
@pytest.mark.parametrize("portion", [1, 3, 40])
def test_an_attempt_passes_over_what_is_stored_wherever_entries_end(
    numbers: list[int], entry_rows: int, portion: int
) -> None:
    for last in store(StoredPrefix("p", 7, 3, None), ROWS, numbers, entry_rows):
        stored = RowNumber.parse(last)
        assert stored is not None
        again = StoredPrefix("p", 7, 3, stored)
        passed: list[int] = []
        for place in range(0, len(numbers), portion):
            part = numbers[place : place + portion]
            passed += part[: again.pass_over(*spread(ROWS, part))]
        again.check_end()
        assert passed == [number for number in numbers if number <= stored.row]


def test_rows_of_an_earlier_micro_batch_are_no_prefix() -> None:
    prefix = StoredPrefix("p", 8, 3, RowNumber(7, 3, 30, 0))
    assert prefix.pass_over(*spread(ROWS, [0, 1])) == 0
    prefix.check_end()


@pytest.mark.parametrize(
    ("rows", "numbers", "said"),
    [
        ([ROWS[1], ROWS[0], *ROWS[2:]], list(range(40)), "row 9 or one before it is another one"),
        (ROWS, [number for number in range(40) if number != 9], "row 9 belonged to this partition, and does not now"),
        (ROWS, list(range(9)), "this attempt has fewer rows"),
    ],
)
def test_an_attempt_with_other_rows_is_told(rows: list[bytes], numbers: list[int], said: str) -> None:
    last = store(StoredPrefix("p", 0, 1, None), ROWS, list(range(10)), 10)[-1]
    prefix = StoredPrefix("p", 0, 1, RowNumber.parse(last))
    with pytest.raises(RowsDiffer, match=said):
        prefix.pass_over(*spread(rows, numbers))
        prefix.check_end()


def test_the_partitions_of_the_first_attempt_count() -> None:
    assert partitions_to_use("p", 5, [None, None], 2) == 2
    assert partitions_to_use("p", 5, [RowNumber(4, 1, 9, 0), RowNumber(5, 2, 9, 0), None, None], 4) == 2
    assert partitions_to_use("p", 5, [RowNumber(4, 1, 9, 0), None, None, None], 4) == 4
    with pytest.raises(RowsDiffer, match="has stored rows of micro-batch 6"):
        partitions_to_use("p", 5, [RowNumber(6, 2, 0, 0)], 1)
    with pytest.raises(RowsDiffer, match="in 3 partitions, and there are 2"):
        partitions_to_use("p", 5, [RowNumber(5, 3, 0, 0), None], 2)
    with pytest.raises(InvalidConfiguration, match="beyond the 2047"):
        partitions_to_use("p", 5, [], PARTITIONS_MAX + 1)


def test_a_task_of_too_many_rows_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="use more tasks"):
        StoredPrefix("p", 0, 1, None).number(ROWS_MAX - 1, ROWS_MAX, memoryview(b""))
