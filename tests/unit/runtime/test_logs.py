"""One line a record, whatever names a client chose."""

import logging

import pytest

from magnetar.runtime.logs import CONTINUED, LineFormatter, one_line

FORGED = "s\n2026-01-01 00:00:00,000 INFO magnetar.actors.broker.service: all is well"


def written(message: str, *arguments: object, error: BaseException | None = None) -> str:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("magnetar.test", logging.WARNING, "", 0, message, arguments, exc_info)
    return LineFormatter().format(record)


@pytest.mark.parametrize("breaking", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_name_with_a_line_break_stays_in_its_line(breaking: str) -> None:
    text = written("consumer %s leaves", f"a{breaking}b")
    assert len(text.splitlines()) == 1 and text.endswith(" leaves")


def test_a_forged_record_is_seen_as_part_of_the_name() -> None:
    text = written("%s subscribes", FORGED)
    assert text.splitlines() == [text]
    assert "WARNING magnetar.test: s\\n2026-01-01" in text


def test_the_lines_of_a_traceback_are_marked_and_a_name_in_it_forges_none() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        text = written("it failed", error=error)
    first, *others = text.splitlines()
    assert first.endswith("it failed") and len(others) >= 3
    assert all(line.startswith(CONTINUED) for line in others)


def test_terminal_sequences_and_turned_text_are_escaped_and_other_text_is_not() -> None:
    assert one_line("\x1b[31m\u202eabc\ud800") == "\\x1b[31m\\u202eabc\\ud800"
    plain = "persistent://public/default/ünusual näme 🐟 \\ %s"
    assert one_line(plain) == plain
