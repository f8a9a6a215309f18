"""The checker of owners finds a broker that serves what it has lost."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.slots.table import SlotTable
from magnetar.protocol.slots import slot_of
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotOwner
from simulation.checkers.slots_agree import owners_agree

TOPIC = TopicName.parse("persistent://public/default/t")
OWN, OTHER = SlotOwner("broker-1", "1"), SlotOwner("broker-2", "2")


def cluster_of(table: SlotTable, known: SlotEntry | None, *, serves: bool, ready: bool = True) -> Any:
    """One broker, which knows this entry as its own, and a coordinator with the table."""
    broker = SimpleNamespace(
        ownership=SimpleNamespace(entry_of=lambda name: known),
        topics=SimpleNamespace(loaded={TOPIC.full: object()} if serves else {}),
    )
    office = SimpleNamespace(placement=SimpleNamespace(table=table))
    return SimpleNamespace(
        coordinator=SimpleNamespace(ready=ready, service=SimpleNamespace(office=office)),
        brokers=[SimpleNamespace(ready=True, service=broker), SimpleNamespace(ready=False, service=None)],
    )


@pytest.mark.parametrize(
    ("known", "stored", "agree"),
    [
        (SlotEntry(OWN, 3), SlotEntry(OWN, 3), True),
        (SlotEntry(OWN, 3), SlotEntry(OTHER, 4), False),  # it has not heard that its session is over
        (SlotEntry(OWN, 3), SlotEntry(OWN, 5), False),  # another broker had it in between
        (None, SlotEntry(OTHER, 4), False),  # it has heard, and the topic is still open
    ],
)
def test_a_broker_that_serves_what_it_has_lost(known: SlotEntry | None, stored: SlotEntry, *, agree: bool) -> None:
    table = SlotTable(64)
    table.set(slot_of(TOPIC, 64), stored)
    assert owners_agree(cluster_of(table, known, serves=True)) == agree
    assert owners_agree(cluster_of(table, known, serves=False))


def test_without_a_coordinator_nobody_knows_who_owns_what() -> None:
    table, entry = SlotTable(64), SlotEntry(OWN, 3)
    table.set(slot_of(TOPIC, 64), entry)
    assert not owners_agree(cluster_of(table, entry, serves=True, ready=False))
