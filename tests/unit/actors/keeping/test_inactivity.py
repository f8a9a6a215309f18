"""Which topics count as inactive, and what a broker's front does with them."""

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.compaction.topic_compaction import COMPACTION_CURSOR
from magnetar.actors.keeping.inactivity import Inactivity
from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.policies.inactive_topics import InactiveTopicDeleteMode
from magnetar.protocol.errors import NotAllowedError
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, CommandSuccess
from magnetar.protocol.topics import TopicName
from magnetar.runtime.settings.declarations import Settings
from support.clients.wire_peer import WirePeer, entry
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, until

AT_ONCE: Any = {"inactive_topics_check_interval_s": 0.02}
DURABLE: Any = {"subType": CommandSubscribe.Shared, "durable": True}
WHEN_CAUGHT_UP = {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "deleteWhileInactive": True}


def idle_topic(**changes: Any) -> Any:
    """A topic that nobody uses, and that stores nothing."""
    policies = EffectivePolicies.resolve(Settings(inactive_topics_max_s=10))
    values = {"in_use": False, "has_producers": False, "has_messages": False, "is_open": True, "policies": policies}
    return SimpleNamespace(**values, **changes)


def retained(topic: Any, minutes: float) -> None:
    retention = dataclasses.replace(topic.policies.retention, time_minutes=minutes, size_mb=-1)
    topic.policies = dataclasses.replace(topic.policies, retention=retention)


async def test_time_counts_from_the_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s, raising=False)
    topic = idle_topic()
    found = Inactivity(topic, lambda mode: False)
    now_s = 109.0
    assert not found.check()
    found.used()
    now_s = 118.0
    assert not found.check()
    now_s = 119.0
    assert found.check()
    topic.has_producers = True
    assert not found.check(), "and that is a use"
    topic.has_producers = False
    now_s = 128.0
    assert not found.check()
    now_s = 129.0
    assert found.check()


async def test_consumers_a_closing_topic_and_retention_keep_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s, raising=False)
    topic = idle_topic()
    found = Inactivity(topic, lambda mode: False)
    now_s = 60.0
    topic.in_use = True
    assert not found.check()
    topic.in_use, topic.is_open = False, False
    assert not found.check()
    topic.is_open = True
    retained(topic, 2)
    assert found.check(), "it has no messages to retain"
    topic.has_messages = True
    assert not found.check()
    now_s = 120.0
    assert found.check()
    retained(topic, -1)
    assert not found.check()


async def test_the_mode_says_which_subscriptions_count_and_the_switch_whether_a_topic_goes() -> None:
    topic = idle_topic()
    asked: list[InactiveTopicDeleteMode] = []
    found = Inactivity(topic, lambda mode: bool(asked.append(mode)))
    for settings in (
        Settings(inactive_topics_delete_mode="delete_when_subscriptions_caught_up"),
        Settings(),
        Settings(inactive_topics_deletion_enabled=False),
    ):
        topic.policies = EffectivePolicies.resolve(settings)
        assert not found.check()
    topic.policies = EffectivePolicies.resolve(Settings(), {"inactive_topic_policies": {"deleteWhileInactive": True}})
    assert not found.check(), "without a mode nothing is deleted"
    assert asked == [InactiveTopicDeleteMode.SUBSCRIPTIONS_CAUGHT_UP, InactiveTopicDeleteMode.NO_SUBSCRIPTIONS]


# -- on a broker's front -----------------------------------------------------------------------------------------------


async def used_topic(front: BrokerFront) -> WirePeer:
    peer = await front.peer()
    assert (await peer.producer(TOPIC, 1)).producer_ready
    return peer


def use(front: BrokerFront, **values: object) -> None:
    front.topic.use_policies(EffectivePolicies.resolve(front.settings, values))


async def test_a_topic_goes_when_its_producer_has_left_and_not_before() -> None:
    async with broker_front(**AT_ONCE) as front:
        peer = await used_topic(front)
        await asyncio.sleep(0.1)
        assert not front.retired
        await peer.close()
        await until(lambda: front.retired == [TOPIC])
        await until(lambda: TOPIC not in front.topics.loaded)


