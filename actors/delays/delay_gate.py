"""The gate of a subscription that holds messages back until their delivery time (delayed delivery).

Shared and Key_Shared subscriptions have one for each dispatcher. Exclusive and Failover subscriptions deliver at once.

States of an entry here: *hidden* (just read, its time has not come) → *held* → *due*, then its dispatcher sends it as
one that comes again. A held entry that was acknowledged meanwhile, by its id, is dropped when its time comes.

What counts as its time having come: `deliver_at ≤ now`, or without `isDelayedDeliveryDeliverAtTimeStrict` one tick
earlier. An entry that is read then is not hidden. A held one becomes due when the timer fires: then all become due
whose time has come. So nobody else finds a due entry of which dispatch was not told. The policy `delayedDelivery` is
read at each use. When it is not active, everything is due.

Invariants:

- A held entry is in front of its dispatcher's read position, and neither pending nor in the replay set.
- One timer runs, while something is held that is not due. It fires at the first time. In strict mode it fires at most
  once per tick. It looks again after `LOOK_MAX_S` at the latest, so a clock that was set is noticed.
- What is due and was not asked for waits here without a timer. Its dispatcher has others to send, no able consumer, or
  no room. Each of these ends with a wake.

Memory: a gate with a *spill* (`buckets`) keeps a bounded number of entries here. It stores the others in buckets, and
reads them back in time. The read position may be in front of entries that are in buckets. They are held all the
same, and reading skips them.

Crash and unload: the cursor knows which entries are acknowledged. The next dispatcher reads all others again from the
first of them on, but for those in buckets. It sends those that are due, and holds the rest. It sends while it reads: it
does not have to find all delayed entries first.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...protocol.message_id import Position
from ..dispatch.dispatcher import CursorView
from ..dispatch.entry_gate import HeldEntry
from .delayed import DelayedEntries

if TYPE_CHECKING:
    from ..topics.persistent import PersistentTopic
    from .buckets import DelayBuckets

LOOK_MAX_S = 60.0
DROPPED_MAX = 4096
"""Acknowledged entries that one look drops before others get the loop."""
EVER_MS = (1 << 63) - 1
IN_BUCKET = 0
"""In place of the time from which an entry is visible: a bucket has the entry."""


class Delays:
    """See the module. `wake` sets the subscription's dispatch going."""

    def __init__(self, topic: "PersistentTopic", cursor: CursorView, wake: Callable[[], None]) -> None:
        self._host = topic
        self._cursor = cursor
        self._wake = wake
        self._entries = DelayedEntries()
        self._spill: DelayBuckets | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._target_ms = EVER_MS
        """For when the timer is set."""
        self._again: bool = False
        """Whether the timer is for entries, too, that are due already."""
        self._looked_ms = 0
        """When the timer fired for the last time."""
        self._open_ms = 0
        """Held entries with that time, or an earlier one, are due. Only the timer raises it."""
        self._loop = asyncio.get_running_loop()

    def use_spill(self, make: "Callable[[DelayedEntries, Callable[[], None]], DelayBuckets]") -> None:
        """Entries may leave memory from now on. `make` gets what is in memory, and what to call when a spill has read
        something back, or may be read beside."""
        self._spill = make(self._entries, self._spill_changed)

    def ready(self) -> bool:
        """Whether the dispatcher may read now. If not, dispatch is woken when it may."""
        return self._spill is None or self._spill.ready()

    def skip(self, position: Position) -> tuple[Position, int] | None:
        """Where to read instead of a position, and how many entries at most. None: there, and as many as wanted."""
        return None if self._spill is None else self._spill.skip(position)

    def has(self, position: Position) -> bool:
        """Whether a bucket has an entry. Right until the read position has passed it."""
        return self._spill is not None and self._spill.holds and bool(self._spill.covered([position]))

    def hidden(self, entries: Sequence[tuple[Position, bytes]]) -> Mapping[Position, int]:
        """Those of the entries that are not to be sent now, and the time from which each is, in ms since the epoch."""
        covered: dict[Position, int] = {}
        if self._spill is not None and self._spill.holds:
            covered = dict.fromkeys(self._spill.covered([position for position, _ in entries]), IN_BUCKET)
        if not self._host.policies.delayed_delivery.active:
            return covered
        times = self._host.counts.delivery_times(entries)
        if not times:
            return covered
        upto_ms = self._due_upto_ms()
        later = {position: at_ms for position, at_ms in times.items() if at_ms > upto_ms}
        return {**later, **covered} if covered else later

    def hold(self, position: Position, from_ms: int, slot: int) -> None:
        """Keep an entry until that time."""
        if from_ms == IN_BUCKET:
            return
        if self._entries.add(from_ms, position, slot) and self._spill is not None:
            self._spill.grown()
        if from_ms < self._target_ms:
            self._set_timer()

    def due(self, count: int) -> list[HeldEntry]:
        """Up to so many entries whose time has come and that are not acknowledged."""
        upto_ms, first_ms = self._held_upto_ms(), self._entries.first_ms
        if first_ms is None or first_ms > upto_ms:
            if self._spill is not None and self._spill.count:
                self._spill.fetch(self._due_upto_ms(), behind=False)
            if first_ms is not None and first_ms < self._target_ms:
                self._set_timer()  # the policy is active again, or its tick is shorter
            return []
        found: list[HeldEntry] = []
        dropped = 0
        while len(found) < count and dropped < DROPPED_MAX:
            taken = self._entries.take(upto_ms, count - len(found))
            if not taken:
                break
            found += [(position, slot) for _, position, slot in taken if not self._cursor.is_acknowledged(position)]
            dropped += len(taken)
        # A caller that gets fewer than it wants may not ask again. So the rest must come by itself.
        if self._spill is not None and self._spill.count:
            first_ms = self._entries.first_ms
            self._spill.fetch(self._due_upto_ms(), behind=first_ms is not None and first_ms <= upto_ms)
        self._set_timer(again=len(found) < count and dropped >= DROPPED_MAX)
        return found

    def passed(self, *, all_held: bool) -> None:
        """The cursor passed over entries. Those in memory go together, or each at its time: they are ordered by that.
        Buckets go as soon as all that they have was passed."""
        if all_held:
            self._entries.clear()
        if self._spill is not None:
            self._spill.drop_acknowledged()
        self._set_timer()

    def clear(self) -> None:
        """Hold nothing, for the dispatcher has lost its last consumer. What is in buckets stays there."""
        self._entries.clear()
        self._cancel()
        if self._spill is not None:
            self._spill.end()
            self._spill = None

    @property
    def wakes_now(self) -> bool:
        """Whether the timer's moment has come, and the loop has not got to it."""
        return self._timer is not None and self._timer.when() <= self._loop.time()

    @property
    def holds(self) -> bool:
        """Whether anything is held, or may turn out to be."""
        return len(self._entries) > 0 or (self._spill is not None and self._spill.holds)

    @property
    def held(self) -> int:
        """How many entries are held. One that was acknowledged counts until its time comes."""
        return len(self._entries) + (0 if self._spill is None else self._spill.count)

    @property
    def size_bytes(self) -> int:
        """The memory that this takes."""
        return self._entries.size_bytes + (0 if self._spill is None else self._spill.size_bytes)

    # -- time ----------------------------------------------------------------------------------------------------

    def _held_upto_ms(self) -> int:
        """Held entries with that time, or an earlier one, are due."""
        if not self._host.policies.delayed_delivery.active:
            return EVER_MS
        # Below `_open_ms` after a change to a shorter tick. From there on the timer raises it, and not the clock.
        self._open_ms = min(self._open_ms, self._due_upto_ms())
        return self._open_ms

    def _due_upto_ms(self) -> int:
        """Entries with that time, or an earlier one, need not be held."""
        policy = self._host.policies.delayed_delivery
        if not policy.active:
            return EVER_MS
        now_ms = self._host.env.clock.now_ms()
        return now_ms if self._host.settings.delayed_delivery_strict else now_ms + max(policy.tick_ms, 0)

    def _set_timer(self, *, again: bool = False) -> None:
        """For the first entry that is not due. With `again` also for one that is."""
        again = again or self._again
        self._cancel()
        first_ms = self._entries.first_ms
        at_ms = EVER_MS
        if first_ms is not None and (again or first_ms > self._held_upto_ms()):
            at_ms = first_ms
            if self._host.settings.delayed_delivery_strict:
                at_ms = max(at_ms, self._looked_ms + max(self._host.policies.delayed_delivery.tick_ms, 0))
            self._target_ms, self._again = first_ms, again
        now_ms = self._host.env.clock.now_ms()
        if self._spill is not None and (next_ms := self._spill.next_ms) is not None and next_ms > now_ms:
            at_ms, self._target_ms = min(at_ms, next_ms), min(self._target_ms, next_ms)
        if at_ms < EVER_MS:
            left_s = (at_ms - now_ms) / 1000
            self._timer = self._loop.call_later(min(max(left_s, 0.001), LOOK_MAX_S), self._look)

    def _look(self) -> None:
        self._timer, self._target_ms, self._again = None, EVER_MS, False
        self._looked_ms = self._host.env.clock.now_ms()
        if self._host.policies.delayed_delivery.active:
            self._open_ms = self._due_upto_ms()
        if self._spill is not None:
            self._spill.drop_acknowledged()
            first_ms, upto_ms = self._entries.first_ms, self._due_upto_ms()
            self._spill.fetch(upto_ms, behind=first_ms is not None and first_ms <= upto_ms)
        self._wake()
        if self._timer is None:
            self._set_timer()

    def _spill_changed(self) -> None:
        self._wake()
        self._set_timer()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._target_ms, self._again = None, EVER_MS, False
