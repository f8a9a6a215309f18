"""Dispatch without sockets: who gets what, what is read next, what comes again."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.actors.dispatch.dispatcher import Limits
from magnetar.actors.dispatch.exclusive import ExclusiveDispatcher
from magnetar.actors.dispatch.shared import SharedDispatcher
from magnetar.actors.topics.pump import runs
from magnetar.protocol.errors import ConsumerBusy

LIMITS = Limits(read_entries_max=10, turn_messages_max=4, unacked_messages_max=0)


class Outlet:
    """A connection that takes everything."""

    writable = True
    closed = False
    remote_address = "/test:1"
    client_version = "test"


@dataclass
class View:
    """A cursor by sets: everything below `first` and in `beyond` is acknowledged."""

    first: tuple[int, int] = (1, 0)
    beyond: set = field(default_factory=set)

    def is_acknowledged(self, position):
        return position < self.first or position in self.beyond

    def next_unacknowledged(self, position):
        position = max(position, self.first)
        while position in self.beyond:
            position = (position[0], position[1] + 1)
        return position

    def ranges_before(self, position):
        return sum(
            one < position and (one[0], one[1] - 1) not in self.beyond for one in self.beyond if one > self.first
        )

    @property
    def first_unacknowledged(self):
        return self.next_unacknowledged(self.first)

    def acknowledge(self, positions):
        self.beyond.update(positions)


def consumer(name="c", permits=0, **options):
    made = AttachedConsumer(Outlet(), 1, name, **options)
    made.permits = permits
    return made


def count_of(position, body):
    return int(body)


def log(*counts):
    """Entries of ledger 1 with so many messages each."""
    return [((1, index), str(count).encode()) for index, count in enumerate(counts)]


def run(dispatcher, entries):
    """Read and distribute until nothing goes on; what each consumer got, as (consumer name, entry id)."""
    out = []
    tail = entries[-1][0]
    while (plan := dispatcher.next_read(tail)) is not None:
        if plan.positions:
            read = [entry for entry in entries if entry[0] in plan.positions]
        else:
            read = [entry for entry in entries if entry[0] >= plan.start][: plan.entries_max]
        for delivery in dispatcher.distribute(plan, read):
            out += [(delivery.consumer.name, position[1]) for position, *_ in delivery.entries]
    return out


def exclusive(view=None, limits=LIMITS):
    return ExclusiveDispatcher(view or View(), limits, count_of)


def shared(view=None, limits=LIMITS):
    return SharedDispatcher(view or View(), limits, count_of)


# -- exclusive ---------------------------------------------------------------------------------------------------------


def test_exclusive_sends_in_order_within_its_permits_which_count_messages():
    dispatcher, one = exclusive(), consumer(permits=5)
    dispatcher.add(one)
    assert run(dispatcher, log(2, 2, 2, 2)) == [("c", 0), ("c", 1), ("c", 2)]
    assert one.permits == -1  # the last batch went out whole
    one.permits += 2
    assert run(dispatcher, log(2, 2, 2, 2)) == [("c", 3)]


def test_exclusive_refuses_a_second_consumer():
    dispatcher = exclusive()
    dispatcher.add(consumer())
    with pytest.raises(ConsumerBusy):
        dispatcher.add(consumer())
    assert len(dispatcher.consumers) == 1


def test_exclusive_skips_what_is_acknowledged_and_jumps_over_long_runs():
    view = View(beyond={(1, index) for index in range(1, 25)})
    dispatcher = exclusive(view)
    dispatcher.add(consumer(permits=100))
    assert run(dispatcher, log(*[1] * 27)) == [("c", 0), ("c", 25), ("c", 26)]


def test_exclusive_redelivery_starts_again_at_the_first_unacknowledged_entry():
    view = View()
    dispatcher, one = exclusive(view), consumer(permits=100)
    dispatcher.add(one)
    entries = log(1, 1, 1, 1)
    assert len(run(dispatcher, entries)) == 4
    view.acknowledge([(1, 0), (1, 2)])
    dispatcher.redeliver(one, [(1, 3)])
    assert run(dispatcher, entries) == [("c", 1), ("c", 3)]


def test_a_read_from_before_a_rewind_is_void():
    for dispatcher in (exclusive(), shared()):
        one = consumer(permits=100)
        dispatcher.add(one)
        entries = log(1, 1)
        plan = dispatcher.next_read((1, 1))
        dispatcher.rewind()
        assert dispatcher.distribute(plan, entries) == []
        assert one.permits == 100
        assert [entry for _, entry in run(dispatcher, entries)] == [0, 1]


def test_nothing_is_planned_for_a_stalled_or_closed_consumer_or_at_the_end():
    dispatcher, one = exclusive(), consumer(permits=3)
    dispatcher.add(one)
    assert dispatcher.next_read((-1, -1)) is None
    one.connection.writable = False
    assert dispatcher.next_read((1, 5)) is None
    one.connection.writable = True
    one.closed = True
    assert dispatcher.next_read((1, 5)) is None


def test_reads_grow_smaller_when_entries_hold_many_messages():
    dispatcher = exclusive(limits=Limits(1000, 20, 0))
    dispatcher.add(consumer(permits=1000))
    entries = log(*[500] * 2000)
    sizes = []
    for _ in range(60):
        plan = dispatcher.next_read(entries[-1][0])
        sizes.append(plan.entries_max)
        dispatcher.distribute(plan, entries[plan.start[1] : plan.start[1] + plan.entries_max])
        dispatcher.consumers[0].permits = 1000
    assert sizes[0] == 1000 and sizes[-1] <= 5


@pytest.mark.parametrize("permits", [1, 2, 7])
def test_what_nobody_has_permits_for_is_not_read(permits):
    for dispatcher in (exclusive(), shared()):
        dispatcher.add(consumer(permits=permits))
        entries = log(*[1] * 20)
        for _ in range(3):
            plan = dispatcher.next_read(entries[-1][0])
            assert plan.entries_max == permits
            dispatcher.distribute(plan, entries[plan.start[1] : plan.start[1] + plan.entries_max])
            assert dispatcher.next_read(entries[-1][0]) is None
            dispatcher.consumers[0].permits = permits


# -- shared ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("17.12")
def test_shared_goes_round_in_turns():
    dispatcher = shared()
    for name in "abc":
        dispatcher.add(consumer(name, permits=100))
    got = run(dispatcher, log(*[1] * 12))
    assert [name for name, _ in got] == ["a"] * 4 + ["b"] * 4 + ["c"] * 2 + ["a"] * 2  # reads of ten, turns of four


def test_shared_leaves_out_consumers_that_are_not_able():
    dispatcher = shared()
    a, b, c = (consumer(name, permits=100) for name in "abc")
    for one in (a, b, c):
        dispatcher.add(one)
    setattr(a, "connection", type("Full", (Outlet,), {"writable": False})())  # noqa: B010 (not a whole Outlet)
    b.permits = 0
    assert {name for name, _ in run(dispatcher, log(*[1] * 9))} == {"c"}


def test_shared_prefers_the_best_priority_level_that_is_able():
    dispatcher = shared()
    low, high = consumer("low", permits=100, priority_level=2), consumer("high", permits=3, priority_level=0)
    dispatcher.add(low)
    dispatcher.add(high)
    assert run(dispatcher, log(*[1] * 6)) == [("high", 0), ("high", 1), ("high", 2), ("low", 3), ("low", 4), ("low", 5)]


def test_shared_blocks_a_consumer_with_too_many_unacknowledged_until_half_is_done():
    dispatcher, view = None, View()
    dispatcher = shared(view, Limits(100, 20, 4))
    one = consumer(permits=1000)
    dispatcher.add(one)
    entries = log(*[1] * 8)
    assert [entry for _, entry in run(dispatcher, entries)] == [0, 1, 2, 3]
    assert one.blocked and one.unacked_messages == 4
    view.acknowledge([(1, 0)])
    assert dispatcher.acknowledged(one, [(1, 0)]) is False
    view.acknowledge([(1, 1)])
    assert dispatcher.acknowledged(one, [(1, 1)]) is True
    assert [entry for _, entry in run(dispatcher, entries)] == [4, 5]


def test_a_blocked_consumer_gets_again_what_it_gives_back_without_an_acknowledgement():
    dispatcher = shared(View(), Limits(100, 20, 4))
    one = consumer(permits=1000)
    dispatcher.add(one)
    entries = log(*[1] * 8)
    run(dispatcher, entries)
    for _ in range(2):
        assert one.blocked
        dispatcher.redeliver(one, [(1, 3), (1, 7)])
        assert not one.blocked and one.unacked_messages == 3
        assert run(dispatcher, entries) == [("c", 3)]
    dispatcher.redeliver(one, [(1, 7)])
    assert one.blocked, "it held nothing of that"


def test_shared_gives_what_a_lost_consumer_held_to_the_others_in_order():
    dispatcher = shared()
    a, b = consumer("a", permits=100), consumer("b", permits=0)
    dispatcher.add(a)
    dispatcher.add(b)
    entries = log(*[1] * 7)
    assert len(run(dispatcher, entries)) == 7
    b.permits = 100
    dispatcher.remove(a)
    assert run(dispatcher, entries) == [("b", index) for index in range(7)]
    assert b.unacked_messages == 7 and a.unacked_messages == 0


def test_shared_redelivers_single_entries_and_counts_how_often():
    view = View()
    dispatcher, one = shared(view), consumer(permits=100)
    dispatcher.add(one)
    entries = log(1, 2, 1)
    run(dispatcher, entries)
    dispatcher.redeliver(one, [(1, 1), (1, 77)])  # the second is not its own
    assert one.unacked_messages == 2
    plan = dispatcher.next_read((1, 2))
    assert plan.positions == ((1, 1),)
    delivery = dispatcher.distribute(plan, [entries[1]])[0]
    assert delivery.entries == [((1, 1), b"2", 2, 1)]
    dispatcher.redeliver(one, None)
    assert [dispatcher.redelivery_count((1, index)) for index in range(3)] == [1, 2, 1]
    view.acknowledge([(1, 1)])
    dispatcher.acknowledged(one, [(1, 1)])
    assert dispatcher.redelivery_count((1, 1)) == 0
    assert run(dispatcher, entries) == [("c", 0), ("c", 2)]


def test_shared_takes_acknowledgements_from_any_consumer_of_the_subscription():
    dispatcher = shared()
    a, b = consumer("a", permits=2), consumer("b", permits=0)
    dispatcher.add(a)
    dispatcher.add(b)
    run(dispatcher, log(1, 1, 1))
    dispatcher.acknowledged(b, [(1, 0)])
    assert a.unacked_messages == 1 and list(a.pending) == [(1, 1)]


def test_an_entry_acknowledged_while_it_waits_for_redelivery_does_not_come_again():
    view = View()
    dispatcher, one = shared(view), consumer(permits=100)
    dispatcher.add(one)
    entries = log(1, 1, 1)
    run(dispatcher, entries)
    dispatcher.redeliver(one, None)
    plan = dispatcher.next_read((1, 2))
    view.acknowledge([(1, 1)])
    dispatcher.acknowledged(one, [(1, 1)])
    sent = [position[1] for delivery in dispatcher.distribute(plan, entries) for position, *_ in delivery.entries]
    assert sent == [0, 2] and dispatcher.replay_size == 0


def test_shared_starts_again_when_the_last_consumer_has_left():
    view = View()
    dispatcher, one = shared(view), consumer(permits=100)
    dispatcher.add(one)
    entries = log(1, 1, 1)
    run(dispatcher, entries)
    view.acknowledge([(1, 0)])
    dispatcher.acknowledged(one, [(1, 0)])
    dispatcher.remove(one)
    assert dispatcher.replay_size == 0
    dispatcher.add(consumer("next", permits=100))
    assert run(dispatcher, entries) == [("next", 1), ("next", 2)]


def test_entries_that_no_longer_exist_leave_the_replay():
    dispatcher, one = shared(), consumer(permits=100)
    dispatcher.add(one)
    run(dispatcher, log(1, 1))
    dispatcher.redeliver(one, None)
    dispatcher.forget([(1, 0), (1, 1)])
    assert dispatcher.next_read((1, 1)) is None


class HoldingGate:
    """Holds back what is in `later`, and gives none of it out."""

    holds = True

    def __init__(self, later):
        self.later = later
        self.given = []
        self.own: tuple[tuple[int, int], ...] = ()

    def has(self, position):
        return position in self.own

    def ready(self):
        return True

    def skip(self, position):
        return None

    def due(self, count):
        return []

    def hidden(self, entries):
        return {position: self.later[position] for position, _ in entries if position in self.later}

    def hold(self, position, from_ms, slot):
        self.given.append((position, from_ms))


def test_an_entry_that_could_not_be_read_is_held_until_its_time_when_it_is_recalled():
    """The gate has not seen an entry that could not be read. One that was sent before has passed it."""
    dispatcher = shared()
    gate = dispatcher.gate = HoldingGate({(1, 0): 5000, (1, 1): 6000})  # type: ignore[assignment]
    one = consumer(permits=10)
    dispatcher.add(one)
    entries = log(1, 1, 1)
    plan = dispatcher.next_read((1, 2))
    assert dispatcher.set_aside(plan, (1, 0))
    run(dispatcher, entries)
    assert (list(one.pending), gate.given) == ([(1, 2)], [((1, 1), 6000)])
    dispatcher.recall(4)
    dispatcher.redeliver(one, [(1, 2)])
    gate.later[1, 2] = 7000
    run(dispatcher, entries)
    assert (list(one.pending), gate.given) == ([(1, 2)], [((1, 1), 6000), ((1, 0), 5000)])
    assert dispatcher.replay_size == 0


def test_nothing_is_held_of_an_acknowledged_entry_that_cannot_be_read():
    """Of a read of several entries, some are acknowledged. No acknowledgement would come to let go of them."""
    dispatcher = shared(View(beyond={(1, 1)}))
    dispatcher.gate = HoldingGate({})  # type: ignore[assignment]
    dispatcher.add(consumer(permits=10))
    dispatcher.read_position = (1, 1)
    assert dispatcher.set_aside(dispatcher.next_read((1, 2)), (1, 1))
    assert (dispatcher.read_position, dispatcher.held()) == ((1, 2), set())


def test_an_entry_that_a_bucket_has_is_not_set_aside_when_it_cannot_be_read():
    """The gate gives it out in its time. A second one would come from what is set aside."""
    dispatcher = shared()
    gate = HoldingGate({})
    gate.own = ((1, 0),)
    dispatcher.gate = gate  # type: ignore[assignment]
    one = consumer(permits=10)
    dispatcher.add(one)
    plan = dispatcher.next_read((1, 1))
    assert dispatcher.set_aside(plan, (1, 0))
    assert (dispatcher.read_position, dispatcher.replay_size, dispatcher.set_aside_size) == ((1, 1), 0, 0)
    run(dispatcher, log(1, 1))
    assert list(one.pending) == [(1, 1)]


def test_replays_are_read_as_few_ranges():
    assert runs([(1, 0), (1, 1), (1, 3), (1, 30), (2, 0), (2, 1)]) == [
        ((1, 0), (1, 3)),
        ((1, 30), (1, 30)),
        ((2, 0), (2, 1)),
    ]
    assert runs([]) == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["permits", "ack", "nack", "redeliver", "leave", "join", "append", "damage", "recall", "pass"]),
        st.integers(0, 7),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(STEPS, st.sampled_from([0, 1, 5, 9]))
def test_shared_loses_nothing_and_holds_nothing_twice(steps, bound):
    """Whatever consumers do: every entry is acknowledged, pending at one consumer, in replay or unread; and once all
    take what they get, everything arrives."""
    view = View()
    dispatcher = shared(view, Limits(3, 2, 6, bound))
    entries = log(1, 2, 1)
    members = []
    for step, number in steps:
        member = members[number % len(members)] if members else None
        if step == "join" and len(members) < 4:
            members.append(consumer(f"c{len(members)}", permits=number))
            dispatcher.add(members[-1])
        elif step == "append":
            entries.append(((1, len(entries)), b"1" if number % 2 else b"3"))
        elif step == "damage" and (plan := dispatcher.next_read(entries[-1][0])) is not None:
            assert dispatcher.set_aside(plan, plan.start)
        elif step == "recall":
            dispatcher.recall(number)
        elif step == "pass":
            view.first = max(view.first, (1, min(number, len(entries))))
            dispatcher.passed()
            assert all(position >= view.first for position in dispatcher.held())
        elif member is not None:
            held = sorted(member.pending)
            if step == "permits":
                member.permits += number
            elif step == "ack" and held:
                view.acknowledge([held[number % len(held)]])
                dispatcher.acknowledged(member, [held[number % len(held)]])
            elif step == "nack" and held:
                dispatcher.redeliver(member, [held[number % len(held)]])
            elif step == "redeliver":
                dispatcher.redeliver(member, None)
            elif step == "leave":
                members.remove(member)
                dispatcher.remove(member)
        run(dispatcher, entries)
        pending = [position for one in members for position in one.pending]
        assert len(pending) == len(set(pending))
        waiting = [*dispatcher._replay, *dispatcher._aside]
        assert len({*pending, *waiting}) == len(pending) + len(waiting)
        if bound:  # the last batch goes out whole
            assert sum(one.unacked_messages for one in members) <= bound + 2
        for one in members:
            assert one.unacked_messages == sum(one.pending.values())
        reached = [position for position, _ in entries if position < dispatcher.read_position]
        for position in reached:
            assert view.is_acknowledged(position) or position in pending or position in waiting or not members
    last = consumer("last", permits=10_000)
    dispatcher.add(last)
    for one in list(members):
        dispatcher.remove(one)
    while run(dispatcher, entries) or dispatcher.set_aside_size:
        dispatcher.recall(1)
        held = list(last.pending)
        view.acknowledge(held)
        dispatcher.acknowledged(last, held)
    assert all(view.is_acknowledged(position) for position, _ in entries)


def test_what_the_cursor_passes_over_frees_its_consumer_and_is_read_no_more():
    """A read that was planned in front of the place is void."""
    view = View()
    dispatcher = shared(view, Limits(3, 4, 2))
    one = consumer(permits=10)
    dispatcher.add(one)
    entries = log(1, 1, 1, 1)
    assert run(dispatcher, entries) == [("c", 0), ("c", 1)]
    dispatcher.redeliver(one, [(1, 0)])
    plan = dispatcher.next_read((1, 3))
    view.first = (1, 3)
    assert dispatcher.passed()
    assert (one.unacked_messages, one.blocked, dispatcher.held(), dispatcher.redelivery_count((1, 0))) == (
        0,
        False,
        set(),
        0,
    )
    assert plan is not None
    assert dispatcher.distribute(plan, entries[:1]) == []
    assert run(dispatcher, entries) == [("c", 3)]


def test_an_exclusive_consumer_goes_on_where_the_cursor_is():
    view = View()
    dispatcher = ExclusiveDispatcher(view, LIMITS, count_of)
    dispatcher.add(consumer(permits=10))
    plan = dispatcher.next_read((1, 3))
    view.first = (1, 2)
    assert dispatcher.passed()
    assert not dispatcher.passed(), "nothing is new"
    assert plan is not None
    assert dispatcher.distribute(plan, log(1, 1)) == []
    assert run(dispatcher, log(1, 1, 1, 1)) == [("c", 2), ("c", 3)]