async def test_a_subscription_keeps_its_topic_or_by_policy_only_while_it_has_a_backlog() -> None:
    async with broker_front(**AT_ONCE) as front:
        peer = await used_topic(front)
        assert type(await peer.subscribe(TOPIC, "s", 1, **DURABLE)) is CommandSuccess
        peer.send_entry(entry(b"x"), 0)
        await peer.expect(BaseCommand.SEND_RECEIPT)
        await peer.close()
        await until(lambda: not front.topic.in_use)
        use(front, inactive_topic_policies=WHEN_CAUGHT_UP)
        await asyncio.sleep(0.1)
        assert not front.retired, "the subscription has a backlog"
        front.topic.subscriptions["s", True].pass_over((1 << 40, 0), expired=False)
        await until(lambda: front.retired == [TOPIC])


async def test_a_topic_that_is_used_between_the_two_looks_stays() -> None:
    async with broker_front(inactive_topics_max_s=1) as front:
        peer = await used_topic(front)
        name = TopicName.parse(TOPIC)
        for _ in range(2):
            with pytest.raises(NotAllowedError):
                front.topics.check_unused(TOPIC, inactive=True)
            assert front.topics.owns(TOPIC) and (await front.topics.get(name)).state.value == "open"
            await peer.close()
        with pytest.raises(NotAllowedError):
            front.topics.check_unused("persistent://public/default/unloaded", inactive=True)


@pytest.mark.promise("30.23")
async def test_the_cursor_of_a_compaction_and_a_pin_keep_a_topic() -> None:
    async with broker_front(**AT_ONCE) as front:
        peer = await used_topic(front)
        topic = front.topic
        front.ledger.cursors[COMPACTION_CURSOR] = cursor = await front.ledger.open_cursor("other", (0, 0))
        del front.ledger.cursors["other"]
        await peer.close()
        await until(lambda: not topic.in_use)
        assert not await topic.keeping.is_inactive() and not cursor.backlog_entries
        use(front, inactive_topic_policies=WHEN_CAUGHT_UP)
        pinned = True

        async def is_pinned() -> bool:
            return pinned

        front.ledger.trimmer.is_pinned = is_pinned  # type: ignore[method-assign]
        await asyncio.sleep(0.1)
        assert not front.retired
        pinned = False
        await until(lambda: front.retired == [TOPIC])


async def test_partitions_stay_and_only_the_first_one_asks_where_whole_topics_go() -> None:
    for whole, asking in ((False, []), (True, [f"{TOPIC}-partition-0"])):
        changes = {**AT_ONCE, "inactive_partitioned_topics_deletion_enabled": whole}
        async with broker_front(**changes) as front:
            for number in range(2):
                name = f"{TOPIC}-partition-{number}"
                front.topics.assign(name, 1, load=True)
            await until(lambda: len(front.topics.loaded) == 2)
            await asyncio.sleep(0.1)
            assert front.retired == asking


async def test_a_non_persistent_topic_goes_when_its_last_client_has_left() -> None:
    async with broker_front(**AT_ONCE) as front:
        name = "non-persistent://public/default/n"
        front.topics.assign(name, 1, load=False)
        peer = await front.peer()
        assert type(await peer.subscribe(name, "s", 1, **DURABLE)) is CommandSuccess
        await asyncio.sleep(0.1)
        assert not front.retired
        await peer.close()
        await until(lambda: front.retired == [name])


# -- subscriptions -----------------------------------------------------------------------------------------------------


async def test_a_subscription_expires_when_it_had_no_consumer_for_the_policys_time() -> None:
    async with broker_front(subscription_expiry_check_interval_minutes=0.0005) as front:
        peer = await front.peer()
        for number, name in enumerate(("idle", "young", "busy")):
            assert type(await peer.subscribe(TOPIC, name, number, **DURABLE)) is CommandSuccess
        topic = front.topic
        idle, young, busy = (topic.subscriptions[name, True] for name in ("idle", "young", "busy"))
        assert busy.idle_since_ms == 0
        for one in (idle, young):
            one.disconnect_all()
        idle.idle_since_ms -= 60_001
        await asyncio.sleep(0.1)
        assert len(topic.subscriptions) == 3, "there is no policy"
        use(front, subscription_expiration_time_minutes=1)
        await until(lambda: ("idle", True) not in topic.subscriptions)
        assert set(front.ledger.cursors) == {"young", "busy"}
        young.idle_since_ms -= 60_001
        use(front, subscription_expiration_time_minutes=0)
        await asyncio.sleep(0.1)
        assert ("young", True) in topic.subscriptions
        await peer.close()
