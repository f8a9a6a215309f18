"""Which broker owns which slot: the table, and the pure decisions about placing and moving.

Decisions, in this order of importance:

1. Brokers own equally many slots: the counts of two brokers differ by up to one.
2. Slots that follow each other go to different brokers, as far as 3 permits. On a fresh cluster slot i goes to broker
   i mod n, so five partitions on three brokers are 2, 2, 1.
3. As little as possible moves: a broker's loss moves only what it owned, a broker's arrival only what evenness needs.

All of it costs O(slots × brokers) at most, however many topics there are. Nothing here knows about time, metadata or
connections.

Exceptions are topics that another broker owns than their slot says. One counts while its epoch is greater than that of
its slot.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ...protocol.slots import is_slot_count, slot_of, slots_of_page
from ...protocol.topics import TopicName
from ...storage.metadata.slot_rows import UNOWNED, SlotEntry, SlotPage, SlotRows

WINDOW_MAX = 16
"""How far around a slot its neighbours count. Larger windows cost more and change nothing that topics with fewer
partitions notice.
"""


class SlotTable:
    """All slots of a cluster, and the exceptions. Invariant: epochs of a slot never fall, nor those of a topic."""

    def __init__(self, slots: int) -> None:
        assert is_slot_count(slots)
        self.slots = slots
        self._entries = [UNOWNED] * slots
        self._exceptions: list[dict[str, SlotEntry]] = [{} for _ in range(slots)]

    def get(self, slot: int) -> SlotEntry:
        return self._entries[slot]

    def entry_of(self, topic: TopicName) -> SlotEntry:
        """Who owns a partition or plain topic: its exception, or its slot."""
        slot = slot_of(topic, self.slots)
        exceptions = self._exceptions[slot]
        return exceptions.get(topic.full, self._entries[slot]) if exceptions else self._entries[slot]

    def exception(self, topic: TopicName) -> SlotEntry | None:
        return self._exceptions[slot_of(topic, self.slots)].get(topic.full)

    def exceptions_in(self, slots: Iterable[int]) -> dict[str, SlotEntry]:
        """Those of some slots, by topic."""
        return {topic: one for slot in slots for topic, one in self._exceptions[slot].items()}

    def set(self, slot: int, entry: SlotEntry) -> None:
        """Enter or replace the owner of a slot. Ends its exceptions that are older."""
        self._entries[slot] = entry
        for topic in [topic for topic, one in self._exceptions[slot].items() if one.epoch < entry.epoch]:
            del self._exceptions[slot][topic]

    def set_exception(self, topic: TopicName, entry: SlotEntry) -> None:
        """Enter or replace an exception; one without owner ends it."""
        exceptions = self._exceptions[slot_of(topic, self.slots)]
        if entry.owner is None:
            exceptions.pop(topic.full, None)
        else:
            exceptions[topic.full] = entry

    def slots_of(self, broker: str) -> list[int]:
        """Slots that a broker owns, whatever its incarnation."""
        return [slot for slot, one in enumerate(self._entries) if one.owner is not None and one.owner.broker == broker]

    def exceptions_of(self, broker: str) -> list[str]:
        """Exceptions that a broker owns, whatever its incarnation."""
        return [
            topic
            for exceptions in self._exceptions
            for topic, one in exceptions.items()
            if one.owner is not None and one.owner.broker == broker
        ]

    def counts(self) -> Counter[str]:
        """Slots by broker."""
        return Counter(one.owner.broker for one in self._entries if one.owner is not None)

    # -- records -------------------------------------------------------------------------------------------------

    def page(self, number: int, changes: Mapping[int, SlotEntry], exceptions: Mapping[str, SlotEntry]) -> SlotPage:
        """A page as it will be stored: the present one with these changes of its slots and exceptions."""
        own = slots_of_page(number, self.slots)
        entries = {slot: changes.get(slot, self._entries[slot]) for slot in own}
        found = {**self.exceptions_in(own), **exceptions}
        kept = {
            topic: one
            for topic, one in found.items()
            if one.owner is not None and one.epoch > entries[slot_of(TopicName.parse(topic), self.slots)].epoch
        }
        return SlotPage(number, self.slots, SlotRows(entries, kept))

    def take(self, page: SlotPage) -> SlotRows:
        """Make a page that was read or written the present one. Returns what is different now."""
        own = slots_of_page(page.number, self.slots)
        before = self.exceptions_in(own)
        entries = {slot: one for slot, one in page.rows.entries.items() if one != self._entries[slot]}
        exceptions = {topic: one for topic, one in page.rows.exceptions.items() if before.get(topic) != one}
        for slot, one in entries.items():
            self.set(slot, one)
        for topic in before:
            name = TopicName.parse(topic)
            if topic not in page.rows.exceptions:
                # What is told of it needs no epoch of its own: members take changes by their numbers.
                exceptions[topic] = SlotEntry(None, self.get(slot_of(name, self.slots)).epoch)
        for topic, one in exceptions.items():
            self.set_exception(TopicName.parse(topic), one)
        return SlotRows(entries, exceptions)

    def rows(self) -> SlotRows:
        """The whole table."""
        return SlotRows(dict(enumerate(self._entries)), self.exceptions_in(range(self.slots)))

    # -- decisions -----------------------------------------------------------------------------------------------

    def place(self, slots: Collection[int], brokers: Sequence[str]) -> dict[int, str]:
        """A broker for each of `slots`, all of them chosen again; other slots stay where they are.

        `brokers` are those alive, at least one. A slot stays with its broker if that one lives, perhaps as another
        incarnation, and has room.
        """
        moving = dict.fromkeys(sorted(slots))
        owners = [None if slot in moving else _broker(one) for slot, one in enumerate(self._entries)]
        totals = dict.fromkeys(brokers, 0)
        for owner in owners:
            if owner in totals:
                totals[owner] += 1
        floor, more = divmod(self.slots, len(brokers))
        radius = min(len(brokers) - 1, WINDOW_MAX)
        full = sum(total > floor for total in totals.values())
        placed: dict[int, str] = {}

        def has_room(broker: str) -> bool:
            return totals[broker] < floor or (totals[broker] == floor and full < more)

        def choose(slot: int, broker: str) -> None:
            nonlocal full
            totals[broker] += 1
            full += totals[broker] == floor + 1
            owners[slot] = placed[slot] = broker

        for slot in moving:
            before = _broker(self._entries[slot])
            if before in totals and has_room(before):
                choose(slot, before)
        for slot in moving:
            if slot not in placed:
                near = self._near(owners, slot, radius)
                choose(slot, min((near[one], totals[one], one) for one in brokers if has_room(one))[2])
        return placed

    def rebalance(
        self, brokers: Sequence[str], moves_max: int, movable: Callable[[int], bool] = lambda slot: True
    ) -> dict[int, str]:
        """At most `moves_max` moves (slot → broker) towards evenness among live `brokers`; none when it is reached.

        Only `movable` slots. A broker that needs more gets slots that lie apart from each other and from its own.
        """
        moves: dict[int, str] = {}
        if len(brokers) < 2:
            return moves
        owners = [_broker(one) for one in self._entries]
        totals = dict.fromkeys(brokers, 0)
        for owner in owners:
            if owner in totals:
                totals[owner] += 1
        floor, more = divmod(self.slots, len(brokers))
        by_size = sorted(brokers, key=lambda broker: (-totals[broker], broker))
        allowed = {broker: floor + (rank < more) for rank, broker in enumerate(by_size)}

        def give(slot: int, target: str) -> None:
            source = owners[slot]
            assert source is not None
            totals[source] -= 1
            totals[target] += 1
            owners[slot] = moves[slot] = target

        def may_go(slot: int) -> bool:
            owner = owners[slot]
            return owner in allowed and totals[owner] > allowed[owner] and movable(slot)

        for target in sorted(brokers):
            cells = allowed[target]
            for number in range(cells):
                if len(moves) >= moves_max or totals[target] >= allowed[target]:
                    break
                cell = range(number * self.slots // cells, (number + 1) * self.slots // cells)
                if any(owners[slot] == target for slot in cell):
                    continue
                middle = (cell.start + cell.stop - 1) / 2
                slot = min((slot for slot in cell if may_go(slot)), key=lambda slot: abs(slot - middle), default=None)
                if slot is not None:
                    give(slot, target)
            if len(moves) < moves_max and totals[target] < allowed[target]:
                self._fill(target, owners, may_go, give, min(allowed[target] - totals[target], moves_max - len(moves)))
        return moves

    def _fill(
        self,
        target: str,
        owners: list[str | None],
        may_go: Callable[[int], bool],
        give: Callable[[int, str], None],
        count: int,
    ) -> None:
        """Give a broker so many more slots where the even places have nothing to give, the loneliest ones first."""
        ranked = sorted(
            (slot for slot in range(self.slots) if may_go(slot)),
            key=lambda slot: (self._near(owners, slot, 2)[target], slot),
        )
        for slot in ranked:
            if not count:
                return
            if may_go(slot):
                give(slot, target)
                count -= 1

    def _near(self, owners: Sequence[str | None], slot: int, radius: int) -> Counter[str | None]:
        """How many slots within a radius each broker owns."""
        return Counter(owners[(slot + step) % self.slots] for step in range(-radius, radius + 1) if step)


def _broker(entry: SlotEntry) -> str | None:
    return entry.owner.broker if entry.owner is not None else None
