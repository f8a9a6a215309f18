"""What cannot be repaired now costs nothing until something changes that may help. Then none of it is forgotten."""

import asyncio
import itertools
from random import Random
from types import SimpleNamespace

import pytest

from magnetar.actors.auditor import checks as checks_module
from magnetar.actors.auditor import due as due_module
from magnetar.actors.auditor.due import RETRY_PAUSES_S, FailedLedgers
from magnetar.actors.auditor.index import LedgerCondition
from magnetar.actors.auditor.service import Auditor
from magnetar.protocol.errors import EntryUnknown, MetadataUnavailable, ServiceUnitNotReady
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.storage.ledger.bookie_directory import BookieInfo
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.storage.metadata.memory import MemoryMetadataStore
from magnetar.storage.metadata.store import Write
from support.fakes.bookies import FakeCluster

A, B, C, D, E = NAMES = tuple(f"bookie-{letter}" for letter in "abcde")
GRACE_S = 60.0
LEDGERS = 30


class Store(MemoryMetadataStore):
    """Counts the records that are read one by one, and may be away."""

    read = 0
    away = False

    async def get(self, key):
        return (await self.get_many([key]))[0]

    async def get_many(self, keys):
        if self.away:
            raise MetadataUnavailable("away")
        self.read += len(keys)
        return await super().get_many(keys)


class World:
    """An auditor, its time, and bookies that say what they are told to say. It stands for `LedgerRepair`."""

    def __init__(self, monkeypatch):
        self.offset_s = 0.0
        self.held = {}
        self.asked = self.copies = 0
        self.silent, self.broken = [], []
        self.amid = None
        """Called once, while a bookie is asked."""
        self.cluster = FakeCluster(1, lost_bookie_grace_s=GRACE_S)
        self.store = Store()
        self.limbo = {}
        self.states = {}
        self.machines = {}
        """Those of bookies that say where they run."""
        self.metadata_written = []
        loop = asyncio.get_running_loop()
        real_time = loop.time
        monkeypatch.setattr(loop, "time", lambda: real_time() + self.offset_s)
        monkeypatch.setattr(checks_module, "LedgerRecovery", self.recovery)
        self.recovering = True
        self.auditor = Auditor(
            self.cluster.env,
            Identity("cluster", "coordinator", "coordinator", "1"),
            RootKeys(b"secret"),
            self.cluster.settings,
            self.store,
            self.cluster.directory,
            lambda: dict(self.limbo),
        )
        self.auditor._repair = self  # type: ignore[assignment]
        self.auditor._orphans.busy = True  # no record names the ledgers of these tests: they are not searched for

    # -- in the place of others ----------------------------------------------------------------------------------

    async def lacking(self, bookie, parts):
        if self.amid is not None:
            amid, self.amid = self.amid, None
            amid()
        self.asked += len(parts)
        if bookie in self.silent:
            raise ServiceUnitNotReady("no answer")
        return [index for index, part in enumerate(parts) if (bookie, part.ledger) not in self.held]

    async def fill(self, metadata, piece, sources=None):
        self.copies += 1
        if piece.bookie in self.broken or piece.bookie in self.silent:
            raise EntryUnknown("no copy")
        if (piece.bookie, metadata.ledger_id) in self.held:
            return 0
        self.held[piece.bookie, metadata.ledger_id] = None
        return 1

    def recovery(self, env, records, client, settings, ledger_id):
        async def run(record):
            if not self.recovering:
                raise EntryUnknown("no quorum")
            await self.write(ledger_id, record.metadata.close(-1, 0), record.version)

        return SimpleNamespace(run=run)

    # -- what happens --------------------------------------------------------------------------------------------

    async def write(self, ledger_id, metadata, version=None):
        await self.store.put(metadata_keys.ledger(ledger_id), metadata.pack(), version)
        self.auditor.written([Write(metadata_keys.ledger(ledger_id), metadata.pack(), version)])

    async def ledger(self, ledger_id, bookies=(A, B, C), *, state=LedgerState.CLOSED, thin=False):
        last = 9 if state is LedgerState.CLOSED else -1
        fragments = (Fragment(0, tuple(bookies)),)
        count = len(bookies)
        metadata = LedgerMetadata(
            ledger_id, count, count, 2, fragments, state, last_entry=last, under_replicated=thin, nonce=ledger_id
        )
        self.held.update({(bookie, ledger_id): None for bookie in bookies})
        await self.write(ledger_id, metadata)

    def list(self, **states):
        """By letter: `up`, `away`, `full`, `draining` or `limbo`. The others stay as they are."""
        self.states.update({f"bookie-{letter}": state for letter, state in states.items()})
        self.limbo.clear()
        self.limbo.update({name: "a loss" for name, state in self.states.items() if state == "limbo"})
        self.cluster.directory.update(
            BookieInfo(
                name, "h", 1, state == "up", state == "limbo", 0, state == "draining", self.machines.get(name, "")
            )
            for name, state in self.states.items()
            if state != "away"
        )

    async def rounds(self):
        """Until the next round has nothing to do at once. Returns records read, pieces asked for, and copies."""
        before = self.store.read, self.asked, self.copies
        self.auditor._changed = False
        await self.auditor.round()
        while self.auditor._unfinished() or self.auditor._due.written_count:
            await self.auditor.round()
        return self.store.read - before[0], self.asked - before[1], self.copies - before[2]

    async def pass_time(self, seconds):
        """A round each minute, and what they cost together."""
        costs = [0, 0, 0]
        while seconds > 0:
            self.offset_s += min(60.0, seconds)
            seconds -= 60.0
            costs = [sum(both) for both in zip(costs, await self.rounds(), strict=True)]
        return tuple(costs)

    async def bookies_of(self, ledger_id):
        record = await self.store.get(metadata_keys.ledger(ledger_id))
        return sorted(LedgerMetadata.unpack(record.value).bookies)

    def count(self, condition):
        return self.auditor._index.counts[condition]


