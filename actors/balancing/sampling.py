"""What a broker's topics cost: a report from counters that are there anyway, once per interval. Pure.

The publish and dispatch paths do nothing for it. A sample compares each topic's counters with those of the last sample.
Topics that moved no data are not reported. A topic that was loaded since is counted from its next sample on: its
counters may go on from where it was closed before.
"""

import heapq
from typing import NamedTuple

from ...protocol.load_figures import UNITS_PER_REPORT_MAX, LoadReport, Rates, UnitRates
from .units import unit_of

INTERVAL_MIN_S = 0.001


class TopicCounts(NamedTuple):
    """What went in and out since a topic was loaded."""

    messages_in: int
    entries_in: int
    bytes_in: int
    messages_out: int
    entries_out: int
    bytes_out: int


class SampledTopic(NamedTuple):
    """A loaded topic: its full name, the epoch under which it was loaded, its counters."""

    topic: str
    epoch: int
    counts: TopicCounts


class LoadSampler:
    """See the module: `look` at each loaded topic, then `report`. Up to `limit` units are named. Times are in seconds,
    those of one clock; `cpu_s` is what the process has used in all.
    """

    def __init__(self, now_s: float, cpu_s: float, limit: int = UNITS_PER_REPORT_MAX) -> None:
        self._limit = limit
        self._last: dict[str, SampledTopic] = {}
        self._seen: dict[str, SampledTopic] = {}
        self._changes: dict[str, SampledTopic] = {}
        self._at_s = now_s
        self._cpu_s = cpu_s

    def look(self, found: SampledTopic) -> None:
        """Take a topic's counters as they are now."""
        last = self._last.get(found.topic)
        if last is None or last.epoch != found.epoch:
            self._seen[found.topic] = found
        elif last.counts == found.counts:
            self._seen[found.topic] = last
        else:
            self._seen[found.topic] = found
            self._changes[found.topic] = last

    def report(self, now_s: float, cpu_s: float) -> LoadReport:
        """The report on the time since the last one."""
        interval_s = max(now_s - self._at_s, INTERVAL_MIN_S)
        units: dict[str, Rates] = {}
        rest = Rates()
        for topic, last in self._changes.items():
            # A consumer's meter is added to its subscription's as it leaves. Between the two a sum can be smaller.
            changes = (max(0, now - then) for now, then in zip(self._seen[topic].counts, last.counts, strict=True))
            rates = Rates(*(change / interval_s for change in changes))
            unit = unit_of(topic)
            if unit is None:
                rest = rest.plus(rates)
            else:
                units[unit] = units[unit].plus(rates) if unit in units else rates
        heaviest = heapq.nlargest(self._limit, units.items(), key=lambda one: (one[1].load, one[0]))
        for unit, _ in heaviest:
            del units[unit]
        for rates in units.values():
            rest = rest.plus(rates)
        cpu = max(0.0, (cpu_s - self._cpu_s) / interval_s)
        named = [UnitRates(unit, rates) for unit, rates in heaviest]
        found = LoadReport(interval_s, named, rest, len(self._changes), cpu)
        self._last, self._seen, self._changes = self._seen, {}, {}
        self._at_s, self._cpu_s = now_s, cpu_s
        return found
