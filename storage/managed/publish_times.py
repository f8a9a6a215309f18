"""The times of a topic's entries. Two clocks tell them: the broker's when an entry arrives, and its producer's before.

One rule says whose clock decides. A producer's clock may be wrong by any amount.

- What a topic gives up or refuses goes by *arrival*: time to live, `expireMessages`, and quotas by age. The broker
  stores no arrival times. `Arrivals` brackets them: by the creation and the end of ledgers, and by what the broker has
  noted since it loaded the topic. All these times are of brokers' clocks.
- What the broker has taken itself counts as arrived at the end of its bracket, so it never expires too early. What an
  earlier owner stored may have a wide bracket. Within it the producer's stamp counts. A stamp outside of it shows a
  wrong clock, and then the end of the bracket counts.
- Entries expire in order, each by its own time: one that has not expired keeps those behind it. That lasts until its
  bracket tells its age.
- Producers are refused, and entries evicted by age, by the end of the bracket alone.
- A seek by time, and each other search by time, goes by the stamps: who asks knows no others. The search looks at
  `PROBE_ENTRIES` entries at a time. It ends when so many in front of the place found are all older. So it skips no
  message where stamps are out of order within so many entries, or where some producers' clocks are wrong.
"""

import logging
from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ...protocol.entries import parse_metadata
from ...protocol.errors import MagnetarError, NoSuchEntry
from ...protocol.message_id import Position
from ...runtime.environment import Clock
from .chain import LedgerChain, LedgerInfo
from .chain_reader import ChainReads

if TYPE_CHECKING:
    from .managed_ledger import ManagedLedger

logger = logging.getLogger(__name__)

PROBE_ENTRIES = 32
PROBE_BYTES = 1 << 20
SPACING_MS = 1000
"""Notes of arrivals are at least so far apart."""
NOTES_MAX = 64
STAMP_DELAY_MAX_MS = 60_000
"""So long an entry may be on its way from its producer. A stamp that is older shows a wrong clock."""


