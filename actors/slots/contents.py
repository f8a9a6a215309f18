"""Which topics lie in which slot: an index, so that nothing about a slot costs a look at all topics.

A topic without partitions is in one slot, one with n partitions in n consecutive ones (at most all). A change of one
topic costs its partitions. Pure; the caller keeps it in step with the topics that exist.
"""

from collections.abc import Iterable, Iterator, Sequence

from ...protocol.slots import first_slot


class SlotContents:
    """See the module. Names are those of whole topics, in full."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._topics: list[dict[str, int]] = [{} for _ in range(slots)]
        """By slot: topic → partitions, 0 for a plain one."""

    def change(self, topic: str, before: int | None, now: int | None) -> None:
        """The topic has so many partitions (0: it is plain, None: it does not exist) instead of `before`."""
        first = first_slot(topic, self.slots)
        if before is not None:
            for step in range(min(max(before, 1), self.slots)):
                self._topics[(first + step) % self.slots].pop(topic, None)
        if now is not None:
            for step in range(min(max(now, 1), self.slots)):
                self._topics[(first + step) % self.slots][topic] = now

    def is_empty(self, slot: int) -> bool:
        """Whether nothing lies in a slot."""
        return not self._topics[slot]

    def count(self, slots: Iterable[int]) -> int:
        """Topics in some slots, one that lies in several of them counted in each."""
        return sum(len(self._topics[slot]) for slot in slots)

    def size(self, slot: int) -> int:
        """Partitions and plain topics in a slot."""
        if all(partitions <= self.slots for partitions in self._topics[slot].values()):
            return len(self._topics[slot])
        return sum(1 for _ in self.members(slot))

    def members(self, slot: int) -> Iterator[tuple[str, int]]:
        """What brokers own in a slot: a topic and the number of its partition, −1 for a topic without partitions."""
        for topic, partitions in self._topics[slot].items():
            if not partitions:
                yield topic, -1
            else:
                for index in range((slot - first_slot(topic, self.slots)) % self.slots, partitions, self.slots):
                    yield topic, index

    def page(self, slots: Sequence[int], limit: int) -> tuple[list[tuple[str, int]], int]:
        """The members of the first of these slots, and of how many slots they are: as many as have up to `limit`
        members together, at least one."""
        found: list[tuple[str, int]] = []
        for looked_at, slot in enumerate(slots):
            if looked_at and len(found) + len(self._topics[slot]) > limit:
                return found, looked_at
            found += self.members(slot)
        return found, len(slots)
