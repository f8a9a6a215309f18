"""The checks of a chaos run find what they are there for."""

from chaos_checks import compare, longest, stall_after


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


def test_the_consumers_of_a_shared_subscription_are_checked_together_and_without_order() -> None:
    logs = [[("a", 2), ("a", 0)], [("a", 1)]]
    assert compare({"a": [0, 1, 2]}, {"a": 3}, logs, ordered=False).safe
    assert not compare({"a": [0, 1, 2]}, {"a": 3}, logs).safe


def test_of_a_stall_counts_what_lies_behind_the_fault() -> None:
    gaps = [(0.0, 4.0), (8.0, 15.0), (30.0, 50.0)]
    assert longest(gaps) == 20.0
    assert stall_after(gaps, 10.0, 20.0) == 5.0
    assert stall_after(gaps, 16.0, 20.0) == 0.0
