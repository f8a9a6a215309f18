"""Intervals of statistics, and percentiles of latencies."""

import random

import pytest

from magnetar.client.statistics.intervals import Interval, rate
from magnetar.client.statistics.latencies import PERCENTILES, Latencies, percentiles_ms


def test_rates_are_of_the_time_so_far_until_an_interval_has_ended() -> None:
    interval = Interval(100.0)
    assert interval.last(105.0, (50, 500)) == ((50, 500), 5.0)
    assert interval.since((50, 500)) == (50, 500)


def test_rates_are_of_the_last_whole_interval_once_there_is_one() -> None:
    interval = Interval(100.0)
    interval.end(160.0, (60, 600))
    assert interval.last(165.0, (70, 700)) == ((60, 600), 60.0)
    assert interval.since((70, 700)) == (10, 100)
    interval.end(220.0, (75, 700))
    assert interval.last(220.0, (75, 700)) == ((15, 100), 60.0)
    assert interval.since((75, 700)) == (0, 0)


def test_no_time_has_no_rate() -> None:
    assert rate(5, 0.0) == 0.0


@pytest.mark.parametrize("spread", [0.0001, 0.01, 1.0, 1_000.0])
def test_percentiles_are_exact_to_two_percent_and_the_maximum_exact(spread: float) -> None:
    chance = random.Random(7)
    values = sorted(chance.random() * spread for _ in range(5_000))
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    *found, maximum = percentiles_ms([latencies.last()])
    expected = [values[int(percentile * len(values) + 0.999999) - 1] * 1_000 for percentile in PERCENTILES]
    assert found == [pytest.approx(one, rel=0.02, abs=0.001) for one in expected]
    assert maximum == values[-1] * 1_000


def test_percentiles_of_several_are_those_of_all_values_together() -> None:
    fast, slow = Latencies(), Latencies()
    for _ in range(90):
        fast.add(0.001)
    for _ in range(10):
        slow.add(1.0)
    median, _, percentile95, *_, maximum = percentiles_ms([fast.last(), slow.last()])
    assert median == pytest.approx(1.0, rel=0.02)
    assert percentile95 == pytest.approx(1_000.0, rel=0.02)
    assert maximum == 1_000.0


def test_without_values_percentiles_are_zero() -> None:
    assert list(percentiles_ms([])) == list(percentiles_ms([Latencies().last()])) == [0.0] * 6


def test_latencies_are_of_the_last_whole_interval_once_there_is_one() -> None:
    latencies = Latencies()
    latencies.add(0.5)
    latencies.end_interval()
    latencies.add(2.0)
    assert percentiles_ms([latencies.last()])[-1] == 500.0
    latencies.end_interval()
    assert percentiles_ms([latencies.last()])[-1] == 2_000.0
    latencies.end_interval()
    assert percentiles_ms([latencies.last()])[-1] == 0.0


def test_buckets_are_bounded_over_all_latencies_that_can_be() -> None:
    latencies = Latencies()
    value = 1e-7
    while value < 40_000_000:
        latencies.add(value)
        value *= 1.001
    assert len(latencies.last()[0]) < 1_500
