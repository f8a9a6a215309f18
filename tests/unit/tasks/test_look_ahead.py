"""How many messages wait in a worker of `consume` behind its call."""

import pytest

from magnetar.tasks.look_ahead import LOOK_AHEAD_S, MESSAGES_MAX, LookAhead


@pytest.mark.parametrize(
    ("call_s", "messages", "size_min", "size"),
    [
        (10.0, 1, 1, 1),
        (LOOK_AHEAD_S, 1, 1, 1),
        (LOOK_AHEAD_S / 10, 1, 1, 10),
        (LOOK_AHEAD_S / 10, 5, 5, 50),  # a list of five
        (LOOK_AHEAD_S / 1_000, 1, 1, MESSAGES_MAX),
        (0.0, 1, 1, MESSAGES_MAX),  # shorter than the clock can tell
        (10.0, 32, 32, 32),  # a whole list waits, however long its call
        (0.0, 500, 500, 500),
    ],
)
def test_so_many_wait_as_are_handled_in_a_moment(call_s: float, messages: int, size_min: int, size: int) -> None:
    ahead = LookAhead(size_min)
    changed = [ahead.called(call_s, messages) for _ in range(50)]
    assert ahead.size == pytest.approx(size, abs=1)
    assert changed.count(True) == (size != size_min), "it changes once, and then stays"


def test_calls_that_become_long_leave_what_waits_to_others() -> None:
    ahead = LookAhead(1)
    ahead.called(0.0001, 1)
    assert ahead.size == MESSAGES_MAX
    assert ahead.called(10.0, 1), "one long call is enough"
    assert ahead.size == 1


def test_small_differences_between_calls_change_nothing() -> None:
    ahead = LookAhead(1)
    ahead.called(0.010, 1)
    assert not any(ahead.called(call_s, 1) for call_s in (0.012, 0.008, 0.013, 0.007, 0.011))
