"""Deduplication without a socket: what is a duplicate, and what becomes of a failure, a snapshot and a replay."""

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from magnetar.actors.deduplication import topic_deduplication
from magnetar.actors.deduplication.topic_deduplication import (
    DEDUPLICATION_CURSOR,
    Deduplication,
    DeduplicationState,
    SequenceIds,
    Verdict,
)
from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.topics.feature import TopicFeatures
from magnetar.actors.topics.producer import AttachedProducer, ProducerState
from magnetar.actors.topics.publishing import Publishing
from magnetar.actors.topics.topic import TopicState
from magnetar.protocol.commands import send_receipt
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import BookieUnavailable, EntryCorrupt, EntryUnknown, NoSuchEntry, NoSuchLedger
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.topics import TopicName
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.managed.cursor_storage import CursorKind
from support.servers.broker_bench import until

pytestmark = pytest.mark.promise("27.1")

NAME = TopicName.parse("persistent://public/default/t")


def metadata_of(sequence_id, **fields):
    return MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, **fields)


class Cursor:
    kind = CursorKind.DEDUPLICATION

    def __init__(self, mark, properties=None):
        self.mark_delete_position = mark
        self.properties = dict(properties or {})

    def take_snapshot(self, position, properties):
        self.mark_delete_position, self.properties = position, dict(properties)


class Ledger:
    """Entries of one ledger. Appends wait for `store` or `fail`; `surviving` of the failed ones are there once it is
    settled."""

    def __init__(self):
        self.bodies, self.waiting, self.lost = [], [], []
        self.cursors = {}
        self.surviving = 0

    @property
    def last_confirmed(self):
        return (7, len(self.bodies) - 1) if self.bodies else (-1, -1)

    def next_position(self, position):
        return (7, position[1] + 1)

    async def read(self, first, entries_max, bytes_max, upto):
        await asyncio.sleep(0)
        return [((7, number), self.bodies[number]) for number in range(first[1], upto[1] + 1)][:entries_max]

    async def open_cursor(self, name, kind):
        await asyncio.sleep(0)
        return self.cursors.setdefault(name, Cursor(self.last_confirmed))

    async def delete_cursor(self, name, kind):
        await asyncio.sleep(0)
        del self.cursors[name]

    async def settle(self):
        await asyncio.sleep(0)
        self.bodies += self.lost[: self.surviving]
        self.lost = []

    def append(self, body, callback):
        self.waiting.append((body, callback))

    def store(self, count=1000):
        done, self.waiting = self.waiting[:count], self.waiting[count:]
        for body, callback in done:
            self.bodies.append(body)
            callback(self.last_confirmed, None)

    def fail(self):
        done, self.waiting = self.waiting, []
        self.lost = [body for body, _ in done]
        for _, callback in done:
            callback(None, BookieUnavailable("no bookies"))


class Outlet:
    def __init__(self):
        self.closed = False
        self.written = []

    def write(self, data):
        self.written.append(data)

    def publish_began(self, size_bytes):
        pass

    def publish_ended(self, size_bytes):
        pass

    def producer_closed(self, producer):
        pass


class Topic:
    """A topic with deduplication, and one producer at a time."""

    def __init__(self, ledger=None, **settings):
        self.name, self.state = NAME, TopicState.OPEN
        self.settings = Settings(deduplication_enabled=True, **settings)
        self.policies = EffectivePolicies.resolve(self.settings)
        self.env = SimpleNamespace(random=Random(1), clock=SimpleNamespace(now_ms=lambda: 1000))
        self.ledger = ledger if ledger is not None else Ledger()
        self.tasks = []
        self.publishing = Publishing(self, self.ledger, lambda *_: None, stages=())
        self.features = TopicFeatures((Deduplication,), self)  # type: ignore[arg-type]
        self.deduplication = self.features.of(Deduplication)
        self.deduplication.opened()
        self.renew_stages()

    def use_policies(self, policies):
        before, self.policies = self.policies, policies
        self.features.policies_changed(before, policies)
        self.renew_stages()

    def renew_stages(self):
        self.publishing.use_stages(self.features.stages())

    def check_open(self):
        pass

    def spawn(self, coroutine, name):
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    def cursor_moved(self):
        pass

    def publish_failed(self, error):
        self.state = TopicState.FENCED

    def nothing_pending(self):
        self.publishing.disconnect_all()
        self.state = TopicState.OPEN

    def attach(self):
        self.outlet = Outlet()
        self.producer = AttachedProducer(self.publishing, self.outlet, 1, "p", user_provided_name=True)
        self.publishing.producers["p"] = self.producer

    def send(self, sequence_id, highest=0, **fields):
        metadata = metadata_of(sequence_id, highest_sequence_id=highest, **fields)
        body = build_entry(metadata, b"x")
        self.publishing.publish(self.producer, sequence_id, highest, 1, body, metadata)

    @property
    def cursor(self):
        return self.ledger.cursors[DEDUPLICATION_CURSOR]


