"""When a measured run is over."""

import pytest

from magnetar.cluster.load import limits as module
from magnetar.cluster.load.limits import LoadLimits


class Clock:
    """Stands for `time` in the module."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_the_time_counts_from_the_beginning_of_the_run(clock: Clock) -> None:
    limits = LoadLimits(0, 2.0)
    clock.now_s += 10.0  # clients connect
    assert not limits.over and limits.left_s(60.0) == 60.0
    limits.begin()
    clock.now_s += 1.5
    assert limits.take(7) == 7 and limits.left_s(60.0) == 0.5
    clock.now_s += 0.5
    assert limits.over and limits.take(7) == 0 and limits.left_s(60.0) == 0.0


def test_a_number_of_messages_ends_the_run_at_any_time(clock: Clock) -> None:
    limits = LoadLimits(10, 0.0)
    limits.begin()
    clock.now_s += 1e6
    assert (limits.take(7), limits.take(7), limits.take(7)) == (7, 3, 0)
    assert limits.over


def test_a_run_without_limits_ends_when_it_is_told_to(clock: Clock) -> None:
    limits = LoadLimits(0, 0.0)
    limits.begin()
    clock.now_s += 1e6
    assert limits.take(7) == 7 and not limits.over
    limits.end()
    assert limits.over and limits.take(7) == 0
