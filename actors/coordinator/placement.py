"""Gives every slot an owner: the one task of the coordinator that changes who owns slots.

Work arrives as slots or topics ("look at this one"), never as instructions, and is done in rounds. A round looks at
their *present* state. Owner alive → nothing to do. Owner gone, or none yet, or a move requested → a broker is chosen.
All choices of a round are written as pages, in one transaction of compare-and-sets, entered into the table and pushed
to the members. A broker that dies while a round is being written is noticed after it. So it does not matter in which
order deaths, arrivals and moves arrive, nor how often a slot is named.

States of a slot, and what ends each:

| state | its owner | ends with |
| --- | --- | --- |
| unowned | none | the first broker: a round places it |
| owned | alive | the owner's session ends (orphaned), or a move is asked for (held) |
| held | alive or not | `unhold`: the slot is looked at again |
| orphaned | not alive | a round places it; while the coordinator is young it waits, as the owner may come back |

`slots.pages` stores the pages and knows which of them are doubtful. Doubts end before anything else is written.

Invariants:

1. The epochs of a slot rise with each change of its owner, also across coordinators.
2. An epoch for a new topic (`topic_epoch`) is taken only while every page is certain. So each later owner of the
   topic's slot has a greater epoch. Otherwise a slot's new owner could have an epoch that was taken before that of the
   topic. Then both owners would have the topic under one epoch: the greater one of slot and topic.
3. The members are told of a change only after it is stored, and of each change under the next number.
4. A slot without topics moves as soon as evenness wants it. Other slots move with `hold`, a release by their owner,
   `force` and `unhold`. From `hold` until the new owner is stored nobody gets a grant for what lies in them.

An *exception* is a topic that was moved alone. It has an owner and an epoch of its own, in the page of its slot. It
ends when its slot gets another owner, or when its topic is deleted. If its owner ends, the owner of its slot gets it.

Failed metadata writes are tried again with back-off as long as the coordinator is active. An unexpected error ends one
round, never the task.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from ...protocol.errors import MagnetarError, NotAllowedError, ServiceUnitNotReady
from ...protocol.names import ROLE_BROKER
from ...protocol.slots import page_of, slot_of, slots_of_page
from ...protocol.topics import TopicName
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.slot_rows import EXCEPTIONS_PER_PAGE_MAX, SlotEntry, SlotOwner, SlotRows
from ..slots.pages import SlotPages, StoredPages
from ..slots.table import SlotTable
from .membership import Membership

logger = logging.getLogger(__name__)


class SlotWork:
    """Slots and topics that are to be looked at, each once, in the order in which they were named first."""

    def __init__(self) -> None:
        self.slots: dict[int, None] = {}
        self.topics: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self.slots or self.topics)

    def add(self, slots: Iterable[int], topics: Iterable[str]) -> None:
        self.slots.update(dict.fromkeys(slots))
        self.topics.update(dict.fromkeys(topics))


class SlotWishes:
    """What slots and topics shall do beside having a live owner, and the brokers that follow from all of that.

    Nothing is changed here but the wishes: `placement` stores what is chosen.
    """

    def __init__(self, table: SlotTable, membership: Membership) -> None:
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


RETRY_INITIAL_S = 0.02
RETRY_MAX_S = 1.0


class SlotPlacement:
    """See the module. `push(number, changes)` tells the members. `is_empty` says that no topic lies in a slot."""

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        membership: Membership,
        slots: int,
        push: Callable[[int, SlotRows], None],
        is_empty: Callable[[int], bool],
    ) -> None:
        self.unexpected_errors = 0
        """Rounds that ended in an error that is none of ours; each was repeated."""
        self.epoch = store.epoch
        """Of this coordinator."""
        self._pages = SlotPages(store, slots, self._changed)
        self.table = self._pages.table
        self.take_epoch = self._pages.take_epoch
        self._env = env
        self._membership = membership
        self._push = push
        self.is_empty = is_empty
        self._work = SlotWork()
        self._waiting = SlotWork()  # for a broker, or for the end of the grace
        self._wishes = SlotWishes(self.table, membership)
        self.may_move = self._wishes.may_move
        self.is_settled = self._wishes.is_settled
        self._askers: dict[str, list[asyncio.Future[SlotEntry]]] = {}
        self._spread = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._rounds = asyncio.Lock()
        self._tasks = Tasks()

    async def start(self) -> None:
        """Read all pages and begin. Raises MetadataUnavailable, MetadataError (a page cannot be decoded)."""
        await self._pages.read()
        self._waiting.add(range(self.table.slots), self.table.exceptions_in(range(self.table.slots)))
        self._tasks.spawn(self._run(), "slot-placement")

    @property
    def number(self) -> int:
        """Of the last change that members were told of. Their first list has it, too."""
        return self._pages.number

    def waits(self) -> bool:
        """Whether any slot or topic waits for a live owner, or for the end of a move."""
        wishes, rows = self._wishes, self.table.rows()
        entries = (*rows.entries.values(), *rows.exceptions.values())
        return bool(wishes.held or wishes.forced or wishes.moves) or not all(map(wishes.is_settled, entries))

    def stored_pages(self) -> StoredPages | None:
        """What is remembered of the pages as they were stored last. None while a write is under way, or in doubt."""
        if not self._idle.is_set() or self._rounds.locked() or self._pages.doubtful:
            return None
        return self._pages.stored()

    async def close(self) -> None:
        await self._tasks.close()
        self._pages.certain.set()  # nobody waits for ever
        self._fail_askers(ServiceUnitNotReady("the coordinator is closing"))

    # -- what happened -------------------------------------------------------------------------------------------

    def broker_joined(self) -> None:
        """A broker registered: whatever waits for one is looked at, and it gets its share of empty slots."""
        self._spread = True
        self.look_at_waiting()
        self._begin()

    def broker_lost(self, broker: str) -> None:
        """A broker's session ended, or it lives on as another incarnation."""
        self._want(self.table.slots_of(broker), self.table.exceptions_of(broker))

    def look_at_waiting(self) -> None:
        """The grace is over, or a broker came: look again at what waited."""
        waiting, self._waiting = self._waiting, SlotWork()
        self._want(waiting.slots, waiting.topics)

    # -- questions and wishes ------------------------------------------------------------------------------------

    async def owner(self, topic: TopicName) -> SlotEntry:
        """The live owner of a partition or plain topic. Raises ServiceUnitNotReady without a broker.

        May take long (metadata away, slot held): the caller bounds it.
        """
        current = self.table.entry_of(topic)
        slot = slot_of(topic, self.table.slots)
        if self._wishes.is_settled(current) and not self.holds(topic):
            return current
        asker: asyncio.Future[SlotEntry] = asyncio.get_running_loop().create_future()
        self._askers.setdefault(topic.full, []).append(asker)
        self._want((slot,), (topic.full,) if self.table.exception(topic) is not None else ())
        try:
            return await asker
        finally:
            askers = self._askers.get(topic.full)
            if askers is not None and asker in askers:
                askers.remove(asker)
                if not askers:
                    del self._askers[topic.full]

    def live_owner(self, topic: TopicName) -> str | None:
        """The broker that owns a partition or plain topic now, if it is alive."""
        entry = self.table.entry_of(topic)
        return entry.owner.broker if entry.owner is not None and self._wishes.is_settled(entry) else None

    async def topic_epoch(self) -> int:
        """An epoch for a topic that is about to be created; see the module, invariant 2.

        May take long (metadata away): the caller bounds it. Raises ServiceUnitNotReady when this coordinator ends.
        """
        while True:
            await self._pages.certain.wait()
            if self._tasks.closed:
                raise ServiceUnitNotReady("the coordinator is closing")
            async with self._rounds:
                if not self._pages.doubtful:
                    return self.take_epoch()

    def hold(self, slots: Iterable[int]) -> None:
        """Leave these slots alone until `unhold`; may be nested."""
        for slot in slots:
            self._wishes.held[slot] = self._wishes.held.get(slot, 0) + 1

    def unhold(self, slots: Iterable[int]) -> None:
        """End a hold and look at the slots."""
        free: list[int] = []
        for slot in slots:
            self._wishes.held[slot] -= 1
            if not self._wishes.held[slot]:
                del self._wishes.held[slot]
                free.append(slot)
        wished = [topic for topic in self._wishes.moves if slot_of(TopicName.parse(topic), self.table.slots) in free]
        self._want(free, (*self.table.exceptions_in(free), *wished))

    def force(self, moves: Mapping[int, str | None]) -> None:
        """These slots shall leave their owners: for the broker named, or for any other (None).

        Each gets a new epoch, even if it has to stay because there is no other broker.
        """
        self._wishes.forced.update(moves)
        self._want(moves, ())

    def move_topics(self, moves: Mapping[str, str | None]) -> None:
        """These topics shall move alone: to the broker named, or to any other (None). Each gets a new epoch.

        Raises NotAllowedError when a page would have more exceptions than it may have.
        """
        more: dict[int, int] = {}
        for topic in moves:
            name = TopicName.parse(topic)
            if self.table.exception(name) is None and topic not in self._wishes.moves:
                page = page_of(slot_of(name, self.table.slots), self.table.slots)
                more[page] = more.get(page, 0) + 1
        for page, count in more.items():
            own = slots_of_page(page, self.table.slots)
            waiting = sum(slot_of(TopicName.parse(topic), self.table.slots) in own for topic in self._wishes.moves)
            if len(self.table.exceptions_in(own)) + waiting + count > EXCEPTIONS_PER_PAGE_MAX:
                raise NotAllowedError("too many topics were moved alone: let brokers balance the load, or move fewer")
        self._wishes.moves.update(moves)
        self._want((), moves)

    def exceptions_among(self, topics: Iterable[str]) -> list[str]:
        """Those of the topics that are exceptions."""
        return [topic for topic in topics if self.table.exception(TopicName.parse(topic)) is not None]

    async def end_exceptions(self, topics: Collection[str]) -> None:
        """These topics are being deleted: they are no exceptions any longer, and do not move. Returns when that is
        stored. Raises ServiceUnitNotReady when it is not: again.

        A topic that is created again would else have an exception from before, which ends under it.
        """
        for topic in topics:
            self._wishes.moves.pop(topic, None)
        found = self.exceptions_among(topics)
        self._wishes.ended.update(dict.fromkeys(found))
        self._want((), found)
        if found or self._pages.doubtful:
            await self.settle()
        if self.exceptions_among(topics) or self._pages.doubtful:
            raise ServiceUnitNotReady("the topics are still owned apart from their slots: try again")

    def holds(self, topic: TopicName) -> bool:
        """Whether a topic may be about to move: its slot may, or it is to move alone."""
        return self.may_move(slot_of(topic, self.table.slots)) or topic.full in self._wishes.moves

    async def settle(self) -> None:
        """Wait until no work is left (slots that wait for a broker excepted)."""
        await self._idle.wait()

    # -- rounds --------------------------------------------------------------------------------------------------

    def _want(self, slots: Iterable[int], topics: Iterable[str]) -> None:
        self._work.add(slots, topics)
        if self._work:
            self._begin()

    def _begin(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def _run(self) -> None:
        backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._work or self._pages.doubtful or self._spread:
                work, self._work = self._work, SlotWork()
                try:
                    async with self._rounds:
                        if self._pages.doubtful:
                            await self._pages.end_doubts()
                        if not self._pages.doubtful:
                            await self._round(work)
                    if not self._pages.doubtful:
                        self._pages.certain.set()
                        backoff.reset()
                        continue
                except MagnetarError as error:
                    logger.warning("the owners of slots could not be written and are tried again: %s", error)
                except Exception:
                    logger.exception("a round of slots failed and is tried again")
                    self.unexpected_errors += 1
                # Whatever went wrong, the pages are read again and then what was wanted is looked at afresh.
                self._work.add(work.slots, work.topics)
                await asyncio.sleep(backoff.next_delay_s())
            self._idle.set()

    async def _round(self, work: SlotWork) -> None:
        brokers = {session.node_id: session.incarnation for session in self._membership.takers()}
        spread, self._spread = self._spread, False
        try:
            targets = self._wishes.choose_slots(work.slots, brokers, self._waiting)
            await self._write(
                targets, self._wishes.choose_topics(work.topics, targets, brokers, self._waiting), brokers
            )
            if self._pages.doubtful:
                self._spread |= spread
            elif spread:
                # Of all moves that evenness needs: a broker that took only empty slots would get no topics.
                moves = self.table.rebalance(list(brokers), self.table.slots)
                empty = {slot: broker for slot, broker in moves.items() if self._may_move_at_once(slot)}
                if empty:
                    await self._write(empty, {}, brokers)
        except BaseException:
            self._spread |= spread
            raise
        self._answer(brokers)

    async def _write(
        self, targets: Mapping[int, str], topics: Mapping[str, str | None], brokers: Mapping[str, str]
    ) -> None:
        """Store all choices. What could not be stored is doubtful then; the caller repeats the round."""
        if not targets and not topics:
            return
        slot_epoch, topic_epoch = self._pages.take_epoch(), self._pages.take_epoch()  # an exception is the newer one
        entries = {slot: SlotEntry(SlotOwner(one, brokers[one]), slot_epoch) for slot, one in targets.items()}
        exceptions = {
            topic: SlotEntry(SlotOwner(one, brokers[one]) if one is not None else None, topic_epoch)
            for topic, one in topics.items()
        }
        await self._pages.write(entries, exceptions)

    def _changed(self, number: int, rows: SlotRows) -> None:
        """These have other owners now: what was wished for them is done, and the chosen one may have died meanwhile."""
        for slot, one in rows.entries.items():
            self._wishes.forced.pop(slot, None)
            if not self._wishes.is_settled(one):
                self._work.add((slot,), ())
        for topic, one in rows.exceptions.items():
            if one.owner is None:
                self._wishes.ended.pop(topic, None)
                continue
            self._wishes.moves.pop(topic, None)
            if not self._wishes.is_settled(one):
                self._work.add((), (topic,))
        self._push(number, rows)

    # -- inside --------------------------------------------------------------------------------------------------

    def _may_move_at_once(self, slot: int) -> bool:
        return slot not in self._wishes.held and self.is_empty(slot)

    def _answer(self, brokers: Mapping[str, str]) -> None:
        """Answer who waits for an owner that is there now."""
        if not brokers:
            self._fail_askers(ServiceUnitNotReady("no broker is alive"))
        for topic in list(self._askers):
            name = TopicName.parse(topic)
            entry = self.table.entry_of(name)
            if self._wishes.is_settled(entry) and not self.holds(name):
                for asker in self._askers.pop(topic):
                    if not asker.done():
                        asker.set_result(entry)

    def _fail_askers(self, error: MagnetarError) -> None:
        for askers in list(self._askers.values()):
            for asker in askers:
                if not asker.done():
                    asker.set_exception(error)
        self._askers.clear()
