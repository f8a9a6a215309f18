"""Shared dispatch of chunks: all of one message go to one consumer, also on redelivery, and nothing is left behind."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.actors.dispatch.dispatcher import Limits
from magnetar.actors.dispatch.message_counts import MessageCounts
from magnetar.actors.dispatch.shared_chunks import ChunkedSharedDispatcher
from magnetar.protocol.entries import build_entry
from magnetar.protocol.pulsar_pb2 import MessageMetadata

LIMITS = Limits(read_entries_max=4, turn_messages_max=2, unacked_messages_max=0)


class Outlet:
    """A connection that takes everything."""

    writable = True
    closed = False
    remote_address = "/test:1"
    client_version = "test"


class View:
    """A cursor by a set of what is acknowledged in ledger 1."""

    def __init__(self):
        self.done = set()

    def is_acknowledged(self, position):
        return position in self.done

    def next_unacknowledged(self, position):
        while position in self.done:
            position = (position[0], position[1] + 1)
        return position

    def ranges_before(self, position):
        return 0

    @property
    def first_unacknowledged(self):
        return self.next_unacknowledged((1, 0))


def entry(text):
    """`a0/3` is chunk 0 of 3 of message a; anything else holds no chunk."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if "/" in text:
        metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = text[0], int(text[1]), int(text[3])
    return build_entry(metadata, b"x")


def log(text):
    return [((1, index), entry(one)) for index, one in enumerate(text.split())]


def consumer(name, permits=100):
    made = AttachedConsumer(Outlet(), 1, name)
    made.permits = permits
    return made


def made(*names_and_permits, view=None, limits=LIMITS):
    counts = MessageCounts()
    dispatcher = ChunkedSharedDispatcher(view or View(), limits, counts.of, counts)
    consumers = [consumer(name, permits) for name, permits in names_and_permits]
    for one in consumers:
        dispatcher.add(one)
    return dispatcher, consumers


def run(dispatcher, entries):
    """Read and distribute until nothing goes on; what each consumer got, as (consumer name, entry id)."""
    out = []
    while (plan := dispatcher.next_read(entries[-1][0])) is not None:
        if plan.positions:
            read = [one for one in entries if one[0] in plan.positions]
        else:
            read = [one for one in entries if one[0] >= plan.start][: plan.entries_max]
        for delivery in dispatcher.distribute(plan, read):
            out += [(delivery.consumer.name, position[1]) for position, *_ in delivery.entries]
    return out


def test_chunks_of_a_message_go_to_one_consumer():
    dispatcher, _ = made(("x", 100), ("y", 100))
    out = run(dispatcher, log("a0/3 - - b0/2 - a1/3 b1/2 - - a2/3 -"))
    owner = {entry_id: name for name, entry_id in out}
    assert len(out) == 11 and len({owner[index] for index in (0, 5, 9)}) == len({owner[index] for index in (3, 6)}) == 1
    assert {"x", "y"} == set(owner.values())


def test_a_chunk_waits_for_its_owner_while_others_go_on():
    dispatcher, (x, y) = made(("x", 1), ("y", 100))
    entries = log("a0/2 - a1/2 - -")
    assert run(dispatcher, entries) == [("x", 0), ("y", 1), ("y", 3), ("y", 4)]
    assert dispatcher.replay_size == 1
    x.permits += 1
    assert run(dispatcher, entries) == [("x", 2)]
    assert y.permits == 97 and dispatcher.replay_size == 0


def test_chunks_of_a_consumer_that_leaves_go_to_one_other():
    dispatcher, (x, *_) = made(("x", 2), ("y", 100), ("z", 100))
    entries = log("a0/3 a1/3 a2/3 -")
    assert run(dispatcher, entries)[:2] == [("x", 0), ("x", 1)]
    dispatcher.remove(x)
    again = run(dispatcher, entries)
    assert [entry_id for _, entry_id in again] == [0, 1, 2] and len({name for name, _ in again}) == 1


