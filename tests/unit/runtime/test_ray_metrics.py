"""What is given to Ray's metrics: gauges as they are, counters by what was added."""

import asyncio
from typing import Any

import pytest
import ray.util.metrics

from magnetar.protocol.errors import CoordinatorUnavailable
from magnetar.runtime import ray_metrics
from magnetar.runtime.ray_metrics import Figure, RayMetrics, report_always

FIGURES = (
    Figure("some_topics", "gauge", "Topics."),
    Figure("some_messages", "counter", "Messages."),
    Figure("some_latency", "gauge", "Latency.", "quantile"),
    Figure("some_tasks", "counter", "Tasks.", "status"),
)


class Recorded:
    """Stands for Ray's gauges and counters."""

    def __init__(self, given: list[Any], name: str, keys: tuple[str, ...]) -> None:
        self.given = given
        self.name = name
        self.keys = keys

    def set(self, value: float, labels: dict[str, str]) -> None:
        assert set(labels) == set(self.keys)
        self.given.append((self.name, value, *(labels[one] for one in self.keys[1:])))

    inc = set


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Ray was given: (name, value, value of the figure's own label)."""
    found: list[Any] = []

    def made(name: str, description: str, keys: tuple[str, ...]) -> Recorded:
        return Recorded(found, name, keys)

    monkeypatch.setattr(ray.util.metrics, "Gauge", made)
    monkeypatch.setattr(ray.util.metrics, "Counter", made)
    return found


def test_a_gauge_is_given_each_time_and_a_counter_by_what_was_added(given: list[Any]) -> None:
    metrics = RayMetrics(FIGURES, {"process": "broker-1"})
    metrics.report({"some_topics": 3, "some_messages": 10})
    metrics.report({"some_topics": 3, "some_messages": 10})
    metrics.report({"some_topics": 2, "some_messages": 14})
    assert given == [
        ("some_topics", 3),
        ("some_messages", 10),
        ("some_topics", 3),
        ("some_topics", 2),
        ("some_messages", 4),
    ]


def test_a_figure_with_a_label_has_a_value_for_each_of_its_cases(given: list[Any]) -> None:
    metrics = RayMetrics(FIGURES, {"process": "broker-1"})
    metrics.report({"some_latency": {"0.5": 1.5, "1.0": 9.0}, "some_tasks": {"SUCCESS": 2}})
    metrics.report({"some_tasks": {"SUCCESS": 5, "FAILURE": 1}})
    assert given == [
        ("some_latency", 1.5, "0.5"),
        ("some_latency", 9.0, "1.0"),
        ("some_tasks", 2, "SUCCESS"),
        ("some_tasks", 3, "SUCCESS"),
        ("some_tasks", 1, "FAILURE"),
    ]


def test_a_figure_that_was_not_declared_is_refused(given: list[Any]) -> None:
    with pytest.raises(KeyError):
        RayMetrics(FIGURES, {"process": "broker-1"}).report({"others": 1})


@pytest.mark.parametrize("error", [CoordinatorUnavailable("away"), ZeroDivisionError()])
async def test_a_round_that_fails_does_not_end_the_reports(
    given: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(ray_metrics, "REPORT_INTERVAL_S", 0.0)
    rounds = 0
    reported = asyncio.Event()

    async def read() -> dict[str, float]:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise error
        reported.set()
        return {"some_topics": rounds}

    reporting = asyncio.create_task(report_always(RayMetrics(FIGURES, {"process": "p"}), read))
    await asyncio.wait_for(reported.wait(), 10)
    await asyncio.sleep(0)
    reporting.cancel()
    await asyncio.wait({reporting})
    assert given[0] == ("some_topics", 2)
