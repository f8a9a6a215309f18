"""Which grants of the coordinator a broker takes, and when it gives topics up."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.broker.ownership import Ownership
from magnetar.actors.members.contracts_coordinator import GrantPage, Owner
from magnetar.actors.members.coordinator_link import SlotView
from magnetar.actors.members.feeds import KnownTopics
from magnetar.protocol.errors import CoordinatorUnavailable, NotAllowedError, ServiceUnitNotReady, StaleEpoch
from magnetar.protocol.slots import TopicGrant, slot_of
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.slot_rows import EPOCH_SHIFT, SlotEntry, SlotOwner, SlotRows
from magnetar.storage.metadata.store import Guard
from support.fakes.bookies import FakeCluster
from support.servers.broker_bench import BrokerFront, broker_front, until

SLOTS = 64
NAME = TopicName.parse("persistent://public/default/granted")
SLOT = slot_of(NAME, SLOTS)
ME = SlotOwner("broker-1", "1")
OTHER = SlotOwner("broker-2", "1")
START = 1 << EPOCH_SHIFT
"""The first coordinator numbers its entries, grants and releases from here on."""


class Link:
    """A coordinator's word, said by the test. `granted` are the topics that it knows, by slot."""

    def __init__(self) -> None:
        self.identity = SimpleNamespace(node_id=ME.broker, incarnation=ME.incarnation)
        self.epoch = 1
        self.slots = SlotView(SLOTS)
        self.slots.take_listing(0, SlotRows())
        self.owned: Any = None
        self.known_topics = KnownTopics()
        self.ask = self
        self.granted: dict[int, list[TopicGrant]] = {}
        self.questions: list[list[int]] = []
        self.assigned: list[str] = []
        """Topics that `assign` was called with."""
        self.away = 0
        self.answer = asyncio.Event()
        self.answer.set()

    def tell(self, rows: SlotRows) -> None:
        changed = self.slots.take_changes(self.slots.number + 1, rows)
        self.owned.slots_changed(changed)

    def give(self, owner: SlotOwner, epoch: int) -> None:
        self.tell(SlotRows({SLOT: SlotEntry(owner, epoch)}))

    async def slot_topics(self, *, slots: list[int]) -> GrantPage:
        self.questions.append(slots)
        self.check_away()
        granted = self.granted.get(slots[0], [])
        await self.answer.wait()
        return GrantPage(granted, 1)

    def check_away(self) -> None:
        if self.away:
            self.away -= 1
            raise CoordinatorUnavailable("away")

    async def assign(self, *, topic: str, create: bool) -> Owner:
        self.check_away()
        entry = self.slots.entry_of(TopicName.parse(topic))
        assert entry.owner is not None
        self.assigned.append(topic)
        await self.answer.wait()
        return Owner(*entry.owner, entry.epoch, "", grant(entry.epoch, 100, topic))


def grant(epoch: int, number: int, topic: str = NAME.full, version: int | None = 7) -> TopicGrant:
    return TopicGrant(topic, epoch, epoch, version, 0, START + number)


def owner(given: TopicGrant | None) -> Owner:
    return Owner(*ME, 1, "", given)


def epoch_of(front: BrokerFront) -> int:
    """Under which the broker has the topic."""
    topic = front.topics.table.granted(NAME.full)
    return -1 if topic is None else topic.epoch


def attached(front: BrokerFront) -> tuple[Ownership, Link]:
    ownership, link = Ownership(front.env, front.topics), Link()
    link.owned = ownership
    ownership.begin(link)  # type: ignore[arg-type]
    return ownership, link


async def test_the_topics_of_a_slot_that_is_gained_are_asked_for_and_loaded() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.away = 2
        link.granted[SLOT] = [grant(5, 10)]
        link.give(ME, 5)
        await until(lambda: NAME.full in front.topics.loaded)
        assert link.questions == [[SLOT]] * 3 and link.known_topics.get(NAME.full) == 0
        assert ownership.guard(NAME, 5) == Guard(metadata_keys.topic(NAME.path), 7)
        with pytest.raises(ServiceUnitNotReady):
            ownership.guard(NAME, 4)
        link.give(OTHER, 6)
        assert not front.topics.owns(NAME.full)
        await until(lambda: front.topics.table.find(NAME.full) is None and SLOT not in front.topics.table.by_slot)
        await ownership.close()


