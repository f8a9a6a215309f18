"""What topics cost their brokers, as averages of what the brokers report."""

from collections.abc import Callable, Collection, Mapping

from ...protocol.load_figures import LoadReport
from .planner import Loads

FORGOTTEN_BELOW = 0.01
"""Entries per second."""
SETTLED_FROM = 0.5
"""The weight of all that was reported; in the long run it is 1."""


class LoadAverages:
    """Loads as exponential averages of what brokers report, so that a short peak moves nothing. Pure.

    `history` is the share of an average that is left after `period_s` of reports of nothing. Everything begins at 0. So
    a new unit, and every unit after the coordinator restarted, weighs little at first. The *shares* of units that began
    together are right from the first report on, but at first they are those of a moment. `settled` says when enough has
    been reported: a peak of one period then counts less than twice as much as in the long run.

    An average belongs to the unit and not to its broker: after a move the new owner's reports continue it. A unit that
    its broker does not name any longer falls, and is dropped when it is next to nothing. Thus no more units are held
    than brokers name in some tens of reports.
    """

    def __init__(self, history: float, period_s: float) -> None:
        self._history = history
        self._period_s = period_s
        self._held: dict[str, dict[str, float]] = {}
        """By broker that named it last: unit → average."""
        self._holders: dict[str, str] = {}
        self._rest: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        """By broker: the weight of its reports so far."""

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def settled(self) -> bool:
        """Whether reports have come for long enough. A broker that joins later begins with what it is given, and does
        not change this."""
        return any(weight >= SETTLED_FROM for weight in self._weights.values())

    def take(self, broker: str, report: LoadReport, is_owner: Callable[[str], bool]) -> None:
        """Count a report. What the broker names and does not own (any longer) is left out."""
        kept = self._history ** (report.interval_s / self._period_s)
        named = {one.unit: one.rates.load for one in report.heaviest if is_owner(one.unit)}
        for unit in named:
            self._hold(unit, broker)
        held = self._held.setdefault(broker, {})
        for unit, average in list(held.items()):
            average = kept * average + (1 - kept) * named.get(unit, 0.0)
            if average < FORGOTTEN_BELOW and unit not in named:
                del held[unit], self._holders[unit]
            else:
                held[unit] = average
        self._rest[broker] = kept * self._rest.get(broker, 0.0) + (1 - kept) * report.rest.load
        self._weights[broker] = kept * self._weights.get(broker, 0.0) + 1 - kept

    def keep_only(self, brokers: Collection[str]) -> None:
        """Forget what other brokers reported; what they had is known again when its new owners report it."""
        for broker in [broker for broker in self._held if broker not in brokers]:
            for unit in self._held.pop(broker):
                del self._holders[unit]
            self._rest.pop(broker, None)
            self._weights.pop(broker, None)

    def loads(self, owner_of: Callable[[str], str | None]) -> Loads:
        """All averages, each under the unit's present owner."""
        units: dict[str, float] = {}
        owners: dict[str, str] = {}
        for held in self._held.values():
            for unit, average in held.items():
                owner = owner_of(unit)
                if owner is not None:
                    units[unit], owners[unit] = average, owner
        return Loads(units, owners, dict(self._rest))

    def of_reports(self) -> Mapping[str, float]:
        """By broker: the average of what it reports."""
        return {broker: sum(held.values()) + self._rest.get(broker, 0.0) for broker, held in self._held.items()}

    def _hold(self, unit: str, broker: str) -> None:
        holder = self._holders.get(unit)
        if holder == broker:
            return
        average = self._held[holder].pop(unit) if holder is not None else 0.0
        self._held.setdefault(broker, {})[unit] = average
        self._holders[unit] = broker
