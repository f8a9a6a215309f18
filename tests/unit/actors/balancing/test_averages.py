"""Averages of reported loads: what they hold, what they forget, and whose they are."""

import pytest

from magnetar.actors.balancing.averages import LoadAverages
from magnetar.protocol.load_figures import LoadReport, Rates, UnitRates

A, B = "broker-1", "broker-2"


def report(interval_s: float = 5.0, rest: float = 0.0, **units: float) -> LoadReport:
    named = [UnitRates(unit, Rates(entries_in=load)) for unit, load in units.items()]
    return LoadReport(interval_s, named, Rates(entries_in=rest), len(units), 0.0)


def owned(unit: str) -> bool:
    return True


def test_an_average_approaches_what_is_reported_and_falls_when_it_is_not_named() -> None:
    averages = LoadAverages(0.9, 5.0)
    averages.take(A, report(x=100.0, rest=10.0), owned)
    loads = averages.loads(lambda unit: A)
    assert loads.units == {"x": pytest.approx(10.0)} and loads.rest == {A: pytest.approx(1.0)}
    for _ in range(200):
        averages.take(A, report(x=100.0), owned)
    assert averages.loads(lambda unit: A).units["x"] == pytest.approx(100.0, rel=1e-6)
    averages.take(A, report(), owned)
    assert averages.loads(lambda unit: A).units["x"] == pytest.approx(90.0, rel=1e-6)


def test_a_report_of_two_intervals_counts_as_two_reports() -> None:
    once, twice = LoadAverages(0.9, 5.0), LoadAverages(0.9, 5.0)
    once.take(A, report(10.0, x=100.0), owned)
    for _ in range(2):
        twice.take(A, report(x=100.0), owned)
    assert once.loads(lambda unit: A).units["x"] == pytest.approx(twice.loads(lambda unit: A).units["x"])


@pytest.mark.parametrize(("history", "reports"), [(0.0, 1), (0.3, 1), (0.7, 2), (0.9, 7)])
def test_averages_have_settled_with_half_of_their_weight(history: float, reports: int) -> None:
    averages = LoadAverages(history, 60.0)
    for _ in range(reports):
        assert not averages.settled
        averages.take(A, report(60.0), owned)
    assert averages.settled
    averages.take(B, report(60.0), owned)
    averages.keep_only([A])
    assert averages.settled, "a broker that joins or leaves begins nothing again"
    averages.keep_only([])
    assert not averages.settled


def test_an_average_moves_with_its_unit() -> None:
    averages = LoadAverages(0.9, 5.0)
    for _ in range(100):
        averages.take(A, report(x=100.0), owned)
    averages.take(A, report(), lambda unit: False)
    averages.take(B, report(x=100.0), owned)
    assert averages.loads(lambda unit: B).units["x"] > 90
    assert averages.of_reports() == {A: 0.0, B: pytest.approx(100.0, rel=0.2)}
    averages.take(A, report(), owned)
    assert averages.loads(lambda unit: B).units["x"] > 90


def test_what_a_broker_names_and_does_not_own_counts_for_nothing() -> None:
    averages = LoadAverages(0.9, 5.0)
    averages.take(A, report(x=100.0, y=50.0), lambda unit: unit == "y")
    assert list(averages.loads(lambda unit: A).units) == ["y"]


def test_a_unit_without_owner_is_in_no_load() -> None:
    averages = LoadAverages(0.9, 5.0)
    averages.take(A, report(x=100.0), owned)
    assert averages.loads(lambda unit: None).units == {}


def test_idle_units_and_lost_brokers_are_forgotten() -> None:
    averages = LoadAverages(0.9, 5.0)
    averages.take(A, report(x=100.0), owned)
    averages.take(B, report(y=100.0, rest=5.0), owned)
    assert len(averages) == 2
    for _ in range(200):
        averages.take(A, report(), owned)
    assert len(averages) == 1
    averages.keep_only([A])
    assert len(averages) == 0 and list(averages.of_reports()) == [A]
    assert averages.loads(lambda unit: A).rest == {A: 0.0}
