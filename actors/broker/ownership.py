"""What a broker owns: which slots and single topics are its own, and the grants for the topics in them.

The link's copy of the slots says what is this broker's. A topic is opened with a grant of the coordinator
(`TopicGrant`). When a client or member needs a topic the broker asks for one. For slots that it gains it asks for the
grants of all topics in them, a page at a time. `TopicLoads` then has the order in which they are loaded.

`topics.owned_topic` has the states of a topic. It becomes granted here: its grant was asked for, or came with a page,
or the coordinator gives it back. It is given up here when the entry of its slot, or its exception, changes, and with a
release.

Invariants:

1. A grant counts only while the entry of the topic names this incarnation, with the epoch in the grant.
2. A grant with a lower number than the last release of its topic, or of its slot, does not count, however late it is.
3. A release ends with a later entry, with a later grant, or with the coordinator that asked for it. Entries, grants and
   releases are numbered by one counter. Changes of slots travel apart from releases, so the entry that a release is
   about can come behind it. Such an entry ends nothing. The next coordinator does not know what was about to move or to
   be deleted. So the broker asks it for what is still its own.
4. A release that comes behind what ends it releases nothing. The coordinator does not wait for a broker that does not
   answer: the slot or topic has left this broker meanwhile, and has come back.
5. A deletion needs no such number: its epoch is one. It closes no topic that was granted under a later epoch, and the
   record of such a topic refuses it (`managed.deletion`).

Nothing is decided here that safety rests on: the guard on the topic's record and the ledger's fencing keep out a broker
that wrongly believes it is the owner.
"""

import asyncio
import logging

from ...protocol.errors import MagnetarError, NotAllowedError, ProtocolError, ServiceUnitNotReady, TopicNotFound
from ...protocol.slots import slot_of
from ...protocol.topics import TopicName
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.slot_rows import EPOCH_SHIFT, SlotEntry, SlotOwner, SlotRows
from ...storage.metadata.store import Guard
from ..members.contracts_broker import OwnershipContract
from ..members.contracts_coordinator import Owner, TopicGrant
from ..members.coordinator_link import CoordinatorClient
from ..topics.loaded_topics import Topics
from ..topics.owned_topic import OwnedTopic

logger = logging.getLogger(__name__)

NEWS_WAIT_S = 0.5
"""How long a grant waits for the change of slots that it belongs to, which travels apart from it."""
SLOTS_PER_QUESTION = 512
RETRY_INITIAL_S = 0.05
RETRY_MAX_S = 2.0
DELETIONS_AT_A_TIME = 8


