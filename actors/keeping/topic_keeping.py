"""What one topic gives up by itself: expired messages, what exceeds its backlog quotas, subscriptions without use.

Time to live: `message_ttl` seconds after it arrived a message counts as acknowledged at every subscription, also a
delayed one. `storage.managed.publish_times` says whose clock decides. What has certainly arrived long enough ago is
passed without reading it. Behind that, entries of earlier owners are read until one has not expired: each once. A
cursor never goes back. What is found holds also after another move of the cursor, since time only passes.

Backlog quotas count the durable subscription that is furthest behind, and nothing while no subscription has a backlog.
`destination_storage` bounds bytes, `message_age` the time since the oldest message arrived that is not acknowledged.
What a quota that is used up does:

- `producer_request_hold` and `producer_exception`: the next check sends the producers away. When they come back they
  are refused, with ProducerBlockedQuotaExceededError or …Exception, until the backlog has fallen. Clients try again by
  themselves after the first. The refusal measures at once, so it ends as soon as the backlog has fallen.
- `consumer_backlog_eviction`: the next check takes the oldest messages away from the subscriptions that are too far
  behind. It goes down to `EVICTION_SHARE` of the size, or to the age.

All this reaches the storage as acknowledgements only. So a crash loses at most a move that the next check repeats.

A durable subscription expires when it has had no consumer for `subscription_expiration_time_minutes`. It is then
deleted as if a client had unsubscribed. When the topic closes, the time since which a subscription is idle is stored
with its cursor, where it can expire. After a crash the time begins again, so no subscription expires too early.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from math import floor
from typing import NamedTuple, Protocol, cast

from ...protocol.entries import parse_metadata
from ...protocol.errors import (
    MagnetarError,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProtocolError,
)
from ...protocol.message_id import Position
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.gone import GONE
from ...storage.managed.chain import LedgerInfo
from ...storage.managed.cursor import Cursor
from ...storage.managed.managed_ledger import ManagedLedger
from ..policies.backlog_quota import BacklogQuota, QuotaPolicy, QuotaType
from ..policies.effective import EffectivePolicies
from ..policies.inactive_topics import InactiveTopicDeleteMode
from .checks import Check, TopicChecks, Work
from .inactivity import Inactivity, UsedTopic

logger = logging.getLogger(__name__)


class Backlog(NamedTuple):
    """Of the slowest durable subscription: its size, and the first entry that it has not acknowledged.

    A topic where every subscription has acknowledged everything has none (`first` is None), whatever its ledgers hold.
    """

    size_bytes: int
    first: Position | None


def measure(cursors: Iterable[Cursor]) -> Backlog:
    """The backlog of a topic."""
    behind = [one for one in cursors if one.backlog_entries > 0]
    if not behind:
        return Backlog(0, None)
    return Backlog(max(one.backlog_bytes for one in behind), min(one.first_unacknowledged for one in behind))


def place_with_bytes_behind(infos: Sequence[LedgerInfo], size_bytes: int) -> Position | None:
    """The first of the newest entries that have this size together, at most. Entries of one ledger count as equally
    large. None if that is all of them."""
    left = size_bytes
    for info in reversed(infos):
        if info.size_bytes > left:
            kept = floor(info.entries * left / info.size_bytes)
            return (info.ledger_id, info.entries - kept)
        left -= info.size_bytes
    return None


EVICTION_SHARE = 0.9
"""Pulsar's: a backlog that is too large is reduced to this share of its quota."""
MINUTE_MS = 60_000
EXPIRY_ENTRIES_MAX = 500
EXPIRY_BYTES_MAX = 1 << 20
"""What one reading of an expiry holds in memory."""


class KeptSubscription(Protocol):
    """A subscription, as far as keeping concerns it."""

    name: str
    durable: bool
    cursor: Cursor
    idle_since_ms: int

    @property
    def closed(self) -> bool: ...
    def pass_over(self, place: Position, *, expired: bool) -> int: ...
    async def remove(self, consumer: None, *, force: bool = False) -> None: ...


