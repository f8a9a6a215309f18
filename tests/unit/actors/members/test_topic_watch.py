"""A broker's copy of a namespace's topics, over a coordinator whose answers and pushes come in any order."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from magnetar.actors.members import topic_watch
from magnetar.actors.members.contracts_coordinator import CoordinatorContract, TopicChange
from magnetar.actors.members.topic_watch import NamespaceState, TopicWatch
from magnetar.protocol.errors import CoordinatorUnavailable
from magnetar.runtime.environment import Environment
from support.servers.broker_bench import until

SPACE = "public/default"


class Coordinator:
    """Topics, and news of them. `late` keeps pushes back until they are let go; pages have `page` topics."""

    def __init__(self, page: int = 2) -> None:
        self.topics: dict[str, int] = {}
        self.number = 0
        self.page = page
        self.away = False
        self.watching = False
        self.asked: list[tuple[str, str]] = []
        self.pushes: list[tuple[int, TopicChange]] = []
        self.ask = CoordinatorContract(self._call)
        self.watch = TopicWatch(Environment.real(1), lambda: self)  # type: ignore[arg-type, return-value]

    async def _call(self, method: str, **arguments: Any) -> Any:
        await asyncio.sleep(0)
        self.asked.append((method, arguments["namespace"]))
        if self.away:
            raise CoordinatorUnavailable("away")
        self.watching = method == "watch_topics"
        if not self.watching:
            return None
        names = sorted(name for name in self.topics if name > arguments["after"])
        page = {"number": self.number, "more": len(names) > self.page}
        answer = page | {"items": [[name, self.topics[name]] for name in names[: self.page]]}
        await asyncio.sleep(0)
        return answer

    def change(self, topic: str, partitions: int | None) -> None:
        if partitions is None:
            del self.topics[topic]
        else:
            self.topics[topic] = partitions
        if self.watching:
            self.number += 1
            self.pushes.append((self.number, TopicChange(topic, partitions)))

    def push(self) -> None:
        pushes, self.pushes = self.pushes, []
        for number, change in pushes:
            self.watch.take(SPACE, number, [change])

    def cut(self) -> None:
        """The connection ends, with what was on the way."""
        self.watching = False
        self.pushes.clear()


class Listener:
    """A copy made of what it is told."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.topics: dict[str, int] = {}
        self.told = 0
        self.namespace = coordinator.watch.join(SPACE, self)

    def listed(self) -> None:
        self.topics = dict(self.namespace.topics)

    def changed(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        self.told += 1
        for topic, count in before.items():
            assert self.topics.pop(topic) == count
        for topic, count in after.items():
            assert topic not in self.topics
            self.topics[topic] = count


async def known(listener: Listener) -> None:
    await until(lambda: listener.namespace.state is NamespaceState.KNOWN)


async def test_nothing_is_asked_before_somebody_joins_or_after_the_last_has_left() -> None:
    coordinator = Coordinator()
    assert coordinator.asked == []
    one, other = Listener(coordinator), Listener(coordinator)
    await known(one)
    assert coordinator.asked == [("watch_topics", SPACE)]
    coordinator.watch.leave(SPACE, one)
    coordinator.watch.leave(SPACE, other)
    await until(lambda: coordinator.asked[-1] == ("unwatch_topics", SPACE))
    assert not coordinator.watching and not coordinator.watch.namespaces
    await coordinator.watch.close()


async def test_changes_are_told_once_and_in_order() -> None:
    coordinator = Coordinator()
    coordinator.topics = {"a": 0, "b": 2, "c": 0}
    listener = Listener(coordinator)
    await known(listener)
    assert listener.topics == coordinator.topics
    coordinator.change("d", 0)
    coordinator.change("b", 3)
    coordinator.change("a", None)
    pushes = list(coordinator.pushes)
    coordinator.push()
    assert listener.topics == coordinator.topics == {"b": 3, "c": 0, "d": 0} and listener.told == 3
    for number, change in pushes[-1:]:
        coordinator.watch.take(SPACE, number, [change])
    assert listener.told == 3
    await coordinator.watch.close()


async def test_what_changed_while_the_connection_was_away_is_told_after_it() -> None:
    coordinator = Coordinator()
    coordinator.topics = {"a": 0, "b": 2, "c": 0}
    listener = Listener(coordinator)
    await known(listener)
    coordinator.change("z", 0)
    coordinator.cut()
    coordinator.change("a", None)
    coordinator.change("b", 5)
    coordinator.away = True
    coordinator.watch.registered()
    await asyncio.sleep(0.01)
    assert listener.namespace.state is NamespaceState.LISTING and listener.told == 0
    coordinator.away = False
    coordinator.watch.registered()
    await known(listener)
    assert listener.topics == coordinator.topics and listener.told == 1
    await coordinator.watch.close()


async def test_too_many_changes_during_a_listing_begin_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "PUSHED_MAX", 3)
    coordinator = Coordinator(page=1)
    coordinator.topics = {"a": 0, "b": 0}
    listener = Listener(coordinator)
    await until(lambda: coordinator.watching)
    for number in range(5):
        coordinator.change(f"new-{number}", 0)
    coordinator.push()
    await known(listener)
    assert listener.topics == coordinator.topics
    await coordinator.watch.close()


@pytest.mark.parametrize("seed", range(60))
async def test_the_copy_converges_whatever_the_order_of_pages_pushes_and_cuts(seed: int) -> None:
    chance = random.Random(seed)
    coordinator = Coordinator(page=chance.randint(1, 3))
    listener = Listener(coordinator)
    for _ in range(chance.randint(10, 80)):
        step = chance.random()
        if step < 0.5:
            topic = f"t{chance.randrange(6)}"
            gone = topic in coordinator.topics and chance.random() < 0.5
            coordinator.change(topic, None if gone else chance.randrange(3))
        elif step < 0.8:
            coordinator.push()
        elif step < 0.9:
            coordinator.cut()
            coordinator.watch.registered()
        await asyncio.sleep(0)
    coordinator.push()
    await known(listener)
    coordinator.push()
    assert listener.topics == listener.namespace.topics == coordinator.topics
    await coordinator.watch.close()