@pytest.mark.parametrize("given", [grant(4, 10), grant(6, 10), None], ids=["of before", "of later", "none"])
async def test_a_grant_counts_under_the_present_epoch_of_its_slot_only(
    given: TopicGrant | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.actors.broker.ownership.NEWS_WAIT_S", 0.01)
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        assert not await ownership.claimed(owner(given)) and not front.topics.owns(NAME.full)
        assert await ownership.claimed(owner(grant(5, 10))) and front.topics.owns(NAME.full)
        await ownership.close()


async def test_a_grant_waits_for_the_change_of_slots_that_it_belongs_to() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(OTHER, 4)
        claim = asyncio.create_task(ownership.claimed(owner(grant(5, 10))))
        await asyncio.sleep(0)
        link.give(ME, 5)
        assert await claim
        await ownership.close()


async def test_a_grant_from_before_a_deletion_does_not_tell_that_the_topic_exists() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(OTHER, 4)
        claim = asyncio.create_task(ownership.claimed(owner(grant(5, 10))))
        await asyncio.sleep(0)
        assert link.known_topics.get(NAME.full) == 0
        link.known_topics.changed(NAME.full, -1)
        link.give(ME, 5)
        await claim
        await ownership.take_topics(grants=[grant(5, 11)])
        assert link.known_topics.get(NAME.full) is None
        await ownership.close()


@pytest.mark.parametrize("alone", [True, False], ids=["topic", "slot"])
async def test_a_grant_from_before_a_release_is_void_and_a_later_one_ends_the_release(alone: bool) -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        assert await ownership.claimed(owner(grant(5, 10)))
        await front.topics.get(NAME)
        assert ownership.owns(NAME)
        await ownership.release(number=START + 20, slots=[] if alone else [SLOT], topics=[NAME.full] if alone else [])
        assert not front.topics.loaded and not ownership.owns(NAME)
        for late in (grant(5, 10), grant(5, 19)):
            assert not await ownership.claimed(owner(late))
            await ownership.take_topics(grants=[late])
        assert not front.topics.owns(NAME.full)
        await ownership.take_topics(grants=[grant(5, 21)])
        await until(lambda: NAME.full in front.topics.loaded)
        link.give(ME, START + 30)
        assert not front.topics.owns(NAME.full) and ownership.owns(NAME)
        await ownership.close()


@pytest.mark.parametrize("released", ["slot", "topic", "topic that moved alone"])
async def test_a_release_that_overtakes_the_change_of_slots_that_it_is_about_still_counts(released: str) -> None:
    """The coordinator gave the slot or topic to this broker, made a grant, and wants it back, in this order."""
    entry = SlotEntry(ME, START + 5)
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(OTHER, 4)
        claim = asyncio.create_task(ownership.claimed(owner(grant(START + 5, 10))))
        await asyncio.sleep(0)
        slots, topics = ([SLOT], []) if released == "slot" else ([], [NAME.full])
        await ownership.release(number=START + 20, slots=slots, topics=topics)
        link.away = 1
        link.tell(SlotRows({}, {NAME.full: entry}) if released == "topic that moved alone" else SlotRows({SLOT: entry}))
        assert not await claim and not front.topics.owns(NAME.full) and not ownership.owns(NAME)
        link.granted[SLOT] = [grant(START + 5, 30)]  # it stays here after all
        await until(lambda: NAME.full in front.topics.loaded and ownership.owns(NAME))
        await ownership.close()


@pytest.mark.parametrize("released", ["slot", "topic", "topic that moved alone", "topic to be deleted"])
async def test_a_release_that_comes_behind_what_ended_it_releases_nothing(released: str) -> None:
    """The coordinator asked for it, got no answer and went on: the slot or topic left this broker and came back."""
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, START + 5)
        assert await ownership.claimed(owner(grant(START + 5, 10)))
        link.give(OTHER, START + 21)
        home = START + 22
        if released == "topic that moved alone":
            link.tell(SlotRows({}, {NAME.full: SlotEntry(ME, home)}))
        else:
            link.granted[SLOT] = [grant(home, 23)]
            link.give(ME, home)
        await until(lambda: NAME.full in front.topics.loaded)
        instance = front.topics.loaded[NAME.full]
        if released == "topic to be deleted":
            await ownership.unload(topic=NAME.full, number=START + 20)
        else:
            slots, topics = ([SLOT], []) if released == "slot" else ([], [NAME.full])
            await ownership.release(number=START + 20, slots=slots, topics=topics)
        assert front.topics.loaded[NAME.full] is instance and ownership.owns(NAME) and not ownership.flaws()
        await ownership.close()