class KeepingHost(UsedTopic, Protocol):
    """What keeping needs of its topic."""

    env: Environment
    name: TopicName
    policies: EffectivePolicies
    ledger: ManagedLedger

    @property
    def subscriptions(self) -> Mapping[tuple[str, bool], KeptSubscription]: ...
    def disconnect_producers(self) -> None: ...
    def counted_cursors(self) -> Sequence[Cursor]: ...
    def spawn(self, coroutine: Coroutine[object, object, object], name: str) -> None: ...


class TopicKeeping(TopicChecks):
    """See the module. Made by its topic; what `work` says is called now and then."""

    def __init__(self, host: KeepingHost) -> None:
        super().__init__(host.name, Inactivity(host, self._is_needed))
        self._host = host
        self._trimming = False
        self._trims_again = False
        """A cursor left a ledger while a trim was under way, which may have looked at it before."""
        self._stamps: dict[Position, int | None] = {}
        """Publish times of the oldest entries of subscriptions, as long as they are the oldest."""
        self._failed: set[str] = set()
        """The subscriptions for which the last work failed, or took too long: it sees to them behind all others."""

    def work(self, check: Check) -> Work | None:
        policies = self._host.policies
        if check is Check.EXPIRY:
            return self.expire_old if policies.message_ttl > 0 else None
        if check is Check.SUBSCRIPTIONS:
            return self.expire_subscriptions if policies.subscription_expiration_time_minutes > 0 else None
        limited = check is Check.QUOTAS and any(
            quota.size_limited if kind is QuotaType.DESTINATION_STORAGE else quota.time_limited
            for kind, quota in policies.backlog_quota_map.items()
        )
        return self.check_quotas if limited else None

    # -- use -------------------------------------------------------------------------------------------------------

    async def is_inactive(self) -> bool:
        if not self.inactivity.check():
            return False
        if await self._host.ledger.trimmer.is_pinned():
            self.inactivity.used()
            return False
        return self.inactivity.check()

    def _is_needed(self, mode: InactiveTopicDeleteMode) -> bool:
        counted = self._host.counted_cursors()
        if mode is InactiveTopicDeleteMode.NO_SUBSCRIPTIONS:
            return bool(self._host.subscriptions or counted)
        open_cursors = [one.cursor for one in self._host.subscriptions.values()]
        return any(cursor.backlog_entries for cursor in (*open_cursors, *counted))

    # -- subscriptions ---------------------------------------------------------------------------------------------

    async def expire_subscriptions(self) -> None:
        """Delete durable subscriptions that have had no consumer for as long as the policy says.

        Raises what deleting a cursor raises, and BrokerMetadataError when a consumer came.
        """

        async def remove_unused(subscription: KeptSubscription) -> None:
            minutes = self._host.policies.subscription_expiration_time_minutes
            idle_since_ms, now_ms = subscription.idle_since_ms, self._host.env.clock.now_ms()
            if not (minutes and idle_since_ms and subscription.durable and self._host.is_open) or subscription.closed:
                return
            if now_ms - idle_since_ms > minutes * MINUTE_MS:
                logger.info("subscription %s of %s has expired", subscription.name, self._host.name.full)
                await subscription.remove(None)

        await self._for_each(list(self._host.subscriptions.values()), remove_unused)

    async def _for_each(
        self,
        subscriptions: Sequence[KeptSubscription],
        work: Callable[[KeptSubscription], Coroutine[object, object, None]],
    ) -> None:
        """Do the work for each subscription, also when it fails for others. Raises the first error at the end.

        The time of a check is limited. So a subscription for which it failed is the last one when it is tried again.
        """
        error: MagnetarError | None = None
        for subscription in sorted(subscriptions, key=lambda one: one.name in self._failed):
            self._failed.add(subscription.name)  # a check that takes too long ends here
            try:
                await work(subscription)
            except MagnetarError as failure:
                logger.warning("%s of %s is seen to later: %s", subscription.name, self._host.name.full, failure)
                error = error or failure
            else:
                self._failed.discard(subscription.name)
        if error is not None:
            raise error

    def note_idle(self) -> None:
        """The topic closes, and consumers are gone: let the cursors store since when their subscriptions are idle."""
        if self._host.policies.subscription_expiration_time_minutes > 0:
            for subscription in self._host.subscriptions.values():
                subscription.cursor.idle_at_close_ms = subscription.idle_since_ms

    def let_go(self) -> None:
        """The topic is closed."""
        self._host = cast("KeepingHost", GONE)
        self.inactivity.let_go()

    # -- trimming ----------------------------------------------------------------------------------------------------

    def trim_soon(self) -> None:
        """Delete the ledgers that nothing needs, if there are some."""
        self._trims_again = self._trimming
        if not self._trimming and self._host.is_open:
            self._trimming = True
            self._host.spawn(self._trim(), "trim")

    async def _trim(self) -> None:
        try:
            await self._host.ledger.trim()
        except MagnetarError as error:
            logger.warning("%s could not be trimmed and is tried again: %s", self._host.name.full, error)
        finally:
            self._trimming = False
        if self._trims_again:
            self.trim_soon()

    # -- time to live ------------------------------------------------------------------------------------------------

    async def expire_old(self) -> None:
        """Expire what is older than the policy says. Raises what reading raises."""
        ttl_s = self._host.policies.message_ttl
        if ttl_s:
            await self.expire_each(list(self._host.subscriptions.values()), ttl_s)

    async def expire_each(self, subscriptions: Sequence[KeptSubscription], age_s: float) -> int:
        """`expire` for each of the subscriptions, also when it fails for others. Returns how many entries that were."""
        count = 0

        async def expire(subscription: KeptSubscription) -> None:
            nonlocal count
            count += await self.expire(subscription, age_s)

        await self._for_each(subscriptions, expire)
        return count

    async def expire(self, subscription: KeptSubscription, age_s: float) -> int:
        """Count what arrived longer ago as acknowledged. Returns how many entries that were.

        Raises what reading raises. What was passed by then stays passed.
        """
        before_ms = self._host.env.clock.now_ms() - round(age_s * 1000)
        ledger, cursor = self._host.ledger, subscription.cursor
        passed = 0
        certain = ledger.arrivals.before(before_ms)
        if certain >= cursor.first_unacknowledged:
            passed = subscription.pass_over(ledger.next_position(certain), expired=True)
        entries_max = 1
        while self._may_have_arrived(cursor.first_unacknowledged, before_ms):
            place = await self._first_younger(cursor, before_ms, entries_max)
            if subscription.closed or not self._host.is_open or place <= cursor.first_unacknowledged:
                break
            passed += subscription.pass_over(place, expired=True)
            entries_max = min(entries_max * 2, EXPIRY_ENTRIES_MAX)
        return passed

    def _may_have_arrived(self, place: Position, before_ms: int) -> bool:
        """Whether an entry of an earlier owner is there that may have arrived before a time."""
        arrivals = self._host.ledger.arrivals
        return place <= arrivals.found_upto and arrivals.earliest_ms(place) < before_ms

    async def _first_younger(self, cursor: Cursor, before_ms: int, entries_max: int) -> Position:
        """The first entry of a cursor that did not arrive before a time, else the place behind what a reading gave."""
        ledger = self._host.ledger
        first = cursor.first_unacknowledged
        if first in self._stamps and ledger.arrivals.arrived_ms(first, self._stamps[first]) >= before_ms:
            return first
        place = first
        for position, body in await ledger.read(first, entries_max, EXPIRY_BYTES_MAX, upto=ledger.arrivals.found_upto):
            if not cursor.is_acknowledged(position):
                stamp = _stamp_of(body)
                if ledger.arrivals.arrived_ms(position, stamp) >= before_ms:
                    self._remember(position, stamp)
                    return position
            place = ledger.next_position(position)
        return place

    def _remember(self, position: Position, stamp: int | None) -> None:
        """An entry stays the oldest of its subscription for a while: the next check need not read it."""
        oldest = {one.cursor.first_unacknowledged for one in self._host.subscriptions.values()}
        self._stamps = {one: known for one, known in self._stamps.items() if one in oldest}
        self._stamps[position] = stamp

    # -- backlog quotas ----------------------------------------------------------------------------------------------

    def check_producer(self) -> None:
        """Raise the error with which a producer is refused while a quota is used up."""
        for kind, quota in self._host.policies.backlog_quota_map.items():
            if quota.policy is QuotaPolicy.EVICTION or not self._is_exceeded(kind, quota):
                continue
            hold = quota.policy is QuotaPolicy.HOLD
            error = ProducerBlockedQuotaExceededError if hold else ProducerBlockedQuotaExceededException
            raise error(
                f"Cannot create producer on {self._host.name.full}: its backlog exceeds the quota {kind.value}. "
                "Consume the backlog, or raise the quota"
            )

    async def check_quotas(self) -> None:
        """Enforce the quotas that are used up. Raises what reading raises."""
        for kind, quota in self._host.policies.backlog_quota_map.items():
            if not self._host.is_open or not self._is_exceeded(kind, quota):
                continue
            if quota.policy is QuotaPolicy.EVICTION:
                await self._evict(kind, quota)
            elif self._host.has_producers:
                logger.warning(
                    "%s exceeds its backlog quota %s: its producers are sent away", self._host.name.full, kind.value
                )
                self._host.disconnect_producers()

    def age_s(self) -> int:
        """Since when the oldest message that is not acknowledged is certainly here; −1 for none."""
        age_ms = self._age_ms()
        return -1 if age_ms is None else age_ms // 1000

    def _age_ms(self) -> int | None:
        """The producers' clocks have no say in this: one wrong stamp would refuse all of them, or never any."""
        first = measure(self._durable_cursors()).first
        if first is None:
            return None
        return max(self._host.env.clock.now_ms() - self._host.ledger.arrivals.latest_ms(first), 0)

    def _is_exceeded(self, kind: QuotaType, quota: BacklogQuota) -> bool:
        if kind is QuotaType.DESTINATION_STORAGE:
            if not quota.size_limited:
                return False
            backlog = measure(self._durable_cursors())
            return backlog.first is not None and backlog.size_bytes >= quota.size_bytes
        if not quota.time_limited:
            return False
        age_ms = self._age_ms()
        return age_ms is not None and age_ms > quota.time_s * 1000

    async def _evict(self, kind: QuotaType, quota: BacklogQuota) -> None:
        durable = [one for one in self._host.subscriptions.values() if one.durable]
        if kind is QuotaType.MESSAGE_AGE:
            await self.expire_each(durable, quota.time_s)
            return
        place = place_with_bytes_behind(self._host.ledger.ledger_infos, floor(quota.size_bytes * EVICTION_SHARE))
        if place is None:
            return
        for subscription in durable:
            passed = subscription.pass_over(place, expired=False)
            if passed:
                logger.warning(
                    "%s exceeds its backlog quota: subscription %s loses its %d oldest entries",
                    self._host.name.full,
                    subscription.name,
                    passed,
                )

    def _durable_cursors(self) -> list[Cursor]:
        return [one.cursor for one in self._host.subscriptions.values() if one.durable]


def _stamp_of(body: bytes) -> int | None:
    """The publish time of an entry; None for one without readable metadata."""
    try:
        return int(parse_metadata(body).publish_time)
    except ProtocolError:
        return None