@pytest.fixture
async def world(monkeypatch):
    made = World(monkeypatch)
    yield made
    await made.auditor.close()
    await made.cluster.close()


NOTHING = (0, 0, 0)


async def lose_a(world):
    """30 ledgers on A, B and C. A is lost, and there is no spare: D is drawn up by each test."""
    world.list(a="up", b="up", c="up")
    for ledger_id in range(1, LEDGERS + 1):
        await world.ledger(ledger_id)
    await world.rounds()
    assert world.count(LedgerCondition.WHOLE) == LEDGERS
    world.list(a="away")
    assert await world.rounds() == NOTHING
    world.offset_s += GRACE_S
    read, *_ = await world.rounds()
    assert read == LEDGERS and world.count(LedgerCondition.FILLED) == LEDGERS


@pytest.mark.parametrize("before", ["away", "full", "draining", "limbo"])
async def test_without_a_spare_rounds_cost_nothing_and_each_kind_of_spare_is_used(world, before):
    world.list(d=before)
    await lose_a(world)
    assert await world.pass_time(3600.0) == NOTHING
    assert not world.auditor.status()["whole"] and world.auditor.status()["incomplete"] == LEDGERS
    world.list(d="up")
    assert world.auditor._wake.is_set(), "the next round comes soon"
    await world.rounds()
    for ledger_id in range(1, LEDGERS + 1):
        assert await world.bookies_of(ledger_id) == [B, C, D]
    assert world.count(LedgerCondition.WHOLE) == LEDGERS and world.auditor.status()["whole"]
    assert await world.pass_time(600.0) == NOTHING


async def test_ledgers_wait_as_long_as_the_only_bookie_that_came_cannot_help(world):
    await lose_a(world)
    world.list(d="full")
    assert await world.rounds() == NOTHING, "it holds none of them, and takes none"
    world.list(d="up")
    world.broken.append(D)
    await world.rounds()
    assert world.count(LedgerCondition.FILLED) == LEDGERS
    world.broken.clear()
    await world.pass_time(60.0)
    assert world.count(LedgerCondition.WHOLE) == LEDGERS


async def test_the_lost_bookie_itself_may_come_back(world):
    await lose_a(world)
    await world.pass_time(600.0)
    world.list(a="up")
    await world.rounds()
    assert world.count(LedgerCondition.WHOLE) == LEDGERS and await world.bookies_of(1) == [A, B, C]


