"""Publish stages, without a socket: what each one decides, and in which order publishing asks them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from magnetar.actors.features.table import FEATURES
from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.topics.feature import TopicFeatures
from magnetar.actors.topics.producer import AttachedProducer, ProducerState, Publish
from magnetar.actors.topics.publishing import Publishing, PublishStage, Refusal
from magnetar.actors.topics.stages import EncryptionRequired, MessageSizeLimit
from magnetar.actors.topics.topic import TopicState
from magnetar.protocol.commands import send_error, send_receipt
from magnetar.protocol.errors import BookieUnavailable, BrokerMetadataError, NotAllowedError
from magnetar.protocol.pulsar_pb2 import EncryptionKeys, MessageMetadata, ServerError
from magnetar.protocol.topics import TopicName
from magnetar.runtime.settings.declarations import Settings

NAME = TopicName.parse("persistent://public/default/t")
PLAIN_POLICIES = EffectivePolicies.resolve(Settings())
PLAIN = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
ENCRYPTED = MessageMetadata(
    producer_name="p", sequence_id=1, publish_time=1, encryption_keys=[EncryptionKeys(key="k", value=b"v")]
)


class Log:
    """A ledger that answers when it is told to."""

    def __init__(self):
        self.waiting = []

    def append(self, body, callback):
        self.waiting.append((body, callback))

    def store(self):
        for index, (_, callback) in enumerate(self.waiting):
            callback((7, index), None)
        self.waiting.clear()

    def fail(self, error):
        for _, callback in self.waiting:
            callback(None, error)
        self.waiting.clear()


class Outlet:
    """A connection that keeps what is written to it."""

    def __init__(self, events):
        self.closed = False
        self.writable = True
        self.written = []
        self.sent_away = []
        self.under_way = 0
        self._events = events

    def write(self, data):
        self.written.append(data)
        self._events.append("answer")

    def publish_began(self, size_bytes):
        self.under_way += 1

    def publish_ended(self, size_bytes):
        self.under_way -= 1

    def producer_closed(self, producer):
        self.sent_away.append(producer)


class Host:
    """A topic that is open until an entry fails."""

    def __init__(self):
        self.name = NAME
        self.state = TopicState.OPEN
        self.policies = PLAIN_POLICIES

    def check_open(self):
        pass

    def publish_failed(self, error):
        self.state = TopicState.FENCED

    def nothing_pending(self):
        pass


class Recorder(PublishStage):
    """Notes what it hears; refuses the sequence ids that it is given."""

    def __init__(self, name, events, refuse=()):
        self._name = name
        self._events = events
        self._refuse = refuse

    def admit(self, publish, metadata):
        self._events.append(f"{self._name} admit {publish.sequence_id}")
        return Refusal(NotAllowedError("not this one")) if publish.sequence_id in self._refuse else None

    def stored(self, publish, position):
        self._events.append(f"{self._name} stored {publish.sequence_id} at {position[1]}")

    def failed(self, publish, error):
        self._events.append(f"{self._name} failed {publish.sequence_id}: {error}")


class Bench:
    """One producer of one topic with the given stages."""

    def __init__(self, *stages, events=None):
        self.log, self.host = Log(), Host()
        self.outlet = Outlet(events if events is not None else [])
        self.publishing = Publishing(self.host, self.log, lambda *_: None, stages=stages)
        self.producer = AttachedProducer(self.publishing, self.outlet, 1, "p", user_provided_name=True, encrypted=True)
        self.publishing.producers["p"] = self.producer

    def publish(self, sequence_id, metadata=PLAIN):
        self.publishing.publish(self.producer, sequence_id, 0, 1, b"entry", metadata)


def stages_of(policies):
    """The stages of a topic whose broker takes messages of 100 bytes."""
    topic = SimpleNamespace(name=NAME, policies=policies, settings=SimpleNamespace(max_message_size_bytes=100))
    kinds = [kind for kind in FEATURES if not kind.persistent_only]
    return TopicFeatures(kinds, topic).stages()  # type: ignore[arg-type]


# -- encryption required -----------------------------------------------------------------------------------------------


def test_a_plain_topic_has_no_stages():
    assert stages_of(PLAIN_POLICIES) == ()


def test_the_policy_makes_the_stage_that_requires_encryption():
    stages = stages_of(replace(PLAIN_POLICIES, encryption_required=True))
    assert [type(stage) for stage in stages] == [EncryptionRequired]


async def test_a_producer_that_does_not_encrypt_is_refused_with_metadata_error():
    bench = Bench(EncryptionRequired(NAME))
    bench.publishing.check(bench.producer)
    bench.producer.encrypted = False
    with pytest.raises(BrokerMetadataError, match="Encryption is required in persistent://public/default/t"):
        bench.publishing.check(bench.producer)


def test_only_messages_with_encryption_keys_are_admitted():
    stage = EncryptionRequired(NAME)
    publish = Publish(None, 1, 0, 1, 5)  # type: ignore[arg-type]
    assert stage.admit(publish, ENCRYPTED) is None
    refusal = stage.admit(publish, PLAIN)
    assert refusal is not None and isinstance(refusal.error, BrokerMetadataError)
    assert str(refusal.error) == "Messages must be encrypted"


async def test_a_plain_message_is_refused_behind_the_receipt_of_an_encrypted_one():
    bench = Bench(EncryptionRequired(NAME))
    bench.publish(1, ENCRYPTED)
    bench.publish(2, PLAIN)
    bench.publish(3, ENCRYPTED)
    assert len(bench.log.waiting) == 1 and bench.outlet.written == []
    bench.log.store()
    refused = send_error(1, 2, ServerError.MetadataError, "Messages must be encrypted")
    assert bench.outlet.written == [send_receipt(1, 1, 0, 7, 0, -1), refused]
    assert bench.outlet.sent_away == [bench.producer] and bench.producer.state is ProducerState.CLOSED
    assert (bench.outlet.under_way, bench.publishing.pending, bench.producer.pending) == (0, 0, 0)


# -- the contract of stages --------------------------------------------------------------------------------------------


async def test_stages_are_asked_in_order_and_hear_of_the_store_before_the_producer_does():
    events = []
    bench = Bench(Recorder("a", events), Recorder("b", events), events=events)
    bench.publish(1)
    bench.publish(2)
    assert events == ["a admit 1", "b admit 1", "a admit 2", "b admit 2"]
    events.clear()
    bench.log.store()
    assert events == ["a stored 1 at 0", "b stored 1 at 0", "answer", "a stored 2 at 1", "b stored 2 at 1", "answer"]


async def test_a_refusal_is_told_to_the_earlier_stages_only_and_nothing_is_appended():
    events = []
    stages = Recorder("a", events), Recorder("b", events, refuse=(1,)), Recorder("c", events)
    bench = Bench(*stages, events=events)
    bench.publish(1)
    assert events == ["a admit 1", "b admit 1", "a failed 1: not this one", "answer"]
    assert bench.log.waiting == [] and bench.publishing.pending == 0
    bench.publish(2)
    assert events[4:] == []  # the session has ended


async def test_every_stage_hears_once_of_an_entry_that_was_not_stored():
    events = []
    bench = Bench(Recorder("a", events), Recorder("b", events), events=events)
    bench.publish(1)
    events.clear()
    bench.log.fail(BookieUnavailable("no bookies"))
    assert events == ["a failed 1: no bookies", "b failed 1: no bookies", "answer"]
    assert bench.producer.state is ProducerState.FAILED and bench.host.state is TopicState.FENCED


# -- the largest message -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "counts"), [(0, False), (99, True), (100, False)])
def test_a_topics_largest_message_counts_if_it_is_smaller_than_the_brokers(bound, counts):
    stages = stages_of(replace(PLAIN_POLICIES, max_message_size=bound))
    assert [type(stage) for stage in stages] == ([MessageSizeLimit] if counts else [])


async def test_a_message_above_the_topics_bound_is_refused_and_a_chunk_is_not():
    bench = Bench(MessageSizeLimit(len(b"entry")))
    bench.publish(1)
    bench.publishing.publish(bench.producer, 2, 0, 1, b"entry+", MessageMetadata(num_chunks_from_msg=2))
    bench.publishing.publish(bench.producer, 3, 0, 1, b"entry+", PLAIN)
    assert len(bench.log.waiting) == 2 and bench.producer.state is ProducerState.REFUSED
    bench.log.store()
    assert bench.outlet.written[-1] == send_error(1, 3, ServerError.NotAllowedError, "Exceed maximum message size")
