"""What the auditor remembers of ledgers: the same as a plain table would, in a fraction of its memory."""

import tracemalloc
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.auditor.index import WAITING, IdSet, LedgerCondition, LedgerIndex

ENSEMBLES = [("a", "b", "c"), ("a", "b", "d"), ("b", "c", "d"), ("e",)]
CHANGES = st.lists(
    st.tuples(st.integers(0, 200), st.none() | st.tuples(st.sampled_from(ENSEMBLES), st.sampled_from(LedgerCondition))),
    max_size=120,
)


@settings(max_examples=150)
@given(CHANGES)
def test_it_answers_as_a_table_of_all_ledgers_would(changes) -> None:
    index, table = LedgerIndex(), {}
    for version, (ledger_id, what) in enumerate(changes):
        if what is None:
            index.remove(ledger_id)
            table.pop(ledger_id, None)
        else:
            index.put(ledger_id, what[0], version, 10 * version, what[1])
            table[ledger_id] = (what[0], version, 10 * version, what[1])
    for ledger_id in range(201):
        assert index.find(ledger_id) == table.get(ledger_id)
    for bookie in "abcde":
        assert sorted(index.of(bookie)) == [one for one in sorted(table) if bookie in table[one][0]]
    for condition in LedgerCondition:
        found = [one for one in table.values() if one[3] is condition]
        assert (index.counts[condition], index.lengths[condition]) == (len(found), sum(one[2] for one in found))
    for condition in WAITING:
        assert list(index.waiting[condition].copy()) == [one for one in sorted(table) if table[one][3] is condition]
    for ledger_id in table:
        index.remove(ledger_id)
    assert index.count == 0 and not index._pages and not index._of_bookie and not index._by_bookies


def test_what_a_walk_does_not_meet_is_forgotten() -> None:
    index = LedgerIndex()
    for ledger_id in range(300):
        index.put(ledger_id, ENSEMBLES[0], 1, 0, LedgerCondition.WHOLE)
    index.begin_walk()
    for ledger_id in range(0, 300, 3):
        index.put(ledger_id, ENSEMBLES[0], 1, 0, LedgerCondition.WHOLE)
    index.set_condition(1, LedgerCondition.OPEN)
    index.end_walk()
    assert sorted(index.of("a")) == list(range(0, 300, 3)) and index.count == 100


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6000)), max_size=400), st.integers(0, 50))
def test_a_set_of_ids_is_sorted_and_without_doubles(changes, taken) -> None:
    ids, expected = IdSet(), set(range(0, 6000, 2))
    for item in expected:
        ids.add(item)
    for adds, item in changes:
        (ids.add if adds else ids.discard)(item)
        (expected.add if adds else expected.discard)(item)
    assert list(ids.copy()) == sorted(expected) and ids.count == len(expected)
    assert [item for item in range(6001) if item in ids] == sorted(expected)
    assert ids.take(taken) == sorted(expected)[:taken]
    assert ids.count == len(expected) - taken and list(ids.copy()) == sorted(expected)[taken:]


def test_a_ledger_costs_less_than_thirty_bytes() -> None:
    ledgers, random = 50_000, Random(1)
    ensembles = [tuple(f"bookie-{random.randrange(10)}-{slot}" for slot in range(3)) for _ in range(100)]
    tracemalloc.start()
    try:
        index = LedgerIndex()
        for ledger_id in range(ledgers):
            index.put(ledger_id, random.choice(ensembles), 3, 1 << 20, LedgerCondition.WHOLE)
        assert tracemalloc.get_traced_memory()[0] / ledgers < 30
    finally:
        tracemalloc.stop()
