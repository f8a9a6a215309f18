"""Places of a streaming query in a partition: what follows them, and how far a number of bytes reaches."""

import pytest

from magnetar.bulk.read_plan import Bounds, PartitionPlan
from magnetar.protocol.errors import InvalidConfiguration
from magnetar.protocol.message_id import WireMessageId
from magnetar.spark.source.offsets import EARLIEST, Reached, place_in, place_within
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState


@pytest.mark.parametrize("place", [Reached(7, 3), Reached(7, 3, 0), Reached(7, -1), EARLIEST])
def test_a_place_survives_the_checkpoint(place: Reached) -> None:
    assert Reached.parse(str(place)) == place


@pytest.mark.parametrize("text", ["", "7", "7:3:1:0", "7:x", "earliest"])
def test_a_damaged_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="the checkpoint is damaged"):
        Reached.parse(text)


@pytest.mark.parametrize("message_id", [(7, 3), (7, 0), (7, 3, -1, 0, 5), (7, 3, -1, 4, 5)])
def test_what_follows_the_place_before_a_message_is_the_message(message_id: tuple[int, ...]) -> None:
    wanted = WireMessageId(*message_id)
    found = Reached.before(wanted).following
    assert found.position == wanted.position
    assert max(found.batch_index, 0) == max(wanted.batch_index, 0)


def test_a_partition_that_is_not_named_begins_at_its_beginning() -> None:
    assert place_in({"a": "7:3"}, "a") == Reached(7, 3)
    assert place_in({"a": "7:3"}, "b") == EARLIEST


def ledger(ledger_id: int, entries: int, entry_bytes: int) -> LedgerMetadata:
    closed = LedgerState.CLOSED
    return LedgerMetadata(ledger_id, 1, 1, 1, (Fragment(0, ("bookie-1",)),), closed, entries - 1, entries * entry_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "place"),
    [(1, (5, 2)), (100, (5, 2)), (350, (5, 4)), (800, (5, 9)), (850, (6, 0)), (1_100, (6, 5)), (1 << 30, (6, 9))],
)
def test_a_number_of_bytes_reaches_so_far_and_at_least_to_the_first_entry(
    size_bytes: int, place: tuple[int, int]
) -> None:
    ledgers = (ledger(5, 10, 100), ledger(6, 10, 50))
    plan = PartitionPlan("t", -1, ledgers, (5, 2), (6, 9), Bounds())
    assert place_within(plan, size_bytes) == Reached(*place)


def test_a_plan_without_entries_reaches_nowhere() -> None:
    assert place_within(PartitionPlan("t", -1, (), (5, 2), (5, 1), Bounds()), 100) is None
