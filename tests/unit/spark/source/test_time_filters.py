"""Comparisons with publish times, which have whole milliseconds, as windows."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from magnetar.bulk.arrow_decoding import TimeWindow
from magnetar.spark.source.time_filters import narrowed

SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
BETWEEN = SECOND + timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("kind", "limit", "window"),
    [
        ("GreaterThanOrEqual", SECOND, (1000, None)),
        ("GreaterThanOrEqual", BETWEEN, (1001, None)),
        ("GreaterThan", SECOND, (1001, None)),
        ("GreaterThan", BETWEEN, (1001, None)),
        ("LessThan", SECOND, (None, 1000)),
        ("LessThan", BETWEEN, (None, 1001)),
        ("LessThanOrEqual", SECOND, (None, 1001)),
        ("EqualTo", SECOND, (1000, 1001)),
        ("EqualTo", BETWEEN, (1001, 1001)),
        ("EqualNullSafe", SECOND, (None, None)),
    ],
)
def test_a_comparison_leaves_the_times_for_which_it_is_true(
    kind: str, limit: datetime, window: tuple[int | None, int | None]
) -> None:
    assert narrowed(TimeWindow(), kind, limit) == TimeWindow(*window)


def test_several_comparisons_narrow_each_other() -> None:
    window = TimeWindow(500, 3000)
    for kind, seconds in (("GreaterThan", 0), ("GreaterThanOrEqual", 1), ("LessThan", 2), ("LessThanOrEqual", 60)):
        window = narrowed(window, kind, SECOND + timedelta(seconds=seconds - 1))
    assert window == TimeWindow(1000, 2000)


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    elsewhere = SECOND.astimezone(timezone(timedelta(hours=9)))
    assert narrowed(TimeWindow(), "LessThan", elsewhere) == TimeWindow(None, 1000)
