"""Places in a topic as members of the cluster name them."""

import pytest

from magnetar.actors.broker.read_planning import position_of_point
from magnetar.protocol.errors import InvalidConfiguration
from magnetar.protocol.message_id import EARLIEST_POSITION, LATEST_POSITION


def test_a_place_is_a_word_or_a_ledger_and_an_entry() -> None:
    assert position_of_point("earliest") == EARLIEST_POSITION
    assert position_of_point("latest") == LATEST_POSITION
    assert position_of_point([7, -1]) == (7, -1)
    assert position_of_point(list(LATEST_POSITION)) == LATEST_POSITION


@pytest.mark.parametrize(
    "place", [[True, 2], [1, 2.0], [1 << 63, 0], [0, -2], ["7", 1], [1], [1, 2, 3], "middle", None]
)
def test_anything_else_is_refused_before_it_can_be_stored(place: object) -> None:
    """Found by `tests/fuzz` (target broker-rpc): a cursor at [True, 2] was stored, and its topic not loaded again."""
    with pytest.raises(InvalidConfiguration):
        position_of_point(place)  # type: ignore[arg-type]
