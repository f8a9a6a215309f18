"""A warning that may come for every message is one line, and then a count."""

import logging

import pytest

from magnetar.runtime.repeated_warnings import EVERY_S, RepeatedWarnings

logger = logging.getLogger("magnetar.test")


def test_a_thousand_times_are_a_few_lines_that_count_all(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    warnings = RepeatedWarnings(logger, lambda: now_s)
    for number in range(994):
        warnings.note(f"entry {number} is discarded")
    assert caplog.messages == ["entry 0 is discarded"]
    now_s += EVERY_S
    warnings.note("entry 994 is discarded")
    assert caplog.messages[1:] == ["entry 994 is discarded; the same happened 993 times more since the last line"]
    warnings.note("entry 995 is discarded")
    warnings.flush("entries were discarded")
    warnings.flush("entries were discarded")
    assert caplog.messages[2:] == ["entries were discarded; the same happened 1 times more since the last line"]
