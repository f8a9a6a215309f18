"""Who gets a key: how the consumers of a Key_Shared subscription divide the hashes among them.

A key's hash is put into a *slot*, and each slot belongs to one consumer at most. Three ways to divide the slots:

- `HashRing`: AUTO_SPLIT by consistent hashing. Slots 1 to 65535. Each consumer has some points on a ring, at the slots
  of `<name> NUL <index among consumers of that name> NUL <point number>`. A slot belongs to the first point at or
  behind it, round the ring. Where points of several consumers meet, the one that came first holds the point, and the
  next one takes it over when it leaves.
- `SplitRanges`: AUTO_SPLIT by ranges. Slots 0 to 65535 in one region for each consumer. A new consumer takes the lower
  half of the largest region, of equally large ones the lowest. The region of one that leaves joins the one behind it;
  the last region joins the one in front.
- `StickyRanges`: each consumer brings its ranges. Slots 0 to 65535, of which some may belong to nobody.

Invariant: a consumer that joins or leaves changes the owner of those slots only that it gets or had. `add` either does
all or raises and changes nothing.
"""

import itertools
from abc import ABC, abstractmethod
from bisect import bisect_left
from typing import ClassVar

from ...protocol.errors import ConsumerAssignError
from ...protocol.hashing import INT31_MASK, murmur3_32
from .consumer import AttachedConsumer

SLOTS = 65536

SlotRange = tuple[int, int]
"""First and last slot."""


class HashRanges(ABC):
    """What the three ways share: the slots as ranges, in order, each with its owner."""

    first_slot: ClassVar[int] = 0

    def __init__(self) -> None:
        self._ends: list[int] = [SLOTS - 1]
        self._owners: list[AttachedConsumer | None] = [None]

    def slot_of(self, key_hash: int) -> int:
        """The slot of a key with that murmur3 hash of 31 bits. As in Pulsar no key has slot 0."""
        return (key_hash % (SLOTS - self.first_slot) + self.first_slot) or 1

    def select(self, slot: int) -> AttachedConsumer | None:
        """The consumer that the slot belongs to."""
        return self._owners[bisect_left(self._ends, slot)]

    @abstractmethod
    def add(self, consumer: AttachedConsumer) -> None:
        """A consumer joins. Raises ConsumerAssignError."""

    @abstractmethod
    def remove(self, consumer: AttachedConsumer) -> None:
        """A consumer leaves."""

    def obstacle(self, consumer: AttachedConsumer) -> AttachedConsumer | None:
        """A consumer whose slots the new one wants, too."""
        return None

    def ranges(self) -> dict[AttachedConsumer, list[SlotRange]]:
        """The slots of each consumer, neighbouring ranges joined."""
        found: dict[AttachedConsumer, list[SlotRange]] = {}
        start = self.first_slot
        for end, owner in zip(self._ends, self._owners, strict=True):
            if owner is not None:
                mine = found.setdefault(owner, [])
                if mine and mine[-1][1] == start - 1:
                    mine[-1] = (mine[-1][0], end)
                else:
                    mine.append((start, end))
            start = end + 1
        return found

    def _assign(self, ends: list[int], owners: list[AttachedConsumer | None]) -> None:
        """From now on these ranges, by their last slots, belong to these consumers. Behind them nothing is owned."""
        if not ends or ends[-1] < SLOTS - 1:
            ends.append(SLOTS - 1)
            owners.append(None)
        self._ends, self._owners = ends, owners


class HashRing(HashRanges):
    """See the module."""

    first_slot = 1

    def __init__(self, points: int) -> None:
        super().__init__()
        self._points = points
        self._holders: dict[int, list[AttachedConsumer]] = {}
        """By slot of a point, those who have one there, in order of arrival."""
        self._indexes: dict[AttachedConsumer, int] = {}
        """Of each consumer among those of its name."""

    def add(self, consumer: AttachedConsumer) -> None:
        taken = {index for other, index in self._indexes.items() if other.name == consumer.name}
        index = next(number for number in range(len(taken) + 1) if number not in taken)
        self._indexes[consumer] = index
        for slot in self._slots_of(consumer.name, index):
            self._holders.setdefault(slot, []).append(consumer)
        self._walk()

    def remove(self, consumer: AttachedConsumer) -> None:
        for slot in self._slots_of(consumer.name, self._indexes.pop(consumer)):
            holders = self._holders[slot]
            holders.remove(consumer)
            if not holders:
                del self._holders[slot]
        self._walk()

    def _slots_of(self, name: str, index: int) -> list[int]:
        return [
            self.slot_of(murmur3_32(f"{name}\0{index}\0{point}".encode()) & INT31_MASK) for point in range(self._points)
        ]

    def _walk(self) -> None:
        ends = sorted(self._holders)
        owners: list[AttachedConsumer | None] = [self._holders[end][0] for end in ends]
        if ends and ends[-1] < SLOTS - 1:
            ends.append(SLOTS - 1)
            owners.append(owners[0])
        self._assign(ends, owners)


