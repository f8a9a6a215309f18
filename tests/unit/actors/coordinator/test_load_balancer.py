"""When the balancer has units moved, and when it leaves them alone."""

import asyncio
import dataclasses
import math
from collections.abc import Callable, Mapping

import pytest

from magnetar.actors.coordinator import load_balancer as rounds
from magnetar.actors.coordinator.load_balancer import REPORTS_BEFORE, LoadBalancer
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.load_figures import UNITS_PER_REPORT_MAX, LoadReport, Rates, UnitRates
from magnetar.runtime.settings.declarations import Settings

A, B = "broker-1", "broker-2"
SETTINGS = Settings(
    load_report_interval_ms=3_600_000,
    load_shedding_interval_minutes=60,
    load_history_share=0,
    load_least_entries_over_mean=1,
    load_moves_max=2,
)


class Mover:
    """Moves at once, and takes notes."""

    def __init__(self, owners: dict[str, str]) -> None:
        self.owners = owners
        self.taking = [A, B]
        self.moved: list[Mapping[str, str]] = []
        self.gate: asyncio.Event | None = None

    def owner_of(self, unit: str) -> str | None:
        return self.owners.get(unit)

    def takers(self) -> list[str]:
        return self.taking

    async def move_for_load(self, choose: Callable[[], Mapping[str, str]]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        moves = choose()
        if moves:
            self.moved.append(moves)
        self.owners.update(moves)


def report(**units: float) -> LoadReport:
    named = [UnitRates(unit, Rates(entries_in=load)) for unit, load in units.items()]
    return LoadReport(60.0, named, Rates(), len(named), 0.5)


def overloaded(settings: Settings = SETTINGS) -> tuple[Mover, LoadBalancer]:
    """All load is with one of two brokers, and both have reported often enough."""
    mover = Mover({"x": A, "y": A, "z": A})
    balancer = LoadBalancer(settings, mover, lambda *who: True)
    for _ in range(REPORTS_BEFORE):
        balancer.take(A, report(x=100.0, y=100.0, z=100.0))
        balancer.take(B, report())
    return mover, balancer


async def test_an_overloaded_broker_gives_some_of_its_units_away() -> None:
    mover, balancer = overloaded()
    await balancer.balance()
    assert mover.moved == [{"x": B}]
    assert (balancer.moves, balancer.rounds) == (1, 1)


@pytest.mark.parametrize("age", [0, 1, 3, 6, 60])
async def test_a_peak_of_one_minute_moves_nothing_however_long_the_coordinator_runs(age: int) -> None:
    mover = Mover({"x": A, "y": A, "z": B})
    settings = dataclasses.replace(
        SETTINGS, load_shedding_interval_minutes=1, load_history_share=0.9, load_threshold_percentage=35
    )
    balancer = LoadBalancer(settings, mover, lambda *who: True)

    def minute(peak: float) -> None:
        for _ in range(REPORTS_BEFORE):
            balancer.take(A, part_of_a_minute(x=100.0 + peak, y=100.0))
            balancer.take(B, part_of_a_minute(z=200.0))

    def part_of_a_minute(**units: float) -> LoadReport:
        return dataclasses.replace(report(**units), interval_s=60.0 / REPORTS_BEFORE)

    for _ in range(age):
        minute(0.0)
        await balancer.balance()
    minute(900.0)
    await balancer.balance()
    for _ in range(30):
        minute(0.0)
        await balancer.balance()
    assert mover.moved == []
    for _ in range(60):  # a load that stays is another thing
        minute(900.0)
        await balancer.balance()
    assert mover.moved[0] == {"y": B}


async def test_a_unit_that_moved_stays_for_the_grace_period() -> None:
    mover, balancer = overloaded()
    await balancer.balance()
    balancer.take(A, report())
    balancer.take(B, report(x=500.0, new=500.0))
    mover.owners["new"] = B
    balancer.take(B, report(x=500.0, new=500.0))
    await balancer.balance()
    assert mover.moved == [{"x": B}, {"new": A}]


async def test_without_a_grace_period_it_may_move_at_once() -> None:
    mover, balancer = overloaded(dataclasses.replace(SETTINGS, load_shedding_grace_minutes=0))
    await balancer.balance()
    mover.owners["x"], mover.owners["y"], mover.owners["z"] = B, B, B
    balancer.take(A, report())
    balancer.take(B, report(x=100.0, y=90.0, z=90.0))
    await balancer.balance()
    assert mover.moved == [{"x": B}, {"x": A}]


async def test_what_an_operator_moved_stays_where_it_is() -> None:
    mover, balancer = overloaded()
    balancer.ordered(["x", "y"])
    await balancer.balance()
    assert mover.moved == [{"z": B}]


async def test_only_so_many_orders_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MOVES_REMEMBERED_MAX", 2)
    mover, balancer = overloaded()
    balancer.ordered(["x", "y", "z"])
    await balancer.balance()
    assert mover.moved == [{"x": B}]


async def test_nothing_moves_while_a_broker_has_not_reported_often_enough() -> None:
    mover, balancer = overloaded()
    mover.taking.append("broker-3")
    await balancer.balance()
    assert mover.moved == []
    for _ in range(REPORTS_BEFORE):
        balancer.take("broker-3", report())
    await balancer.balance()
    assert set(mover.moved[0].values()) <= {B, "broker-3"}


async def test_nothing_moves_when_a_broker_stopped_reporting() -> None:
    mover, balancer = overloaded(dataclasses.replace(SETTINGS, load_report_interval_ms=10))
    balancer._silence_s = 0.02
    await asyncio.sleep(0.03)
    balancer.take(A, report(x=100.0))
    assert list((await balancer.cluster_load()).brokers) == [A]
    await balancer.balance()
    assert mover.moved == []


@pytest.mark.parametrize("off", ["load_balancer_enabled", "load_shedding_enabled"])
async def test_the_settings_switch_it_off(off: str) -> None:
    mover, balancer = overloaded(dataclasses.replace(SETTINGS, **{off: False}))
    await balancer.balance()
    assert mover.moved == []
    assert list((await balancer.cluster_load()).brokers) == [A, B]


async def test_the_plan_is_made_when_other_moves_are_done() -> None:
    mover, balancer = overloaded()
    mover.gate = asyncio.Event()
    round_ = asyncio.create_task(balancer.balance())
    await asyncio.sleep(0)
    mover.owners["x"] = B  # the other moves did this
    mover.gate.set()
    await round_
    assert mover.moved == [], "two units and one: moving another would only swap them"


async def test_nothing_moves_when_the_last_other_broker_left_meanwhile() -> None:
    mover, balancer = overloaded()
    mover.gate = asyncio.Event()
    round_ = asyncio.create_task(balancer.balance())
    await asyncio.sleep(0)
    mover.taking.remove(B)
    mover.gate.set()
    await round_
    assert mover.moved == []


async def test_rounds_go_on_after_an_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    balancer = overloaded(dataclasses.replace(SETTINGS, load_shedding_interval_minutes=0.0001))[1]
    twice = asyncio.Event()
    calls: list[None] = []

    async def balance() -> None:
        calls.append(None)
        if len(calls) > 2:
            twice.set()
        raise (ProtocolError("cannot"), ValueError("a defect"))[len(calls) % 2]

    monkeypatch.setattr(balancer, "balance", balance)
    running = asyncio.create_task(balancer.run())
    async with asyncio.timeout(10):
        await twice.wait()
    running.cancel()
    assert "balanced later: cannot" in caplog.text and "a defect" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        LoadReport(0.0, [], Rates(), 0, 0.0),
        LoadReport(1.0, [], Rates(), 0, math.nan),
        LoadReport(1.0, [], Rates(bytes_in=-1.0), 0, 0.0),
        LoadReport(1.0, [UnitRates("x", Rates(entries_out=math.inf))], Rates(), 1, 0.0),
        LoadReport(1.0, [UnitRates("x", Rates())] * (UNITS_PER_REPORT_MAX + 1), Rates(), 1, 0.0),
    ],
)
async def test_an_impossible_report_is_refused(wrong: LoadReport) -> None:
    balancer = overloaded()[1]
    with pytest.raises(ProtocolError, match="the load report of broker-1 is impossible"):
        balancer.take(A, wrong)


async def test_the_view_has_reports_and_averages() -> None:
    balancer = overloaded(dataclasses.replace(SETTINGS, load_history_share=0.5))[1]
    found = (await balancer.cluster_load()).brokers[A]
    assert found.report.total.entries_in == 300.0 and 0 < found.load < 300.0 and found.age_s >= 0
