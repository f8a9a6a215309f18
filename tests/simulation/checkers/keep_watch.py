"""What one topic gives up: messages that expired, a backlog that is too large, and ledgers. Stands beside the brokers.

It learns the entries from what brokers are told of their appends, and from what they read. It knows the policies that
an operator has set, and of each subscription what was acknowledged for which reason.

- I7: nothing is passed over as expired before its time to live is over, by the clock of the broker that took it. It
  began when a broker was given the entry, whatever its producer's clock said. An eviction passes over something only
  where a quota asks for evictions and the backlog is as large. It leaves most of what the quota allows.
- I9: a ledger leaves the topic only when every subscription has acknowledged, or was made to pass over, all that it
  holds, and when its retention is over.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.actors.topics.subscription import Subscription
from magnetar.protocol.message_id import Position
from magnetar.runtime.environment import Clock
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned

from .history import History
from .store_watch import is_dead, who

CLOCKS_APART_MS = 4_000
"""The clocks of two nodes of a run differ by less."""
QUOTA_SLACK = 0.5
"""The size of an entry is an average, here and in the broker."""


@dataclass(frozen=True)
class Kept:
    """The policies of the topic. A time of 0 is none; a quota of 0 bytes is none. `ttl_s` is the time to live, or the
    age from which a quota evicts."""

    ttl_s: int = 0
    retention_s: int = 0
    quota_bytes: int = 0
    evicts: bool = False


class Stored(NamedTuple):
    """What is known of an entry: when a broker was given it first, by a clock that is right, and by the broker's.

    `taker` is the topic as that broker had it loaded. Once it is loaded again, other clocks tell when the entry came.
    """

    arrived_ms: int
    by_brokers_ms: int
    taker: object
    size_bytes: int


class KeepWatch:
    """See the module. `now_ms` is a clock that is right; those of the nodes differ from it."""

    def __init__(self, history: History, topic: str, kept: Kept, now_ms: Callable[[], int]) -> None:
        self._history = history
        self._topic = topic
        self._kept = kept
        self._now_ms = now_ms
        self._entries: dict[str, dict[Position, Stored]] = {}
        """Of each partition."""
        self._given: dict[bytes, Stored] = {}
        """By the entries' bytes."""
        self._done: dict[tuple[str, str], dict[Position, None]] = {}
        """(partition, subscription) → entries that were acknowledged or passed over."""

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        append, read = ManagedLedger.append, ManagedLedger.read
        acknowledge, pass_over = Subscription.acknowledge, Subscription.pass_over

        def appending(ledger: ManagedLedger, body: bytes, callback: Any) -> None:
            if self._is_mine(ledger.name):
                self.arrives(body, ledger._home.env.clock, ledger)
                callback = self._behind(ledger.name, body, callback)
            append(ledger, body, callback)

        async def reading(ledger: ManagedLedger, *others: Any, **named: Any) -> list[tuple[Position, bytes]]:
            entries = await read(ledger, *others, **named)
            for position, body in entries if self._is_mine(ledger.name) else ():
                self.holds(ledger.name, position, body)
            return entries

        def acknowledging(
            subscription: Subscription, consumer: AttachedConsumer, positions: list[Position], *others: Any
        ) -> None:
            ledger = subscription.host.ledger.name
            if self._is_mine(ledger) and subscription.durable and not is_dead():
                self.done(ledger, subscription.name, positions)
            acknowledge(subscription, consumer, positions, *others)

        def passing_over(subscription: Subscription, place: Position, *, expired: bool) -> int:
            if self._is_mine(subscription.host.ledger.name) and not is_dead():
                self._passes_over(subscription, place, expired)
            return pass_over(subscription, place, expired=expired)

        for owner, name, wrapper in (
            (ManagedLedger, "append", appending),
            (ManagedLedger, "read", reading),
            (Subscription, "acknowledge", acknowledging),
            (Subscription, "pass_over", passing_over),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    def _is_mine(self, ledger: str) -> bool:
        name = ledger.rpartition("/")[2]
        return name == self._topic or name.startswith(f"{self._topic}-partition-")

    # -- what is there -----------------------------------------------------------------------------------------------

    def subscribed(self, partition: str, subscription: str, *, at_end: bool = False) -> None:
        """From now on the subscription keeps what it has not acknowledged. `at_end`: it needs nothing that is there."""
        passed = self._entries.get(partition, {}) if at_end else {}
        self._done.setdefault((partition, subscription), dict.fromkeys(passed))

    def _behind(self, partition: str, body: bytes, callback: Any) -> Callable[..., None]:
        def answered(position: Position | None, error: Any) -> None:
            if position is not None:
                self.holds(partition, position, body)
            callback(position, error)

        return answered

    def arrives(self, body: bytes, broker: Clock, taker: object) -> None:
        """A broker with that clock is given an entry. It may be the second one that is."""
        self._given.setdefault(body, Stored(self._now_ms(), broker.now_ms(), taker, len(body)))

    def holds(self, partition: str, position: Position, body: bytes) -> None:
        """An entry is stored."""
        entries = self._entries.setdefault(partition, {})
        if position not in entries and body in self._given:
            entries[position] = self._given[body]

    # -- what is given up --------------------------------------------------------------------------------------------

    def done(self, partition: str, subscription: str, positions: list[Position]) -> None:
        """A subscription needs these entries no more."""
        self._done.setdefault((partition, subscription), {}).update(dict.fromkeys(positions))

    def was_passed_over(self, partition: str, subscription: str, position: Position) -> bool:
        """Whether a subscription will perhaps never be given that entry."""
        return position in self._done.get((partition, subscription), {})

    def _passes_over(self, subscription: Subscription, place: Position, expired: bool) -> None:
        ledger, cursor = subscription.host.ledger, subscription.cursor
        passed: list[Position] = []
        following = cursor.first_unacknowledged
        while following < place and following <= ledger.last_confirmed:
            passed.append(following)
            following = cursor.next_unacknowledged(ledger.next_position(following))
        if not passed:
            return
        if expired:
            self.expired(ledger.name, passed, subscription.host.env.clock, ledger)
        else:
            left = ledger.entries_between(passed[-1], ledger.last_confirmed)
            self.evicted(ledger.name, len(passed), left)
        if subscription.durable:
            self.done(ledger.name, subscription.name, passed)

    def expired(self, partition: str, passed: list[Position], broker: Clock, loaded: object) -> None:
        """These entries count as too old, by the clock of a broker, which has the topic loaded as `loaded`."""
        now_ms = broker.now_ms()
        self._history.counts["entries expired"] += len(passed)
        entries = self._entries.get(partition, {})
        for position in passed:
            stored = entries.get(position)
            if not self._kept.ttl_s:
                self._history.violated(f"I7: {who()} lets {position} of {partition} expire, which has no time to live")
                return
            if stored is None:
                continue
            apart_ms = 0 if loaded is stored.taker else CLOCKS_APART_MS
            if stored.by_brokers_ms + self._kept.ttl_s * 1000 > now_ms + apart_ms:
                self._history.violated(
                    f"I7: {who()} lets {position} of {partition} expire {now_ms - stored.by_brokers_ms} ms after it "
                    f"came, and its time to live is {self._kept.ttl_s} s"
                )

    def evicted(self, partition: str, passed: int, left: int) -> None:
        """So many entries are taken away because the backlog is too large, and so many are left behind them."""
        self._history.counts["entries evicted"] += passed
        kept, sizes = self._kept, [stored.size_bytes for stored in self._entries.get(partition, {}).values()]
        size_bytes = sum(sizes) // max(len(sizes), 1)
        if not kept.evicts or (passed + left) * size_bytes < kept.quota_bytes * QUOTA_SLACK:
            self._history.violated(
                f"I7: {who()} evicts {passed} entries of {partition} and leaves {left}, of {size_bytes} bytes, for "
                f"the quota {kept}"
            )
        elif left * size_bytes < kept.quota_bytes * QUOTA_SLACK:
            self._history.violated(
                f"I7: {who()} evicts {passed} entries of {partition}, and leaves {left} of {size_bytes} bytes, where "
                f"the quota allows {kept.quota_bytes} bytes"
            )

    # -- trimming ----------------------------------------------------------------------------------------------------

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A record has changed."""
        if before is None or after is None or not key.startswith(metadata_keys.MANAGED_PREFIX):
            return
        partition = key.removeprefix(metadata_keys.MANAGED_PREFIX)
        if not self._is_mine(partition):
            return
        kept = {info.ledger_id for info in ManagedLedgerRecord.unpack(after.value).ledgers}
        for info in ManagedLedgerRecord.unpack(before.value).ledgers:
            if info.ledger_id not in kept:
                self.trimmed(partition, info.ledger_id)

    def trimmed(self, partition: str, ledger_id: int) -> None:
        """A ledger left the topic."""
        entries = {
            position: one for position, one in self._entries.get(partition, {}).items() if position[0] == ledger_id
        }
        self._history.counts["kept ledgers trimmed"] += bool(entries)
        for (name, subscription), done in self._done.items():
            missing = [position for position in entries if position not in done] if name == partition else []
            if missing:
                self._history.violated(f"I9: {partition} loses {missing[0]}, which {subscription} has not acknowledged")
        for position, stored in entries.items():
            age_ms = self._now_ms() - stored.arrived_ms
            if age_ms < self._kept.retention_s * 1000 - CLOCKS_APART_MS:
                self._history.violated(
                    f"I9: {partition} loses {position} {age_ms} ms after it came, and its retention is "
                    f"{self._kept.retention_s} s"
                )
                return
