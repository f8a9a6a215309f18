"""What a broker owns: which slots and single topics are its own, and the grants for the topics in them.

The link's copy of the slots says what is this broker's. A topic is opened with a grant of the coordinator
(`TopicGrant`). When a client or member needs a topic the broker asks for one. For slots that it gains it asks for the
grants of all topics in them, a page at a time. `TopicLoads` then has the order in which they are loaded.

States of a topic in a slot that is this broker's:

| state | what ends it |
| --- | --- |
| not granted | a grant: it was asked for, or came with a page, or the coordinator gives it back |
| granted | the entry of its slot (or its exception) changes; a release; the owner's epoch turns out to be stale |

Invariants:

1. A grant counts only while the entry of the topic names this incarnation, with the epoch in the grant.
2. A grant with a lower number than the last release of its topic, or of its slot, does not count, however late it is.
3. A release ends with a new entry, with a later grant, or with the coordinator that asked for it. The next coordinator
   does not know what was about to move or to be deleted. So the broker asks it for what is still its own.

Nothing is decided here that safety rests on: the guard on the topic's record and the ledger's fencing keep out a broker
that wrongly believes it is the owner.
"""

import asyncio
import logging
from collections.abc import Iterable

from ...protocol.errors import MagnetarError, NotAllowedError, ServiceUnitNotReady, TopicNotFound
from ...protocol.slots import slot_of
from ...protocol.topics import TopicName
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.slot_rows import EPOCH_SHIFT, SlotEntry, SlotOwner, SlotRows
from ...storage.metadata.store import Guard
from ..members.contracts_coordinator import Owner, TopicGrant
from ..members.coordinator_link import CoordinatorClient
from ..topics.loaded_topics import Topics

logger = logging.getLogger(__name__)

NEWS_WAIT_S = 0.5
"""How long a grant waits for the change of slots that it belongs to, which travels apart from it."""
SLOTS_PER_QUESTION = 512
RETRY_INITIAL_S = 0.05
RETRY_MAX_S = 2.0


