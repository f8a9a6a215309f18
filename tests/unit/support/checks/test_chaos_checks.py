"""The checks of a chaos run find what they are there for."""

from support.checks.chaos_checks import (
    Delivery,
    compare,
    find_backlogs,
    find_misplaced,
    find_rewinds,
    longest,
    stall_after,
)


def test_a_lost_a_reordered_and_an_unsent_message_are_found() -> None:
    found = compare(
        {"a": [0, 1, 3], "b": [0]},
        {"a": 4, "b": 1},
        [[("a", 0), ("a", 3), ("a", 1), ("a", 4)], [("c", 0)]],
    )
    assert found.lost == [("b", 0)]
    assert found.reordered == [("a", 1)]
    assert found.phantoms == [("a", 4), ("c", 0)]
    assert not found.safe


def test_resent_messages_are_duplicates_and_in_order() -> None:
    found = compare({"a": [0, 1, 2]}, {"a": 4}, [[("a", 0), ("a", 1), ("a", 0), ("a", 1), ("a", 2)]])
    assert found.safe
    assert (found.messages, found.duplicates) == (3, 2)


def test_consumers_of_a_shared_subscription_are_checked_together_without_order() -> None:
    logs = [[("a", 2), ("a", 0)], [("a", 1)]]
    assert compare({"a": [0, 1, 2]}, {"a": 3}, logs, ordered=False).safe
    assert not compare({"a": [0, 1, 2]}, {"a": 3}, logs).safe


def test_of_a_stall_counts_what_lies_behind_the_fault() -> None:
    gaps = [(0.0, 4.0), (8.0, 15.0), (30.0, 50.0)]
    assert longest(gaps) == 20.0
    assert stall_after(gaps, 10.0, 20.0) == 5.0
    assert stall_after(gaps, 16.0, 20.0) == 0.0


def test_a_message_may_lie_in_several_places_but_not_elsewhere() -> None:
    places = {("a", 0): {"1:0:-1", "2:0:-1"}, ("a", 1): {"1:1:-1"}}
    told = [(("a", 0), "2:0:-1"), (("a", 1), "1:0:-1"), (("a", 2), "1:2:-1")]
    assert find_misplaced(told, places) == [(("a", 1), "1:0:-1"), (("a", 2), "1:2:-1")]


def test_rewinds_are_counted_by_key_and_without_what_comes_again() -> None:
    def given(*steps: tuple[str, int, int]) -> dict[str, int]:
        return find_rewinds([Delivery(key, sequence, "1:0:0", times) for key, sequence, times in steps])

    assert given(("a", 0, 0), ("b", 9, 0), ("a", 1, 0), ("b", 10, 0)) == {}
    assert given(("a", 3, 0), ("a", 1, 0), ("a", 2, 0), ("a", 0, 0)) == {"a": 2}
    assert given(("a", 3, 0), ("a", 1, 1), ("a", 3, 0), ("a", 4, 0)) == {}


def test_a_backlog_is_nothing_but_for_the_one_that_never_acknowledges() -> None:
    backlogs = {"t": {"s": 0, "keeper": 5}, "u": {"s": 2, "keeper": 4}}
    assert find_backlogs(backlogs, {"t": 5, "u": 5}, "keeper") == [("u", "s", 2), ("u", "keeper", 4)]
    assert find_backlogs({"t": backlogs["t"]}, {"t": 5}, "keeper") == []
