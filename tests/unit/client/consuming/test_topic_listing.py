"""The list of topics that a pattern consumer follows: what brokers say in any order, and what they are asked."""

import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.client.consuming.topic_discovery import TopicListing, TopicPattern
from magnetar.client.core.configuration import RegexSubscriptionMode
from magnetar.protocol.errors import NotAllowedError, ProtocolError, ServiceUnitNotReady
from magnetar.protocol.pulsar_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandWatchTopicList,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)
from magnetar.protocol.topic_lists import topics_hash

SPACE = "persistent://public/default/"


class Broker:
    """A connection and what is behind it: it has `names`, and refuses what `refuses` says."""

    def __init__(self, *names: str) -> None:
        self.names = dict.fromkeys(SPACE + name for name in names)
        self.asked: list[Any] = []
        self.refuses: Callable[[Any], Exception | None] = lambda command: None
        self.spoils_hash = False
        self.watchers: dict[int, TopicListing] = {}
        self.features = SimpleNamespace(supports_topic_watchers=True)
        self.next_request_id = lambda: 1
        self.written: list[bytes] = []
        self.write = self.written.append
        self.lookup = self
        self.next_id = lambda: 7

    async def at_any_broker(self, what: str, ask: Callable[[Any], Awaitable[None]]) -> None:
        await ask(self)

    async def ask(self, connection: Any, command: Any, request_id: int, kind: type) -> Any:
        self.asked.append(command)
        if (error := self.refuses(command)) is not None:
            raise error
        now = topics_hash(self.names)
        names = () if command.topics_hash == now else list(self.names)
        if isinstance(command, CommandWatchTopicList):
            answer = CommandWatchTopicListSuccess(watcher_id=7, topic=names, topics_hash=now)
            if self.spoils_hash:
                answer = CommandWatchTopicListSuccess(watcher_id=7, topics_hash="12345678")
            self.watchers[7].listed(answer)
            return answer
        return CommandGetTopicsOfNamespaceResponse(topics=names, topics_hash=now, changed=command.topics_hash != now)

    def update(self, new: tuple[str, ...] = (), deleted: tuple[str, ...] = ()) -> None:
        new, deleted = tuple(SPACE + one for one in new), tuple(SPACE + one for one in deleted)
        for name in deleted:
            self.names.pop(name, None)
        self.names.update(dict.fromkeys(new))
        self.watchers[7].updated(
            CommandWatchTopicUpdate(new_topics=new, deleted_topics=deleted, topics_hash=topics_hash(self.names))
        )


def listing_on(broker: Broker, text: str = "a.*", **options: Any) -> tuple[TopicListing, list[bool]]:
    told: list[bool] = []
    mode = options.get("mode", RegexSubscriptionMode.PersistentOnly)
    pattern = TopicPattern(re.compile(text), mode)
    return TopicListing(broker, pattern, lambda: told.append(True)), told  # type: ignore[arg-type]


def plain(listing: TopicListing) -> dict[str, int]:
    return {topic.local_name: count for topic, count in listing.topics.items()}


def changed(listing: TopicListing) -> list[str]:
    names = [topic.local_name for topic in listing.changed]
    listing.changed.clear()
    return names


async def test_lists_and_updates_are_applied_and_say_what_changed() -> None:
    broker = Broker("a1", "ap-partition-0", "ap-partition-1", "b")
    listing, told = listing_on(broker)
    await listing.ask()
    assert plain(listing) == {"a1": 1, "ap": 2} and sorted(changed(listing)) == ["a1", "ap"]
    assert listing.watched and not listing.due
    broker.update(new=("ap-partition-2", "a2", "c"), deleted=("a1",))
    assert plain(listing) == {"ap": 3, "a2": 1} and changed(listing) == ["a1", "ap", "a2"] and told == [True]
    broker.update(new=("a2",), deleted=("a2",))  # deleted, and created again
    assert plain(listing) == {"ap": 3, "a2": 1} and changed(listing) == ["a2"] and not listing.due


async def test_an_unchanged_list_is_answered_by_its_hash() -> None:
    broker = Broker("a1")
    listing, _ = listing_on(broker)
    await listing.ask()
    broker.update(new=("a2",))
    changed(listing)
    await listing.ask()
    assert broker.asked[1].topics_hash == topics_hash(broker.names) and not listing.changed
    assert plain(listing) == {"a1": 1, "a2": 1}


