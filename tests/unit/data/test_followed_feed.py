"""When a subscription is moved back to the place where an application begins."""

import pytest

from magnetar.data.followed_feed import _may_have_begun
from magnetar.data.positions import RowPlace
from magnetar.protocol.message_id import Position


@pytest.mark.parametrize(
    ("mark", "place", "moves"),
    [
        ((5, 3), RowPlace(5, 9), False),
        ((5, 8), RowPlace(5, 9), True),
        ((5, 9), RowPlace(5, 9), True),
        ((6, 0), RowPlace(5, 9), True),
        ((4, 9), RowPlace(5, 0), True),
        # A chunk holds the mark, and what came behind it may be acknowledged.
        ((4, 94), RowPlace(17, 19, chunks_from=(4, 95)), True),
    ],
)
def test_it_moves_if_anything_behind_the_place_may_be_acknowledged(
    mark: Position, place: RowPlace, moves: bool
) -> None:
    assert _may_have_begun(mark, place) == moves
