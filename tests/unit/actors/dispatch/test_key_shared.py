"""Key_Shared dispatch without sockets: one consumer for each key, in order, whoever comes and goes."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.dispatch.consumer import KeySharedOptions
from magnetar.actors.dispatch.hash_ranges import HashRing, SplitRanges, StickyRanges
from magnetar.actors.dispatch.key_shared import KeySharedDispatcher
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import ConsumerAssignError
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.sticky_key import sticky_hash

from .test_dispatchers import LIMITS, HoldingGate, View, consumer

MANY = LIMITS._replace(look_ahead_max=1000)


def key_shared(view=None, limits=MANY, ranges=None, **options):
    return KeySharedDispatcher(
        view or View(),
        limits,
        lambda position, body: 1,
        options=KeySharedOptions(**options),
        ranges=ranges or HashRing(10),
    )


def keyed(*keys):
    """Entries of ledger 1 with these keys."""
    bodies = (
        build_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key=key), b"")
        for key in keys
    )
    return [((1, index), body) for index, body in enumerate(bodies)]


def step(dispatcher, entries):
    """One read and its distribution; None when there is nothing to read."""
    plan = dispatcher.next_read(entries[-1][0])
    if plan is None:
        return None
    return finish(dispatcher, plan, entries)


def finish(dispatcher, plan, entries):
    if plan.positions:
        read = [entry for entry in entries if entry[0] in plan.positions]
    else:
        read = [entry for entry in entries if entry[0] >= plan.start][: plan.entries_max]
    return [
        (delivery.consumer.name, position[1])
        for delivery in dispatcher.distribute(plan, read)
        for position, *_ in delivery.entries
    ]


def run(dispatcher, entries):
    out = []
    while (sent := step(dispatcher, entries)) is not None:
        out += sent
    return out


def acknowledge(dispatcher, member, *indexes):
    positions = [(1, index) for index in indexes]
    dispatcher._cursor.acknowledge(positions)
    return dispatcher.acknowledged(member, positions)


def two(dispatcher, permits=100):
    """Consumers c1 and c2. With 10 points each, keys 3, 4, 7, 8, 9 are those of c2, and 0, 1, 2, 5, 6 of c1."""
    first, second = consumer("c1", permits), consumer("c2", permits)
    dispatcher.add(first)
    dispatcher.add(second)
    return first, second


# -- who gets what -----------------------------------------------------------------------------------------------------


def test_each_key_goes_to_its_consumer_in_order():
    dispatcher = key_shared()
    two(dispatcher)
    sent = run(dispatcher, keyed("0", "3", "0", "4", "3", "1"))
    assert [index for name, index in sent if name == "c1"] == [0, 2, 5]
    assert [index for name, index in sent if name == "c2"] == [1, 3, 4]


@pytest.mark.promise("20.7", "20.12")
def test_the_statistics_of_the_page_to_the_digit():
    dispatcher = key_shared()
    first, second = consumer("c1", 100), consumer("c2", 100)
    dispatcher.add(first)
    entries = keyed(*"01234567890123456789")
    assert len(run(dispatcher, entries)) == 20
    dispatcher.add(second)
    entries += [((1, 20 + index), body) for index, (_, body) in enumerate(keyed(*"3478934"))]
    assert run(dispatcher, entries) == []
    figures = dispatcher.key_figures()
    assert [dataclasses.astuple(one) for one in figures[first].draining] == [
        (2862, 2, 1),
        (11707, 2, 2),
        (15786, 2, 1),
        (43539, 2, 1),
        (45436, 2, 2),
    ]
    assert figures[first].ranges == [(2960, 5968), (22258, 43033), (49261, 54464), (55155, 61273)]
    assert figures[second].ranges == [(1, 2959), (5969, 22257), (43034, 49260), (54465, 55154), (61274, 65535)]
    assert (figures[first].drained, figures[second].draining) == (0, [])
    assert acknowledge(dispatcher, first, 3) is False
    assert acknowledge(dispatcher, first, 13) is True
    assert dispatcher.key_figures()[first].drained == 1
    assert run(dispatcher, entries) == [("c2", 20), ("c2", 25)]


def test_a_moved_key_waits_for_its_old_consumer_and_others_go_on():
    dispatcher = key_shared()
    first, second = consumer("c1", 100), consumer("c2", 100)
    dispatcher.add(first)
    entries = keyed("3", "0", "3", "0", "3", "4")
    assert run(dispatcher, entries[:2]) == [("c1", 0), ("c1", 1)]
    dispatcher.add(second)
    assert run(dispatcher, entries) == [("c1", 3), ("c2", 5)]
    assert dispatcher.replay_size == 2
    assert acknowledge(dispatcher, first, 0) is True
    assert run(dispatcher, entries) == [("c2", 2), ("c2", 4)]


@pytest.mark.promise("19.2")
def test_when_the_old_consumer_leaves_its_entries_come_first():
    dispatcher = key_shared()
    first, second = consumer("c1", 100), consumer("c2", 100)
    dispatcher.add(first)
    entries = keyed("3", "3", "3")
    assert len(run(dispatcher, entries[:2])) == 2
    dispatcher.add(second)
    assert run(dispatcher, entries) == []
    dispatcher.remove(first)
    assert run(dispatcher, entries) == [("c2", 0), ("c2", 1), ("c2", 2)]


def test_when_the_new_consumer_leaves_the_key_goes_on_at_the_old_one():
    dispatcher = key_shared()
    first, second = consumer("c1", 100), consumer("c2", 100)
    dispatcher.add(first)
    entries = keyed("3", "3")
    assert len(run(dispatcher, entries[:1])) == 1
    dispatcher.add(second)
    assert run(dispatcher, entries) == []
    dispatcher.remove(second)
    assert run(dispatcher, entries) == [("c1", 1)]
    assert dispatcher.key_figures()[first].draining == []


def test_out_of_order_delivery_does_not_wait():
    dispatcher = key_shared(allow_out_of_order=True)
    first, second = consumer("c1", 100), consumer("c2", 100)
    dispatcher.add(first)
    entries = keyed("3", "3")
    assert len(run(dispatcher, entries[:1])) == 1
    dispatcher.add(second)
    assert run(dispatcher, entries) == [("c2", 1)]
    assert dispatcher.key_figures()[first].draining == []


@pytest.mark.promise("19.3")
def test_a_consumer_without_permits_stops_its_keys_only():
    dispatcher = key_shared()
    first, _second = two(dispatcher)
    first.permits = 1
    entries = keyed("0", "0", "3", "1", "3", "0")
    assert run(dispatcher, entries) == [("c1", 0), ("c2", 2), ("c2", 4)]
    first.permits = 100
    assert run(dispatcher, entries) == [("c1", 1), ("c1", 3), ("c1", 5)]


@pytest.mark.promise("19.3")
def test_look_ahead_is_bounded():
    dispatcher = key_shared(limits=LIMITS._replace(look_ahead_max=3, read_entries_max=1))
    first, _second = two(dispatcher)
    first.permits = 0
    assert run(dispatcher, keyed("0", "3", "0", "0", "3", "3")) == [("c2", 1)]
    assert dispatcher.replay_size == 3


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({"look_ahead_max_per_consumer": 5, "look_ahead_max": 100}, 10),
        ({"look_ahead_max_per_consumer": 500, "look_ahead_max": 100}, 100),
        ({"look_ahead_max_per_consumer": 5}, 10),
        ({"subscription_unacked_max": 7, "unacked_messages_max": 9}, 7),
        ({"unacked_messages_max": 9}, 9),
    ],
)
def test_the_bound_of_look_ahead_is_pulsars(limits, expected):
    dispatcher = key_shared(limits=LIMITS._replace(**limits))
    two(dispatcher)
    assert dispatcher._look_ahead_max() == expected


class DueGate(HoldingGate):
    """Holds nothing back, and has entries whose time has come: with their slots, in the order of their times."""

    def __init__(self, *due):
        super().__init__({})
        self.waiting = list(due)

    def due(self, count):
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


def let_be_due(dispatcher, entries):
    """These entries were read and held, and are due now. Returns their gate."""
    gate = dispatcher.gate = DueGate(
        *[(position, dispatcher._ranges.slot_of(sticky_hash(body))) for position, body in entries]
    )
    dispatcher.read_position = (1, entries[-1][0][1] + 1)
    return gate


@pytest.mark.promise("19.3")
@pytest.mark.parametrize("permits", [0, 100])
def test_due_entries_that_wait_do_not_stop_those_that_are_due_behind(permits):
    """Of those that become due at a time, none may go out: their consumer has no permits, or their key drains."""
    dispatcher = key_shared(limits=MANY._replace(read_entries_max=2))
    first, second = two(dispatcher)
    dispatcher.remove(second)
    entries = keyed("3", "3", *("3" if permits else "0") * 5, "4")
    assert run(dispatcher, entries[:1]) == [("c1", 0)]
    dispatcher.add(second)
    first.permits = permits
    gate = let_be_due(dispatcher, entries[1:])
    assert run(dispatcher, entries) == [("c2", 7)]
    assert (len(dispatcher._waiting), gate.waiting) == (6, [])


def test_due_entries_wait_in_the_gate_while_others_are_read_or_look_ahead_is_full():
    dispatcher = key_shared(limits=LIMITS._replace(read_entries_max=2, look_ahead_max=3))
    first, _second = two(dispatcher)
    gate = let_be_due(dispatcher, keyed(*"003344"))
    assert dispatcher.next_read((1, 5)).positions == ((1, 0), (1, 1))
    assert len(gate.waiting) == 4
    first.permits = 0
    assert dispatcher.next_read((1, 5)).positions == ((1, 2),)
    assert len(gate.waiting) == 3


def test_due_entries_stay_in_the_gate_while_nobody_can_get_any():
    dispatcher = key_shared(limits=MANY._replace(read_entries_max=2))
    two(dispatcher, permits=0)
    gate = let_be_due(dispatcher, keyed(*"000333"))
    assert dispatcher.next_read((1, 5)) is None
    assert len(gate.waiting) == 4


@pytest.mark.parametrize("passed", [False, True])
def test_dispatch_goes_on_when_an_entry_that_filled_look_ahead_is_acknowledged(passed):
    """It was given back, and its consumer acknowledges it late, or it expires."""
    view = View()
    dispatcher = key_shared(view, limits=LIMITS._replace(look_ahead_max=2, read_entries_max=1))
    first, _second = two(dispatcher)
    entries = keyed("0", "0", "3")
    assert [step(dispatcher, entries) for _ in range(2)] == [[("c1", 0)], [("c1", 1)]]
    first.permits = 0
    dispatcher.redeliver(first, None)
    assert step(dispatcher, entries) is None
    if passed:
        view.acknowledge([(1, 0)])
        assert dispatcher.passed() is True
    else:
        assert acknowledge(dispatcher, first, 0) is True
    assert run(dispatcher, entries) == [("c2", 2)]
    assert acknowledge(dispatcher, first, 1) is False, "there was room already"


# -- redelivery --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("6.6")
def test_a_redelivery_goes_to_the_same_consumer_and_holds_back_later_ones():
    dispatcher = key_shared()
    first, _ = two(dispatcher)
    entries = keyed("0", "0", "1", "0")
    assert run(dispatcher, entries[:3]) == [("c1", 0), ("c1", 1), ("c1", 2)]
    plan = dispatcher.next_read((1, 3))
    dispatcher.redeliver(first, [(1, 1)])
    assert finish(dispatcher, plan, entries) == []  # its key is in replay
    assert run(dispatcher, entries) == [("c1", 1), ("c1", 3)]
    assert dispatcher.redelivery_count((1, 1)) == 1


@pytest.mark.promise("19.4")
def test_a_draining_key_given_back_goes_to_its_new_consumer():
    dispatcher = key_shared()
    first, second = consumer("c1", 100), consumer("c2", 100)
    dispatcher.add(first)
    entries = keyed("3", "3", "3")
    assert len(run(dispatcher, entries[:2])) == 2
    dispatcher.add(second)
    dispatcher.redeliver(first, [(1, 0)])
    assert run(dispatcher, entries) == []  # it still holds the second one
    dispatcher.redeliver(first, None)
    assert run(dispatcher, entries) == [("c2", 0), ("c2", 1), ("c2", 2)]


def waiting_in_a_plan():
    """Consumers c1 and c2. c1 holds entry 0 of a key, and a read of entry 1 of that key, which waited, is planned."""
    dispatcher = key_shared()
    first, second = two(dispatcher)
    first.permits = 1
    entries = keyed("0", "0")
    assert run(dispatcher, entries) == [("c1", 0)]
    first.permits = 100
    plan = dispatcher.next_read((1, 1))
    assert plan.positions == ((1, 1),)
    return dispatcher, first, second, entries, plan


def test_an_entry_given_back_during_a_read_is_not_overtaken():
    dispatcher, first, _, entries, plan = waiting_in_a_plan()
    dispatcher.remove(first)
    assert finish(dispatcher, plan, entries) == []
    assert run(dispatcher, entries) == [("c2", 0), ("c2", 1)]


def test_a_key_that_moves_during_a_read_waits_for_its_old_consumer():
    dispatcher, first, _, entries, plan = waiting_in_a_plan()
    dispatcher._ranges.select = lambda slot: dispatcher.consumers[1]  # as if a newcomer had taken the slot
    dispatcher._reassign()
    assert finish(dispatcher, plan, entries) == []
    assert acknowledge(dispatcher, first, 0) is True
    assert run(dispatcher, entries) == [("c2", 1)]


def test_what_is_acknowledged_while_it_waits_is_not_sent():
    view = View()
    dispatcher = key_shared(view)
    first, _ = two(dispatcher)
    entries = keyed("0", "0", "0")
    assert len(run(dispatcher, entries)) == 3
    first.permits = 0
    dispatcher.redeliver(first, None)
    acknowledge(dispatcher, first, 1)
    assert dispatcher.replay_size == 2
    first.permits = 100
    view.acknowledge([(1, 0)])  # as an admin who skips it does
    assert run(dispatcher, entries) == [("c1", 2)]
    assert dispatcher.replay_size == 0


def test_entries_that_no_longer_exist_do_not_stop_the_others():
    dispatcher = key_shared()
    first, _ = two(dispatcher)
    entries = keyed("0", "0")
    assert len(run(dispatcher, entries)) == 2
    dispatcher.redeliver(first, None)
    dispatcher.forget([(1, 0)])
    assert run(dispatcher, entries) == [("c1", 1)]


def test_an_entry_that_cannot_be_read_is_waited_for():
    dispatcher = key_shared()
    two(dispatcher)
    assert dispatcher.set_aside(dispatcher.next_read((1, 0)), (1, 0)) is False


# -- sticky ------------------------------------------------------------------------------------------------------------


def sticky(name, permits, *ranges):
    made = consumer(name, permits)
    made.key_shared = KeySharedOptions(sticky=True, ranges=ranges)
    return made


@pytest.mark.promise("18.15")
def test_sticky_keys_of_nobody_wait_until_somebody_takes_them():
    dispatcher = key_shared(ranges=StickyRanges(), sticky=True)
    dispatcher.add(sticky("low", 100, (0, 32767)))
    keys = [str(index) for index in range(20)]
    low = [name for name, _ in run(dispatcher, keyed(*keys))]
    assert 0 < len(low) < 20
    with pytest.raises(ConsumerAssignError):
        dispatcher.add(sticky("overlap", 100, (32767, 65535)))
    assert [one.name for one in dispatcher.consumers] == ["low"]
    dispatcher.add(sticky("high", 100, (32768, 65535)))
    assert len(run(dispatcher, keyed(*keys))) == 20 - len(low)


# -- whatever happens --------------------------------------------------------------------------------------------------


class Model:
    """What consumers hold, and the invariants of `key_shared`, checked at every step."""

    def __init__(self, ranges, allow_out_of_order, limits):
        self.view = View()
        self.dispatcher = key_shared(self.view, limits, ranges, allow_out_of_order=allow_out_of_order)
        self.keys = []
        self.ordered = not allow_out_of_order
        self.latest = {}  # by key: the last entry that was sent without having been given back before
        self.given_back = set()
        self.plan = None

    def entries(self):
        return keyed(*self.keys)

    def read(self):
        if self.keys and self.plan is None:
            self.plan = self.dispatcher.next_read((1, len(self.keys) - 1))

    def send(self):
        if self.plan is None:
            return
        plan, self.plan = self.plan, None
        entries = self.entries()
        if plan.positions:
            read = [entry for entry in entries if entry[0] in plan.positions]
        else:
            read = [entry for entry in entries if entry[0] >= plan.start][: plan.entries_max]
        for delivery in self.dispatcher.distribute(plan, read):
            for position, *_ in delivery.entries:
                index = position[1]
                assert not self.view.is_acknowledged(position)
                assert sum(position in one.pending for one in self.dispatcher.consumers) == 1
                key = self.keys[index]
                if self.ordered and index not in self.given_back:
                    assert self.latest.get(key, -1) < index
                    self.latest[key] = index
        self.check()

    def check(self):
        holders = {}
        for one in self.dispatcher.consumers:
            for position in one.pending:
                holders.setdefault(self.keys[position[1]], set()).add(one)
        if self.ordered:
            assert all(len(members) == 1 for members in holders.values())
        pending = sum(len(one.pending) for one in self.dispatcher.consumers)
        assert len(self.dispatcher._slots) == pending
        ahead = self.dispatcher.read_position[1]
        for index in range(min(ahead, len(self.keys)) if self.dispatcher.consumers else 0):
            position = (1, index)
            places = sum(position in one.pending for one in self.dispatcher.consumers)
            places += position in self.dispatcher._replay
            assert places == 1 or self.view.is_acknowledged(position)

    def settle(self):
        """Everything is delivered and acknowledged in the end."""
        for one in self.dispatcher.consumers:
            one.permits = 1000
        if not self.dispatcher.consumers:
            self.dispatcher.add(consumer("last", 1000))
        self.plan = None
        for _ in range(10 * len(self.keys) + 10):
            self.read()
            self.send()
            for one in self.dispatcher.consumers:
                acknowledge(self.dispatcher, one, *(position[1] for position in list(one.pending)))
        assert all(self.view.is_acknowledged((1, index)) for index in range(len(self.keys)))


ACTIONS = st.tuples(
    st.sampled_from(["publish", "publish", "read", "send", "flow", "ack", "nack", "join", "leave", "pass"]),
    st.integers(0, 11),
)


@pytest.mark.promise("19.1")
@pytest.mark.parametrize("make", [lambda: HashRing(3), SplitRanges])
@settings(max_examples=150)
@given(
    st.lists(ACTIONS, max_size=60),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0, 2]),
)
def test_one_consumer_for_each_key_in_order_whatever_happens(make, actions, out_of_order, look_ahead, read, unacked):
    limits = LIMITS._replace(look_ahead_max=look_ahead, read_entries_max=read, unacked_messages_max=unacked)
    model = Model(make(), out_of_order, limits)
    dispatcher = model.dispatcher
    for action, number in actions:
        members = dispatcher.consumers
        member = members[number % len(members)] if members else None
        if action == "publish":
            model.keys.append(str(number % 4))
        elif action == "read":
            model.read()
        elif action == "send":
            model.send()
        elif action == "pass":
            first = model.view.first = max(model.view.first, (1, min(number, len(model.keys))))
            dispatcher.passed()
            assert all(position >= first for position in dispatcher.held())
            assert all(holding.entries for holding in ([] if out_of_order else dispatcher._holdings.by_slot.values()))
        elif action == "join":
            if len(members) < 4:
                dispatcher.add(consumer(f"c{number}", number % 3))
        elif member is None:
            continue
        elif action == "flow":
            member.permits += 1 + number % 3
        elif action == "leave":
            if len(members) > 1:  # when the last one leaves, the subscription drops its dispatcher
                model.given_back.update(position[1] for position in member.pending)
                dispatcher.remove(member)
        elif member.pending:
            position = sorted(member.pending)[number % len(member.pending)]
            if action == "ack":
                acknowledge(dispatcher, member, position[1])
            else:
                model.given_back.add(position[1])
                dispatcher.redeliver(member, [position])
        model.check()
    model.settle()