async def test_a_hash_that_does_not_fit_makes_the_next_round_ask() -> None:
    broker = Broker("a1")
    listing, told = listing_on(broker)
    await listing.ask()
    broker.watchers[7].updated(CommandWatchTopicUpdate(new_topics=[SPACE + "a2"], topics_hash="12345678"))
    assert listing.due and told
    await listing.ask()
    assert plain(listing) == {"a1": 1} and not listing.due
    broker.spoils_hash = True
    broker.names[SPACE + "a3"] = None
    with pytest.raises(ProtocolError):
        await listing._watch(broker)  # type: ignore[arg-type]
    assert not listing.watched


async def test_a_lost_connection_makes_the_next_round_watch_again() -> None:
    broker = Broker("a1")
    listing, told = listing_on(broker)
    await listing.ask()
    listing.connection_lost(broker, ServiceUnitNotReady("gone"))  # type: ignore[arg-type]
    assert listing.due and not listing.watched and told
    broker.names[SPACE + "a2"] = None
    await listing.ask()
    assert listing.watched and plain(listing) == {"a1": 1, "a2": 1}
    listing.close()
    assert not broker.watchers and len(broker.written) == 1


async def test_a_connection_that_ends_right_behind_its_answer_is_watched_again() -> None:
    """The broker has answered, and the connection ends before the client's next step: seed 54694970."""
    broker = Broker("a1")
    listing, told = listing_on(broker)
    answered = broker.ask

    async def ask(*arguments: Any) -> Any:
        answer = await answered(*arguments)
        listing.connection_lost(broker, ServiceUnitNotReady("gone"))  # type: ignore[arg-type]
        return answer

    broker.ask = ask  # type: ignore[method-assign]
    await listing.ask()
    assert listing.due and not listing.watched and told
    broker.ask = answered  # type: ignore[method-assign]
    await listing.ask()
    assert listing.watched and not listing.due


async def test_an_ask_that_fails_is_due_again() -> None:
    broker = Broker("a1")
    listing, _ = listing_on(broker)
    await listing.ask()
    broker.refuses = lambda command: ServiceUnitNotReady("not now")
    with pytest.raises(ServiceUnitNotReady):
        await listing.ask()
    assert listing.due


async def test_a_refused_pattern_is_watched_by_all_names_or_else_polled() -> None:
    broker = Broker("a1", "b")
    listing, _ = listing_on(broker)
    broker.refuses = lambda one: NotAllowedError("too long") if one.topics_pattern != ".*" else None
    await listing.ask()
    assert listing.watched and plain(listing) == {"a1": 1}
    listing, _ = listing_on(broker)
    broker.refuses = lambda one: NotAllowedError("no") if isinstance(one, CommandWatchTopicList) else None
    await listing.ask()
    assert not listing.watched and plain(listing) == {"a1": 1}
    count = len(broker.asked)
    await listing.ask()
    assert [type(one) for one in broker.asked[count:]] == [CommandGetTopicsOfNamespace]


async def test_a_broker_that_cannot_watch_now_is_asked_for_the_list() -> None:
    broker = Broker("a1")
    listing, _ = listing_on(broker)
    broker.refuses = lambda one: ServiceUnitNotReady("no") if isinstance(one, CommandWatchTopicList) else None
    await listing.ask()
    assert not listing.watched and plain(listing) == {"a1": 1}
    broker.refuses = lambda one: None
    await listing.ask()
    assert listing.watched


async def test_non_persistent_topics_are_only_asked_for() -> None:
    broker = Broker()
    listing, _ = listing_on(broker, mode=RegexSubscriptionMode.AllTopics)
    await listing.ask()
    assert not listing.watched and isinstance(broker.asked[0], CommandGetTopicsOfNamespace)


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("a.*", 0, "public/default/a.*"),
        ("persistent://t/n/[a-z]+", 0, "t/n/[a-z]+"),
        ("a|b\\.c", 0, "public/default/(a|b\\.c)"),
        ("a", re.IGNORECASE, ".*"),
        ("\\d+", 0, ".*"),
        ("(?=a)b", 0, ".*"),
        ("größe", 0, ".*"),
        ("a{2}", 0, ".*"),
    ],
)
def test_brokers_are_sent_what_python_and_re2_understand_alike(text: str, flags: int, expected: str) -> None:
    assert TopicPattern(re.compile(text, flags), RegexSubscriptionMode.PersistentOnly).for_brokers == expected