def test_redelivered_chunks_go_to_one_consumer_in_order():
    dispatcher, (x, y) = made(("x", 100), ("y", 100))
    entries = log("a0/5 a1/5 a2/5 a3/5 a4/5 -")
    first = run(dispatcher, entries)
    holder = x if first[0][0] == "x" else y
    dispatcher.redeliver(holder, [(1, index) for index in range(5)])
    again = run(dispatcher, entries)
    assert [entry_id for _, entry_id in again] == [0, 1, 2, 3, 4] and len({name for name, _ in again}) == 1


def test_a_parked_chunk_that_is_acknowledged_is_forgotten():
    view = View()
    dispatcher, (x, y) = made(("x", 1), ("y", 100), view=view)
    entries = log("a0/2 a1/2")
    run(dispatcher, entries)
    view.done.add((1, 1))
    dispatcher.acknowledged(y, [(1, 1)])
    x.permits += 5
    assert run(dispatcher, entries) == [] and dispatcher.replay_size == 0


def test_reading_stops_while_too_many_chunks_are_parked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("magnetar.actors.dispatch.shared_chunks.PARKED_MAX", 2)
    dispatcher, (x, _) = made(("x", 1), ("y", 100))
    entries = log("a0/9 a1/9 a2/9 a3/9 - - - - - - -")
    assert ("y", 10) not in run(dispatcher, entries)
    x.permits += 100
    assert len(run(dispatcher, entries)) > 0 and dispatcher.replay_size == 0


def test_chunks_do_not_overtake_one_that_is_parked():
    """The owner becomes able while the next chunk is being read."""
    dispatcher, (x, y) = made(("x", 1), ("y", 1))
    entries = log("a0/4 a1/4 a2/4 a3/4")
    plan = dispatcher.next_read((1, 3))
    assert plan is not None
    (first,) = dispatcher.distribute(plan, entries[:2])
    owner, other = (x, y) if first.consumer is x else (y, x)
    assert [position for position, *_ in first.entries] == [(1, 0)] and dispatcher.replay_size == 1
    plan = dispatcher.next_read((1, 3))
    assert plan is not None and plan.start == (1, 2)  # for the other consumer
    owner.permits += 1
    assert dispatcher.distribute(plan, entries[2:]) == []
    owner.permits += 9
    assert run(dispatcher, entries) == [(owner.name, 1), (owner.name, 2), (owner.name, 3)]
    assert other.permits == 1


def test_a_chunk_that_is_asked_for_alone_comes_to_where_the_others_are():
    dispatcher, (x, y) = made(("x", 100), ("y", 100))
    entries = log("a0/3 a1/3 a2/3 - -")
    holder = x if run(dispatcher, entries)[0][0] == "x" else y
    dispatcher.redeliver(holder, [(1, 1)])
    assert run(dispatcher, entries) == [(holder.name, 1)]
    dispatcher.redeliver(holder, [(1, 2)])
    assert run(dispatcher, entries) == [(holder.name, 2)]


def test_a_chunk_is_not_parked_for_a_consumer_that_gave_the_others_back():
    dispatcher, (x, y) = made(("x", 1), ("y", 1))
    entries = log("a0/3 a1/3 a2/3")
    run(dispatcher, entries)
    owner, other = (x, y) if x.pending else (y, x)
    assert dispatcher.replay_size == 2
    dispatcher.redeliver(owner, None)
    owner.permits = 0
    other.permits = 100
    assert run(dispatcher, entries) == [(other.name, 0), (other.name, 1), (other.name, 2)]
    assert dispatcher.replay_size == 0


def test_nothing_is_noted_of_chunks_that_are_acknowledged():
    view = View()
    dispatcher, (x, _) = made(("x", 100), ("y", 100), view=view)
    entries = log("a0/2 a1/2 b0/2 b1/2")
    run(dispatcher, entries)
    positions = [position for position, _ in entries]
    view.done.update(positions)
    dispatcher.acknowledged(x, positions)
    assert not dispatcher._owners._owners and not dispatcher._owners._held


