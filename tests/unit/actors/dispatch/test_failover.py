"""Failover dispatch without sockets: who is active, who is told, and where a new active consumer begins."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.actors.dispatch.failover import FailoverDispatcher, FailoverTopic, HeldTopics, choose_by_ring

from .test_dispatchers import LIMITS, View, consumer, count_of, log
from .test_dispatchers import run as run_told


def failover(
    partition=-1, topic="persistent://public/default/t", held=None, view=None, subscription="s", changed=lambda: None
):
    dispatcher = FailoverDispatcher(
        view or View(),
        LIMITS,
        count_of,
        subscription=subscription,
        topic=FailoverTopic(topic, partition),
        held_topics=held if held is not None else HeldTopics(),
        changed=changed,
    )
    return dispatcher


def told(dispatcher):
    return [(one.name, active) for one, active in dispatcher.take_announcements()]


def run(dispatcher, entries):
    """As for other types, when all consumers have been told."""
    dispatcher.take_announcements()
    return run_told(dispatcher, entries)


def actives(partitions, names, gone=()):
    """The active consumer of each partition after some have left."""
    found = []
    for partition in range(partitions):
        dispatcher = failover(partition)
        members = [consumer(name) for name in names]
        for member in members:
            dispatcher.add(member)
        for member in members:
            if member.name in gone:
                dispatcher.remove(member)
        found.append(dispatcher.active.name)
    return found


# -- who is active -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("17.5")
def test_two_partitions_and_four_consumers_as_on_the_page():
    assert actives(2, "ABCD") == ["A", "B"]
    assert actives(2, "DBCA") == ["A", "B"]  # names count, not the order of arrival
    assert actives(2, "ABCD", gone="AB") == ["C", "D"]


@pytest.mark.promise("17.6")
def test_nine_partitions_and_three_consumers_as_on_the_page():
    assert actives(9, "ABC") == ["A", "B", "C"] * 3


@pytest.mark.promise("17.7")
def test_three_partitions_and_fifteen_consumers_have_one_active_each():
    names = [f"c{index:02}" for index in range(15)]
    assert actives(3, names) == ["c00", "c01", "c02"]


@pytest.mark.promise("17.4")
def test_only_the_best_priority_level_takes_part():
    for partition, expected in enumerate(["C", "D", "C"]):
        dispatcher = failover(partition)
        for name, level in (("A", 1), ("B", 1), ("D", 0), ("C", 0)):
            dispatcher.add(consumer(name, priority_level=level))
        assert dispatcher.active.name == expected


@pytest.mark.promise("17.8")
def test_without_partitions_the_earliest_subscriber_is_active_then_the_next():
    dispatcher = failover()
    members = [consumer(name) for name in "CAB"]
    for member in members:
        dispatcher.add(member)
    order = []
    for member in members:
        order.append(dispatcher.active.name)
        dispatcher.remove(member)
    assert order == ["C", "A", "B"]
    assert dispatcher.active is None


def test_without_partitions_a_better_priority_level_takes_over():
    dispatcher = failover()
    for name, level in (("A", 2), ("B", 1), ("C", 1)):
        dispatcher.add(consumer(name, priority_level=level))
    assert dispatcher.active.name == "B"


def test_the_ring_follows_the_murmur_hashes_of_names_and_topic():
    members = [consumer("A"), consumer("B")]
    topics = [f"persistent://public/default/topic-{index}" for index in range(1, 5)]
    chosen = [choose_by_ring(members, FailoverTopic(topic)).name for topic in topics]
    assert chosen == [choose_by_ring(members[::-1], FailoverTopic(topic)).name for topic in topics]
    many = Counter(choose_by_ring(members, FailoverTopic(f"persistent://a/b/{index}")).name for index in range(1000))
    assert min(many.values()) > 300


@pytest.mark.promise("17.9")
def test_a_second_topic_with_the_same_names_brings_the_ring_on_both():
    held = HeldTopics()
    topics = [f"persistent://public/default/t{index}" for index in range(8)]
    dispatchers = [failover(topic=topic, held=held) for topic in topics]
    first = dispatchers[0]
    members = {dispatcher: [consumer("A"), consumer("B")] for dispatcher in dispatchers}
    for member in members[first]:
        first.add(member)
    assert first.active.name == "A"
    for dispatcher in dispatchers[1:]:
        for member in members[dispatcher]:
            dispatcher.add(member)
    expected = [
        choose_by_ring(members[one], FailoverTopic(topic)).name for one, topic in zip(dispatchers, topics, strict=True)
    ]
    assert [dispatcher.active.name for dispatcher in dispatchers] == expected
    assert set(expected) == {"A", "B"}
    for dispatcher in dispatchers[1:]:
        for member in members[dispatcher]:
            dispatcher.remove(member)
    assert first.active.name == "A"  # alone again: the order of arrival
    for member in members[first]:
        first.remove(member)
    assert not held._held


def test_other_subscriptions_and_partitions_do_not_bring_the_ring():
    held = HeldTopics()
    topic = "persistent://public/default/t0"
    other = failover(topic="persistent://public/default/t1", held=held, subscription="another")
    partition = failover(0, topic="persistent://public/default/t2-partition-0", held=held)
    dispatcher = failover(topic=topic, held=held)
    for one in (other, partition, dispatcher):
        for name in "BA":
            one.add(consumer(name))
    assert dispatcher.active.name == "B"
    assert not held.several("s", "A")


# -- who is told -------------------------------------------------------------------------------------------------------


def test_each_consumer_is_told_once_for_each_change():
    changes = []
    dispatcher = failover(changed=lambda: changes.append(1))
    first, second = consumer("A"), consumer("B")
    dispatcher.add(first)
    assert told(dispatcher) == [("A", True)]
    dispatcher.add(second)
    assert told(dispatcher) == [("B", False)]
    dispatcher.add(consumer("C"))
    assert told(dispatcher) == [("C", False)]
    dispatcher.remove(first)
    assert told(dispatcher) == [("B", True), ("C", False)]
    dispatcher.remove(dispatcher.consumers[1])
    assert told(dispatcher) == []
    assert len(changes) == 4


def test_a_consumer_that_left_before_it_was_told_is_not_told():
    dispatcher = failover()
    first = consumer("A")
    dispatcher.add(first)
    dispatcher.remove(first)
    assert told(dispatcher) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 1)), max_size=30), st.integers(-1, 4))
def test_what_was_told_last_is_true_whoever_comes_and_goes(steps, partition):
    dispatcher = failover(partition)
    last = {}
    for joins, index, level in steps:
        if joins:
            dispatcher.add(consumer(f"c{index}", priority_level=level))
        elif dispatcher.consumers:
            dispatcher.remove(dispatcher.consumers[index % len(dispatcher.consumers)])
        for one, active in dispatcher.take_announcements():
            last[id(one)] = active
        assert all(last[id(one)] == (one is dispatcher.active) for one in dispatcher.consumers)
        assert (dispatcher.active is None) == (not dispatcher.consumers)


# -- what it gets ------------------------------------------------------------------------------------------------------


def test_only_the_active_consumer_gets_entries():
    dispatcher = failover()
    dispatcher.add(consumer("A", permits=2))
    dispatcher.add(consumer("B", permits=100))
    assert run(dispatcher, log(1, 1, 1, 1)) == [("A", 0), ("A", 1)]


def test_nobody_gets_entries_before_it_was_told_that_it_is_active():
    dispatcher = failover()
    dispatcher.add(consumer("A", permits=2))
    assert dispatcher.next_read((1, 0)) is None
    assert told(dispatcher) == [("A", True)]
    assert run_told(dispatcher, log(1)) == [("A", 0)]


@pytest.mark.promise("17.10")
def test_the_next_active_consumer_begins_behind_what_was_acknowledged():
    view = View()
    dispatcher = failover(view=view)
    first = consumer("A", permits=100)
    dispatcher.add(first)
    dispatcher.add(consumer("B", permits=100))
    assert [entry for _, entry in run(dispatcher, log(1, 1, 1, 1))] == [0, 1, 2, 3]
    view.acknowledge([(1, 0), (1, 2)])
    dispatcher.remove(first)
    assert not dispatcher.handing_over  # nothing that it may still acknowledge is on its way
    assert run(dispatcher, log(1, 1, 1, 1, 1)) == [("B", 1), ("B", 3), ("B", 4)]


def test_a_read_for_the_former_active_consumer_is_void():
    dispatcher = failover()
    first = consumer("A", permits=100)
    dispatcher.add(first)
    dispatcher.add(consumer("B", permits=100))
    dispatcher.take_announcements()
    plan = dispatcher.next_read((1, 1))
    dispatcher.remove(first)
    assert dispatcher.distribute(plan, log(1, 1)) == []
    assert run(dispatcher, log(1, 1)) == [("B", 0), ("B", 1)]


@pytest.mark.promise("17.11")
def test_while_handing_over_nothing_is_read_and_acknowledgements_count():
    view = View()
    dispatcher = failover(view=view)
    first = consumer("A", permits=100, priority_level=1)
    dispatcher.add(first)
    assert len(run(dispatcher, log(1, 1, 1))) == 3
    dispatcher.add(consumer("B", permits=100))
    assert dispatcher.handing_over
    assert dispatcher.next_read((1, 2)) is None
    view.acknowledge([(1, 0), (1, 1)])
    dispatcher.begin()
    assert run(dispatcher, log(1, 1, 1)) == [("B", 2)]


@pytest.mark.parametrize("leaves", ["former", "new"])
def test_a_hand_over_ends_when_one_of_the_two_leaves(leaves):
    dispatcher = failover()
    former, new = consumer("A", permits=100, priority_level=1), consumer("B", permits=100)
    dispatcher.add(former)
    dispatcher.add(new)
    dispatcher.remove(former if leaves == "former" else new)
    assert not dispatcher.handing_over
    assert run(dispatcher, log(1)) == [("B" if leaves == "former" else "A", 0)]


def test_a_third_consumer_during_a_hand_over_still_waits_for_the_first():
    dispatcher = failover()
    former = consumer("A", permits=100, priority_level=2)
    second = consumer("B", priority_level=1)
    for one in (former, second, consumer("C", permits=1)):
        dispatcher.add(one)
    dispatcher.remove(second)
    assert dispatcher.handing_over
    dispatcher.remove(former)
    assert run(dispatcher, log(1)) == [("C", 0)]


def test_redelivery_is_asked_for_by_the_active_consumer_only():
    dispatcher = failover()
    first, second = consumer("A", permits=100), consumer("B", permits=100)
    dispatcher.add(first)
    dispatcher.add(second)
    assert len(run(dispatcher, log(1, 1))) == 2
    dispatcher.redeliver(second, None)
    assert run(dispatcher, log(1, 1)) == []
    dispatcher.redeliver(first, None)
    assert run(dispatcher, log(1, 1)) == [("A", 0), ("A", 1)]
