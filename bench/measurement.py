"""Latencies and rates under the field names of the OpenMessaging Benchmark, so that its tools can read them.

Latencies are recorded in microseconds into HDR histograms and reported in milliseconds. `publishLatency` runs from the
actual send to the receipt. `publishDelayLatency` is how late the send was against its schedule. It is recorded apart,
so that a stalled sender does not hide it (coordinated omission).
"""

import os
import random
from typing import Any

from hdrh.histogram import HdrHistogram

LATENCY_MAX_US = 120_000_000
QUANTILES = {"50pct": 50.0, "75pct": 75.0, "95pct": 95.0, "99pct": 99.0, "999pct": 99.9, "9999pct": 99.99}


def payload(size: int, seed: int = 1) -> bytes:
    """Half random, half zero, mixed: compresses about two to one, as the original's payloads do."""
    chance = random.Random(seed)
    data = bytearray(size)
    for index in chance.sample(range(size), size // 2):
        data[index] = chance.randrange(256)
    return bytes(data)


class Latency:
    """One histogram."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, LATENCY_MAX_US, 4)

    def record(self, seconds: float, count: int = 1) -> None:
        self._histogram.record_value(min(max(int(seconds * 1e6), 1), LATENCY_MAX_US), count)

    def quantile_ms(self, percent: float) -> float:
        return self._histogram.get_value_at_percentile(percent) / 1000

    @property
    def average_ms(self) -> float:
        return self._histogram.get_mean_value() / 1000

    @property
    def maximum_ms(self) -> float:
        return self._histogram.get_max_value() / 1000

    def fields(self, name: str) -> dict[str, Any]:
        """`aggregated<Name>Avg`, `…50pct` to `…Max`, and `…Quantiles`, in milliseconds."""
        quantiles = {f"aggregated{name}{suffix}": self.quantile_ms(percent) for suffix, percent in QUANTILES.items()}
        curve = {str(percent): self.quantile_ms(percent) for percent in (*range(0, 100, 5), 99, 99.9, 99.99, 100)}
        return {
            f"aggregated{name}Avg": self.average_ms,
            **quantiles,
            f"aggregated{name}Max": self.maximum_ms,
            f"aggregated{name}Quantiles": curve,
        }


def measurement(
    workload: str,
    *,
    message_size: int,
    topics: int = 1,
    partitions: int = 1,
    publish_rates: list[float] | None = None,
    consume_rates: list[float] | None = None,
    latencies: dict[str, Latency] | None = None,
    driver: str = "Magnetar",
    **more: Any,
) -> dict[str, Any]:
    """One result file's worth of fields. Rates are in messages a second; `latencies` by the original's names:
    PublishLatency, PublishDelayLatency, EndToEndLatency.
    """
    fields: dict[str, Any] = {
        "workload": workload,
        "driver": driver,
        "messageSize": message_size,
        "topics": topics,
        "partitions": partitions,
        "producersPerTopic": 1,
        "publishRate": publish_rates or [],
        "consumeRate": consume_rates or [],
        "cores": os.cpu_count(),
        **more,
    }
    for name, latency in (latencies or {}).items():
        fields.update(latency.fields(name))
    return fields
