"""The hash of a list of topics is Pulsar's: the expected ones were calculated by its class TopicList."""

import pytest

from magnetar.protocol.topic_lists import topics_hash

SPACE = "persistent://public/default/"


@pytest.mark.parametrize(
    ("locals_", "expected"),
    [
        ([], "00000000"),
        (["a"], "e4a876e3"),
        (["b", "a"], "c7559e98"),
        (["t-partition-0", "t-partition-1", "t-partition-10", "t-partition-2"], "a0ac634e"),
        (["größe", "\uff5e", "\U0001f600"], "16f47ac8"),  # Java sorts the last one before the one before
    ],
)
def test_the_hash_is_that_of_pulsar_in_any_order(locals_: list[str], expected: str) -> None:
    names = [SPACE + local for local in locals_]
    assert topics_hash(names) == topics_hash(reversed(names)) == expected