async def test_a_drain_without_a_spare_costs_nothing_whatever_else_comes_and_goes(world):
    world.list(a="up", b="up", c="up", d="full", e="full")
    for ledger_id in range(1, LEDGERS + 1):
        await world.ledger(ledger_id)
    await world.rounds()
    world.list(a="draining")
    await world.rounds()
    assert world.count(LedgerCondition.FILLED) == LEDGERS
    assert await world.pass_time(600.0) == NOTHING
    for state in ("away", "full", "draining", "full"):
        world.list(e=state)
        assert await world.rounds() == NOTHING
    world.list(a="up")
    await world.rounds()
    assert world.count(LedgerCondition.WHOLE) == LEDGERS
    world.list(a="draining", d="up")
    await world.rounds()
    assert await world.bookies_of(1) == [B, C, D] and world.count(LedgerCondition.WHOLE) == LEDGERS


async def test_a_thin_ledger_waits_for_a_third_bookie(world):
    world.list(a="up", b="up")
    await world.ledger(1, (A, B), thin=True)
    await world.rounds()
    assert world.count(LedgerCondition.FILLED) == 1 and await world.pass_time(3600.0) == NOTHING
    world.list(c="up")
    await world.rounds()
    assert await world.bookies_of(1) == [A, B, C] and world.count(LedgerCondition.WHOLE) == 1


@pytest.mark.parametrize("when", ["before the spares are counted", "after"])
async def test_a_spare_that_comes_in_the_middle_of_a_look_is_not_missed(world, monkeypatch, when):
    await lose_a(world)
    world.list(a="up")
    await world.rounds()
    world.list(a="away")
    world.offset_s += GRACE_S
    if when == "after":
        put = world.auditor._checks._put

        def put_late(record, condition):
            if condition is LedgerCondition.FILLED and world.states.get(D) != "up":
                world.list(d="up")
            put(record, condition)

        monkeypatch.setattr(world.auditor._checks, "_put", put_late)
    else:
        world.amid = lambda: world.list(d="up")
    await world.auditor.round()
    assert world.auditor._wake.is_set() and not world.auditor.status()["whole"]
    await world.rounds()
    assert world.count(LedgerCondition.WHOLE) == LEDGERS and await world.bookies_of(1) == [B, C, D]


async def test_a_spare_is_not_missed_when_the_metadata_are_away(world):
    await lose_a(world)
    world.list(d="up")
    world.store.away = True
    for _ in range(3):
        with pytest.raises(MetadataUnavailable):
            await world.auditor.round()
    world.store.away = False
    await world.rounds()
    assert world.count(LedgerCondition.WHOLE) == LEDGERS


async def test_a_repair_that_fails_is_tried_again_after_pauses_that_double(world):
    world.list(a="up", b="up", c="up")
    await world.ledger(1)
    del world.held[C, 1]
    world.broken.append(C)
    await world.rounds()
    assert world.count(LedgerCondition.LACKING) == 1
    tries = []
    for second in range(1, 1201):
        world.offset_s += 1.0
        if (await world.rounds())[0]:
            tries.append(second)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert tries[0] <= 2 and pauses[-1] >= RETRY_PAUSES_S[-1] and len(tries) <= len(RETRY_PAUSES_S) + 3
    assert all(later >= earlier for earlier, later in itertools.pairwise(pauses))
    world.auditor.retry()
    assert (await world.rounds())[0] == 1, "an operator asked for it"
    world.list(d="up")
    assert await world.rounds() == NOTHING, "a spare does not help"
    world.list(c="away")
    world.list(c="up")
    assert (await world.rounds())[0] == 1
    world.offset_s += RETRY_PAUSES_S[0] + 0.1
    assert (await world.rounds())[0] == 1, "something had changed: the pauses are short again"
    world.broken.clear()
    world.offset_s += RETRY_PAUSES_S[1] + 0.1
    await world.rounds()
    assert world.count(LedgerCondition.WHOLE) == 1 and not world.auditor._due.failed.count
    assert await world.pass_time(3600.0) == NOTHING


async def test_a_copy_to_a_spare_that_fails_is_tried_again(world):
    world.broken.append(D)
    await lose_a(world)
    world.list(d="up")
    await world.rounds()
    assert world.count(LedgerCondition.FILLED) == world.auditor._due.failed.count == LEDGERS
    world.broken.clear()
    world.offset_s += RETRY_PAUSES_S[0] + 0.1
    await world.rounds()
    assert world.count(LedgerCondition.WHOLE) == LEDGERS