async def ready(ledger=None, **settings):
    topic = Topic(ledger, **settings)
    await topic.deduplication.ready()
    topic.attach()
    return topic


def receipt(sequence_id, entry=None, highest=0):
    return send_receipt(1, sequence_id, highest, *((7, entry) if entry is not None else (-1, -1)))


def test_an_id_is_new_then_unknown_then_a_duplicate():
    ids = SequenceIds()
    assert [ids.push("p", one) for one in (3, 3, 2, 4)] == [Verdict.NEW, Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.NEW]
    ids.persisted["p"] = 3
    assert [ids.push("p", one) for one in (3, 4)] == [Verdict.DUPLICATE, Verdict.UNKNOWN]
    assert ids.push("q", 0) is Verdict.NEW
    ids.forget_pushed()
    assert ids.push("p", 4) is Verdict.NEW


def test_a_snapshot_keeps_the_names_that_were_in_use_last():
    ids = SequenceIds()
    for now_ms, name in enumerate("abcd"):
        ids.persisted[name] = now_ms
        ids.forget_pushed()
        ids.forget_unused([name], now_ms, 100)
    assert ids.snapshot(2, ["a"]) == {"a": "0", "d": "3"}
    ids.forget_unused(["a"], 103, 100)
    assert sorted(ids.persisted) == ["a", "d"]


def test_a_name_whose_last_entry_is_under_way_is_not_forgotten():
    ids = SequenceIds()
    ids.persisted["p"] = 1
    ids.push("p", 2)
    for now_ms in (0, 1000):
        ids.forget_unused([], now_ms, 100)
    assert ids.push("p", 2) is Verdict.UNKNOWN


@pytest.mark.promise("27.4")
async def test_receipts_of_duplicates_keep_their_turn():
    topic = await ready()
    topic.send(5)
    topic.ledger.store()
    topic.send(6)
    topic.send(5)
    topic.send(7)
    assert topic.outlet.written == [receipt(5, 0)]
    topic.ledger.store()
    assert topic.outlet.written == [receipt(5, 0), receipt(6, 1), receipt(5), receipt(7, 2)]
    assert topic.publishing.pending == 0 == topic.producer.pending
    topic.send(7)
    assert topic.outlet.written[-1] == receipt(7)


async def test_of_a_batch_the_highest_id_counts():
    topic = await ready()
    topic.send(0, 9)
    topic.ledger.store()
    topic.send(5, 9)
    assert topic.outlet.written == [receipt(0, 0, 9), receipt(5, None, 9)]


async def test_of_a_message_in_chunks_only_the_last_one_is_judged():
    topic = await ready()
    for _ in range(2):
        for chunk in range(2):
            topic.send(0, num_chunks_from_msg=2, chunk_id=chunk, uuid="u")
        topic.ledger.store()
    assert topic.outlet.written == [receipt(0, 0), receipt(0, 1), receipt(0, 2), receipt(0)]


async def test_an_entry_whose_outcome_is_unknown_ends_the_session_and_is_stored_once():
    topic = await ready()
    topic.send(0)
    topic.attach()
    assert topic.deduplication.last_sequence_id("p") is None
    topic.send(0)
    assert topic.producer.state is ProducerState.CLOSED
    topic.ledger.store()
    topic.attach()
    assert topic.deduplication.last_sequence_id("p") == 0
    topic.send(0)
    assert topic.outlet.written == [receipt(0)] and len(topic.ledger.bodies) == 1


@pytest.mark.parametrize("surviving", [0, 1, 3])
async def test_a_failed_append_is_stored_once_whatever_the_recovery_finds(surviving):
    topic = await ready()
    topic.send(0)
    topic.ledger.store()
    for number in (1, 2, 3):
        topic.send(number)
    topic.ledger.surviving = surviving
    topic.ledger.fail()
    assert topic.deduplication.state is DeduplicationState.REPLAYING
    await topic.deduplication.ready()
    topic.attach()
    assert topic.deduplication.last_sequence_id("p") == surviving
    for number in (1, 2, 3):
        topic.send(number)
    topic.ledger.store()
    places = [None if number <= surviving else number for number in (1, 2, 3)]
    assert topic.outlet.written == [receipt(number, place) for number, place in zip((1, 2, 3), places, strict=True)]
    assert len(topic.ledger.bodies) == 4


