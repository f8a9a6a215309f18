"""A broker's copy of the policies: versions, listings, and changes that arrive in any order."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from magnetar.actors.policies.backlog_quota import QuotaType
from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.policies.subscription_types import SubscriptionType
from magnetar.actors.policies.watch import PolicyWatch, WatchState
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.topics import TopicName
from magnetar.runtime.settings.declarations import Settings
from support.servers.broker_bench import TOPIC, broker_front, until

NAME = TopicName.parse(TOPIC)
BOUND = "max_producers_per_topic"
OTHER = "max_consumers_per_topic"
SETTINGS = Settings(producers_max_per_topic=1)


class Bench:
    """A watch, and what it told."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.told: list[dict[str, int]] = []
        self.watch = PolicyWatch(settings, self._changed)

    def _changed(self, changed: Mapping[str, EffectivePolicies]) -> None:
        self.told.append({name: one.max_producers_per_topic for name, one in changed.items()})
        for name, one in changed.items():
            assert one == (self.watch.of(TopicName.parse(name)) if "://" in name else self.watch.of_namespace(name))

    def list(self, *rows: tuple[str, int, object]) -> None:
        self.watch.listing_began()
        self.watch.take(rows)
        self.watch.listing_ended()

    def bound(self, namespace: str = "a/b") -> int:
        return self.watch.of_namespace(namespace).max_producers_per_topic

    def bound_of(self, topic: str) -> int:
        return self.watch.of(TopicName.parse(topic)).max_producers_per_topic


def test_a_namespace_of_which_nothing_is_known_has_the_settings() -> None:
    assert Bench().bound() == 1


def test_a_change_is_told_once_and_an_older_one_changes_nothing() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}))
    bench.watch.take([("a/b", 6, {BOUND: 8}), ("c/d", 1, {BOUND: 9})])
    bench.watch.take([("a/b", 6, {BOUND: 3}), ("a/b", 5, {BOUND: 7}), ("c/d", 0, {})])
    assert (bench.bound(), bench.bound("c/d")) == (8, 9)
    assert bench.told == [{"a/b": 7}, {"a/b": 8, "c/d": 9}]


def test_what_comes_to_the_same_is_not_told() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 1}), ("c/d", 5, {"a policy of tomorrow": {}}))
    bench.watch.take([("a/b", 6, {})])
    assert bench.told == []


def test_a_policy_that_is_taken_away_leaves_the_setting() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}))
    bench.watch.take([("a/b", 6, {})])
    bench.watch.take([("a/b", 5, {BOUND: 7})])
    assert bench.bound() == 1


def test_a_page_that_is_older_than_a_change_does_not_undo_it() -> None:
    bench = Bench()
    bench.watch.listing_began()
    bench.watch.take([("a/b", 6, {})])
    bench.watch.take([("a/b", 5, {BOUND: 7})])
    bench.watch.listing_ended()
    assert bench.bound() == 1


def test_what_a_listing_does_not_name_has_no_policies() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}), ("c/d", 5, {BOUND: 7}))
    bench.list(("c/d", 5, {BOUND: 7}))
    assert (bench.bound(), bench.bound("c/d")) == (1, 7)
    assert bench.told[1:] == [{"a/b": 1}]


def test_a_change_that_comes_during_a_listing_outlives_it() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}))
    bench.watch.listing_began()
    bench.watch.take([("a/b", 6, {BOUND: 8}), ("c/d", 1, {BOUND: 9})])
    bench.watch.listing_ended()
    assert (bench.bound(), bench.bound("c/d")) == (8, 9)


def test_a_listing_that_breaks_off_forgets_nothing() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}))
    bench.watch.listing_began()
    bench.watch.listing_began()
    assert bench.watch.state is WatchState.RELISTING and bench.bound() == 7
    bench.watch.take([("a/b", 5, {BOUND: 7})])
    bench.watch.listing_ended()
    assert bench.watch.state is WatchState.KNOWN and bench.bound() == 7


def test_a_namespace_that_was_deleted_and_created_again_has_no_policies() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}))
    bench.watch.take([("a/b", 6, None)])
    assert bench.bound() == 1
    bench.watch.take([("a/b", 6, {BOUND: 2})])
    assert bench.bound() == 2