async def test_the_next_round_comes_when_a_failed_repair_is_due(world):
    world.list(a="up", b="up", c="up")
    await world.ledger(1)
    world.silent.append(C)
    await world.rounds()
    assert world.auditor._next_pause_s(60.0) <= RETRY_PAUSES_S[1] + 0.5, "it was written, and the walk met it"
    world.silent.clear()
    await world.pass_time(3.0)
    assert world.auditor.status()["whole"] and world.auditor._next_pause_s(60.0) == 60.0


async def test_an_open_ledger_waits_for_its_time_and_then_for_a_spare(world):
    world.list(a="up", b="up", c="up")
    await world.ledger(1, state=LedgerState.OPEN)
    await world.rounds()
    world.list(a="away")
    await world.rounds()
    assert world.auditor._next_pause_s(120.0) <= GRACE_S + 0.5
    world.offset_s += GRACE_S
    assert (await world.rounds())[0] == 1 and world.count(LedgerCondition.OPEN_LACKING) == 1
    assert GRACE_S - 5 < world.auditor._next_pause_s(60.0) <= GRACE_S + 0.5
    assert await world.pass_time(GRACE_S / 2) == NOTHING
    world.offset_s += GRACE_S / 2
    assert (await world.rounds())[0] == 1, "the auditor may close it now, but it has no spare"
    assert await world.pass_time(3600.0) == NOTHING
    world.recovering = False
    world.list(d="up")
    await world.rounds()
    assert world.count(LedgerCondition.OPEN_LACKING) == 1 == world.auditor._due.failed.count
    world.recovering = True
    await world.pass_time(5.0)
    assert await world.bookies_of(1) == [B, C, D] and world.count(LedgerCondition.WHOLE) == 1


@pytest.mark.parametrize("state", ["limbo", "draining"])
async def test_an_open_ledger_on_a_bookie_in_limbo_or_draining_is_recovered_in_time(world, state):
    world.auditor._calls = SimpleNamespace(of=lambda bookie: SimpleNamespace(clear_limbo=cleared), close=cleared)
    world.list(a="up", b="up", c="up")
    await world.ledger(1, state=LedgerState.OPEN)
    await world.rounds()
    world.list(b=state)
    await world.rounds()
    assert world.count(LedgerCondition.OPEN_DOUBTFUL) == 1
    assert await world.pass_time(GRACE_S) == NOTHING
    world.recovering = False
    world.offset_s += GRACE_S
    await world.rounds()
    assert world.count(LedgerCondition.OPEN_DOUBTFUL) == 1
    world.recovering = True
    await world.pass_time(5.0)
    assert world.count(LedgerCondition.WHOLE if state == "limbo" else LedgerCondition.FILLED) == 1


async def cleared(**arguments):
    """Limbo ends, says the auditor. The bookie goes on in it."""


async def test_a_record_that_cannot_be_decoded_is_read_again_when_it_is_written(world):
    world.list(a="up", b="up", c="up")
    await world.store.put(metadata_keys.ledger(1), b"\xc1", None)
    await world.rounds()
    reads = (await world.pass_time(3600.0))[0]
    assert world.auditor.status()["incomplete"] == 1 and reads <= 20
    await world.store.delete(metadata_keys.ledger(1), None)
    world.auditor.written([Write(metadata_keys.ledger(1), None, 1)])
    await world.rounds()
    assert world.auditor.status()["whole"] and not world.auditor._due.failed.count


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_happens_all_is_repaired_without_a_walk_once_it_can_be(world, monkeypatch, seed):
    """Bookies change at any moment, also in the middle of looks. Copies fail now and then."""
    random = Random(seed)
    monkeypatch.setattr(due_module, "LEDGERS_PER_TURN", 2)
    world.auditor._calls = SimpleNamespace(of=lambda bookie: SimpleNamespace(clear_limbo=cleared), close=cleared)
    world.list(**dict.fromkeys("abcde", "up"))
    for ledger_id in range(1, 21):
        open_ = random.random() < 0.2
        await world.ledger(ledger_id, random.sample(NAMES, 3), state=LedgerState.OPEN if open_ else LedgerState.CLOSED)
    await world.rounds()

    def change():
        letter = random.choice("abcde")
        world.list(**{letter: random.choice(("up", "up", "away", "away", "full", "draining"))})

    for _ in range(60):
        what = random.random()
        if what < 0.4:
            change()
        elif what < 0.5:
            world.silent = random.sample(NAMES, random.choice((0, 0, 1)))
            world.broken = random.sample(NAMES, random.choice((0, 0, 1, 2)))
            world.recovering = random.random() < 0.7
        elif what < 0.6:
            world.held.pop((random.choice(NAMES), random.randint(1, 20)), None)  # no event: told with the next one
        elif what < 0.8:
            world.offset_s += random.choice((0.5, 5.0, 40.0, 90.0))
        else:
            world.amid = change if random.random() < 0.5 else None
            await world.auditor.round()
    number = world.auditor._walk.number
    lost = random.choice("abcde")
    world.silent, world.broken, world.recovering, world.amid = [], [], True, None
    world.list(**{letter: "up" if letter != lost else "away" for letter in "abcde"})
    await world.pass_time(2 * GRACE_S + RETRY_PAUSES_S[-1])
    assert world.auditor._walk.number == number
    for ledger_id in range(1, 21):
        record = await world.store.get(metadata_keys.ledger(ledger_id))
        metadata = LedgerMetadata.unpack(record.value)
        gone = f"bookie-{lost}"
        assert gone not in metadata.bookies
        assert metadata.closed or world.count(LedgerCondition.OPEN)
    assert world.auditor.status()["whole"]


