"""Bugs in what topics keep: retention, time to live, backlog quotas. See `own` for how a mutant is made."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from magnetar.actors.keeping import topic_keeping
from magnetar.actors.keeping.topic_keeping import KeptSubscription, TopicKeeping
from magnetar.actors.topics.subscription import Subscription
from magnetar.protocol.message_id import Position
from magnetar.storage.managed.chain import LedgerInfo
from magnetar.storage.managed.publish_times import Arrivals
from magnetar.storage.managed.trimming import Retention

from .mutant import Mutant, replace


def _trim_what_retention_covers(stack: ExitStack) -> None:
    def covers(self: Retention, info: LedgerInfo, size_behind_bytes: int, now_ms: int) -> bool:
        return self.size_bytes > size_behind_bytes  # "−1 is no bound" is forgotten

    replace(stack, Retention, "covers", covers)


def _take_seconds_for_minutes(stack: ExitStack) -> None:
    of = Retention.of
    replace(stack, Retention, "of", staticmethod(lambda minutes, size_mb: of(minutes / 60, size_mb)))


def _expire_younger_ones(stack: ExitStack) -> None:
    expire = TopicKeeping.expire

    async def expiring(self: TopicKeeping, subscription: KeptSubscription, age_s: float) -> int:
        return await expire(self, subscription, age_s / 2)

    replace(stack, TopicKeeping, "expire", expiring)


def _evict_all(stack: ExitStack) -> None:
    def place(infos: Sequence[LedgerInfo], size_bytes: int) -> Position | None:
        return (infos[-1].ledger_id, infos[-1].entries) if infos else None

    replace(stack, topic_keeping, "place_with_bytes_behind", place)


def _read_all(stack: ExitStack) -> None:
    """Nothing expires by what the broker has noted: each entry is read."""
    replace(stack, Arrivals, "before", lambda self, time_ms: (-1, -1))
    replace(stack, Arrivals, "earliest_ms", lambda self, position: 0)
    replace(stack, Arrivals, "found_upto", property(_last_of, lambda self, value: None), create=True)


def _last_of(arrivals: Arrivals) -> Position:
    return arrivals._chain.last_confirmed


def _believe_every_stamp(stack: ExitStack) -> None:
    """Publish times alone say how old an entry is."""
    _read_all(stack)
    replace(stack, Arrivals, "arrived_ms", lambda self, position, stamp_ms: stamp_ms)


def _believe_stamps_ahead(stack: ExitStack) -> None:
    """An entry with a publish time to come stays until then, and keeps those behind it."""
    arrived_ms, found = Arrivals.arrived_ms, dict[Arrivals, Position]()

    def arrived(self: Arrivals, position: Position, stamp_ms: int | None) -> int:
        if stamp_ms is not None and stamp_ms > self._clock.now_ms():
            return stamp_ms
        return arrived_ms(self, position, stamp_ms if position <= found[self] else None)

    replace(stack, Arrivals, "arrived_ms", arrived)
    replace(stack, Arrivals, "before", lambda self, time_ms: (-1, -1))
    replace(stack, Arrivals, "found_upto", property(_last_of, found.__setitem__), create=True)


def _stop_at_the_first_error(stack: ExitStack) -> None:
    """One subscription that cannot be seen to keeps those behind it from it."""

    async def for_each(self: TopicKeeping, subscriptions: Sequence[KeptSubscription], work: Any) -> None:
        for subscription in subscriptions:
            await work(subscription)

    replace(stack, TopicKeeping, "_for_each", for_each)


def _leave_it_held(stack: ExitStack) -> None:
    """Dispatch is not told of what its cursor passed over."""

    def passed(self: Subscription) -> None:
        if not self.closed:
            self._note_moved()

    replace(stack, Subscription, "_passed", passed)


KEEPING: Sequence[Mutant] = (
    Mutant("forgotten retention", "a ledger that retention covers is trimmed", "I9", _trim_what_retention_covers),
    Mutant("short retention", "minutes of retention count as seconds", "I9", _take_seconds_for_minutes, "keeping"),
    Mutant("too young", "messages expire after half their time to live", "I7", _expire_younger_ones, "keeping"),
    Mutant(
        "clocks of strangers",
        "messages expire by their producers' clocks",
        "I7",
        _believe_every_stamp,
        "keeping",
    ),
    Mutant("all evicted", "a quota that is exceeded takes the whole backlog away", "I7", _evict_all, "keeping"),
    Mutant(
        "head of next year",
        "a message with a publish time to come ends the time to live of those behind it",
        "I8",
        _believe_stamps_ahead,
        "keeping",
    ),
    Mutant(
        "still held",
        "what expired, was skipped or was evicted counts as held by its consumers",
        "I7",
        _leave_it_held,
        "withholding",
    ),
    Mutant(
        "one for all",
        "a subscription whose first entry cannot be read keeps those behind it from expiring",
        "I8",
        _stop_at_the_first_error,
        "keeping",
    ),
)