def test_the_first_listing_of_a_session_replaces_what_is_held_and_tells_it() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}), ("c/d", 5, {BOUND: 7}))
    bench.watch.begin_session()
    assert bench.watch.state is WatchState.UNKNOWN and bench.bound() == 7
    bench.list(("a/b", 4, {BOUND: 6}))  # of a store that was restored from an older state
    assert bench.told[1:] == [{"a/b": 6}, {"c/d": 1}]


NEWER: tuple[dict[str, object], ...] = (
    {"a policy of tomorrow": {"x": 1}},
    {OTHER: "some"},
    {OTHER: -7},
    {"schema_compatibility_strategy": "SEMANTIC"},
    {"backlog_quota_map": {"message_count": {"limitCount": 5, "policy": "producer_exception"}}},
    {"subscription_types_enabled": ["Replayed"]},
)


@pytest.mark.parametrize("newer", NEWER)
def test_what_a_newer_coordinator_knows_is_ignored_with_a_warning(
    newer: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7, **newer}), ("c/d", 5, {BOUND: 8}), ("log://a/b/c", 1, {BOUND: 2}))
    assert (bench.bound(), bench.bound("c/d")) == (7, 8) and bench.watch.state is WatchState.KNOWN
    plain = EffectivePolicies.resolve(SETTINGS, {BOUND: 7})
    assert bench.watch.of_namespace("a/b") == plain
    assert next(iter(newer)) in caplog.text and "log://a/b/c" in caplog.text


def test_of_a_map_and_of_a_set_what_is_known_counts() -> None:
    bench = Bench()
    quota = {"limitSize": 9, "limitTime": 0, "policy": "producer_exception"}
    newer = {"destination_storage": quota, "message_count": {"limitCount": 5}}
    bench.list(("a/b", 5, {"backlog_quota_map": newer, "subscription_types_enabled": ["Shared", "Replayed"]}))
    found = bench.watch.of_namespace("a/b")
    assert found.backlog_quota_map[QuotaType.DESTINATION_STORAGE].size_bytes == 9
    assert found.subscription_types_enabled == {SubscriptionType.SHARED}


@pytest.mark.parametrize("policies", [[], "x", 5, {3: 4}])
def test_malformed_policies_are_refused_and_nothing_of_the_page_is_taken(policies: object) -> None:
    bench = Bench()
    with pytest.raises(ProtocolError):
        bench.watch.take([("a/b", 5, {BOUND: 7}), ("c/d", 5, policies)])
    assert bench.bound() == 1 and bench.told == []


OWN = "persistent://a/b/own"


def test_a_topics_own_value_counts_before_that_of_its_namespace() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7, OTHER: 3}), (OWN, 1, {BOUND: 2}))
    assert (bench.bound_of(OWN), bench.bound_of("persistent://a/b/next")) == (2, 7)
    assert bench.watch.of(TopicName.parse(OWN)).max_consumers_per_topic == 3
    assert bench.told == [{"a/b": 7, OWN: 2}]


def test_partitions_have_the_policies_of_their_topic_and_other_domains_do_not() -> None:
    bench = Bench()
    bench.list((OWN, 1, {BOUND: 2}))
    assert [bench.bound_of(f"{OWN}-partition-{index}") for index in range(2)] == [2, 2]
    assert bench.bound_of("non-persistent://a/b/own") == bench.bound_of(f"{OWN}-x") == 1


def test_a_change_of_the_namespace_reaches_a_topic_that_does_not_say_otherwise() -> None:
    bench = Bench()
    bench.list((OWN, 1, {OTHER: 4}))
    bench.watch.take([("a/b", 5, {BOUND: 7})])
    assert bench.told[1:] == [{"a/b": 7, OWN: 7}]
    bench.watch.take([("a/b", 6, None)])
    assert bench.told[2:] == [{"a/b": 1, OWN: 1}]
    assert bench.watch.of(TopicName.parse(OWN)).max_consumers_per_topic == 4


def test_a_topic_without_policies_any_longer_has_those_of_its_namespace() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}), (OWN, 1, {BOUND: 2}))
    bench.watch.take([(OWN, 2, None)])
    assert bench.bound_of(OWN) == 7 and bench.told[1:] == [{OWN: 7}]
    assert bench.watch._topics == {} and list(bench.watch._held) == ["a/b"]


def test_a_topic_that_a_listing_does_not_name_has_no_policies_of_its_own() -> None:
    bench = Bench()
    bench.list(("a/b", 5, {BOUND: 7}), (OWN, 1, {BOUND: 2}))
    bench.list((OWN, 1, {BOUND: 2}))
    assert (bench.bound(), bench.bound_of(OWN)) == (1, 2)
    bench.list()
    assert bench.bound_of(OWN) == 1 and bench.told[1:] == [{"a/b": 1}, {OWN: 1}]