class SplitRanges(HashRanges):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._regions: list[tuple[int, AttachedConsumer]] = []
        """Where each region ends (that slot is not part of it), and whose it is; in order."""

    def add(self, consumer: AttachedConsumer) -> None:
        """Raises ConsumerAssignError when no region can be split."""
        if not self._regions:
            self._regions.append((SLOTS, consumer))
        else:
            largest, start, size = 0, 0, 0
            begin = 0
            for index, (end, _) in enumerate(self._regions):
                if end - begin > size:
                    largest, start, size = index, begin, end - begin
                begin = end
            if size < 2:
                raise ConsumerAssignError(
                    f"No more range can assigned to new consumer, assigned consumers {len(self._regions)}"
                )
            self._regions.insert(largest, (start + size // 2, consumer))
        self._assign_regions()

    def remove(self, consumer: AttachedConsumer) -> None:
        index = next(index for index, (_, owner) in enumerate(self._regions) if owner is consumer)
        if index and index == len(self._regions) - 1:
            self._regions[index - 1] = (SLOTS, self._regions[index - 1][1])
        del self._regions[index]
        self._assign_regions()

    def _assign_regions(self) -> None:
        self._assign([end - 1 for end, _ in self._regions], [owner for _, owner in self._regions])


class StickyRanges(HashRanges):
    """See the module. A consumer's ranges are its `key_shared.ranges`."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[tuple[SlotRange, AttachedConsumer]] = []
        """In order."""

    def add(self, consumer: AttachedConsumer) -> None:
        """Raises ConsumerAssignError for no ranges, impossible ones, and such as overlap with each other or with those
        of another consumer."""
        wanted = sorted(consumer.key_shared.ranges)
        if not wanted:
            raise ConsumerAssignError("a STICKY consumer brings no hash ranges: give at least one")
        for start, end in wanted:
            if start > end:
                raise ConsumerAssignError(
                    f"the hash range [{start}, {end}] ends before it begins: give its start first"
                )
            if start < 0 or end >= SLOTS:
                raise ConsumerAssignError(
                    f"the hash range [{start}, {end}] is not within [0, {SLOTS - 1}]: choose one that is"
                )
        for (start, end), (next_start, next_end) in itertools.pairwise(wanted):
            if end >= next_start:
                raise ConsumerAssignError(
                    f"the hash ranges [{start}, {end}] and [{next_start}, {next_end}] of one consumer overlap: "
                    "separate them"
                )
        obstacle = self.obstacle(consumer)
        if obstacle is not None:
            raise ConsumerAssignError(
                f"its hash ranges overlap with those of consumer {obstacle.name}: choose free ones"
            )
        self._taken = sorted(
            [*self._taken, *((one, consumer) for one in wanted)],
            key=lambda taken: taken[0],
        )
        self._assign_taken()

    def has_key(self, key_hash: int) -> bool:
        """Whether a key with that hash belongs to anybody."""
        return self.select(self.slot_of(key_hash)) is not None

    def remove(self, consumer: AttachedConsumer) -> None:
        self._taken = [taken for taken in self._taken if taken[1] is not consumer]
        self._assign_taken()

    def obstacle(self, consumer: AttachedConsumer) -> AttachedConsumer | None:
        ends = [end for (_, end), _ in self._taken]
        for start, end in consumer.key_shared.ranges:
            index = bisect_left(ends, start)  # the first one that ends at or behind the start
            if index < len(ends) and self._taken[index][0][0] <= end:
                return self._taken[index][1]
        return None

    def _assign_taken(self) -> None:
        ends: list[int] = []
        owners: list[AttachedConsumer | None] = []
        for (start, end), owner in self._taken:
            if start > (ends[-1] + 1 if ends else 0):
                ends.append(start - 1)
                owners.append(None)
            ends.append(end)
            owners.append(owner)
        self._assign(ends, owners)
