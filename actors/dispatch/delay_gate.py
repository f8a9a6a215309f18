"""The gate of a subscription that holds messages back until their delivery time (delayed delivery).

Shared and Key_Shared subscriptions have one for each dispatcher. Exclusive and Failover subscriptions deliver at once.

States of an entry here: *hidden* (just read, its time has not come) → *held* → *due*, then its dispatcher sends it as
one that comes again. A held entry that was acknowledged meanwhile, by its id, is dropped when its time comes.

What counts as its time having come: `deliver_at ≤ now`, or without `isDelayedDeliveryDeliverAtTimeStrict` one tick
earlier. The policy `delayedDelivery` is read at each use. When it is not active, everything is due.

Invariants:

- A held entry is in front of its dispatcher's read position, and neither pending nor in the replay set.
- One timer runs, while something is held that is not due. It fires at the first time. In strict mode it fires at most
  once per tick. It looks again after `LOOK_MAX_S` at the latest, so a clock that was set is noticed.
- What is due and cannot be sent waits here without a timer: the permits of a consumer wake dispatch.

Crash and unload: nothing of this is stored. The cursor knows which entries are acknowledged. The next dispatcher reads
all others again from the first of them on, sends those that are due, and holds the rest. It sends while it reads: it
does not have to find all delayed entries first.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ...protocol.message_id import Position
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from .delayed import DelayedEntries
from .dispatcher import CursorView
from .entry_gate import HeldEntry

LOOK_MAX_S = 60.0
DROPPED_MAX = 4096
"""Acknowledged entries that one look drops before others get the loop."""
EVER_MS = (1 << 63) - 1


class DelayPolicy(Protocol):
    """The policy `delayedDelivery`."""

    @property
    def active(self) -> bool: ...
    @property
    def tick_ms(self) -> int: ...


class DelayPolicies(Protocol):
    """The policies of a topic."""

    @property
    def delayed_delivery(self) -> DelayPolicy: ...


class DeliveryTimes(Protocol):
    """Knows the delivery times of entries."""

    def delivery_times(self, entries: Sequence[tuple[Position, bytes]]) -> Mapping[Position, int]: ...


class DelaysHost(Protocol):
    """What delays need of the topic."""

    env: Environment
    settings: Settings

    @property
    def policies(self) -> DelayPolicies: ...
    @property
    def counts(self) -> DeliveryTimes: ...


class Delays:
    """See the module. `wake` sets the subscription's dispatch going."""

    def __init__(self, host: DelaysHost, cursor: CursorView, wake: Callable[[], None]) -> None:
        self._host = host
        self._cursor = cursor
        self._wake = wake
        self._entries = DelayedEntries()
        self._timer: asyncio.TimerHandle | None = None
        self._target_ms = EVER_MS
        """For when the timer is set."""
        self._looked_ms = 0
        self._loop = asyncio.get_running_loop()

    def hidden(self, entries: Sequence[tuple[Position, bytes]]) -> Mapping[Position, int]:
        """Those of the entries that are not to be sent now, and the time from which each is, in ms since the epoch."""
        if not self._host.policies.delayed_delivery.active:
            return {}
        times = self._host.counts.delivery_times(entries)
        if not times:
            return times
        upto_ms = self._due_upto_ms()
        return {position: at_ms for position, at_ms in times.items() if at_ms > upto_ms}

    def hold(self, position: Position, from_ms: int, slot: int) -> None:
        """Keep an entry until that time."""
        self._entries.add(from_ms, position, slot)
        if from_ms < self._target_ms:
            self._set_timer()

    def due(self, count: int) -> list[HeldEntry]:
        """Up to so many entries whose time has come and that are not acknowledged."""
        first_ms = self._entries.first_ms
        if first_ms is None:
            return []
        upto_ms = self._due_upto_ms()
        if first_ms > upto_ms:
            return []
        found: list[HeldEntry] = []
        dropped = 0
        while len(found) < count and dropped < DROPPED_MAX:
            taken = self._entries.take(upto_ms, count - len(found))
            if not taken:
                break
            found += [(position, slot) for _, position, slot in taken if not self._cursor.is_acknowledged(position)]
            dropped += len(taken)
        self._looked_ms = self._host.env.clock.now_ms()
        self._set_timer(again=not found)
        return found

    def clear(self) -> None:
        """Hold nothing."""
        self._entries.clear()
        self._cancel()

    @property
    def holds(self) -> bool:
        """Whether anything is held."""
        return len(self._entries) > 0

    @property
    def held(self) -> int:
        """How many entries are held. One that was acknowledged counts until its time comes."""
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """The memory that this takes."""
        return self._entries.size_bytes

    # -- time ----------------------------------------------------------------------------------------------------

    def _due_upto_ms(self) -> int:
        """Entries with that time, or an earlier one, are due."""
        policy = self._host.policies.delayed_delivery
        if not policy.active:
            return EVER_MS
        now_ms = self._host.env.clock.now_ms()
        return now_ms if self._host.settings.delayed_delivery_strict else now_ms + max(policy.tick_ms, 0)

    def _set_timer(self, *, again: bool = False) -> None:
        """For the first entry that is not due. With `again` also for one that is."""
        self._cancel()
        first_ms = self._entries.first_ms
        if first_ms is None:
            return
        now_ms = self._host.env.clock.now_ms()
        if first_ms <= self._due_upto_ms() and not again:
            return
        at_ms = first_ms
        if self._host.settings.delayed_delivery_strict:
            at_ms = max(at_ms, self._looked_ms + max(self._host.policies.delayed_delivery.tick_ms, 0))
        self._target_ms = first_ms
        left_s = (at_ms - now_ms) / 1000
        self._timer = self._loop.call_later(min(max(left_s, 0.001), LOOK_MAX_S), self._look)

    def _look(self) -> None:
        self._timer, self._target_ms = None, EVER_MS
        self._wake()
        if self._timer is None:
            self._set_timer()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._target_ms = None, EVER_MS
