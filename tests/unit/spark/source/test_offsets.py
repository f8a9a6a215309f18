"""Places of a streaming query in a partition: their order, what follows them, and their form in a checkpoint."""

import pytest

from magnetar.protocol.errors import InvalidConfiguration
from magnetar.protocol.message_id import WireMessageId
from magnetar.spark.source.offsets import EARLIEST, Reached, place_in


@pytest.mark.parametrize(
    "place",
    [
        *(
            Reached(7, 3),
            Reached(7, 3, 0),
            Reached(7, -1),
            Reached(9, 3, -1, (7, -1)),
            Reached(9, 3, 1, (7, 2)),
            EARLIEST,
        ),
        *(Reached(7, 3, split_entries=40), Reached(9, 3, 1, (7, 2), 40)),
    ],
)
def test_a_place_survives_the_checkpoint(place: Reached) -> None:
    assert Reached.parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "7:3:1:0",
        "7:x",
        "earliest",
        "7:3@",
        "7:3@7",
        "7:3@7:1:0",
        "@7:3",
        "7:3/x",
        "7:3/1/2",
        "7:3/",
        "7:3@7:1/4",
    ],
)
def test_a_damaged_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="the checkpoint is damaged"):
        Reached.parse(text)


@pytest.mark.parametrize("message_id", [(7, 3), (7, 0), (7, 3, -1, 0, 5), (7, 3, -1, 4, 5)])
def test_what_follows_the_place_before_a_message_is_the_message(message_id: tuple[int, ...]) -> None:
    wanted = WireMessageId(*message_id)
    found = Reached.before(wanted).following
    assert found.position == wanted.position
    assert max(found.batch_index, 0) == max(wanted.batch_index, 0)


def test_an_offset_says_where_the_query_began() -> None:
    assert str(Reached(9, 3, 1, (7, 2))) == "9:3:1@7:2"
    assert Reached.parse("9:3@7:-1").first_wanted == WireMessageId(7, 0)


def test_a_partition_that_is_not_named_begins_at_its_beginning() -> None:
    assert place_in({"a": "7:3"}, "a") == Reached(7, 3)
    assert place_in({"a": "7:3"}, "b") == EARLIEST


def test_a_whole_entry_is_behind_its_parts() -> None:
    places = [EARLIEST, Reached(7, 2), Reached(7, 3, 0), Reached(7, 3, 1), Reached(7, 3), Reached(8, -1)]
    assert sorted(reversed(places), key=lambda place: place.order) == places
