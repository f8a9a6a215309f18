"""Where a micro-batch with a limit ends: by bytes, and by messages that are counted or estimated."""

import pytest

from magnetar.bulk.read_plan import Bounds, PartitionPlan, ReadSplit
from magnetar.protocol.message_id import WireMessageId
from magnetar.spark.source import trigger_limits
from magnetar.spark.source.offsets import Reached
from magnetar.spark.source.trigger_limits import place_of_message, place_within, shares
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState

BATCH = 4
"""Messages in each entry."""


def ledger(ledger_id: int, entries: int, entry_bytes: int) -> LedgerMetadata:
    closed = LedgerState.CLOSED
    return LedgerMetadata(ledger_id, 1, 1, 1, (Fragment(0, ("bookie-1",)),), closed, entries - 1, entries * entry_bytes)


def two_ledgers() -> PartitionPlan:
    return PartitionPlan("t", -1, (ledger(5, 10, 100), ledger(6, 10, 50)), (5, 2), (6, 9), Bounds())


@pytest.mark.parametrize(
    ("size_bytes", "place"),
    [(1, (5, 2)), (100, (5, 2)), (350, (5, 4)), (800, (5, 9)), (850, (6, 0)), (1_100, (6, 5)), (1 << 30, (6, 9))],
)
def test_a_number_of_bytes_reaches_so_far_and_at_least_to_the_first_entry(
    size_bytes: int, place: tuple[int, int]
) -> None:
    assert place_within(two_ledgers(), size_bytes) == Reached(*place)


def test_a_plan_without_entries_reaches_nowhere() -> None:
    assert place_within(PartitionPlan("t", -1, (), (5, 2), (5, 1), Bounds()), 100) is None


def test_partitions_share_a_limit_by_what_is_left_of_them() -> None:
    small = PartitionPlan("s", -1, (ledger(7, 1, 10),), (7, 0), (7, 0), Bounds())
    assert shares([two_ledgers(), small], 1_310) == [1_300, 10]
    assert shares([two_ledgers(), small], 1) == [1, 1], "each goes on"
    assert shares([], 7) == []


async def read_ids(part: ReadSplit) -> list[bytes]:
    return [
        WireMessageId(found.ledger.ledger_id, entry, -1, index, BATCH).serialize()
        for found in part.ranges
        for entry in range(found.first_entry, found.last_entry + 1)
        for index in range(BATCH)
    ]


@pytest.mark.parametrize(
    ("messages", "place"), [(1, (5, 2, 0)), (4, (5, 2)), (6, (5, 3, 1)), (32, (5, 9)), (33, (6, 0, 0)), (71, (6, 9, 2))]
)
async def test_a_number_of_messages_ends_exactly_where_they_were_counted(messages: int, place: tuple[int, ...]) -> None:
    assert await place_of_message(two_ledgers(), messages, read_ids) == Reached(*place)


@pytest.mark.parametrize("messages", [18 * BATCH, 1_000])
async def test_a_number_of_messages_is_no_limit_when_there_are_no_more(messages: int) -> None:
    assert await place_of_message(two_ledgers(), messages, read_ids) is None


async def test_a_large_number_of_messages_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger_limits, "SAMPLE_BYTES", 300)
    assert await place_of_message(two_ledgers(), 10 * BATCH, read_ids) == Reached(6, 1)


async def test_a_plan_without_entries_has_no_message() -> None:
    assert await place_of_message(PartitionPlan("t", -1, (), (5, 2), (5, 1), Bounds()), 100, read_ids) is None
