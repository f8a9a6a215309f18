"""The record of a ledger, the choice of bookies, and the directory they come from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.errors import MetadataError, NotEnoughBookies
from magnetar.runtime.environment import SeededChance
from magnetar.runtime.transitions import ForbiddenTransition
from magnetar.storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from magnetar.storage.ledger.ensemble import Copies, place, replace_slots
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState


def ledger(*fragments, **changes):
    return LedgerMetadata(9, 3, 3, 2, tuple(Fragment(first, tuple(ids)) for first, ids in fragments), **changes)


def test_entries_are_found_in_their_fragment():
    one = ledger((0, "abc"), (10, "abd"), (15, "aed"))
    assert [one.fragment_of(entry).first_entry for entry in (0, 9, 10, 14, 15, 99)] == [0, 0, 10, 10, 15, 15]
    assert [one.fragment_end(entry) for entry in (0, 10, 15)] == [9, 14, None]
    assert one.close(20, 5).fragment_end(15) == 20
    with pytest.raises(ValueError):
        one.fragment_of(-1)
    wide = LedgerMetadata(9, 5, 3, 2, (Fragment(0, tuple("abcde")),))
    assert wide.write_set(4) == ("e", "a", "b")


def test_a_new_fragment_is_appended_or_replaces_the_last_one():
    one = ledger((0, "abc"))
    assert [fragment.first_entry for fragment in one.with_ensemble(5, tuple("abd")).fragments] == [0, 5]
    assert one.with_ensemble(0, tuple("abd")).fragments == (Fragment(0, tuple("abd")),)
    with pytest.raises(MetadataError):
        ledger((0, "abc"), (5, "abd")).with_ensemble(3, tuple("abe"))


def test_closing_drops_fragments_without_entries():
    one = ledger((0, "abc"), (5, "abd"))
    closed = one.close(4, 100)
    assert closed.state is LedgerState.CLOSED and closed.fragments == one.fragments[:1] and closed.closed
    assert len(one.close(5, 100).fragments) == 2
    assert len(ledger((0, "abc")).close(-1, 0).fragments) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: LedgerMetadata(1, 2, 3, 2, (Fragment(0, ("a", "b")),)),
        lambda: LedgerMetadata(1, 3, 3, 0, (Fragment(0, ("a", "b", "c")),)),
        lambda: ledger(),
        lambda: ledger((1, "abc")),
        lambda: ledger((0, "abc"), (0, "abd")),
        lambda: ledger((0, "ab")),
        lambda: ledger((0, "aab")),
    ],
)
def test_impossible_records_are_refused(make):
    with pytest.raises(MetadataError):
        make()


def test_packing():
    one = ledger((0, "abc"), (7, "abd"), state=LedgerState.IN_RECOVERY, under_replicated=True)
    assert LedgerMetadata.unpack(one.pack()) == one and one.pack() == LedgerMetadata.unpack(one.pack()).pack()
    assert LedgerMetadata.unpack(one.close(8, 123).pack()) == one.close(8, 123)


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(value):
    with pytest.raises(MetadataError):
        LedgerMetadata.unpack(value)


def test_placement_takes_what_is_there_and_never_fewer_than_the_ack_quorum():
    random = SeededChance(1)
    assert place(random, "abcde", Copies(3, 3, 2))[1:] == (3, 2, False)
    assert len(place(random, "abcde", Copies(3, 3, 2)).bookies) == 3
    assert place(random, "ab", Copies(3, 3, 2))[1:] == (2, 2, True)
    assert place(random, "abcd", Copies(5, 3, 2))[1:] == (3, 2, False), "striped less widely, but with all copies"
    with pytest.raises(NotEnoughBookies):
        place(random, "a", Copies(3, 3, 2))
    chosen = {place(random, "abcde", Copies(3, 3, 2)).bookies for _ in range(50)}
    assert len(chosen) > 10, "load is spread"


def test_spares_are_neither_members_nor_excluded():
    random = SeededChance(1)
    assert replace_slots(random, "abc", [1], "abcd") == {1: "d"}
    assert replace_slots(random, "abc", [0, 1, 2], "abcde").keys() == {0, 1}
    assert replace_slots(random, "abc", [1], "abcd", excluded=["d"]) == {}


def test_the_directory_tells_of_changes_only():
    changes = []
    directory = BookieDirectory()
    directory.on_change.append(lambda: changes.append(list(directory.bookies)))
    first, second = BookieInfo("a", "h", 1), BookieInfo("b", "h", 2)
    directory.update([second, first])
    directory.update([first, second])
    directory.update([first._replace(writable=False)])
    assert changes == [["a", "b"], ["a"]] and directory.get("b") is None


def test_a_closed_ledger_is_neither_closed_again_nor_recovered() -> None:
    closed = ledger((0, "abc")).in_recovery().close(4, 100)
    with pytest.raises(ForbiddenTransition, match=f"ledger {closed.ledger_id} cannot go from closed to closed"):
        closed.close(5, 100)
    with pytest.raises(ForbiddenTransition, match=f"ledger {closed.ledger_id} cannot go from closed to in_recovery"):
        closed.in_recovery()
