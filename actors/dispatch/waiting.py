"""Entries of a Key_Shared subscription that were read, or given back, and wait for their consumer.

They are kept in one set for each consumer that they belong to, in order of positions, so that a consumer's next ones
are found without a look at others. Those of a draining slot are in a set of their own: however many there are, they
cost the others nothing. All waiting entries of a slot are in one set, its *home*.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from sortedcontainers import SortedSet

from ...protocol.message_id import Position
from ...runtime.gone import GONE
from .consumer import AttachedConsumer

WaitingPlace = AttachedConsumer | int | None
"""Where a slot's entries wait: for a consumer; as a draining slot, for itself; for anybody who takes the slot."""


class WaitingEntries:
    """See the module. `place` says where a slot's entries wait, `take_back` removes an entry from its consumer and
    returns its slot."""

    def __init__(self, place: Callable[[int], WaitingPlace], take_back: Callable[[Position], int]) -> None:
        self._place = place
        self._take_back = take_back
        self._slots: dict[Position, int] = {}
        self._counts: dict[int, int] = {}
        self._homes: dict[int, SortedSet[Position]] = {}
        self._sets: dict[WaitingPlace, SortedSet[Position]] = {}

    def let_go(self) -> None:
        """The dispatcher has lost its last consumer, so it is not used again: see `runtime.gone`."""
        self._place = self._take_back = GONE

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, position: object) -> bool:
        return position in self._slots

    def __iter__(self) -> Iterator[Position]:
        return iter(sorted(self._slots))

    def has_slot(self, slot: int) -> bool:
        """Whether an entry of the slot waits."""
        return slot in self._homes

    def slot_of(self, position: Position) -> int | None:
        """The slot of an entry that waits."""
        return self._slots.get(position)

    def first(self, consumer: AttachedConsumer, count: int) -> list[Position]:
        """The first entries that wait for that consumer."""
        mine = self._sets.get(consumer)
        return list(islice(mine, count)) if mine else []

    def add(self, position: Position, slot: int) -> None:
        """An entry waits from now on."""
        if position in self._slots:
            return
        self._slots[position] = slot
        home = self._homes.get(slot)
        if home is None:
            home = self._homes[slot] = self._sets.setdefault(self._place(slot), SortedSet())
            self._counts[slot] = 0
        home.add(position)
        self._counts[slot] += 1

    def update(self, positions: Iterable[Position]) -> None:
        """Consumers have given these entries back."""
        back = [(position, self._take_back(position)) for position in positions]
        for position, slot in back:
            self.add(position, slot)

    def discard(self, position: Position) -> None:
        """An entry no longer waits, if it did."""
        slot = self._slots.pop(position, None)
        if slot is None:
            return
        self._homes[slot].discard(position)
        self._counts[slot] -= 1
        if not self._counts[slot]:
            del self._counts[slot], self._homes[slot]

    def difference_update(self, positions: Iterable[Position]) -> None:
        """These entries no longer wait."""
        for position in positions:
            self.discard(position)

    def move(self, slot: int) -> None:
        """The slot's place has changed."""
        old = self._homes.get(slot)
        if old is None:
            return
        place = self._place(slot)
        new = self._sets.setdefault(place, SortedSet())
        if new is old:
            return
        mine = [position for position in old if self._slots[position] == slot]
        old.difference_update(mine)
        new.update(mine)
        self._homes[slot] = new
        if slot in self._sets and not self._sets[slot]:
            del self._sets[slot]

    def place_all(self) -> None:
        """The places of many slots have changed."""
        self._sets = {}
        self._homes = {}
        places: dict[WaitingPlace, list[Position]] = {}
        where = {slot: self._place(slot) for slot in self._counts}
        for position, slot in self._slots.items():
            places.setdefault(where[slot], []).append(position)
        for place, positions in places.items():
            self._sets[place] = SortedSet(positions)
        for slot, place in where.items():
            self._homes[slot] = self._sets[place]

    def clear(self) -> None:
        """Nothing waits."""
        for kept in (self._slots, self._counts, self._homes, self._sets):
            kept.clear()
