"""What brokers tell the coordinator of their load, and what it tells the admin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

UNITS_PER_REPORT_MAX = 256
"""The heaviest ones are named; what is left is reported as a sum."""
BYTES_AS_DEAR_AS_AN_ENTRY = 16 << 10


def load_of(figures: Sequence[float]) -> float:
    """The load of figures in the order of `Rates`: entries, and bytes as so many entries."""
    _, entries_in, bytes_in, _, entries_out, bytes_out = figures
    return entries_in + entries_out + (bytes_in + bytes_out) / BYTES_AS_DEAR_AS_AN_ENTRY


class Rates(NamedTuple):
    """What went in and out per second: messages, entries (batches count once) and bytes."""

    messages_in: float = 0.0
    entries_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    entries_out: float = 0.0
    bytes_out: float = 0.0

    @property
    def load(self) -> float:
        """What this costs a broker, in entries per second. An entry costs the same, however many messages it has."""
        return load_of(self)

    def plus(self, other: "Rates") -> "Rates":
        return Rates(*(one + another for one, another in zip(self, other, strict=True)))


class UnitRates(NamedTuple):
    """The rates of one unit: what a broker owns as a whole (`actors.balancing.balancer`)."""

    unit: str
    rates: Rates


@dataclass(frozen=True)
class LoadReport:
    """What one broker did in the last `interval_s` seconds.

    `heaviest` names up to `UNITS_PER_REPORT_MAX` units, `rest` is the sum of all others. `topics` counts those that
    moved data. `cpu` is the share of one processor that its process used; several brokers may be in one process.
    """

    interval_s: float
    heaviest: list[UnitRates]
    rest: Rates
    topics: int
    cpu: float

    @property
    def total(self) -> Rates:
        """Of all units."""
        total = self.rest
        for one in self.heaviest:
            total = total.plus(one.rates)
        return total


@dataclass(frozen=True)
class BrokerLoad:
    """A broker's last report, `age_s` seconds ago, and its load on average, in entries per second."""

    report: LoadReport
    age_s: float
    load: float


@dataclass(frozen=True)
class ClusterLoad:
    """Loads by broker, and how many moves the coordinator has begun for them since it started."""

    brokers: dict[str, BrokerLoad]
    moves: int
    rounds: int
