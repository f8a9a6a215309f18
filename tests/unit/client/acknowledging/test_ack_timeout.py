"""When unacknowledged entries are due, by a clock that the test moves."""

import pytest

from magnetar.client.acknowledging import ack_timeout
from magnetar.client.acknowledging.ack_timeout import UnackedTracker
from magnetar.client.core.redelivery_backoff import MultiplierRedeliveryBackoff

ENTRY = (1, 5)


def due_after_s(tracker: UnackedTracker, redelivery_count: int = 0, at_s: float = 100.0) -> float:
    """Seconds from the delivery of an entry until it is due, looking whenever something may be."""
    tracker.track(ENTRY, redelivery_count, at_s)
    now_s = at_s
    while not (due := tracker.take_due(now_s)):
        next_s = tracker.next_s
        assert next_s is not None and next_s > now_s
        now_s = next_s
    assert due == [ENTRY] and not tracker and tracker.next_s is None
    return now_s - at_s


@pytest.mark.promise("7.4")
def test_the_table_of_the_page_with_a_time_out_of_ten_seconds_and_a_back_off() -> None:
    tracker = UnackedTracker(10, 1, MultiplierRedeliveryBackoff(1_000, 60_000, 2))
    found = [due_after_s(tracker, count) for count in range(8)]
    assert found == [10 + 1, 10 + 2, 10 + 4, 10 + 8, 10 + 16, 10 + 32, 10 + 60, 10 + 60]


@pytest.mark.promise("7.3", "7.5")
def test_a_time_out_of_two_seconds_with_a_tick_of_one() -> None:
    tracker = UnackedTracker(2, 1)
    assert due_after_s(tracker, at_s=100.0) == 2
    assert 2 <= due_after_s(tracker, at_s=100.4) <= 3


def test_a_tick_longer_than_the_time_out_is_as_long_as_it() -> None:
    assert 0.5 <= due_after_s(UnackedTracker(0.5, 1), at_s=7.2) <= 1.0


def test_what_is_acknowledged_is_never_due() -> None:
    tracker = UnackedTracker(2, 1)
    for entry_id in range(6):
        tracker.track((1, entry_id), 0, 0.0)
    tracker.forget((1, 4))
    tracker.forget((7, 7))
    tracker.forget_up_to((1, 2))
    assert tracker.take_due(1.9) == [] and tracker.take_due(2.0) == [(1, 3), (1, 5)]


def test_a_second_message_of_an_entry_does_not_extend_its_time() -> None:
    tracker = UnackedTracker(2, 1)
    tracker.track(ENTRY, 0, 0.0)
    tracker.track(ENTRY, 0, 1.5)
    assert tracker.take_due(2.0) == [ENTRY]


def test_a_tracker_that_was_cleared_starts_again() -> None:
    tracker = UnackedTracker(2, 1)
    tracker.track(ENTRY, 0, 0.0)
    tracker.clear()
    assert tracker.next_s is None and tracker.take_due(9.0) == []
    assert due_after_s(tracker) == 2


def test_beyond_the_bound_the_oldest_are_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_timeout, "TRACKED_ENTRIES_MAX", 3)
    tracker = UnackedTracker(10, 1)
    for entry_id in range(4):
        tracker.track((1, entry_id), 0, float(entry_id))
    assert tracker.next_s == 0.0 and tracker.take_due(3.0) == [(1, 0)] and len(tracker) == 3
