"""What Pulsar's broker takes for a number, a flag or a text. `tests/parity` has what it said."""

import math

import pytest

from magnetar.protocol.lenient_values import as_flag, as_real, as_text, as_whole


@pytest.mark.parametrize(
    ("given", "meant"),
    [(7, 7), ("7", 7), (" 7 ", 7), ("+7", 7), ("-7", -7), (7.0, 7), (1e2, 100), (True, True), (None, None)]
    + [(same, same) for same in ("", "x", "1.5", "7.0", "0x7", "1_0", "٣", "9" * 25, 1.5, [7])],
)
def test_a_whole_number(given: object, meant: object) -> None:
    found = as_whole(given)
    assert (found, type(found)) == (meant, type(meant))


def test_a_whole_number_that_is_none_stays_what_it_is() -> None:
    assert as_whole(math.inf) == math.inf and math.isnan(float(str(as_whole(math.nan))))


@pytest.mark.parametrize(
    ("given", "meant"),
    [("7", 7.0), (" 1.5 ", 1.5), (".5", 0.5), ("1e2", 100.0), ("-2.", -2.0), (7, 7), (1.5, 1.5)]
    + [(same, same) for same in ("", "x", "nan", "inf", "1_0", True, None, [1])],
)
def test_a_number(given: object, meant: object) -> None:
    found = as_real(given)
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("given", "meant"),
    [("true", True), (" True ", True), ("TRUE", True), ("false", False), (1, True), (0, False), (2, True)]
    + [(same, same) for same in (True, False, "tRue", "yes", "1", "", None, 1.0, [True])],
)
def test_a_flag(given: object, meant: object) -> None:
    found = as_flag(given)
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("given", "meant"), [("x", "x"), (1, "1"), (1.5, "1.5"), (True, "true"), (None, None), ([], [])]
)
def test_a_text(given: object, meant: object) -> None:
    assert as_text(given) == meant
