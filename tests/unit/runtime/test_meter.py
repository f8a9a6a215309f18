"""Rates between questions, and times as text."""

from magnetar.runtime.meter import RECENT_TIMES_MAX, Meter, RecentTimes, time_text


def test_the_first_question_sees_all_since_creation():
    meter = Meter(100.0)
    meter.add(50, 5000, 5)
    assert (meter.message_rate(110.0), meter.byte_rate(110.0)) == (5.0, 500.0)
    assert (meter.messages, meter.bytes, meter.entries) == (50, 5000, 5)


def test_a_rate_forgets_what_is_long_ago():
    meter = Meter(0.0)
    meter.add(1000, 0)
    meter.message_rate(60.0)
    meter.message_rate(120.0)
    assert meter.message_rate(130.0) == 0.0
    meter.add(70, 0)
    assert meter.message_rate(130.0) == 1.0  # since the marker at 60


def test_questions_in_quick_succession_do_not_divide_by_nothing():
    meter = Meter(5.0)
    meter.add(7, 7)
    assert meter.message_rate(5.0) == 7.0


def test_times_are_iso_8601_with_offset():
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_text(0) == "1970-01-01T00:00:00Z"


def test_quantiles_of_recent_times_are_those_of_the_last_minute():
    times = RecentTimes()
    assert times.quantiles(0.0, 0.5, 1.0) == [0.0, 0.0]
    times.add(0.0, 60.0)
    for number in range(100):
        times.add(30.0, number / 100)
    assert times.quantiles(60.0, 0.5, 0.99, 1.0) == [0.5, 0.99, 60.0]
    assert times.quantiles(61.0, 0.5, 0.99, 1.0) == [0.5, 0.99, 0.99]
    assert times.quantiles(100.0, 0.5) == [0.0]


def test_recent_times_are_bounded():
    times = RecentTimes()
    for number in range(RECENT_TIMES_MAX + 10):
        times.add(0.0, float(number))
    assert times.quantiles(0.0, 0.0) == [10.0]
