"""What brokers and the admin answer about which topics there are, over a coordinator that only has a list."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.actors.members.contracts_coordinator import CoordinatorContract, Owner
from magnetar.actors.members.matched_topics import MatchedLists
from magnetar.actors.members.topic_lookup import Lookups, pages
from magnetar.actors.members.topic_watch import TopicWatch
from magnetar.protocol.errors import InvalidTopicName, NotAllowedError, TopicNotFound
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment

PREFIX = "persistent://public/default/"


class Nothing:
    """A broker that owns no topics."""

    def owns(self, name: TopicName) -> bool:
        return False

    async def claimed(self, found: Owner) -> bool:
        return False


NOTHING = Nothing()


class ListingCoordinator:
    """Answers `topic_records`; `asked` counts the questions."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.asked = 0
        self._topics = sorted((PREFIX + name, partitions) for name, partitions in topics.items())

    async def call(
        self, method: str, *, timeout_s: float = 0.0, namespace: str, after: str, limit: int
    ) -> list[list[Any]]:
        assert method == "topic_records"
        self.asked += 1
        if namespace != "public/default":
            raise TopicNotFound("no such namespace")
        return [list(record) for record in self._topics if record[0] > after][:limit]


def lookups_over(coordinator: Any) -> Lookups:
    given: Callable[[], Any] = lambda: coordinator  # noqa: E731
    lists = MatchedLists(TopicWatch(Environment.real(1), given))
    return Lookups(given, NOTHING, 10, lists)


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 12_345])
async def test_a_list_of_topics_comes_to_its_end_whatever_its_length(count: int) -> None:
    coordinator = ListingCoordinator({f"t{index:06}": 0 for index in range(count)})
    found = await lookups_over(coordinator).topics("public/default", domain=None, size_max_bytes=5 << 20)
    assert found == [f"{PREFIX}t{index:06}" for index in range(count)]
    assert coordinator.asked == count // 1000 + 1


async def test_partitions_are_listed_one_by_one_beyond_ten_thousand() -> None:
    coordinator = ListingCoordinator({"a": 0, "b": 10_000, "c": 10_000, "d": 2})
    found = [name async for names in pages(CoordinatorContract(coordinator.call), "public/default") for name in names]
    assert len(found) == len(set(found)) == 20_003
    assert found[0] == PREFIX + "a" and found[-1] == PREFIX + "d-partition-1"


async def test_names_beyond_the_largest_frame_are_refused_with_what_to_do() -> None:
    coordinator = ListingCoordinator({"b": 10_000, "c": 10_000, "d": 10_000})
    with pytest.raises(NotAllowedError, match="ask the admin HTTP"):
        await lookups_over(coordinator).topics("public/default", domain=None, size_max_bytes=400_000)


async def test_a_missing_namespace_has_no_topics_and_an_impossible_one_is_refused() -> None:
    lookups = lookups_over(ListingCoordinator({"a": 0}))
    assert await lookups.topics("public/none", domain=None, size_max_bytes=1000) == []
    with pytest.raises(InvalidTopicName):
        await lookups.topics("nonsense", domain=None, size_max_bytes=1000)
