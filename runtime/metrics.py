"""Counters and gauges of one service, in Prometheus' text format.

Each service has a registry of its own, because several of them may live in one process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

Metric = TypeVar("Metric", Counter, Gauge)


class Metrics:
    """A registry whose samples all carry the labels `service` and `node`."""

    def __init__(self, service: str, node_id: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"service": service, "node": node_id}

    def counter(self, name: str, description: str) -> Counter:
        """A counter; its exported name gets the suffix `_total`."""
        return self._labelled(Counter(name, description, list(self._labels), registry=self._registry))

    def gauge(self, name: str, description: str, read: Callable[[], float] | None = None) -> Gauge:
        """A gauge, or one that calls `read` at each scrape."""
        gauge = self._labelled(Gauge(name, description, list(self._labels), registry=self._registry))
        if read is not None:
            gauge.set_function(read)
        return gauge

    def copied_counter(self, name: str, description: str, label: str = "") -> "CopiedCounter":
        """A counter of something that another service counts; its exported name gets the suffix `_total`.

        With a further label there is a sample for each value of it.
        """
        counter = CopiedCounter(name, description, self._labels, label)
        self._registry.register(counter)
        return counter

    def render(self) -> bytes:
        """All samples, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def _labelled(self, metric: Metric) -> Metric:
        return metric.labels(**self._labels)


class CopiedCounter(Collector):
    """A counter whose value is set, and not increased: it was counted elsewhere."""

    def __init__(self, name: str, description: str, labels: Mapping[str, str], label: str) -> None:
        self._name = name
        self._description = description
        self._labels = [*labels, *([label] if label else [])]
        self._values = [*labels.values()]
        self._has_label = bool(label)
        self._counts: Mapping[str, float] = {} if label else {"": 0.0}

    def set(self, counts: Mapping[str, float] | float) -> None:
        """The counts by the value of the further label; the one count where there is no such label."""
        self._counts = counts if isinstance(counts, Mapping) else {"": counts}

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Its name, which the registry checks."""
        return [CounterMetricFamily(self._name, self._description, labels=self._labels)]

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._description, labels=self._labels)
        for value, count in self._counts.items():
            family.add_metric([*self._values, *([value] if self._has_label else [])], count)
        yield family
