"""What a filter of Spark says of publish times."""

import datetime

from ...bulk.arrow_decoding import TimeWindow

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def narrowed(window: TimeWindow, kind: str, limit: datetime.datetime) -> TimeWindow:
    """The part of a window that a comparison with a time leaves. Publish times have whole milliseconds."""
    if limit.tzinfo is None:  # a time of Spark's session, in the zone of this process
        limit = limit.astimezone()
    micros = (limit - EPOCH) // datetime.timedelta(microseconds=1)
    at_least, more_than = -(-micros // 1000), micros // 1000 + 1
    start_ms, end_ms = window
    match kind:
        case "GreaterThanOrEqual":
            start_ms = at_least if start_ms is None else max(start_ms, at_least)
        case "GreaterThan":
            start_ms = more_than if start_ms is None else max(start_ms, more_than)
        case "LessThan":
            end_ms = at_least if end_ms is None else min(end_ms, at_least)
        case "LessThanOrEqual":
            end_ms = more_than if end_ms is None else min(end_ms, more_than)
        case "EqualTo":
            return narrowed(narrowed(window, "GreaterThanOrEqual", limit), "LessThanOrEqual", limit)
        case _:
            pass
    return TimeWindow(start_ms, end_ms)
