"""Bugs of our own choosing in how topics grow, and in how the coordinator writes. See `own` for how one is made."""

import asyncio
from collections.abc import Awaitable
from contextlib import ExitStack
from typing import Any

from magnetar.actors.coordinator.topic_growth import TopicGrowths
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata.certain_records import CertainRecords
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore

from .mutant import Mutant, replace


def _bring_nothing_along(stack: ExitStack) -> None:
    async def carry_over(self: TopicGrowths, topic: TopicName, growth: Any) -> None:
        return

    async def have_loaded(self: TopicGrowths, topics: Any) -> None:
        return

    replace(stack, TopicGrowths, "_carry_over", carry_over)
    replace(stack, TopicGrowths, "_have_loaded", have_loaded)


def _show_the_number_first(stack: ExitStack) -> None:
    """The subscriptions follow at once, from where the new partitions are then."""

    async def advance(self: TopicGrowths, topic: TopicName) -> None:
        growth = self._registry.growth(topic)
        if growth is None:
            return
        await self._registry.end_growth(topic, growth.target)
        await asyncio.sleep(0.2)
        stored = await self._stored_cursors(topic)
        wanted = await self._properties(topic, stored.get(topic.partition_topic(0).path, {}))
        await self._create_on(topic, dict.fromkeys(range(growth.partitions, growth.target), wanted), "latest")

    replace(stack, TopicGrowths, "_advance", advance)


def _list_before_it_grows(stack: ExitStack) -> None:
    """A subscription that is created between the list and the end of the growth is not in the list."""

    async def prepare(self: TopicGrowths, **unused: Any) -> None:
        return None

    replace(stack, TopicGrowths, "prepare_subscription", prepare)


def _leave_doubts(stack: ExitStack) -> None:
    async def outcome_of(self: CertainRecords, name: str, change: Awaitable[Any], creation: object) -> Any:
        return await change

    replace(stack, CertainRecords, "_outcome_of", outcome_of)


def _let_creations_come_late(stack: ExitStack) -> None:
    async def keep_the_guard(self: EpochMetadataStore) -> None:
        return

    replace(stack, EpochMetadataStore, "_renew_guard", keep_the_guard)


GROWING = (
    Mutant(
        "bare partitions",
        "new partitions of a topic do not get its subscriptions",
        "I1",
        _bring_nothing_along,
        "growing",
    ),
    Mutant(
        "number first",
        "clients know new partitions before these have the subscriptions",
        "I1",
        _show_the_number_first,
        "growing",
    ),
    Mutant(
        "unprepared",
        "a subscription is created while the topic grows, on the old partitions only",
        "I1",
        _list_before_it_grows,
        "growing",
    ),
    Mutant(
        "left in doubt",
        "the coordinator does not find out what became of a write",
        "I8",
        _leave_doubts,
        "growing",
    ),
    Mutant(
        "late creation",
        "a creation that was given up is carried out behind a deletion",
        "I8",
        _let_creations_come_late,
        "watching",
    ),
)