async def test_nothing_is_stored_before_the_sequence_ids_are_known():
    topic = Topic()
    topic.attach()
    topic.send(0)
    assert topic.producer.state is ProducerState.CLOSED and topic.ledger.waiting == []


async def test_a_snapshot_has_the_ids_of_everything_up_to_its_place():
    topic = await ready(deduplication_entries_interval=3)
    for number in range(5):
        topic.send(number)
    topic.ledger.store(4)
    assert (topic.cursor.mark_delete_position, topic.cursor.properties) == ((7, 2), {"p": "2"})
    topic.deduplication.closing()
    assert (topic.cursor.mark_delete_position, topic.cursor.properties) == ((7, 3), {"p": "3"})
    topic.ledger.fail()  # what is under way ends later
    assert topic.deduplication.state is DeduplicationState.ON


@pytest.mark.parametrize("stored", [2, 5])
async def test_a_topic_that_is_loaded_reads_what_lies_behind_the_snapshot(stored):
    before = await ready(deduplication_entries_interval=3)
    for number in range(stored):
        before.send(number)
    before.ledger.store()
    topic = await ready(before.ledger)
    assert topic.deduplication.last_sequence_id("p") == stored - 1


def stored_by(count):
    """A ledger with messages 0… of the producer `p`, and the cursor at its beginning."""
    ledger = Ledger()
    ledger.bodies = [build_entry(metadata_of(number), b"x") for number in range(count)]
    ledger.cursors[DEDUPLICATION_CURSOR] = Cursor((7, -1))
    return ledger


def losing(ledger, lost, error):
    """Reads of these entries fail. Returns how often each was read."""
    read, reads = ledger.read, dict.fromkeys(lost, 0)

    async def reading(first, entries_max, bytes_max, upto):
        if first[1] in lost:
            reads[first[1]] += 1
            await asyncio.sleep(0)
            raise error
        end = min([number for number in lost if number > first[1]], default=upto[1] + 1) - 1
        return await read(first, entries_max, bytes_max, (7, min(end, upto[1])))

    ledger.read = reading
    return reads


@pytest.mark.parametrize("error", [NoSuchEntry("none has it"), EntryCorrupt("no copy"), NoSuchLedger("gone")])
async def test_a_lost_entry_is_asked_for_a_few_times_and_then_passed(error, monkeypatch, caplog):
    monkeypatch.setattr(topic_deduplication, "RETRY_INITIAL_S", 0.001)
    ledger = stored_by(9)
    reads = losing(ledger, (2, 3, 8), error)
    topic = await ready(ledger)
    assert reads == {2: topic_deduplication.LOST_TRIES, 3: 1, 8: 1}
    assert topic.deduplication.last_sequence_id("p") == 7
    assert "3 entries of persistent://public/default/t in front of (7, 9) are lost" in caplog.text
    topic.send(8)
    ledger.store()
    assert len(ledger.bodies) == 10  # a message that is lost is stored when it is sent again


async def test_an_entry_that_may_exist_is_waited_for_and_an_operator_can_end_that(monkeypatch, caplog):
    monkeypatch.setattr(topic_deduplication, "RETRY_INITIAL_S", 0.001)
    monkeypatch.setattr(topic_deduplication, "RETRY_MAX_S", 0.002)
    ledger = stored_by(3)
    reads = losing(ledger, (1,), EntryUnknown("a bookie is away"))
    topic = Topic(ledger)
    await until(lambda: reads[1] > 3 * topic_deduplication.LOST_TRIES)
    assert topic.deduplication.state is DeduplicationState.REPLAYING and not topic.publishing.is_ready
    assert "switch deduplication off for this topic" in caplog.text
    topic.use_policies(EffectivePolicies.resolve(Settings()))
    assert topic.publishing.is_ready
    await asyncio.gather(*topic.tasks)
    assert topic.deduplication.state is DeduplicationState.OFF and topic.publishing.stages == ()


async def test_without_the_policy_the_cursor_of_an_earlier_owner_is_deleted():
    before = await ready()
    before.use_policies(EffectivePolicies.resolve(Settings()))
    await asyncio.gather(*before.tasks)
    assert before.ledger.cursors == {} and before.deduplication.state is DeduplicationState.OFF
    assert before.publishing.stages == ()


async def test_switched_off_and_on_again_at_once_it_judges_what_comes_then():
    topic = await ready()
    policies = topic.policies
    topic.use_policies(EffectivePolicies.resolve(Settings()))
    topic.use_policies(policies)
    await asyncio.gather(*topic.tasks)
    assert topic.deduplication.state is DeduplicationState.ON and topic.publishing.stages == (topic.deduplication,)