@pytest.mark.promise("13.10")
@settings(max_examples=150)
@given(st.data())
def test_every_message_is_whole_at_one_consumer_in_the_end(data):
    """Chunks of three messages and ordinary entries in any order, permits in drops, redeliveries and a leave."""
    sizes = [data.draw(st.integers(2, 4)) for _ in "abc"]
    queues = [[f"{name}{index}/{size}" for index in range(size)] for name, size in zip("abc", sizes, strict=True)]
    queues.append(["-"] * 5)
    texts = []
    while any(queues):
        texts.append(data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    entries = log(" ".join(texts))
    view = View()
    dispatcher, consumers = made(("x", 1), ("y", 2), ("z", 0), view=view)
    holds = {one.name: {} for one in consumers}
    for _ in range(data.draw(st.integers(1, 12))):
        for name, entry_id in run(dispatcher, entries):
            holds[name][entry_id] = None
        one = data.draw(st.sampled_from(dispatcher.consumers))
        match data.draw(st.sampled_from(("permits", "redeliver", "leave"))):
            case "permits":
                one.permits += data.draw(st.integers(1, 3))
            case "redeliver":
                back = data.draw(st.lists(st.sampled_from(sorted(one.pending)))) if one.pending else []
                dispatcher.redeliver(one, back or None)
                for position in back:
                    holds[one.name].pop(position[1], None)
                if not back:
                    holds[one.name].clear()
            case "leave" if len(dispatcher.consumers) > 1:
                dispatcher.remove(one)
                del holds[one.name]
    for one in dispatcher.consumers:
        dispatcher.redeliver(one, None)
        holds[one.name].clear()
        one.permits = 1000
    for name, entry_id in run(dispatcher, entries):
        assert entry_id not in holds[name]
        holds[name][entry_id] = None
    assert sorted(index for held in holds.values() for index in held) == list(range(len(entries)))
    for letter in "abc":
        wanted = [index for index, text in enumerate(texts) if text[0] == letter]
        assert any(all(index in held for index in wanted) for held in holds.values())


class OpenGate:
    """Holds nothing back, and notes what it was asked about."""

    holds = True

    def __init__(self):
        self.asked = []

    def ready(self):
        return True

    def has(self, position):
        return False

    def skip(self, position):
        return None

    def due(self, count):
        return []

    def hidden(self, entries):
        self.asked.append([position for position, _ in entries])
        return {}


def test_a_chunk_that_was_recalled_passes_the_gate_once():
    dispatcher, (x,) = made(("x", 100))
    gate = OpenGate()
    dispatcher.gate = gate  # type: ignore[assignment]
    entries = log("a0/2 a1/2")
    assert dispatcher.set_aside(dispatcher.next_read((1, 1)), (1, 0))
    assert run(dispatcher, entries) == [("x", 1)]
    dispatcher.recall(4)
    assert run(dispatcher, entries) == [("x", 0)]
    dispatcher.redeliver(x, None)
    assert run(dispatcher, entries) == [("x", 0), ("x", 1)]
    assert gate.asked == [[(1, 1)], [(1, 0)]]


def test_chunks_that_the_cursor_passes_over_are_neither_owned_nor_parked():
    view = View()
    dispatcher, (x, y) = made(("x", 1), ("y", 100), view=view)
    run(dispatcher, log("a0/3 a1/3 b0/2 b1/2 a2/3"))
    assert (1, 1) in dispatcher.held(), "it is parked for x, which has no permits"
    view.done.update((1, index) for index in range(5))
    dispatcher.passed()
    assert (dispatcher.held(), dispatcher.replay_size, x.pending, y.pending) == (set(), 0, {}, {})