class Arrivals:
    """When the entries of a loaded topic arrived, by the brokers' clocks. See the module.

    A note says which entry was the last one at a time. The notes are bounded: when they are full, every second one
    goes, and further ones are twice as far apart.
    """

    def __init__(self, chain: LedgerChain, clock: Clock) -> None:
        self._chain = chain
        self._clock = clock
        self._spacing_ms = SPACING_MS
        self._ledger_ids, self._entry_ids, self._times_ms = array("q"), array("q"), array("q")
        self.found_upto = chain.last_confirmed
        """The last entry of earlier owners."""
        self._last = chain.last_confirmed
        self._last_ms = clock.now_ms()
        """The newest note, which goes to the others when the next one comes."""

    def appended(self) -> None:
        """Entries have become durable."""
        position = self._chain.last_confirmed
        if position <= self._last:
            return
        now_ms = max(self._clock.now_ms(), self._last_ms)
        # By the time of what comes now: after a pause, what came before it must not count as arrived with this.
        if not self._times_ms or now_ms - self._times_ms[-1] >= self._spacing_ms:
            self._keep_last()
        self._last, self._last_ms = position, now_ms

    def latest_ms(self, position: Position) -> int:
        """The end of an entry's bracket: it arrived then, or before."""
        index = self._note_at_or_behind(position)
        found = self._clock.now_ms()
        if index < len(self._times_ms):
            found = self._times_ms[index]
        elif position <= self._last:
            found = self._last_ms
        info = self._chain.get(position[0])
        closed_ms = None if info is None else _closed_ms(info)
        return found if closed_ms is None else min(found, closed_ms)

    def earliest_ms(self, position: Position) -> int:
        """The begin of an entry's bracket: it arrived then, or later."""
        info = self._chain.get(position[0])
        found = 0 if info is None else info.created_ms
        if self._last < position:
            return max(found, self._last_ms)
        index = self._note_at_or_behind(position)
        return max(found, self._times_ms[index - 1]) if index else found

    def arrived_ms(self, position: Position, stamp_ms: int | None) -> int:
        """When an entry with that publish time counts as arrived. None: it has none that can be read."""
        latest, earliest = self.latest_ms(position), self.earliest_ms(position)
        if stamp_ms is None or position > self.found_upto:
            return latest
        return max(stamp_ms, earliest) if earliest - STAMP_DELAY_MAX_MS <= stamp_ms <= latest else latest

    def before(self, time_ms: int) -> Position:
        """The last entry that has certainly arrived before a time, (−1, −1) for none."""
        found: Position = (-1, -1)
        for info in self._chain.infos:
            closed_ms = _closed_ms(info)
            if closed_ms is None or closed_ms >= time_ms:
                break
            found = (info.ledger_id, info.entries - 1)
        index = bisect_left(self._times_ms, time_ms)
        if self._last_ms < time_ms:
            return max(found, self._last)
        return max(found, self._note(index - 1)) if index else found

    # -- inside ------------------------------------------------------------------------------------------------------

    def _note(self, index: int) -> Position:
        return (self._ledger_ids[index], self._entry_ids[index])

    def _note_at_or_behind(self, position: Position) -> int:
        """The first note of an entry at or behind a position; their number if there is none."""
        return bisect_left(range(len(self._times_ms)), position, key=self._note)

    def _keep_last(self) -> None:
        if len(self._times_ms) >= NOTES_MAX:
            gone = self._note_at_or_behind(self._chain.first_position) - 1
            if gone >= NOTES_MAX // 4:  # trimmed
                self._spacing_ms = max(self._spacing_ms // 2, SPACING_MS)
                kept = slice(gone, None)
            else:
                self._spacing_ms *= 2
                kept = slice(None, None, 2)
            for column in (self._ledger_ids, self._entry_ids, self._times_ms):
                column[:] = column[kept]
        self._ledger_ids.append(self._last[0])
        self._entry_ids.append(self._last[1])
        self._times_ms.append(self._last_ms)


def _closed_ms(info: LedgerInfo) -> int | None:
    """When a ledger took its last entry at the latest; None if that is not known."""
    return max(info.closed_ms, info.created_ms) if info.closed and info.closed_ms else None


Stamps = Callable[[int, int], Awaitable[list[int]]]
"""Reads the publish times of up to so many entries from an index on: of one at least."""


async def first_published(count: int, stamps: Stamps, publish_time_ms: int) -> int:
    """The index of the first entry that was published then or later; `count` if there is none.

    It is exact where publish times ascend. See the module for where they do not. Raises what `stamps` raises.
    """
    behind, ahead = 0, count
    while behind < ahead:
        middle = (behind + ahead) // 2
        found = await stamps(middle, min(PROBE_ENTRIES, ahead - middle))
        index = _first_at_or_after(found, publish_time_ms)
        if index < len(found):
            ahead = middle + index
        else:
            behind = middle + len(found)
    while behind:  # a step back, as long as it finds one
        first = max(behind - PROBE_ENTRIES, 0)
        found: list[int] = []
        while first + len(found) < behind:
            found += await stamps(first + len(found), behind - first - len(found))
        index = _first_at_or_after(found, publish_time_ms)
        if index == len(found):
            break
        behind = first + index
    return behind


def _first_at_or_after(stamps: list[int], publish_time_ms: int) -> int:
    for index, stamp in enumerate(stamps):
        if stamp >= publish_time_ms:
            return index
    return len(stamps)


async def find_by_publish_time(chain: LedgerChain, reads: ChainReads, publish_time_ms: int) -> Position:
    """The first entry whose publish time is `publish_time_ms` or later; the place behind the last one if there is none.

    Raises what reading raises, ProtocolError for an entry without message metadata.
    """
    end = chain.last_confirmed
    first = chain.ceiling((-1, -1))
    if first is None:
        return chain.next_position(end)

    async def stamps(index: int, most: int) -> list[int]:
        position = _at(chain, first, index)
        if position is None:
            return [publish_time_ms]  # the chain is shorter now: the place lies in front of this
        found = await reads.read(position, most, PROBE_BYTES, upto=end)
        if not found:
            raise NoSuchEntry(f"entry {index} behind {first} was trimmed during the search")
        return [int(parse_metadata(body).publish_time) for _, body in found]

    index = await first_published(chain.count_between((first[0], first[1] - 1), end), stamps, publish_time_ms)
    return _at(chain, first, index) or chain.next_position(max(end, chain.last_confirmed))


def _at(chain: LedgerChain, first: Position, index: int) -> Position | None:
    """The entry number `index`, counted from `first`, also while ledgers before it are trimmed."""
    index += first[1] if chain.get(first[0]) is not None else 0
    for info in chain.infos:
        if info.ledger_id < first[0]:
            continue
        if index < info.entries:
            return (info.ledger_id, index)
        index -= info.entries
    return None


class LastPublish:
    """When a topic got its last message: noted as entries become durable, and read from the last one after a load.

    `at_ms` is 0 while it is not known, and for a topic without messages.
    """

    def __init__(self, ledger: "ManagedLedger") -> None:
        self.at_ms = 0
        self._ledger = ledger
        self._chain = ledger.chain
        self._position = ledger.last_confirmed

    def appended(self, now_ms: int) -> None:
        """Entries may have become durable."""
        position = self._chain.last_confirmed
        if position != self._position:
            self._position = position
            self.at_ms = now_ms

    async def learn(self) -> None:
        """Ask the last stored message, as long as none was published since the topic was loaded."""
        position = self._position
        if self.at_ms or position < (0, 0):
            return
        try:
            entries = await self._ledger.read(position, 1, 1, upto=position)
            found = int(parse_metadata(entries[0][1]).publish_time) if entries else 0
        except MagnetarError as error:
            logger.info("the publish time of the last message at %s is not known: %s", position, error)
            return
        if not self.at_ms:  # something may have been published meanwhile
            self.at_ms = found