class Ownership(OwnershipContract):
    """See the module. `begin` attaches it to the link of an incarnation, `end` forgets all that was that one's."""

    def __init__(self, env: Environment, topics: Topics) -> None:
        self._env = env
        self.topics = topics
        self.link: CoordinatorClient | None = None
        """Of the incarnation that it follows."""
        self._owner = SlotOwner("", "")
        self._released_slots: dict[int, int] = {}
        """By slot: the number of its last release, as long as the slot has no later entry."""
        self._gained: dict[int, None] = {}
        """Slots whose topics are to be asked for."""
        self._moved_alone: dict[OwnedTopic, None] = {}
        """View: the topics with `to_ask`."""
        self._asking = False
        self.coordinator_epoch = 0
        """Of the coordinator where the broker registered last."""
        self._news: asyncio.Event = asyncio.Event()
        self._tasks = Tasks()

    def begin(self, link: CoordinatorClient) -> None:
        """Follow the slots of an incarnation, before it registers."""
        self.link = link
        self._owner = SlotOwner(link.identity.node_id, link.identity.incarnation)

    def end(self) -> None:
        """The incarnation is over. Its topics are closed by the caller."""
        self.link = None
        for topic in list(self.topics.table.records.values()):
            topic.grant, topic.released, topic.to_ask = None, 0, False
            self.topics.table.tidy(topic)
        self._released_slots.clear()
        self._gained.clear()
        self._moved_alone.clear()

    async def close(self) -> None:
        self.end()
        await self._tasks.close()

    # -- questions -------------------------------------------------------------------------------------------------

    def owns(self, name: TopicName) -> bool:
        """Whether clients of a topic may be sent here: it is this broker's, and not about to move."""
        if self.entry_of(name) is None or self._slot(name) in self._released_slots:
            return False
        topic = self.topics.table.find(name.full)
        return topic is None or not topic.released

    def entry_of(self, name: TopicName) -> SlotEntry | None:
        """The entry that makes a topic this broker's."""
        entry = self.link.slots.entry_of(name) if self.link is not None else None
        return entry if entry is not None and entry.owner == self._owner else None

    def guard(self, name: TopicName, epoch: int) -> Guard:
        """What has to hold for a topic to be opened under an epoch. Raises ServiceUnitNotReady: it is not granted."""
        topic = self.topics.table.granted(name.full)
        grant = topic.grant if topic is not None else None
        if grant is None or grant.epoch != epoch or grant.version is None:
            raise ServiceUnitNotReady(f"this broker does not own {name.full} under epoch {epoch}")
        whole = name.without_partition() if grant.partitions else name
        return Guard(metadata_keys.topic(whole.path), grant.version)

    def flaws(self) -> list[str]:
        """The releases that count although something has ended them."""
        slots = [slot for slot, number in self._released_slots.items() if number < self._last_of_slot(slot)]
        records = self.topics.table.records.values()
        topics = [one.full_name for one in records if one.released and one.released < self._last_of(one.full_name)]
        return [f"{one} counts as released by what has a later entry or grant" for one in (*slots, *topics)]

    # -- grants ----------------------------------------------------------------------------------------------------

    async def claimed(self, found: Owner) -> bool:
        """The coordinator has said who owns a topic. Returns whether it is this broker's now."""
        grant, link = found.grant, self.link
        if grant is None or link is None:
            return False
        name = TopicName.parse(grant.topic)
        _know(link, grant)
        try:
            async with asyncio.timeout(NEWS_WAIT_S):
                while link is self.link and link.slots.entry_of(name).epoch < grant.home_epoch:
                    await self._news.wait()
        except TimeoutError:
            return False
        return link is self.link and self._take(grant, load=False)

    # -- what the coordinator asks for -----------------------------------------------------------------------------

    async def take_topics(self, *, grants: list[TopicGrant]) -> None:
        for grant in grants:
            self._take(grant, load=True)

    async def release(self, *, number: int, slots: list[int], topics: list[str]) -> None:
        if self.link is not None and number < self.link.epoch << EPOCH_SHIFT:
            raise ServiceUnitNotReady("another coordinator became active, and knows nothing of this release")
        if self.link is not None and not all(0 <= slot < self.link.slots.slots for slot in slots):
            raise ProtocolError(f"there are {self.link.slots.slots} slots")
        closing: list[str] = []
        for slot in slots:
            if self._last_of_slot(slot) < number:
                self._released_slots[slot] = max(number, self._released_slots.get(slot, 0))
                granted = [topic.full_name for topic in self.topics.table.of_slot(slot) if topic.granted]
                closing += [full_name for full_name in granted if self._last_of(full_name) < number]
        for full_name in topics:
            if self._last_of(full_name) < number:
                topic = self._record(full_name)
                topic.released = max(number, topic.released)
                closing.append(full_name)
        await self.topics.release(*closing)

    async def unload(self, *, topic: str, number: int, inactive: bool = False) -> None:
        self.topics.check_unused(topic, inactive=inactive)
        await self.release(number=number, slots=[], topics=[topic])

    async def is_inactive(self, *, topic: str) -> bool:
        found = self.topics.find(topic)
        if found is None:
            return not TopicName.parse(topic).persistent
        return await found.keeping.is_inactive()

    async def delete_topics(self, *, topics: list[tuple[str, int]]) -> None:
        permits = asyncio.Semaphore(DELETIONS_AT_A_TIME)

        async def delete(topic: str, epoch: int) -> None:
            async with permits:
                await self.topics.delete(TopicName.parse(topic), epoch)

        outcomes = await asyncio.gather(*(delete(topic, epoch) for topic, epoch in topics), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # -- inside ----------------------------------------------------------------------------------------------------

    def _take(self, grant: TopicGrant, *, load: bool) -> bool:
        name = TopicName.parse(grant.topic)
        entry, slot = self.entry_of(name), self._slot(name)
        if entry is None or entry.epoch != grant.home_epoch:
            return False
        known = self.topics.table.find(grant.topic)
        released = known.released if known is not None else 0
        if grant.number < max(released, self._released_slots.get(slot, 0)):
            return False
        if known is not None and known.grant is not None and known.grant.number > grant.number:
            return self.topics.owns(grant.topic)
        topic = self.topics.assign(grant.topic, grant.epoch, load=load, slot=slot, grant=grant)
        if topic is None:
            return False  # the broker stops
        self._moved_alone.pop(topic, None)
        return self.topics.owns(grant.topic)

    def _last_of_slot(self, slot: int) -> int:
        """The number of the present entry of a slot."""
        return self.link.slots.get(slot).epoch if self.link is not None else 0

    def _last_of(self, full_name: str) -> int:
        """The number of the present grant or entry of a topic, whichever is greater."""
        topic = self.topics.table.find(full_name)
        granted = topic.grant.number if topic is not None and topic.grant is not None else 0
        entry = self.link.slots.entry_of(TopicName.parse(full_name)).epoch if self.link is not None else 0
        return max(granted, entry)

    def _record(self, full_name: str) -> OwnedTopic:
        """The record of a topic, which the caller gives a reason to stay."""
        return self.topics.table.record(full_name, self._slot(TopicName.parse(full_name)))

    def registered(self) -> None:
        """Another coordinator does not know the topics that exist in memory only: they end. Nor does it know what an
        earlier one had this broker release."""
        if self.link is None:
            return
        if self.coordinator_epoch not in (0, self.link.epoch):
            for topic in list(self.topics.table.records.values()):
                if topic.grant is not None and topic.grant.version is None:
                    self.topics.revoke(topic.full_name)
                if topic.released:
                    self._ask_alone(topic)
            self._gained.update(dict.fromkeys(self._released_slots))
            self._begin_to_ask()
        self.coordinator_epoch = self.link.epoch

    # -- changes of slots ------------------------------------------------------------------------------------------

    def slots_changed(self, changed: SlotRows) -> None:
        """These entries of the link's slots are new."""
        if self.link is None:
            return
        for slot, entry in changed.entries.items():
            if entry.epoch > self._released_slots.get(slot, 0):
                self._released_slots.pop(slot, None)
            for topic in self.topics.table.of_slot(slot):
                self._changed(topic, entry.epoch)
            if entry.owner == self._owner:
                self._gained[slot] = None
        for full_name, entry in changed.exceptions.items():
            if (topic := self.topics.table.find(full_name)) is not None:
                self._changed(topic, entry.epoch)
            if entry.owner == self._owner:
                self._ask_alone(self._record(full_name))
        news, self._news = self._news, asyncio.Event()
        news.set()
        self._begin_to_ask()

    def _begin_to_ask(self) -> None:
        if (self._gained or self._moved_alone) and not self._asking and not self._tasks.closed:
            self._asking = True
            self._tasks.spawn(self._ask(), "ask for topics")

    def _changed(self, topic: OwnedTopic, epoch: int) -> None:
        """The entry of a topic is new, with this epoch. It ends a release from before it. The topic is given up, unless
        its grant is of this entry."""
        if epoch > topic.released:
            topic.released = 0
        entry = self.entry_of(TopicName.parse(topic.full_name))
        if topic.grant is not None and (entry is None or entry.epoch != topic.grant.home_epoch):
            self.topics.revoke(topic.full_name)
        self.topics.table.tidy(topic)

    def _ask_alone(self, topic: OwnedTopic) -> None:
        topic.to_ask = True
        self._moved_alone[topic] = None

    async def _ask(self) -> None:
        """Ask for the topics of what was gained, until there is nothing left to ask for."""
        backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        try:
            while self._gained or self._moved_alone:
                try:
                    await self._ask_once()
                    backoff.reset()
                except MagnetarError as error:
                    logger.info("the topics of new slots could not be asked for yet: %s", error)
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            self._asking = False

    async def _ask_once(self) -> None:
        link = self.link
        if link is None:
            return
        self._gained = {slot: None for slot in self._gained if link.slots.get(slot).owner == self._owner}
        if self._gained:
            slots = list(self._gained)[:SLOTS_PER_QUESTION]
            epochs = {slot: link.slots.get(slot).epoch for slot in slots}
            releases, coordinator = {slot: self._released_slots.get(slot) for slot in slots}, self.coordinator_epoch
            page = await link.ask.slot_topics(slots=slots)
            for grant in page.grants:
                _know(link, grant)
                self._take(grant, load=True)
            if link is not self.link or coordinator != self.coordinator_epoch:
                return
            for slot in slots[: page.done]:
                if link.slots.get(slot).epoch != epochs[slot]:
                    continue
                self._gained.pop(slot, None)
                if self._released_slots.get(slot) == releases[slot]:  # the coordinator grants what lies in it again
                    self._released_slots.pop(slot, None)
        for topic in list(self._moved_alone):
            name = TopicName.parse(topic.full_name)
            if self.entry_of(name) is not None:
                try:
                    found = await link.ask.assign(topic=topic.full_name, create=False)
                except (TopicNotFound, NotAllowedError):
                    found = None
                if link is not self.link:
                    return  # the next incarnation asks itself
                if found is not None and found.grant is not None:
                    _know(link, found.grant)
                    self._take(found.grant, load=True)
            if topic in self._moved_alone:  # else it was granted, and its record may be gone since
                del self._moved_alone[topic]
                topic.to_ask = False
                self.topics.table.tidy(topic)

    def _slot(self, name: TopicName) -> int:
        return slot_of(name, self.link.slots.slots) if self.link is not None else 0


def _know(link: CoordinatorClient, grant: TopicGrant) -> None:
    """The topic exists. To be called in the step in which the link brings the grant: the link may say next that the
    topic is gone. A grant that the coordinator gives back comes apart from the link, and perhaps behind that news.
    """
    name = TopicName.parse(grant.topic)
    link.known_topics.know(name.partitioned_name if grant.partitions else name.full, grant.partitions)
