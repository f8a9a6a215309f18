"""Which entries of a range belong on one bookie, and which of them it lacks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.storage.metadata.entry_gaps import Stripe, missing_entries, ranges_of
from magnetar.storage.metadata.ledger_metadata import write_slots


def test_missing_ranges() -> None:
    all_of_them = Stripe(0, 3, 3)
    assert missing_entries(0, 99, all_of_them, []) == [(0, 99)]
    assert missing_entries(0, 99, all_of_them, [(0, 99)]) == []
    assert missing_entries(0, 99, all_of_them, [[50, 60], [0, 9], [5, 20], [98, 200]]) == [(21, 49), (61, 97)]
    assert missing_entries(0, 99, all_of_them, [(200, 300)]) == [(0, 99)]
    assert ranges_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 7), (9, 10)]


@settings(max_examples=100)
@given(
    ensemble=st.integers(1, 5),
    quorum=st.integers(1, 5),
    held=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=6),
)
def test_missing_is_what_belongs_there_and_is_not_held(ensemble: int, quorum: int, held: list[tuple[int, int]]) -> None:
    write_quorum = min(ensemble, quorum)
    ranges = [(first, first + more) for first, more in held]
    has = {entry for first, last in ranges for entry in range(first, last + 1)}
    for slot in range(ensemble):
        missing = missing_entries(0, 39, Stripe(slot, ensemble, write_quorum), ranges)
        found = [entry for first, last in missing for entry in range(first, last + 1)]
        assert found == [
            entry for entry in range(40) if slot in write_slots(entry, ensemble, write_quorum) and entry not in has
        ]
