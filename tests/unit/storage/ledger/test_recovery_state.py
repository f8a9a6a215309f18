"""The recovery's two state machines alone, first by the rules, then over every combination of answers."""

import itertools

import pytest

from magnetar.protocol.bookie_wire import LedgerEntry
from magnetar.runtime.transitions import ForbiddenTransition
from magnetar.storage.ledger.recovery_state import FencingPhase, FencingState, ReadingPhase, ReadingState
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata

BOOKIES = ("a", "b", "c", "d", "e")


def metadata(ensemble=3, write=3, ack=2, first=0):
    bookies = BOOKIES[:ensemble]
    fragments = (Fragment(0, bookies),) if not first else (Fragment(0, bookies), Fragment(first, bookies[::-1]))
    return LedgerMetadata(7, ensemble, write, ack, fragments)


def entry(entry_id):
    return LedgerEntry(7, 0, entry_id, entry_id - 1, 1, b"x")


@pytest.mark.parametrize(
    ("ensemble", "write", "ack"), [(3, 3, 2), (2, 2, 2), (3, 2, 2), (5, 3, 2), (5, 3, 3), (4, 4, 3)]
)
def test_fenced_means_that_no_ack_quorum_is_left_unfenced(ensemble, write, ack):
    for known in itertools.product([True, False], repeat=ensemble):
        state = FencingState(metadata(ensemble, write, ack))
        for bookie, is_known in zip(state.bookies, known, strict=True):
            if is_known:
                state.known(bookie, 3)
            else:
                state.unknown(bookie)
        could_acknowledge = any(
            sum(not known[(first + i) % ensemble] for i in range(write)) >= ack for first in range(ensemble)
        )
        assert state.phase is (FencingPhase.GIVEN_UP if could_acknowledge else FencingPhase.FENCED)


def test_a_reply_that_has_not_come_counts_as_unknown():
    state = FencingState(metadata())
    assert state.known("a") is FencingPhase.WAITING
    assert state.known("b") is FencingPhase.FENCED


def test_a_bookie_that_failed_may_still_answer():
    state = FencingState(metadata())
    state.unknown("a")
    state.known("a", 5)
    assert state.known("b", 9) is FencingPhase.FENCED and state.start == 10


@pytest.mark.parametrize(("lac", "first", "start"), [(-1, 0, 0), (4, 0, 5), (-1, 6, 6), (3, 6, 6), (8, 6, 9)])
def test_recovery_starts_behind_the_lac_but_never_before_the_last_fragment(lac, first, start):
    state = FencingState(metadata(first=first))
    state.known("a", lac)
    state.known("b", -1)
    assert state.start == start


@pytest.mark.parametrize(("write", "ack"), [(3, 2), (2, 2), (3, 3), (4, 2), (5, 3)])
def test_every_combination_of_answers_for_one_entry(write, ack):
    """One valid copy: recoverable. (Qw − Qa) + 1 denials: the end. Else nothing can be said."""
    needed = write - ack + 1
    for answers in itertools.product(["found", "denied", "failed"], repeat=write):
        state = ReadingState(metadata(write, write, ack), 4)
        for bookie, answer in zip(BOOKIES, answers, strict=False):
            if answer == "found":
                state.found(entry(4))
            elif answer == "denied":
                state.denied(4, bookie)
            else:
                state.failed(4, bookie)
        phase = state.judge()
        if "found" in answers:
            assert [one.entry_id for one in state.take()] == [4] and state.next_entry == 5
            assert phase is ReadingPhase.READING
        elif answers.count("denied") >= needed:
            assert phase is ReadingPhase.ENDED and state.next_entry == 4
        else:
            assert phase is ReadingPhase.GIVEN_UP


def test_an_acknowledged_entry_is_never_declared_absent():
    """On Qa bookies, whatever subset of all bookies answers, truthfully: found or given up or waiting, never ENDED."""
    for write, ack in [(3, 2), (4, 3), (5, 3), (2, 2), (3, 3)]:
        for holders in itertools.combinations(range(write), ack):
            for answering in itertools.product([True, False], repeat=write):
                state = ReadingState(metadata(write, write, ack), 0)
                for index in range(write):
                    if not answering[index]:
                        continue
                    if index in holders:
                        state.found(entry(0))
                    else:
                        state.denied(0, BOOKIES[index])
                    state.judge()
                assert state.phase is not ReadingPhase.ENDED or state.next_entry == 1


def test_entries_are_decided_in_order():
    state = ReadingState(metadata(), 0)
    state.found(entry(1))
    state.denied(2, "a")
    state.denied(2, "b")
    assert state.judge() is ReadingPhase.READING and state.take() == []
    state.found(entry(0))
    assert state.judge() is ReadingPhase.ENDED
    assert [one.entry_id for one in state.take()] == [0, 1] and state.take() == [] and state.next_entry == 2


def test_answers_of_bookies_outside_the_write_set_deny_nothing():
    state = ReadingState(metadata(5, 3, 2), 0)
    for bookie in ("d", "e"):
        state.denied(0, bookie)
        state.failed(0, bookie)
    assert state.judge() is ReadingPhase.READING
    state.denied(0, "a")
    state.denied(0, "c")
    assert state.judge() is ReadingPhase.ENDED


def test_a_bookie_may_fail_first_and_answer_later():
    state = ReadingState(metadata(), 0)
    state.failed(0, "a")
    state.failed(0, "b")
    assert state.judge() is ReadingPhase.READING, "the third has not been heard"
    state.denied(0, "a")
    state.denied(0, "b")
    assert state.judge() is ReadingPhase.ENDED


def test_entries_below_the_decided_ones_are_ignored():
    state = ReadingState(metadata(), 5)
    state.found(entry(4))
    assert state.judge() is ReadingPhase.READING and state.take() == []


def test_what_was_decided_about_a_ledger_stays_decided():
    fencing, reading = FencingState(metadata()), ReadingState(metadata(), 0)
    for bookie in ("a", "b"):
        fencing.known(bookie)
        reading.denied(0, bookie)
    assert fencing.phase is FencingPhase.FENCED and reading.judge() is ReadingPhase.ENDED
    assert fencing.unknown("c") is FencingPhase.FENCED
    with pytest.raises(ForbiddenTransition, match="the fencing of a ledger cannot go from fenced to given_up"):
        fencing._become(FencingPhase.GIVEN_UP)
    with pytest.raises(ForbiddenTransition, match="the reading at entry 0 cannot go from ended to reading"):
        reading._become(ReadingPhase.READING)
