"""The table of topic features: what each declares exists, and topics call each that is in it."""

import dataclasses
from typing import Any

import pytest

from magnetar.actors.compaction.topic_compaction import TopicCompaction
from magnetar.actors.deduplication.topic_deduplication import Deduplication
from magnetar.actors.features.table import FEATURES
from magnetar.actors.policies.effective import POLICIES
from magnetar.actors.topics.feature import FeatureCursor, TopicFeature
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.actors.topics.publishing import PublishStage
from magnetar.protocol.errors import NotAllowedError, ServiceUnitNotReady, SubscriptionNotFound
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, CommandSuccess, ServerError
from magnetar.protocol.topic_figures import TopicFigures
from magnetar.protocol.topics import TopicName
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.managed.cursor_storage import CursorKind
from support.clients.wire_peer import entry
from support.servers import broker_bench
from support.servers.broker_bench import TOPIC, broker_front

NAME = TopicName.parse(TOPIC)
VOLATILE = TopicName.parse("non-persistent://public/default/v")


def declared(kind: type[TopicFeature]) -> dict[str, Any]:
    """What the settings of a feature are by default."""
    assert kind.settings is not None
    return {field.name: field.default for field in dataclasses.fields(kind.settings)}


@pytest.mark.parametrize("kind", FEATURES, ids=lambda kind: kind.name)
def test_a_feature_declares_policies_settings_and_cursors_that_exist(kind: type[TopicFeature]) -> None:
    assert set(kind.policies) <= POLICIES.keys()
    assert set(kind.duties) <= set(kind.policies)
    if kind.settings is not None:
        assert issubclass(Settings, kind.settings)
        assert declared(kind).items() <= dataclasses.asdict(Settings()).items()
    assert all(cursor.kind is not CursorKind.SUBSCRIPTION for cursor in kind.cursors)


def test_names_policies_cursors_and_settings_belong_to_one_feature_each() -> None:
    for values in (
        [kind.name for kind in FEATURES],
        [name for kind in FEATURES for name in kind.policies],
        [cursor.name for kind in FEATURES for cursor in kind.cursors],
        [cursor.kind for kind in FEATURES for cursor in kind.cursors],
        [kind.settings for kind in FEATURES if kind.settings is not None],
    ):
        assert len(set(values)) == len(values)


async def test_a_topic_has_each_feature_and_one_that_stores_nothing_those_that_it_can_have() -> None:
    async with broker_front() as front:
        front.topics.assign(VOLATILE.full, 1, load=False)
        topic, volatile = await front.topics.get(NAME), await front.topics.get(VOLATILE)
        assert [type(one) for one in topic.features] == list(FEATURES)
        assert [type(one) for one in volatile.features] == [kind for kind in FEATURES if not kind.persistent_only]
        assert topic.features.of(Deduplication) and topic.features.of(TopicCompaction)
        with pytest.raises(ServiceUnitNotReady, match="compaction"):
            volatile.features.of(TopicCompaction)


# -- a feature that nobody has -----------------------------------------------------------------------------------------


class Noting(PublishStage):
    """Notes what passes."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def admit(self, publish: Any, metadata: Any) -> None:
        self._events.append("admit")

    def ended(self) -> None:
        self._events.append("stage ended")


class MadeUp(TopicFeature):
    """Notes its hooks. It refuses consumers called `never`."""

    name = "made up"
    policies = ("message_ttl",)
    cursors = (FeatureCursor("made-up", CursorKind.COMPACTION, counts_as_subscription=True),)
    events: list[str]

    def __init__(self, topic: Any) -> None:
        self._topic = topic
        self._stage = Noting(self.events)

    @classmethod
    async def opening(cls, ledger: Any, policies: Any) -> None:
        cls.events.append(f"opening at a ttl of {policies.message_ttl}")

    def opened(self) -> None:
        self.events.append("opened")

    def policies_changed(self, before: Any) -> None:
        self.events.append(f"ttl {before.message_ttl} to {self._topic.policies.message_ttl}")

    def stage(self) -> PublishStage:
        return self._stage

    def check_producer(self, producer: Any) -> None:
        self.events.append(f"producer {producer.name}")

    def check_consumer(self, subscription: Any, consumer: Any) -> None:
        if consumer.name == "never":
            raise NotAllowedError("not this one")
        self.events.append(f"consumer {consumer.name} of {subscription.name}")

    def gate(self, subscription: Any, dispatcher: Any) -> None:
        self.events.append(f"gate of {subscription.name}")

    def figures(self, topic: TopicFigures) -> TopicFigures:
        return dataclasses.replace(topic, backlog_age_s=77)

    def closing(self) -> None:
        self.events.append("closing")

    def let_go(self) -> None:
        self.events.append("let go")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the feature that is made up notes; it stands in front of all others."""
    MadeUp.events = []
    monkeypatch.setattr(broker_bench, "FEATURES", (MadeUp, *FEATURES))
    return MadeUp.events


async def test_a_made_up_feature_hears_of_all_that_happens_to_a_topic(events: list[str]) -> None:
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC, producer_name="p")
        assert events[:3] == ["opening at a ttl of 0", "opened", "producer p"]
        assert set(events[3:]) <= {"producer p"}  # it may be asked again when the producer had to wait
        events.clear()
        subscribed = await peer.subscribe(TOPIC, "s", subType=CommandSubscribe.Shared, consumer_name="c")
        assert type(subscribed) is CommandSuccess and events == ["consumer c of s", "gate of s"]
        refused = await peer.subscribe(TOPIC, "s", 2, subType=CommandSubscribe.Shared, consumer_name="never")
        assert refused.error == ServerError.NotAllowedError and refused.message.endswith("not this one")
        events.clear()
        peer.send_entry(entry(), 0)
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        assert events == ["admit"]
        events.clear()
        topic = front.topic
        assert isinstance(topic, PersistentTopic) and topic.describe().backlog_age_s == 77
        front.topics.policies.take([("public/default", 1, {"max_producers_per_topic": 9})])
        assert events == []  # that is no policy of this feature
        front.topics.policies.take([("public/default", 2, {"message_ttl": 5})])
        assert events == ["ttl 0 to 5"]
        events.clear()
        await front.topics.release(TOPIC)
        assert events == ["stage ended", "closing", "let go"]
        await peer.close()


async def test_no_subscription_may_have_the_name_of_a_features_cursor(events: list[str]) -> None:
    async with broker_front() as front:
        peer = await front.peer()
        refused = await peer.subscribe(TOPIC, "made-up")
        assert refused.error == ServerError.NotAllowedError and "cursor of the broker's own" in refused.message
        topic = front.topic
        with pytest.raises(SubscriptionNotFound):
            await topic.delete_subscription("__compaction")
        assert topic.counted_cursors() == []
        topic.ledger.cursors["made-up"] = cursor = await topic.ledger.open_cursor("other", (0, 0))
        assert topic.counted_cursors() == [cursor]
        await peer.close()
