"""The checker of moves finds what was not released."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.slots.table import SlotTable
from magnetar.actors.topics.owned_topic import TopicTable
from magnetar.protocol.slots import TopicGrant, slot_of
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotOwner
from simulation.checkers.history import History
from simulation.checkers.release_watch import ReleaseWatch

TOPIC = TopicName.parse("persistent://public/default/t")
SLOT = slot_of(TOPIC, 64)
ENTRY = SlotEntry(SlotOwner("broker-1", "1"), 5)


class Broker:
    """What a broker owns."""

    coordinator_epoch = 2

    def __init__(self, topics: TopicTable) -> None:
        self.topics = SimpleNamespace(table=topics)


class Cluster:
    """One slot of broker-1, with one topic for which that broker has a grant."""

    def __init__(self) -> None:
        self.history = History()
        self.alive = True
        self.empty = False
        self.table = SlotTable(64)
        self.table.set(SLOT, ENTRY)
        topics = TopicTable()
        self.topic = topics.record(TOPIC.full, SLOT)
        self.grant(5)
        self.placement: Any = SimpleNamespace(
            table=self.table,
            is_settled=lambda entry: self.alive,
            is_empty=lambda slot: self.empty,
        )
        self.broker: Any = Broker(topics)
        service: Any = SimpleNamespace(topics=self.broker.topics, ownership=self.broker)
        self.watch = ReleaseWatch(self.history, lambda owner: service)

    def grant(self, home_epoch: int | None, number: int = 1) -> None:
        self.topic.grant = None if home_epoch is None else TopicGrant(TOPIC.full, 9, home_epoch, 1, 0, number)

    def move(self, *, alone: bool, epoch: int = 2, does: str = "decides") -> list[str]:
        slots, topics = ({}, {TOPIC.full: "broker-2"}) if alone else ({SLOT: "broker-2"}, {})
        self.watch.judge(self.watch.to_judge(self.placement, slots, topics), does, epoch)
        return [violation.partition(":")[0] for violation in self.history.violations]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("alone", [False, True])
def test_what_its_owner_has_not_released_may_not_move(cluster: Cluster, alone: bool) -> None:
    assert cluster.move(alone=alone) == ["I16"]


@pytest.mark.parametrize("alone", [False, True])
def test_what_was_released_or_has_lost_its_owner_may_move(cluster: Cluster, alone: bool) -> None:
    cluster.grant(4)  # of an earlier owner
    assert cluster.move(alone=alone) == []
    cluster.grant(5)
    cluster.alive = False
    assert cluster.move(alone=alone) == []
    cluster.alive = True
    cluster.grant(None)
    assert cluster.move(alone=alone) == []


def test_an_owner_that_does_not_answer_is_not_waited_for(cluster: Cluster) -> None:
    cluster.watch._placements[None] = cluster.placement
    cluster.watch.was_refused([SLOT, TOPIC.full])
    assert cluster.move(alone=False) == cluster.move(alone=True) == []
    cluster.table.set(SLOT, ENTRY._replace(epoch=6))
    cluster.grant(6)
    assert cluster.move(alone=False) == ["I16"], "it was asked under another epoch"


def test_a_slot_without_topics_needs_no_release(cluster: Cluster) -> None:
    cluster.empty = True
    assert cluster.move(alone=False) == []


def test_a_topic_that_moved_alone_is_released_by_its_own_owner(cluster: Cluster) -> None:
    cluster.table.set(SLOT, SlotEntry(SlotOwner("broker-3", "1"), 4))
    cluster.table.set_exception(TOPIC, ENTRY)
    assert [what for what, _ in cluster.watch.to_judge(cluster.placement, {SLOT: "broker-2"}, {})] == [SLOT, TOPIC.full]
    cluster.placement.is_settled = lambda entry: entry.owner.broker == "broker-1"
    assert cluster.watch.to_judge(cluster.placement, {SLOT: "broker-2"}, {}) == []


@pytest.mark.parametrize("alone", [False, True])
def test_a_superseded_coordinator_may_decide_and_not_store(cluster: Cluster, alone: bool) -> None:
    assert cluster.move(alone=alone, epoch=1) == []
    assert cluster.move(alone=alone, epoch=1, does="stores") == ["I16"]


@pytest.mark.parametrize("released", [SLOT, TOPIC.full], ids=["slot", "topic"])
def test_a_grant_from_before_a_release_may_not_be_taken(cluster: Cluster, released: int | str) -> None:
    watch, given = cluster.watch, cluster.topic.grant
    assert given is not None
    watch.judge_grant(cluster.broker, given)
    watch.has_released(cluster.broker, 5, [released])
    cluster.grant(5, 6)
    assert cluster.topic.grant is not None
    watch.judge_grant(cluster.broker, cluster.topic.grant)  # it is a later one
    watch.judge_grant(cluster.broker, given)  # it was not taken
    assert not cluster.history.violations
    cluster.topic.grant = given
    watch.judge_grant(Broker(TopicTable()), given)  # type: ignore[arg-type]  # this one has not released anything
    assert not cluster.history.violations
    watch.judge_grant(cluster.broker, given)
    assert [one.partition(":")[0] for one in cluster.history.violations] == ["I16"]


def test_what_was_granted_behind_a_release_may_not_be_given_up(cluster: Cluster) -> None:
    cluster.watch.judge_release(None, 5)
    for number in (None, 4):
        cluster.grant(None if number is None else 5, number or 0)
        cluster.watch.judge_release(cluster.topic, 5)
    cluster.grant(5, 6)
    cluster.watch.judge_release(cluster.topic, None)  # its slot has another entry
    assert not cluster.history.violations
    cluster.watch.judge_release(cluster.topic, 5)
    assert [one.partition(":")[0] for one in cluster.history.violations] == ["I16"]
