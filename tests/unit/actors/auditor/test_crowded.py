"""Copies that lie on one machine move when there is a bookie on another one, and cost nothing until then."""

from magnetar.actors.auditor.due import RETRY_PAUSES_S
from support.fakes.auditing import GRACE_S, LEDGERS, NOTHING, A, B, C, D, E


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
