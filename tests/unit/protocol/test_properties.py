"""Properties of namespaces and topics: adding, removing, clearing, and their bound."""

import pytest

from magnetar.protocol.errors import InvalidConfiguration
from magnetar.protocol.properties import PROPERTIES_MAX_BYTES, changed_properties


def test_what_is_put_joins_what_is_there_and_what_is_removed_goes() -> None:
    found = {"a": "1", "b": "2"}
    assert changed_properties(found, {"b": "3", "c": "4"}, ["a", "missing"]) == {"b": "3", "c": "4"}
    assert changed_properties(found, {"c": "4"}, (), clear=True) == {"c": "4"}
    assert found == {"a": "1", "b": "2"}


def test_more_than_the_bound_is_refused_and_the_bound_itself_is_not() -> None:
    fits = "x" * (PROPERTIES_MAX_BYTES - len('{"a": ""}'))
    assert changed_properties({}, {"a": fits}, ()) == {"a": fits}
    with pytest.raises(InvalidConfiguration, match="set fewer"):
        changed_properties({}, {"a": fits + "x"}, ())
