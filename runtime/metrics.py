"""Counters and gauges of one service, in Prometheus' text format.

Each service has a registry of its own, because several of them may live in one process.
"""

from collections.abc import Callable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

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

    def render(self) -> bytes:
        """All samples, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def _labelled(self, metric: Metric) -> Metric:
        return metric.labels(**self._labels)
