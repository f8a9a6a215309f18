"""Reports, averages and plans as a loop: skewed loads become even and stay where they are, whatever noise there is."""

from collections import Counter
from random import Random

import pytest

from magnetar.actors.balancing.averages import LoadAverages
from magnetar.actors.balancing.planner import PlanLimits, plan
from magnetar.protocol.load_figures import LoadReport, Rates, UnitRates

REPORT_S = 5.0
ROUND_S = 60.0
COOL_DOWN_S = 1800.0
LIMITS = PlanLimits(threshold=0.1, least=10.0, moves_max=4)


class World:
    """Units with true loads on brokers, of which reports show a noisy picture."""

    def __init__(self, random: Random, brokers: int, loads: dict[str, float], noise: float) -> None:
        self.brokers = [f"broker-{number}" for number in range(brokers)]
        self.loads = loads
        self.owners = dict.fromkeys(loads, self.brokers[0])
        self.moves: list[tuple[float, str, str, str]] = []
        """(time, unit, from, to)."""
        self.now_s = 0.0
        self._random = random
        self._noise = noise
        self._averages = LoadAverages(0.9, ROUND_S)
        self._moved_at: dict[str, float] = {}

    def run(self, seconds: float) -> None:
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s += REPORT_S
            for broker in self.brokers:
                self._averages.take(broker, self._report(broker), lambda unit, of=broker: self.owners[unit] == of)
            if self.now_s % ROUND_S == 0:
                self._round()

    def _report(self, broker: str) -> LoadReport:
        named = [
            UnitRates(unit, Rates(entries_in=load * max(0.0, self._random.gauss(1.0, self._noise))))
            for unit, load in self.loads.items()
            if self.owners[unit] == broker
        ]
        return LoadReport(REPORT_S, named, Rates(), len(named), 0.0)

    def _round(self) -> None:
        loads = self._averages.loads(self.owners.get)
        moves = plan(loads, self.brokers, self._may_move, LIMITS)
        for unit, target in moves.items():
            self.moves.append((self.now_s, unit, self.owners[unit], target))
            self.owners[unit], self._moved_at[unit] = target, self.now_s

    def _may_move(self, unit: str) -> bool:
        return self.now_s - self._moved_at.get(unit, -COOL_DOWN_S) >= COOL_DOWN_S

    @property
    def overload(self) -> float:
        """The true load of the busiest broker ÷ the mean."""
        totals = Counter({broker: 0.0 for broker in self.brokers})
        for unit, owner in self.owners.items():
            totals[owner] += self.loads[unit]
        return max(totals.values()) * len(self.brokers) / sum(totals.values())


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_a_skewed_load_becomes_even_and_then_hardly_anything_moves(seed: int, noise: float) -> None:
    random = Random(seed)
    loads = {f"unit-{number}": 1000.0 / number for number in range(2, 42)}
    world = World(random, random.randint(2, 6), loads, noise)
    world.run(15 * 60)
    assert world.overload < 1.2
    begun = len(world.moves)
    assert begun <= len(loads)
    world.run(6 * 3600)
    assert world.overload < 1.2
    assert len(world.moves) - begun <= (6 if noise else 0), world.moves[begun:]


@pytest.mark.parametrize("seed", range(5))
def test_no_unit_goes_to_and_fro_under_heavy_noise(seed: int) -> None:
    random = Random(seed)
    world = World(random, 3, {f"unit-{number}": 100.0 for number in range(12)}, 0.8)
    world.run(12 * 3600)
    times: dict[str, float] = {}
    for at_s, unit, _, _ in world.moves:
        assert at_s - times.get(unit, -COOL_DOWN_S) >= COOL_DOWN_S
        times[unit] = at_s
    assert len(world.moves) <= 20, world.moves


def test_one_unit_with_nearly_all_load_moves_at_most_once() -> None:
    world = World(Random(1), 3, {"heavy": 1000.0, "a": 5.0, "b": 5.0}, 0.3)
    world.run(6 * 3600)
    assert sum(unit == "heavy" for _, unit, _, _ in world.moves) <= 1


def test_a_short_peak_moves_nothing_and_a_lasting_one_does() -> None:
    world = World(Random(1), 2, {f"unit-{number}": 100.0 for number in range(4)}, 0.0)
    world.run(1800)
    before = len(world.moves)
    world.loads["unit-0"] = 250.0
    world.run(2 * REPORT_S)
    world.loads["unit-0"] = 100.0
    world.run(1800)
    assert len(world.moves) == before
    owner = world.owners["unit-0"]
    world.loads["unit-0"] = 1000.0
    world.run(2 * COOL_DOWN_S)
    assert [unit for unit, one in world.owners.items() if one == owner] == ["unit-0"]
