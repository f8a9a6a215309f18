"""What cannot be repaired now costs nothing until something changes that may help. Then none of it is forgotten."""

import itertools
from random import Random
from types import SimpleNamespace

import pytest

from magnetar.actors.auditor import due as due_module
from magnetar.actors.auditor.due import RETRY_PAUSES_S, FailedLedgers
from magnetar.actors.auditor.index import LedgerCondition
from magnetar.protocol.errors import MetadataUnavailable
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.storage.metadata.store import Write
from support.fakes.auditing import GRACE_S, LEDGERS, NAMES, NOTHING, A, B, C, D


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
    await world.auditor.audit()
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
