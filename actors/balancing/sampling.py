"""What a broker's topics cost: a report from counters that are there anyway, once per interval. Pure.

The publish and dispatch paths do nothing for it. A sample compares each topic's counters with those of the last sample.
Topics that moved no data are not reported. A topic that was loaded since is counted from its next sample on: its
counters may go on from where it was closed before.
"""

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from ...protocol.load_figures import UNITS_PER_REPORT_MAX, LoadReport, Rates, UnitRates, load_of
from ...protocol.system_topics import is_system_topic


def unit_of(topic: str) -> str | None:
    """The unit of a partition or plain topic: itself. None: it never moves for its load (a topic of the cluster's own,
    such as that of a broker's health check)."""
    return None if is_system_topic(topic) else topic


INTERVAL_MIN_S = 0.001


class TopicCounts(NamedTuple):
    """What went in and out since a topic was loaded."""

    messages_in: int
    entries_in: int
    bytes_in: int
    messages_out: int
    entries_out: int
    bytes_out: int


NOTHING = TopicCounts(0, 0, 0, 0, 0, 0)


class LoadSampler:
    """See the module: `look` at each loaded topic, then `report`. Up to `limit` units are named. Times are in seconds,
    those of one clock; `cpu_s` is what the process has used in all.
    """

    def __init__(self, now_s: float, cpu_s: float, limit: int = UNITS_PER_REPORT_MAX) -> None:
        self._limit = limit
        self._last: dict[str, tuple[int, TopicCounts]] = {}
        self._seen: dict[str, tuple[int, TopicCounts]] = {}
        """By topic: the epoch under which it was loaded, and its counters."""
        self._units: dict[str, TopicCounts] = {}
        """What went in and out of those that moved data since the last report."""
        self._unnamed = NOTHING
        self._moved = 0
        self._at_s = now_s
        self._cpu_s = cpu_s

    def look(self, topic: str, epoch: int, counts: TopicCounts) -> None:
        """Take a topic's counters as they are now."""
        last = self._seen.get(topic) or self._last.get(topic)  # a round that failed has seen some of them
        if last is None or last[0] != epoch:
            self._seen[topic] = (epoch, counts)
            return
        if last[1] == counts:
            self._seen[topic] = last
            return
        self._seen[topic] = (epoch, counts)
        self._moved += 1
        # A consumer's meter is added to its subscription's as it leaves. Between the two a sum can be smaller.
        moved = TopicCounts(*[max(0, now - then) for now, then in zip(counts, last[1], strict=True)])
        unit = unit_of(topic)
        if unit is None:
            self._unnamed = _sum(self._unnamed, moved)
        else:
            before = self._units.get(unit)
            self._units[unit] = moved if before is None else _sum(before, moved)

    def report(self, now_s: float, cpu_s: float) -> LoadReport:
        """The report on the time since the last one."""
        interval_s = max(now_s - self._at_s, INTERVAL_MIN_S)
        units, self._units = self._units, {}
        loads = [(load_of(moved), unit) for unit, moved in units.items()]
        heaviest = [(unit, units.pop(unit)) for _, unit in heapq.nlargest(self._limit, loads)]
        columns = [sum(column) for column in zip(self._unnamed, *units.values(), strict=True)]
        named = [UnitRates(unit, _rates(moved, interval_s)) for unit, moved in heaviest]
        cpu = max(0.0, (cpu_s - self._cpu_s) / interval_s)
        found = LoadReport(interval_s, named, _rates(columns, interval_s), self._moved, cpu)
        self._last, self._seen = self._seen, {}
        self._unnamed, self._moved = NOTHING, 0
        self._at_s, self._cpu_s = now_s, cpu_s
        return found


def _sum(one: TopicCounts, other: TopicCounts) -> TopicCounts:
    return TopicCounts(*[first + second for first, second in zip(one, other, strict=True)])


def _rates(moved: Iterable[int], interval_s: float) -> Rates:
    return Rates(*[count / interval_s for count in moved])
