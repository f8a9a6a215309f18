"""Which units shall move so that brokers are loaded evenly. Pure: loads and owners in, a few moves out.

A *unit* is what moves as a whole, a string. Loads are averages over time (`LoadAverages`), in the same unit of measure
for all; nothing here depends on which.

A broker is *overloaded* when its load exceeds the mean of all brokers that take topics by the threshold, a share of the
mean, and by `least`. It sheds until it is above the mean by up to half of the threshold. The gap between the two keeps
a broker from shedding a little in each round.

Rules of a move, from the most loaded broker S to the least loaded one T:

1. T's load afterwards is below S's load before, by at least half of the threshold. So a single heavy unit does not go
   round, and the sum of the squares of all loads falls with each move. Without changes of load the moves end.
2. Of the units that may move, that one goes which leaves the greater of both loads lowest. Of equal ones the lightest.
3. A unit moves up to once in a plan, and only if `may_move` says so (it moved lately, for instance).
4. S and T both take topics. A broker that is being drained is neither, and counts in no mean.

If no unit of S fulfils the first rule, S keeps what it has, and the next one is looked at.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

UNIT_SHARE_MIN = 0.001
"""Units lighter than this share of the mean stay: a move costs their clients more than it brings."""


@dataclass(frozen=True)
class PlanLimits:
    """`threshold` is a share of the mean, `least` a load, `moves_max` holds for one plan."""

    threshold: float
    least: float
    moves_max: int


@dataclass(frozen=True)
class Loads:
    """`units` has the load of each unit that is known by itself, `owners` its broker. `rest` is the load of all other
    units of a broker together.
    """

    units: Mapping[str, float]
    owners: Mapping[str, str]
    rest: Mapping[str, float]

    def by_broker(self, brokers: Collection[str]) -> dict[str, float]:
        """The load of each of these brokers."""
        totals = {broker: self.rest.get(broker, 0.0) for broker in brokers}
        for unit, load in self.units.items():
            owner = self.owners.get(unit)
            if owner in totals:
                totals[owner] += load
        return totals


def plan(loads: Loads, takers: Collection[str], may_move: Callable[[str], bool], limits: PlanLimits) -> dict[str, str]:
    """Moves, unit → broker, in the order in which they help most. See the module."""
    totals = loads.by_broker(takers)
    moves: dict[str, str] = {}
    if len(totals) < 2:
        return moves
    mean = sum(totals.values()) / len(totals)
    begins = mean + max(limits.threshold * mean, limits.least)
    ends = mean + max(limits.threshold * mean, limits.least) / 2
    margin = ends - mean
    movable: dict[str, dict[str, float]] = {broker: {} for broker, total in totals.items() if total > begins}
    for unit, load in loads.units.items():
        owner = loads.owners.get(unit)
        if owner in movable and load >= UNIT_SHARE_MIN * mean and may_move(unit):
            movable[owner][unit] = load
    while movable and len(moves) < limits.moves_max:
        source = max(movable, key=lambda broker: (totals[broker], broker))
        target = min(totals, key=lambda broker: (totals[broker], broker))
        before, room = totals[source], totals[target]
        unit = _best(movable[source], before, room, margin) if before > ends else None
        if unit is None:
            del movable[source]
            continue
        load = movable[source].pop(unit)
        totals[source] -= load
        totals[target] += load
        moves[unit] = target
    return moves


def _best(units: Mapping[str, float], before: float, room: float, margin: float) -> str | None:
    """The unit that goes by rule 2, among those that rule 1 lets go; None when there is none."""
    helping = [unit for unit, load in units.items() if room + load <= before - margin]
    return min(
        helping, key=lambda unit: (max(before - units[unit], room + units[unit]), units[unit], unit), default=None
    )