async def test_a_release_that_comes_behind_a_later_grant_releases_nothing() -> None:
    """A deletion was given up without an answer, and the topic given back."""
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        await ownership.take_topics(grants=[grant(5, 21)])
        await until(lambda: NAME.full in front.topics.loaded)
        instance = front.topics.loaded[NAME.full]
        await ownership.unload(topic=NAME.full, number=START + 20)
        await ownership.release(number=START + 20, slots=[], topics=[NAME.full])
        assert front.topics.loaded[NAME.full] is instance and ownership.owns(NAME)
        await ownership.close()


async def test_a_deletion_that_comes_late_leaves_the_topic_that_was_created_again() -> None:
    """The first request to delete it waited on its way, a second one has deleted it, and a client has created it."""
    async with broker_front(FakeCluster()) as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        again = grant(5, 23)._replace(epoch=START + 22)
        assert await ownership.claimed(owner(again))
        instance = await front.topics.get(NAME)
        with pytest.raises(StaleEpoch):
            await ownership.delete_topics(topics=[(NAME.full, START + 20)])
        assert front.topics.loaded[NAME.full] is instance and ownership.owns(NAME)
        await ownership.delete_topics(topics=[(NAME.full, START + 24)])
        assert not front.topics.loaded and not front.topics.owns(NAME.full)
        await ownership.close()


async def test_a_release_of_a_topic_that_is_not_granted_yet_counts_too() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        await ownership.unload(topic=NAME.full, number=START + 20)
        assert not await ownership.claimed(owner(grant(5, 19)))
        await ownership.close()


@pytest.mark.parametrize("alone", [True, False], ids=["topic", "slot"])
async def test_what_a_superseded_coordinator_had_released_is_asked_for_again(alone: bool) -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        ownership.registered()
        assert await ownership.claimed(owner(grant(5, 10)))
        await front.topics.get(NAME)
        await ownership.release(number=START + 20, slots=[] if alone else [SLOT], topics=[NAME.full] if alone else [])
        link.granted[SLOT] = [grant(5, 90)]
        ownership.registered()
        await until(lambda: not ownership._asking)
        assert not front.topics.loaded and not ownership.owns(NAME)
        link.epoch = 2
        ownership.registered()
        await until(lambda: NAME.full in front.topics.loaded and ownership.owns(NAME))
        await ownership.close()


async def test_a_slot_released_again_while_its_topics_are_asked_for_stays_released() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        ownership.registered()
        await until(lambda: not ownership._asking)
        await ownership.release(number=START + 20, slots=[SLOT], topics=[])
        answer, link.answer = link.answer, asyncio.Event()
        link.epoch = 2
        ownership.registered()
        await until(lambda: len(link.questions) == 2)
        await ownership.release(number=2 * START + 30, slots=[SLOT], topics=[])
        link.answer.set()
        await until(lambda: not ownership._asking)
        assert not ownership.owns(NAME) and answer.is_set()
        await ownership.close()


async def test_an_answer_of_the_former_coordinator_does_not_stand_for_one_of_the_next() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        ownership.registered()
        link.answer = asyncio.Event()
        link.give(ME, 5)
        await until(lambda: len(link.questions) == 1)
        link.epoch = 2
        ownership.registered()
        link.granted[SLOT] = [grant(5, 10)]
        link.answer.set()
        await until(lambda: NAME.full in front.topics.loaded)
        assert link.questions == [[SLOT]] * 2
        await ownership.close()


async def test_a_superseded_coordinator_has_nothing_released() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        assert await ownership.claimed(owner(grant(5, 10)))
        await until(lambda: not ownership._asking)
        link.epoch = 2
        for asked in (
            ownership.release(number=2 * START - 1, slots=[SLOT], topics=[]),
            ownership.unload(topic=NAME.full, number=START),
        ):
            with pytest.raises(ServiceUnitNotReady, match="another coordinator"):
                await asked
        assert front.topics.owns(NAME.full) and ownership.owns(NAME)
        await ownership.release(number=2 * START, slots=[SLOT], topics=[])
        assert not ownership.owns(NAME)
        await ownership.close()


