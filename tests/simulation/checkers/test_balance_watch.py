"""The checker of moves for load finds what it is there for."""

from typing import Any

import pytest

from magnetar.runtime.settings.declarations import Settings
from simulation.checkers.balance_watch import BalanceWatch
from simulation.checkers.history import History

SETTINGS = Settings(load_shedding_grace_minutes=1, load_moves_max=2, load_history_share=0)


class Owners:
    """A rebalancer with three brokers that take topics."""

    def __init__(self) -> None:
        self.taking = ["broker-1", "broker-2", "broker-3"]

    def takers(self) -> list[str]:
        return self.taking

    def owner_of(self, topic: str) -> str:
        return "broker-1"


@pytest.mark.parametrize(
    ("again_s", "target", "count", "found"),
    [
        (61.0, "broker-2", 2, []),
        (59.0, "broker-2", 1, ["I15"]),
        (61.0, "broker-1", 1, ["I15"]),
        (61.0, "broker-4", 1, ["I15"]),
        (61.0, "broker-2", 3, ["I15"]),
    ],
)
def test_moves_are_damped(again_s: float, target: str, count: int, found: list[str]) -> None:
    history = History()
    watch = BalanceWatch(history, SETTINGS)
    rebalancer: Any = Owners()
    watch.were_chosen(rebalancer, {"topic-0": "broker-3"}, 10.0)
    assert history.violations == []
    watch.were_chosen(rebalancer, {f"topic-{number}": target for number in range(count)}, 10.0 + again_s)
    assert list({violation.partition(":")[0]: None for violation in history.violations}) == found


@pytest.mark.parametrize(("reported_s", "found"), [([], 1), ([115.0, 119.0], 1), ([5.0, 121.0], 0)])
def test_averages_settle_before_anything_moves(reported_s: list[float], found: int) -> None:
    history = History()
    watch = BalanceWatch(history, Settings(load_shedding_interval_minutes=1, load_history_share=0.5**0.5))
    rebalancer: Any = Owners()
    for number, seconds in enumerate(reported_s):
        for part in (seconds - 2.0, 2.0):
            watch.was_reported(rebalancer, f"broker-{number}", part)
        watch.was_reported(Owners(), f"broker-{number}", 1000.0)  # to an earlier coordinator
    watch.were_chosen(rebalancer, {}, 5.0)
    assert not history.violations
    watch.were_chosen(rebalancer, {"topic-0": "broker-3"}, 10.0)
    assert len(history.violations) == found and all("I15" in one for one in history.violations)


def test_another_coordinator_does_not_know_of_earlier_moves() -> None:
    history = History()
    watch = BalanceWatch(history, SETTINGS)
    for rebalancer in (Owners(), Owners()):
        watch.were_chosen(rebalancer, {"topic-0": "broker-3"}, 10.0)  # type: ignore[arg-type]
    assert history.violations == []
    assert history.counts["moved for their load"] == 2
