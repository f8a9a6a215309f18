"""Who gets which slot, whatever happens to brokers, the metadata store and the coordinator."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from magnetar.actors.coordinator.membership import Membership, Session
from magnetar.actors.coordinator.placement import SlotPlacement
from magnetar.actors.slots.contents import SlotContents
from magnetar.protocol.errors import MetadataUnavailable, NotAllowedError, OutcomeUnknown, ServiceUnitNotReady
from magnetar.protocol.names import ROLE_BROKER
from magnetar.protocol.slots import PAGES, slot_of
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.slot_rows import EXCEPTIONS_PER_PAGE_MAX, SlotEntry, SlotPage, SlotRows
from magnetar.storage.metadata.store import Guard, Write, WriteResult
from support.stores.memory_store import MemoryMetadataStore

SLOTS = 256
TOPIC = TopicName.parse("persistent://public/default/t")
SLOT = slot_of(TOPIC, SLOTS)


class Store(MemoryMetadataStore):
    """Counts transactions; loses answers on request: of writes that land, never land, or land later."""

    writes = 0
    lose: str | None = None
    late: list[tuple[Sequence[Write], Guard | None]]
    gate: asyncio.Event | None = None

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        self.writes += 1
        if self.gate is not None:
            await self.gate.wait()
        lose, self.lose = self.lose, None
        if lose is None or lose == "landed":
            results = await super().write_many(writes, guard)
            if lose is None:
                return results
        elif lose == "late":
            self.late = [(writes, guard)]
        elif lose == "away":
            raise MetadataUnavailable("the store is away")
        raise OutcomeUnknown("the answer was lost")

    async def land(self) -> list[WriteResult]:
        ((writes, guard),) = self.late
        return await super().write_many(writes, guard)


class Coordinator:
    """Placement with members that come and go."""

    def __init__(self, env: Environment, store: Store) -> None:
        self.env, self.store = env, store
        self.membership = Membership(10.0, 1.0)
        self.full: dict[int, None] = {}
        self.told: list[tuple[int, SlotRows]] = []
        self.placement: SlotPlacement

    async def start(self, *, grace: bool = False) -> "Coordinator":
        if not grace:
            self.membership.grace_left_s = 0.0
        self.placement = SlotPlacement(
            self.env,
            await take_office(self.store),
            self.membership,
            SLOTS,
            lambda number, rows: self.told.append((number, rows)),
            lambda slot: slot not in self.full,
        )
        await self.placement.start()
        return self

    def session(self, name: str, incarnation: str) -> Session:
        return Session(ROLE_BROKER, name, incarnation, "h", 1, {}, None)  # type: ignore[arg-type]

    async def join(self, *names: str, incarnation: str = "1") -> None:
        for name in names:
            self.membership.register(self.session(name, incarnation))
            self.placement.broker_lost(name)
            self.placement.broker_joined()
        await self.settle()

    async def lose(self, *names: str) -> None:
        self.drop(*names)
        await self.settle()

    def drop(self, *names: str) -> None:
        for name in names:
            session = self.membership.find(ROLE_BROKER, name)
            assert session is not None and self.membership.end(session)
            self.placement.broker_lost(name)

    async def settle(self) -> None:
        async with asyncio.timeout(5):
            await self.placement.settle()

    def counts(self) -> dict[str, int]:
        return dict(sorted(self.placement.table.counts().items()))

    def entries(self) -> list[SlotEntry]:
        return [self.placement.table.get(slot) for slot in range(SLOTS)]

    async def check(self) -> None:
        """The store has what the table has; epochs that members were told never fell; numbers follow each other."""
        table = self.placement.table
        for number in range(PAGES):
            record = await self.store.get(metadata_keys.slot_page(number))
            if record is not None:
                assert SlotPage.unpack(record.value, number, SLOTS) == table.page(number, {}, {})
        assert [number for number, _ in self.told] == list(range(1, len(self.told) + 1))
        epochs: dict[int, int] = {}
        for _, rows in self.told:
            for slot, one in rows.entries.items():
                assert one.epoch > epochs.get(slot, 0)
                epochs[slot] = one.epoch


@pytest.fixture
async def store() -> Store:
    made = Store()
    await create_cluster(made, "c", 0)
    return made


@pytest.fixture
async def coordinator(env: Environment, store: Store) -> AsyncIterator[Coordinator]:
    found = await Coordinator(env, store).start()
    yield found
    await found.check()
    assert found.placement.unexpected_errors == 0
    await found.placement.close()


async def test_slots_without_topics_go_to_newcomers_at_once(coordinator: Coordinator) -> None:
    await coordinator.join("a")
    assert coordinator.counts() == {"a": SLOTS}
    await coordinator.join("b")
    assert coordinator.counts() == {"a": SLOTS // 2, "b": SLOTS // 2}
    coordinator.full = dict.fromkeys(range(SLOTS))
    await coordinator.join("c")
    assert coordinator.counts() == {"a": SLOTS // 2, "b": SLOTS // 2}
    coordinator.full = dict.fromkeys(range(10, SLOTS))
    await coordinator.join("d")
    # Of the moves that make all even, those of slots without topics: newcomers get their share of the others as well.
    left = coordinator.placement.table.rebalance(list("abcd"), SLOTS)
    assert sum(count for name, count in coordinator.counts().items() if name in "cd") == SLOTS // 2 - len(left)
    assert min(left) >= 10


async def test_a_death_costs_one_transaction_and_one_push(coordinator: Coordinator) -> None:
    await coordinator.join("a", "b", "c")
    before, writes, told = coordinator.entries(), coordinator.store.writes, len(coordinator.told)
    await coordinator.lose("b")
    assert (coordinator.store.writes - writes, len(coordinator.told) - told) == (1, 1)
    after = coordinator.entries()
    moved = [slot for slot in range(SLOTS) if before[slot] != after[slot]]
    assert moved == [slot for slot in range(SLOTS) if before[slot].owner.broker == "b"]  # type: ignore[union-attr]
    assert list(coordinator.told[-1][1].entries) == moved
    assert coordinator.counts() == {"a": 128, "c": 128}


async def test_a_broker_that_comes_back_gets_its_slots_under_new_epochs(coordinator: Coordinator) -> None:
    await coordinator.join("a", "b")
    coordinator.full = dict.fromkeys(range(SLOTS))
    own = coordinator.placement.table.slots_of("b")
    await coordinator.join("b", incarnation="2")
    assert coordinator.placement.table.slots_of("b") == own
    assert {one.owner.incarnation for one in coordinator.entries() if one.owner and one.owner.broker == "b"} == {"2"}


async def test_a_new_coordinator_waits_for_the_owners_and_then_no_longer(env: Environment, store: Store) -> None:
    first = await Coordinator(env, store).start()
    await first.join("a", "b")
    await first.placement.close()
    second = await Coordinator(env, store).start(grace=True)
    assert second.entries() == first.entries()
    await second.join("a")
    assert second.entries() == first.entries() and len(second.told) == 1  # what it read
    second.membership.grace_left_s = 0.0
    second.placement.look_at_waiting()
    await second.settle()
    assert second.counts() == {"a": SLOTS}
    assert min(one.epoch for _, rows in second.told[1:] for one in rows.entries.values()) > 2 << 32
    await second.check()
    await second.placement.close()


async def test_without_a_broker_nobody_waits(coordinator: Coordinator) -> None:
    with pytest.raises(ServiceUnitNotReady):
        await coordinator.placement.owner(TOPIC)
    await coordinator.join("a")
    assert (await coordinator.placement.owner(TOPIC)).owner == ("a", "1")
    await coordinator.lose("a")
    with pytest.raises(ServiceUnitNotReady):
        await coordinator.placement.owner(TOPIC)
    await coordinator.join("b")
    assert (await coordinator.placement.owner(TOPIC)).owner == ("b", "1")


@pytest.mark.parametrize("lost", ["landed", "never", "late", "away"])
async def test_after_a_lost_answer_table_and_store_agree(coordinator: Coordinator, lost: str) -> None:
    await coordinator.join("a", "b", "c")
    coordinator.store.lose = lost
    await coordinator.lose("b")
    assert coordinator.store.lose is None
    assert coordinator.counts() == {"a": 128, "c": 128}
    if lost == "late":
        assert all(isinstance(result, Exception) for result in await coordinator.store.land())


async def test_no_topic_gets_an_epoch_while_an_older_one_may_still_be_stored(coordinator: Coordinator) -> None:
    """Also when nothing is left to be written for the page: a broker's share of empty slots is in doubt."""
    await coordinator.join("a")
    coordinator.store.gate = asyncio.Event()
    coordinator.store.lose = "late"
    coordinator.membership.register(coordinator.session("b", "1"))
    coordinator.placement.broker_joined()
    await asyncio.sleep(0)
    epoch = asyncio.create_task(coordinator.placement.topic_epoch())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not epoch.done()
    coordinator.full = dict.fromkeys(range(SLOTS))  # by now nothing may move at once
    coordinator.store.gate.set()
    taken = await epoch
    assert all(isinstance(result, Exception) for result in await coordinator.store.land())
    coordinator.full = {}
    await coordinator.join("c")
    assert min(one.epoch for one in coordinator.told[-1][1].entries.values()) > taken


