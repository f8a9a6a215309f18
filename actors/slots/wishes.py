"""What slots and topics shall do beside having a live owner, and the brokers that follow from all of that.

Nothing is changed here but the wishes: `placement` stores what is chosen.
"""

from collections.abc import Iterable, Mapping

from ...protocol.names import ROLE_BROKER
from ...protocol.slots import slot_of
from ...protocol.topics import TopicName
from ...storage.metadata.slot_rows import SlotEntry, SlotOwner
from .table import SlotTable
from .work import BrokerSessions, SlotWork


class SlotWishes:
    """See the module."""

    def __init__(self, table: SlotTable, membership: BrokerSessions) -> None:
        self.held: dict[int, int] = {}
        """Slots that stay as they are for now, and how many demand that."""
        self.forced: dict[int, str | None] = {}
        """Slots that shall leave their owner, for a broker or for any other (None)."""
        self.moves: dict[str, str | None] = {}
        """Topics that shall move alone, to a broker or to any other (None)."""
        self.ended: dict[str, None] = {}
        """Deleted topics, whose exceptions shall end."""
        self._table = table
        self._membership = membership

    def choose_slots(self, slots: Iterable[int], brokers: Mapping[str, str], waiting: SlotWork) -> dict[int, str]:
        """Brokers for slots whose owner has ended, or that shall leave theirs. What has to wait goes to `waiting`."""
        targets: dict[int, str] = {}
        to_place: dict[int, None] = {}
        leaving: dict[str, dict[int, None]] = {}
        for slot in slots:
            current = self._table.get(slot)
            if slot in self.held:
                continue  # `unhold` names it again
            owner = current.owner
            if owner is not None and self.is_settled(current):
                if slot in self.forced:
                    target = self.forced[slot]
                    if target is not None and target in brokers:
                        targets[slot] = target
                    elif [*brokers] == [owner.broker]:
                        targets[slot] = owner.broker  # under a new epoch, which ends the release
                    else:
                        leaving.setdefault(owner.broker, {})[slot] = None
            elif not brokers or (owner is not None and self._may_come_back(owner)):
                waiting.add((slot,), ())
            else:
                to_place[slot] = None
        names = list(brokers)
        if to_place:
            targets |= self._table.place(to_place, names)
        for broker, moving in leaving.items():
            targets |= self._table.place(moving, [name for name in names if name != broker])
        return targets

    def choose_topics(
        self, topics: Iterable[str], targets: Mapping[int, str], brokers: Mapping[str, str], waiting: SlotWork
    ) -> dict[str, str | None]:
        """Brokers for topics that move alone, and for exceptions whose owner has ended. None: it is no exception."""
        chosen: dict[str, str | None] = {}
        for topic in topics:
            name = TopicName.parse(topic)
            slot = slot_of(name, self._table.slots)
            current, home = self._table.entry_of(name), self._table.get(slot)
            if topic in self.ended:
                chosen[topic] = None
            elif slot in self.held or not brokers:
                waiting.add((), (topic,))
            elif topic in self.moves:
                owner = current.owner.broker if current.owner is not None else None
                others = sorted(broker for broker in brokers if broker != owner)
                wanted = self.moves[topic]
                if wanted is not None and wanted in brokers:
                    chosen[topic] = wanted
                elif others:
                    counts = self._table.counts()
                    chosen[topic] = min(others, key=lambda broker: (counts[broker], broker))
                else:
                    chosen[topic] = next(iter(brokers))  # under a new epoch, which ends the release
            elif self._table.exception(name) is None or slot in targets or self.is_settled(current):
                continue  # none, ended by its slot's new owner, or nothing to do
            elif current.owner is not None and self._may_come_back(current.owner):
                waiting.add((), (topic,))
            elif home.owner is not None and home.owner.broker in brokers:
                chosen[topic] = home.owner.broker
            else:
                waiting.add((), (topic,))
        return chosen

    def may_move(self, slot: int) -> bool:
        """Whether a slot may be about to move: it is held, or shall leave its owner and has not yet.

        Its owner gets no grants: it has released the slot, and would open topics that the next one is about to fence.
        """
        return slot in self.held or slot in self.forced

    def is_settled(self, entry: SlotEntry) -> bool:
        """Whether its owner is alive."""
        owner = entry.owner
        return owner is not None and self._membership.is_alive(ROLE_BROKER, owner.broker, owner.incarnation)

    def _may_come_back(self, owner: SlotOwner) -> bool:
        return self._membership.in_grace and not self._membership.has_ended(owner.broker, owner.incarnation)
