"""Places and their text, and what may be acknowledged whatever order batches and answers come in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.data.positions import EARLIEST_PLACE, FollowProgress, RowPlace, parse_positions
from magnetar.protocol.errors import InvalidConfiguration

NAMES = ["persistent://public/default/t-partition-0", "persistent://public/default/t-partition-1"]

numbers = st.integers(0, 1 << 62)
chunks = st.one_of(st.none(), st.tuples(numbers, numbers))
places = st.builds(RowPlace, numbers, numbers, st.integers(-1, 1_000), st.just(0), chunks).map(
    lambda place: place if place.chunks_from is None else place._replace(chunks_from=min(place[:2], place.chunks_from))
)


@given(places)
def test_a_place_is_read_back_from_its_text(place: RowPlace) -> None:
    assert RowPlace.parse(str(place)) == place
    given_text = {NAMES[0]: str(place)}
    assert parse_positions(given_text) == parse_positions(json.dumps(given_text)) == {NAMES[0]: place}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:2:3:4",
        "a:b",
        "1:2:-1",
        "-2:0",
        "0:-2",
        "1:2<",
        "1:2<3",
        "1:2<1:3",
        "1:2<-1:0",
        "<1:2",
        7,
        None,
        "1:" + "9" * 200,
    ],
)
def test_what_is_no_place_is_refused(text: object) -> None:
    with pytest.raises(InvalidConfiguration, match="no place in a topic"):
        RowPlace.parse(text)


@pytest.mark.parametrize("start", ["newest", "[1]", 7, None])
def test_what_are_no_positions_is_refused(start: object) -> None:
    with pytest.raises(InvalidConfiguration, match="start must be"):
        parse_positions(start)


def test_short_names_of_topics_are_taken_in_positions() -> None:
    assert parse_positions({"t-partition-0": "1:2"}) == {NAMES[0]: RowPlace(1, 2)}


@given(places, places)
def test_a_place_covers_what_lies_up_to_it(one: RowPlace, other: RowPlace) -> None:
    def order(place: RowPlace) -> tuple[int, int, float]:
        return (*place.position, place.batch_index if place.batch_index >= 0 else float("inf"))

    assert one.covers(other) == (order(one) >= order(other))
    assert one.covers(one) and one.covers(EARLIEST_PLACE)


batches = st.lists(
    st.tuples(st.sets(st.sampled_from(NAMES), min_size=1), st.booleans(), st.booleans()),
    max_size=30,
)
"""Of each batch: the partitions that it has rows of, whether a filter left some, whether the application then says that
it has finished everything."""


@given(batches, st.booleans())
def test_no_mark_passes_a_row_that_the_application_has_not_finished(
    steps: list[tuple[set[str], bool, bool]], moves_by_itself: bool
) -> None:
    progress = FollowProgress(dict.fromkeys(NAMES, EARLIEST_PLACE), moves_by_itself=moves_by_itself)
    acknowledged = dict.fromkeys(NAMES, EARLIEST_PLACE)
    at = dict.fromkeys(NAMES, -1)
    said = dict(at)
    """What the application has said to be finished."""
    unfinished: list[dict[str, int]] = []
    """The batches with rows that the application has and has not finished."""
    for names, has_rows, finishes in steps:
        for name in names:
            at[name] += 1
        marks = {name: RowPlace(0, at[name]) for name in names}
        if has_rows:
            unfinished.append({name: at[name] for name in names})
        acknowledged.update(progress.passed(marks, has_rows=has_rows))
        if finishes:
            unfinished.clear()
            said = dict(at)
            acknowledged.update(progress.finish())
        assert progress.positions() == {name: f"0:{at[name]}" if at[name] >= 0 else "-1:-1" for name in NAMES}
        for name in NAMES:
            first = min([one[name] for one in unfinished if name in one], default=at[name] + 1)
            assert said[name] <= acknowledged[name].entry < first
            if not moves_by_itself:
                assert acknowledged[name].entry == said[name]
            elif not unfinished:  # what a filter dropped holds nothing back
                assert acknowledged[name].entry == at[name]
        assert progress.finished_of(frozenset(NAMES)) == acknowledged
        assert progress.finished_of(frozenset(NAMES[:1])) == {NAMES[0]: acknowledged[NAMES[0]]}


def test_partitions_that_are_added_begin_where_they_are_said_to() -> None:
    progress = FollowProgress({NAMES[0]: RowPlace(1, 2)}, moves_by_itself=True)
    progress.passed({NAMES[0]: RowPlace(1, 3)}, has_rows=True)
    progress.begin({NAMES[0]: EARLIEST_PLACE, NAMES[1]: EARLIEST_PLACE})
    assert progress.positions() == {NAMES[0]: "1:3", NAMES[1]: "-1:-1"}
    assert progress.finish() == {NAMES[0]: RowPlace(1, 3)}