async def test_a_held_slot_moves_when_it_is_let_go(coordinator: Coordinator) -> None:
    await coordinator.join("a", "b", "c")
    placement, before = coordinator.placement, coordinator.entries()
    slots = placement.table.slots_of("b")[:4]
    placement.hold(slots)
    asked = asyncio.create_task(placement.owner(TOPIC.without_partition()))
    await coordinator.lose("b")
    assert [slot for slot in range(SLOTS) if coordinator.entries()[slot] == before[slot]] == sorted(
        [*slots, *(slot for slot in range(SLOTS) if before[slot].owner.broker != "b")]  # type: ignore[union-attr]
    )
    placement.unhold(slots)
    await coordinator.settle()
    assert "b" not in coordinator.counts()
    assert (await asked).owner is not None


async def test_forced_slots_go_where_they_are_sent_or_anywhere_else(coordinator: Coordinator) -> None:
    await coordinator.join("a", "b", "c")
    table = coordinator.placement.table
    one, two = table.slots_of("a")[:2]
    epochs = table.get(one).epoch, table.get(two).epoch
    coordinator.placement.force({one: "c", two: None})
    await coordinator.settle()
    assert table.get(one).owner == ("c", "1") and table.get(two).owner != ("a", "1")
    assert table.get(one).epoch > epochs[0] and table.get(two).epoch > epochs[1]
    await coordinator.lose("b", "c")
    epoch = table.get(one).epoch
    coordinator.placement.force({one: None})
    await coordinator.settle()
    assert table.get(one).owner == ("a", "1") and table.get(one).epoch > epoch