async def test_those_that_failed_equally_often_share_the_time_of_their_next_try(world):
    failed = FailedLedgers()
    assert failed.next_s() is None
    for ledger_id in (1, 2):
        failed.add(ledger_id)
    assert list(failed.ripe()) == [] and failed.count == 2
    world.offset_s += RETRY_PAUSES_S[0] + 0.1
    assert list(failed.ripe()) == [1, 2]
    failed.add(1)
    assert list(failed.ripe()) == [], "2 is remembered until its look ends, and has a time, too"
    world.offset_s += RETRY_PAUSES_S[1] + 0.1
    assert sorted(failed.ripe()) == [1, 2]
    failed.forget(1)
    failed.forget(2)
    failed.forget(2)
    assert failed.count == 0 and failed.next_s() is None


async def crowded(world):
    """30 ledgers on A, B and C, of which A and B are on one machine, and so are C and D."""
    world.machines = {A: "1", B: "1", C: "2", D: "2"}
    world.list(a="up", b="up", c="up")
    for ledger_id in range(1, LEDGERS + 1):
        await world.ledger(ledger_id)
    await world.rounds()
    assert world.auditor.status()["crowded"] == LEDGERS
    assert world.auditor.status()["whole"] and not world.auditor.status()["incomplete"]


async def test_copies_on_one_machine_move_when_a_bookie_on_another_machine_comes(world):
    await crowded(world)
    world.list(d="up")
    assert await world.rounds() == NOTHING, "D is on the machine of C"
    assert await world.pass_time(3600.0) == NOTHING
    world.machines[E] = "3"
    world.list(e="full")
    assert await world.rounds() == NOTHING
    world.list(e="up")
    assert world.auditor._wake.is_set(), "the next round comes soon"
    *_, copies = await world.rounds()
    assert copies == LEDGERS and not world.auditor.status()["crowded"] and world.auditor.status()["whole"]
    for ledger_id in range(1, LEDGERS + 1):
        assert await world.bookies_of(ledger_id) in ([A, C, E], [B, C, E])
    assert await world.pass_time(3600.0) == NOTHING


async def test_a_move_from_one_machine_that_fails_lacks_nothing_and_is_tried_again(world):
    await crowded(world)
    world.machines[E] = "3"
    world.broken = [E]
    world.list(e="up")
    await world.rounds()
    status = world.auditor.status()
    assert status["crowded"] == LEDGERS and not status["incomplete"]
    world.broken = []
    await world.pass_time(RETRY_PAUSES_S[0])
    assert not world.auditor.status()["crowded"]


async def test_a_lost_copy_is_made_again_before_copies_move_from_one_machine(world):
    await crowded(world)
    world.list(c="away", d="up")
    world.offset_s += GRACE_S
    await world.rounds()
    for ledger_id in range(1, LEDGERS + 1):
        assert await world.bookies_of(ledger_id) == [A, B, D]
    world.machines[E] = "3"
    world.list(e="up")
    await world.rounds()
    assert not world.auditor.status()["crowded"]


async def test_a_bookie_that_comes_back_on_another_machine_is_seen_there(world):
    await crowded(world)
    world.list(b="away")
    await world.rounds()
    world.machines[B] = "3"
    world.list(b="up")
    await world.rounds()
    assert not world.auditor.status()["crowded"] and not world.copies