def test_a_topic_deleted_during_a_listing_does_not_come_back_with_an_older_page() -> None:
    bench = Bench()
    bench.watch.listing_began()
    bench.watch.take([(OWN, 6, None)])
    bench.watch.take([(OWN, 5, {BOUND: 2})])
    assert bench.bound_of(OWN) == 1
    bench.watch.take([(OWN, 6, {BOUND: 3})])  # created again
    bench.watch.listing_ended()
    assert bench.bound_of(OWN) == 3


@pytest.mark.promise("25.9")
def test_a_broker_without_topic_level_policies_goes_by_the_namespace() -> None:
    bench = Bench(Settings(topic_level_policies_enabled=False))
    bench.list(("a/b", 5, {BOUND: 7}), (OWN, 1, {BOUND: 2}))
    bench.watch.take([(OWN, 2, {BOUND: 3})])
    assert bench.bound_of(OWN) == 7 and bench.told == [{"a/b": 7}]


@pytest.mark.parametrize("seed", range(50))
def test_the_copy_ends_with_what_the_coordinator_has_however_messages_mix(seed: int) -> None:
    """Pages are pictures of a moment; changes overtake them and each other, connections end in the middle."""
    chance = random.Random(seed)
    spaces = [f"t/n{number}" for number in range(3)]
    topics = [f"persistent://{space}/{name}" for space in spaces for name in "ab"]
    names = [*spaces, *topics]
    truth: dict[str, tuple[int, dict[str, object] | None]] = {}
    bench = Bench()
    version = 0
    for _ in range(8):
        bench.watch.listing_began()
        on_the_way: list[list[tuple[str, int, object]]] = []
        for name in sorted(names):  # one page for each scope, between them changes
            if name in truth and truth[name][1]:
                on_the_way.append([(name, *truth[name])])
            for _ in range(chance.randrange(3)):
                version += 1
                changed = chance.choice(names)
                none = None if "://" in changed else {}
                truth[changed] = (version, {BOUND: chance.randrange(9)} if chance.random() < 0.7 else none)
                on_the_way.append([(changed, *truth[changed])])
        broken_off = chance.random() < 0.3
        chance.shuffle(on_the_way)
        for rows in on_the_way[: len(on_the_way) // 2] if broken_off else on_the_way:
            bench.watch.take(rows)
        if not broken_off:
            bench.watch.listing_ended()
            values = {name: row[1] or {} for name, row in truth.items()}
            for space in spaces:
                assert bench.bound(space) == values.get(space, {}).get(BOUND, 1), space
            for topic in topics:
                wide = values.get(TopicName.parse(topic).namespace, {}).get(BOUND, 1)
                assert bench.bound_of(topic) == values.get(topic, {}).get(BOUND, wide), topic


# -- loads -------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_loaded_only_when_the_policies_are_known() -> None:
    async with broker_front() as front:
        watch = front.topics.policies
        watch.begin_session()
        waiting = asyncio.create_task(front.topics.get(NAME))
        watch.listing_began()
        await asyncio.sleep(0.02)
        assert not waiting.done() and not front.opened
        watch.take([(NAME.namespace, 1, {BOUND: 4})])
        watch.listing_ended()
        assert (await waiting).policies.max_producers_per_topic == 4  # type: ignore[attr-defined]


async def test_a_topic_that_loads_while_policies_change_ends_with_the_new_ones() -> None:
    async with broker_front() as front:
        front.open_gate.clear()
        waiting = asyncio.create_task(front.topics.get(NAME))
        await until(lambda: front.opened)
        front.topics.policies.take([(NAME.namespace, 1, {BOUND: 4}), ("public/other", 1, {BOUND: 5})])
        front.open_gate.set()
        assert (await waiting).policies.max_producers_per_topic == 4  # type: ignore[attr-defined]


async def test_a_change_reaches_the_loaded_topics_of_its_namespace_only() -> None:
    async with broker_front() as front:
        await front.topics.get(NAME)
        front.topics.policies.take([("public/other", 1, {BOUND: 4})])
        assert front.topic.policies == EffectivePolicies.resolve(Settings())
        front.topics.policies.take([(NAME.namespace, 1, {BOUND: 4})])
        assert front.topic.policies.max_producers_per_topic == 4