async def test_nobody_is_told_the_old_owner_of_a_slot_that_is_about_to_move(coordinator: Coordinator) -> None:
    """It has released the slot: a topic that it opened again would be fenced by the next owner a moment later."""
    await coordinator.join("a", "b")
    placement, before = coordinator.placement, coordinator.placement.table.get(SLOT)
    coordinator.store.gate = asyncio.Event()
    placement.hold([SLOT])
    placement.force({SLOT: None})
    placement.unhold([SLOT])
    asked = asyncio.create_task(placement.owner(TOPIC))
    for _ in range(10):
        await asyncio.sleep(0)
        assert placement.holds(TOPIC) and placement.may_move(SLOT) and not asked.done()
    coordinator.store.gate.set()
    assert (await asked).owner != before.owner
    assert not placement.holds(TOPIC) and not placement.may_move(SLOT)


async def test_a_topic_that_moves_alone_is_an_exception_of_its_slot(coordinator: Coordinator) -> None:
    await coordinator.join("a", "b", "c")
    placement, table = coordinator.placement, coordinator.placement.table
    home = table.get(SLOT)
    assert home.owner is not None
    placement.move_topics({TOPIC.full: None})
    alone = await placement.owner(TOPIC)
    assert alone.owner != home.owner and alone.epoch > home.epoch and table.get(SLOT) == home
    assert alone.owner is not None
    placement.move_topics({TOPIC.full: "c"})
    assert (await placement.owner(TOPIC)).owner == ("c", "1")
    await coordinator.check()
    placement.force({SLOT: "b" if home.owner.broker != "b" else "a"})
    await coordinator.settle()
    assert table.exception(TOPIC) is None and table.entry_of(TOPIC).epoch > alone.epoch


async def test_the_exception_of_a_lost_broker_goes_to_the_owner_of_its_slot(coordinator: Coordinator) -> None:
    await coordinator.join("a", "b")
    placement = coordinator.placement
    home = placement.table.get(SLOT).owner
    placement.move_topics({TOPIC.full: None})
    alone = await placement.owner(TOPIC)
    assert home is not None and alone.owner is not None
    await coordinator.lose(alone.owner.broker)
    now = placement.table.entry_of(TOPIC)
    assert now.owner == home and now.epoch > alone.epoch and placement.table.get(SLOT).owner == home
    await placement.end_exceptions([TOPIC.full])
    await coordinator.settle()
    assert placement.table.exception(TOPIC) is None and placement.table.entry_of(TOPIC).owner == home
    assert coordinator.told[-1][1].exceptions[TOPIC.full].owner is None


