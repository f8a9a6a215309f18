"""Figures of a process in Ray's metrics (`ray.util.metrics`), so that Ray's dashboard and Prometheus show them.

A process keeps its figures anyway. A reporter reads them every `REPORT_INTERVAL_S`, and gives them to Ray. One takes
5 µs, and up to 70 µs while Ray exports, so a round of twenty may run on an event loop. Nothing is given to Ray for each
message. Labels are a few fixed ones: one for each topic would make Prometheus grow with the topics.

Ray exports a figure as `ray_` and its name, a counter with the suffix `_total`, from the node where the process runs.
Ray's own labels are there, too: `WorkerId` tells a process from the one that it replaced.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from ..protocol.errors import MagnetarError

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 5.0
"""Ray exports what it was given every 10 s."""
REST_PER_ROUND = 100
"""After a round that took a second, the next one waits for a hundred: of very many topics, figures come more seldom."""


class Figure(NamedTuple):
    """One figure, as Ray's metrics have it. A counter never gets smaller; its name comes without `_total`.

    With `by` it has a value for each of some values of that label.
    """

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    by: str = ""


FigureValues = Mapping[str, float | Mapping[str, float]]
"""The values of figures by their names; by the value of its label for a figure that has one."""


class RayMetrics:
    """The figures of one process, with the same labels on each. For a process that has joined a Ray."""

    def __init__(self, figures: Sequence[Figure], labels: Mapping[str, str]) -> None:
        from ray.util.metrics import Counter, Gauge

        self._labels = dict(labels)
        self._by = {one.name: one.by for one in figures}
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        for one in figures:
            keys = (*labels, one.by) if one.by else tuple(labels)
            if one.kind == "gauge":
                self._gauges[one.name] = Gauge(one.name, one.meaning, keys)
            else:
                self._counters[one.name] = Counter(one.name, one.meaning, keys)
        self._counted: dict[tuple[str, str], float] = {}

    def report(self, values: FigureValues) -> None:
        """Give Ray the values of some figures. Raises KeyError for a name that was not declared."""
        for name, given in values.items():
            for case, value in given.items() if isinstance(given, Mapping) else [("", given)]:
                self._report(name, case, value)

    def _report(self, name: str, case: str, value: float) -> None:
        by = self._by[name]
        labels = {**self._labels, by: case} if by else self._labels
        if name in self._gauges:
            self._gauges[name].set(value, labels)
            return
        before = self._counted.get((name, case), 0.0)
        if value > before:  # Ray takes what was added
            self._counters[name].inc(value - before, labels)
            self._counted[name, case] = value


async def report_always(metrics: RayMetrics, read: Callable[[], Awaitable[FigureValues]]) -> None:
    """Report what `read` says, until cancelled. A round that fails is left out: the service may be between sessions."""
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        try:
            metrics.report(await read())
        except MagnetarError as error:
            logger.debug("the figures are not known now: %s", error)
        except Exception:  # of any kind: without figures nobody sees that something is wrong
            logger.exception("the figures could not be reported; the next round follows")
        await asyncio.sleep(max(REPORT_INTERVAL_S, REST_PER_ROUND * (loop.time() - began_s)))