class Ownership:
    """See the module. `begin` attaches it to the link of an incarnation, `end` forgets all that was that one's."""

    def __init__(self, env: Environment, topics: Topics) -> None:
        self._env = env
        self.topics = topics
        self._link: CoordinatorClient | None = None
        self._owner = SlotOwner("", "")
        self._grants: dict[str, TopicGrant] = {}
        self._by_slot: dict[int, dict[str, None]] = {}
        self._released: dict[str, int] = {}
        """By topic: the number of its last release, as long as no later grant came."""
        self._released_slots: dict[int, int] = {}
        self._gained: dict[int, None] = {}
        """Slots whose topics are to be asked for."""
        self._moved_alone: dict[str, None] = {}
        """Topics that became this broker's alone, to be asked for."""
        self._asking = False
        self._coordinator = 0
        """The epoch of the coordinator where the broker registered last."""
        self._news: asyncio.Event = asyncio.Event()
        self._tasks = Tasks()
        topics.on_revoked = self._revoked

    def begin(self, link: CoordinatorClient) -> None:
        """Follow the slots of an incarnation, before it registers."""
        self._link = link
        self._owner = SlotOwner(link.identity.node_id, link.identity.incarnation)

    def end(self) -> None:
        """The incarnation is over. Its topics are closed by the caller."""
        self._link = None
        for found in (self._grants, self._by_slot, self._released, self._released_slots):
            found.clear()
        self._gained.clear()
        self._moved_alone.clear()

    async def close(self) -> None:
        self.end()
        await self._tasks.close()

    # -- questions -------------------------------------------------------------------------------------------------

    def owns(self, name: TopicName) -> bool:
        """Whether clients of a topic may be sent here: it is this broker's, and not about to move."""
        entry, slot = self._entry(name), self._slot(name)
        return entry is not None and slot not in self._released_slots and name.full not in self._released

    def guard(self, name: TopicName, epoch: int) -> Guard:
        """What has to hold for a topic to be opened under an epoch. Raises ServiceUnitNotReady: it is not granted."""
        grant = self._grants.get(name.full)
        if grant is None or grant.epoch != epoch or grant.version is None:
            raise ServiceUnitNotReady(f"this broker does not own {name.full} under epoch {epoch}")
        whole = name.without_partition() if grant.partitions else name
        return Guard(metadata_keys.topic(whole.path), grant.version)

    # -- grants ----------------------------------------------------------------------------------------------------

    async def claimed(self, found: Owner) -> bool:
        """The coordinator has said who owns a topic. Returns whether it is this broker's now."""
        grant, link = found.grant, self._link
        if grant is None or link is None:
            return False
        name = TopicName.parse(grant.topic)
        try:
            async with asyncio.timeout(NEWS_WAIT_S):
                while link is self._link and link.slots.entry_of(name).epoch < grant.home_epoch:
                    await self._news.wait()
        except TimeoutError:
            return False
        return link is self._link and self._take(grant, load=False)

    def take_back(self, grants: Iterable[TopicGrant]) -> None:
        """The coordinator gives topics back that it had released."""
        for grant in grants:
            self._take(grant, load=True)

    async def release(self, number: int, slots: Iterable[int], topics: Iterable[str]) -> None:
        """Close these topics and all in these slots, and take no grants from before this.

        Raises ServiceUnitNotReady, and closes nothing, when the coordinator that asks is superseded.
        """
        if self._link is not None and number < self._link.epoch << EPOCH_SHIFT:
            raise ServiceUnitNotReady("another coordinator became active, and knows nothing of this release")
        closing: list[str] = []
        for slot in slots:
            self._released_slots[slot] = max(number, self._released_slots.get(slot, 0))
            closing += self._by_slot.get(slot, ())
        for topic in topics:
            self._released[topic] = max(number, self._released.get(topic, 0))
            closing.append(topic)
        await asyncio.gather(*(self.topics.release(topic) for topic in closing))

    async def unload(self, topic: str, number: int, *, inactive: bool) -> None:
        """Close a topic that is about to be deleted. Raises NotAllowedError, and closes nothing, while it is used.

        Raises what `release` raises.
        """
        self.topics.check_unused(topic, inactive=inactive)
        await self.release(number, (), (topic,))

    def _take(self, grant: TopicGrant, *, load: bool) -> bool:
        name = TopicName.parse(grant.topic)
        entry, slot = self._entry(name), self._slot(name)
        if entry is None or entry.epoch != grant.home_epoch:
            return False
        if grant.number < max(self._released.get(grant.topic, 0), self._released_slots.get(slot, 0)):
            return False
        before = self._grants.get(grant.topic)
        if before is not None and before.number > grant.number:
            return self.topics.owns(grant.topic)
        self.topics.assign(grant.topic, grant.epoch, load=load)
        if self.topics.owned.get(grant.topic) != grant.epoch:
            return False  # the broker stops
        self._released.pop(grant.topic, None)
        self._grants[grant.topic] = grant
        self._by_slot.setdefault(slot, {})[grant.topic] = None
        if self._link is not None:
            self._link.known_topics.know(name.partitioned_name if grant.partitions else name.full, grant.partitions)
        return self.topics.owns(grant.topic)

    def _revoked(self, topic: str) -> None:
        """The broker gives a topic up, for whatever reason."""
        if self._grants.pop(topic, None) is not None:
            slot = self._slot(TopicName.parse(topic))
            of_slot = self._by_slot.get(slot, {})
            of_slot.pop(topic, None)
            if not of_slot:
                self._by_slot.pop(slot, None)

    def registered(self) -> None:
        """Another coordinator does not know the topics that exist in memory only: they end. Nor does it know what an
        earlier one had this broker release."""
        if self._link is None:
            return
        if self._coordinator not in (0, self._link.epoch):
            for topic in [topic for topic, grant in self._grants.items() if grant.version is None]:
                self.topics.revoke(topic)
            self._gained.update(dict.fromkeys(self._released_slots))
            self._moved_alone.update(dict.fromkeys(self._released))
            self._begin_to_ask()
        self._coordinator = self._link.epoch

    # -- changes of slots ------------------------------------------------------------------------------------------

    def slots_changed(self, changed: SlotRows) -> None:
        """These entries of the link's slots are new."""
        if self._link is None:
            return
        for slot, entry in changed.entries.items():
            self._released_slots.pop(slot, None)
            for topic in list(self._by_slot.get(slot, ())):
                self._check(topic)
            if entry.owner == self._owner:
                self._gained[slot] = None
        for topic, entry in changed.exceptions.items():
            self._released.pop(topic, None)
            self._check(topic)
            if entry.owner == self._owner:
                self._moved_alone[topic] = None
        if self._released:
            slots = changed.entries.keys()
            for topic in [one for one in self._released if self._slot(TopicName.parse(one)) in slots]:
                del self._released[topic]
        news, self._news = self._news, asyncio.Event()
        news.set()
        self._begin_to_ask()

    def _begin_to_ask(self) -> None:
        if (self._gained or self._moved_alone) and not self._asking and not self._tasks.closed:
            self._asking = True
            self._tasks.spawn(self._ask(), "ask for topics")

    def _check(self, topic: str) -> None:
        """Give a topic up, unless its grant is of the present entry."""
        grant, entry = self._grants.get(topic), self._entry(TopicName.parse(topic))
        if grant is not None and (entry is None or entry.epoch != grant.home_epoch):
            self.topics.revoke(topic)

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
        link = self._link
        if link is None:
            return
        self._gained = {slot: None for slot in self._gained if link.slots.get(slot).owner == self._owner}
        if self._gained:
            slots = list(self._gained)[:SLOTS_PER_QUESTION]
            epochs = {slot: link.slots.get(slot).epoch for slot in slots}
            releases, coordinator = {slot: self._released_slots.get(slot) for slot in slots}, self._coordinator
            page = await link.ask.slot_topics(slots=slots)
            for grant in page.grants:
                self._take(grant, load=True)
            if link is not self._link or coordinator != self._coordinator:
                return
            for slot in slots[: page.done]:
                if link.slots.get(slot).epoch != epochs[slot]:
                    continue
                self._gained.pop(slot, None)
                if self._released_slots.get(slot) == releases[slot]:  # the coordinator grants what lies in it again
                    self._released_slots.pop(slot, None)
        for topic in list(self._moved_alone):
            name = TopicName.parse(topic)
            if self._entry(name) is not None:
                try:
                    found = await link.ask.assign(topic=topic, create=False)
                except (TopicNotFound, NotAllowedError):
                    found = None
                if found is not None and found.grant is not None:
                    self._take(found.grant, load=True)
            self._moved_alone.pop(topic, None)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _entry(self, name: TopicName) -> SlotEntry | None:
        """The entry that makes a topic this broker's."""
        entry = self._link.slots.entry_of(name) if self._link is not None else None
        return entry if entry is not None and entry.owner == self._owner else None

    def _slot(self, name: TopicName) -> int:
        return slot_of(name, self._link.slots.slots) if self._link is not None else 0