async def test_exceptions_survive_the_coordinator_and_are_bounded(env: Environment, store: Store) -> None:
    first = await Coordinator(env, store).start()
    await first.join("a", "b")
    names = (TopicName.parse(f"persistent://public/default/t{number}") for number in range(100_000))
    page = SLOT * PAGES // SLOTS
    found = [one.full for one in names if slot_of(one, SLOTS) * PAGES // SLOTS == page]
    first.placement.move_topics(dict.fromkeys(found[:EXCEPTIONS_PER_PAGE_MAX]))
    with pytest.raises(NotAllowedError):
        first.placement.move_topics({found[EXCEPTIONS_PER_PAGE_MAX]: None})
    await first.settle()
    with pytest.raises(NotAllowedError):
        first.placement.move_topics({found[EXCEPTIONS_PER_PAGE_MAX]: None})
    await first.placement.close()
    second = await Coordinator(env, store).start(grace=True)
    assert second.placement.table.rows() == first.placement.table.rows()
    await second.placement.close()


@pytest.mark.parametrize("seed", range(15))
async def test_any_order_of_events_ends_with_live_owners_and_even_counts(
    env: Environment, coordinator: Coordinator, seed: int
) -> None:
    import random

    chance, alive, incarnation = random.Random(seed), dict[str, int](), 0
    placement = coordinator.placement
    for _ in range(60):
        event, name = chance.randrange(6), chance.choice("abcd")
        if event == 0:
            incarnation += 1
            coordinator.membership.register(coordinator.session(name, str(incarnation)))
            placement.broker_lost(name)
            placement.broker_joined()
            alive[name] = incarnation
        elif event == 1 and name in alive:
            del alive[name]
            coordinator.drop(name)
        elif event == 2:
            coordinator.store.lose = chance.choice(["landed", "never", "late", "away"])
        elif event == 3 and alive:
            slots = chance.sample(range(SLOTS), 5)
            placement.hold(slots)
            placement.force(dict.fromkeys(slots, chance.choice([None, name])))
            await asyncio.sleep(0)
            placement.unhold(slots)
        elif event == 4 and alive:
            placement.move_topics({f"persistent://public/default/x{chance.randrange(20)}": chance.choice([None, name])})
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.03]))
    await coordinator.join("z")
    coordinator.store.lose = None
    await coordinator.settle()
    members = {session.node_id: session.incarnation for session in coordinator.membership.of_role(ROLE_BROKER)}
    entries = [*coordinator.entries(), *placement.table.rows().exceptions.values()]
    assert all(one.owner and members.get(one.owner.broker) == one.owner.incarnation for one in entries)
    counts: Any = Counter(coordinator.counts())
    assert max(counts[name] for name in members) - min(counts[name] for name in members) <= 1


async def test_one_of_a_hundred_brokers_dies_and_a_thousand_partitions_move(env: Environment, store: Store) -> None:
    """100,000 partitions on 100 brokers: one transaction, one change for all, however many topics lie in the slots."""
    slots, told, contents = 4096, list[SlotRows](), SlotContents(4096)
    membership = Membership(10.0, 1.0)
    membership.grace_left_s = 0.0
    for number in range(20_000):
        contents.change(f"persistent://public/default/t{number}", None, 5)
    placement = SlotPlacement(
        env, await take_office(store), membership, slots, lambda _, rows: told.append(rows), contents.is_empty
    )
    await placement.start()
    sessions = [Session(ROLE_BROKER, f"b{number:03}", "1", "h", 1, {}, None) for number in range(100)]  # type: ignore[arg-type]
    for session in sessions:
        membership.register(session)
    placement.broker_joined()
    await placement.settle()
    lost = placement.table.slots_of("b050")
    before, writes, started = len(told), store.writes, time.process_time()
    membership.end(sessions[50])
    placement.broker_lost("b050")
    await placement.settle()
    spent_s = time.process_time() - started
    moved = sum(1 for slot in lost for _ in contents.members(slot))
    assert list(told[-1].entries) == lost and 800 < moved < 1200
    assert (len(told) - before, store.writes - writes) == (1, 1)
    questions = 2 * len(lost)  # at worst each slot goes to another broker, which asks what lies in it
    assert 99 + questions <= moved, "pushes and questions together: below one message for each partition"
    assert spent_s < 0.5
    await placement.close()