async def test_a_topic_in_use_is_not_unloaded_and_its_grant_stays() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        assert await ownership.claimed(owner(grant(5, 10)))
        peer = await front.peer()
        await peer.producer(NAME.full)
        with pytest.raises(NotAllowedError):
            await ownership.unload(topic=NAME.full, number=START + 20)
        assert front.topics.owns(NAME.full) and ownership.owns(NAME)
        await peer.close()
        await ownership.close()


async def test_a_topic_that_moved_alone_comes_and_goes_without_its_slot() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(OTHER, 4)
        link.tell(SlotRows({}, {NAME.full: SlotEntry(ME, 9)}))
        await until(lambda: NAME.full in front.topics.loaded)
        assert epoch_of(front) == 9
        link.give(OTHER, 10)
        assert not front.topics.owns(NAME.full)
        await ownership.close()


async def test_a_late_answer_about_a_topic_leaves_the_record_that_it_has_since() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(OTHER, 4)
        link.answer = asyncio.Event()
        link.tell(SlotRows({}, {NAME.full: SlotEntry(ME, 9)}))
        await until(lambda: link.assigned)
        before = front.topics.table.find(NAME.full)
        # It is granted and loaded by the way, moves, and comes back: all before the answer.
        assert await ownership.claimed(owner(grant(9, 10)))
        link.tell(SlotRows({}, {NAME.full: SlotEntry(OTHER, 11)}))
        await until(lambda: front.topics.table.find(NAME.full) is None)
        link.tell(SlotRows({}, {NAME.full: SlotEntry(ME, 12)}))
        since = front.topics.table.find(NAME.full)
        assert since is not None and since is not before
        assert await ownership.claimed(owner(grant(12, 20)))
        asked = asyncio.ensure_future(front.topics.get(NAME))
        link.answer.set()
        await until(lambda: not ownership._asking)
        assert front.topics.table.find(NAME.full) is since
        assert (await asked) is front.topics.find(NAME.full) and not front.topics.flaws()
        await ownership.close()


async def test_a_late_answer_to_an_incarnation_that_ended_changes_nothing() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.answer = asyncio.Event()
        link.tell(SlotRows({}, {NAME.full: SlotEntry(ME, 9)}))
        await until(lambda: link.assigned)
        ownership.end()
        later = Link()
        later.owned = ownership
        ownership.begin(later)  # type: ignore[arg-type]
        later.answer = asyncio.Event()
        later.tell(SlotRows({}, {NAME.full: SlotEntry(ME, 9)}))
        link.answer.set()
        record = front.topics.table.find(NAME.full)
        assert record is not None
        await asyncio.sleep(0)
        assert record.to_ask and not front.topics.owns(NAME.full)
        later.answer.set()
        await until(lambda: NAME.full in front.topics.loaded)
        assert front.topics.table.find(NAME.full) is record and not front.topics.flaws()
        await ownership.close()


async def test_topics_without_a_record_end_with_the_coordinator_that_knew_them() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        passing = "non-persistent://public/default/granted"
        link.tell(SlotRows({slot_of(TopicName.parse(passing), SLOTS): SlotEntry(ME, 6)}))
        epoch = link.slots.entry_of(TopicName.parse(passing)).epoch
        assert await ownership.claimed(owner(grant(epoch, 10, passing, None)))
        for coordinator, kept in ((1, True), (1, True), (2, False)):
            link.epoch = coordinator
            ownership.registered()
            assert front.topics.owns(passing) == kept
        await ownership.close()


async def test_nothing_of_an_incarnation_is_left_when_it_ends() -> None:
    async with broker_front() as front:
        ownership, link = attached(front)
        link.give(ME, 5)
        assert await ownership.claimed(owner(grant(5, 10)))
        ownership.end()
        await front.topics.close_all()
        link.give(ME, 6)
        assert not ownership._gained and all(one.grant is None for one in front.topics.table.all_granted())
        assert not await ownership.claimed(owner(grant(5, 11))) and not ownership.owns(NAME)
        await ownership.close()
