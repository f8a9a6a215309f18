"""Bugs of our own choosing in topics that rest: when they do, what is stored of it, and who loads them."""

import dataclasses
from contextlib import ExitStack
from typing import Any

from magnetar.actors.broker.ownership import Ownership
from magnetar.actors.topics import idle_topics, loaded_topics
from magnetar.actors.topics.loads import TopicLoads
from magnetar.actors.topics.owned_topic import OwnedTopic
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.errors import MagnetarError
from magnetar.storage.managed import record
from magnetar.storage.managed.chain import LedgerChain

from .mutant import Mutant, replace


def _leave_the_mark(stack: ExitStack) -> None:
    """An owner that opens a topic claims it, and its record still says that it is at rest."""

    def replacing(old: Any, **changes: Any) -> Any:
        if changes.get("rests") == b"":
            del changes["rests"]
        return dataclasses.replace(old, **changes)

    replace(stack, record, "replace", replacing)


def _mark_over_an_open_ledger(stack: ExitStack) -> None:
    async def leave(self: record.OwnedRecord, chain: LedgerChain, rests: bytes) -> None:
        if all(info.closed for info in chain.infos):
            await self.change(
                lambda old: dataclasses.replace(old, ledgers=chain.as_known(old.ledgers), rests=rests),
                settle_limit_s=record.LEAVE_LIMIT_S,
            )

    replace(stack, record.OwnedRecord, "leave", leave)


def _rest_with_clients(stack: ExitStack) -> None:
    may_rest = idle_topics.may_rest

    def resting(topic: PersistentTopic) -> bool:
        return may_rest(topic) or (topic.is_open and not topic.publishing.pending and not topic.has_tasks)

    replace(stack, idle_topics, "may_rest", resting)


class _Any(bytes):
    """Equal to whatever a topic rests under."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = bytes.__hash__


def _leave_at_rest_under_other_policies(stack: ExitStack) -> None:
    """The next owner does not compare the policies under which a topic was left at rest."""
    replace(stack, loaded_topics, "duties_of", lambda policies, features: _Any())


def _do_not_hear_of_duties(stack: ExitStack) -> None:
    replace(stack, idle_topics.IdleTopics, "with_new_duties", lambda self, *others: [])


def _give_a_load_up(stack: ExitStack) -> None:
    """What the broker loads by itself is tried once."""
    failed = TopicLoads._failed

    def failing(self: TopicLoads, topic: OwnedTopic, error: MagnetarError) -> None:
        topic.backoff = None
        failed(self, topic, error)

    replace(stack, TopicLoads, "_failed", failing)


def _remember_releases_for_good(stack: ExitStack) -> None:
    """What a superseded coordinator had a broker release stays released."""
    registered = Ownership.registered

    def registering(self: Ownership) -> None:
        slots, self._released_slots = self._released_slots, {}
        topics = {topic: topic.released for topic in self.topics.table.records.values()}
        for topic in topics:
            topic.released = 0
        registered(self)
        self._released_slots = slots
        for topic, number in topics.items():
            topic.released = number

    replace(stack, Ownership, "registered", registering)


RESTING = (
    Mutant(
        "stale rest",
        "an owner that opens a topic leaves the mark that it is at rest",
        "I18",
        _leave_the_mark,
        "resting",
    ),
    Mutant("rest in use", "a topic with clients rests", "I18", _rest_with_clients, "resting"),
    Mutant(
        "rest under any",
        "a topic is left at rest under other policies than those that it rested under",
        "I18",
        _leave_at_rest_under_other_policies,
        "resting",
    ),
    Mutant(
        "deaf rest",
        "a topic at rest is not loaded when a policy gives it something to do",
        "I18",
        _do_not_hear_of_duties,
        "resting",
    ),
    Mutant(
        "release outlives",
        "what a superseded coordinator had a broker release is not asked for again",
        "I18",
        _remember_releases_for_good,
        "resting",
    ),
    Mutant(
        "doubtful rest",
        "a topic is marked as at rest over a ledger that was stored by a doubtful write",
        "I18",
        _mark_over_an_open_ledger,
        "resting",
    ),
    Mutant("one load", "a broker's own load that failed is not tried again", "I18", _give_a_load_up, "resting"),
)
