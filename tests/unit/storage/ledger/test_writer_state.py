"""The writer's state machine alone: every rule of its docstring, then any sequence of events against a model."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.protocol.errors import LedgerClosed, LedgerFenced, NotEnoughBookies
from magnetar.storage.ledger.writer_state import LedgerWriterState, SlotState, WriterPhase
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata


def metadata(ensemble=3, write=3, ack=2):
    bookies = tuple(f"b{number}" for number in range(ensemble))
    return LedgerMetadata(7, ensemble, write, ack, (Fragment(0, bookies),))


def ids(entries):
    return [entry.entry_id for entry in entries or []]


def change(state, slot, bookie):
    ensemble = list(state.ensemble)
    ensemble[slot] = bookie
    return state.metadata.with_ensemble(state.change_start, tuple(ensemble))


@pytest.mark.promise("2.9")
def test_an_ack_quorum_acknowledges_and_order_holds():
    state = LedgerWriterState(metadata())
    for _ in range(3):
        state.add(b"x")
    assert state.added(1, 0, 0) is None and state.added(1, 1, 0) is None, "entry 0 is not acknowledged yet"
    assert state.added(0, 2, 0) is None
    assert ids(state.added(0, 0, 0)) == [0, 1]
    assert state.lac == 1 and state.length == 3 and state.length_confirmed == 2
    assert state.added(0, 1, 0) is None and state.added(9, 1, 0) is None


def test_the_same_bookie_twice_is_one_copy():
    state = LedgerWriterState(metadata())
    state.add(b"x")
    assert state.added(0, 0, 0) is None and state.added(0, 0, 0) is None


def test_striping_goes_round_the_ensemble():
    state = LedgerWriterState(metadata(5, 3, 2))
    for entry_id in range(7):
        state.add(b"")
        assert state.targets(entry_id) == tuple((entry_id + i) % 5 for i in range(3))


def test_no_acknowledgement_while_a_change_is_needed_or_under_way():
    state = LedgerWriterState(metadata())
    state.add(b"x")
    assert state.slot_failed(2, 0) and state.phase is WriterPhase.NEEDS_CHANGE
    assert state.added(0, 0, 0) is None and state.added(0, 1, 0) is None
    assert state.begin_change() == (2,) and state.phase is WriterPhase.CHANGING
    state.add(b"y")
    assert state.added(1, 0, 0) is None and state.added(1, 1, 0) is None and state.lac == -1
    resend, done = state.commit_change(change(state, 2, "new"), {2: "new"})
    assert [(entry.entry_id, slot) for entry, slot in resend] == [(0, 2), (1, 2)]
    assert ids(done) == [0, 1] and state.phase is WriterPhase.WRITING


def test_replaced_slots_lose_their_acknowledgements():
    state = LedgerWriterState(metadata())
    state.add(b"x")
    state.added(0, 2, 0)
    state.slot_failed(2, 0)
    state.begin_change()
    state.commit_change(change(state, 2, "new"), {2: "new"})
    assert state.added(0, 2, 0) is None, "an answer to the former holder's request"
    assert state.added(0, 0, 0) is None, "one copy only"
    assert ids(state.added(0, 2, 1)) == [0]


def test_a_failure_of_a_former_holder_means_nothing():
    state = LedgerWriterState(metadata())
    state.slot_failed(2, 0)
    assert not state.slot_failed(2, 0)
    state.begin_change()
    state.commit_change(change(state, 2, "new"), {2: "new"})
    assert not state.slot_failed(2, 0) and state.phase is WriterPhase.WRITING
    assert state.slot_failed(2, 1)


def test_a_slot_that_fails_during_a_change_needs_the_next():
    state = LedgerWriterState(metadata())
    state.add(b"x")
    state.slot_failed(0, 0)
    state.begin_change()
    state.slot_failed(1, 0)
    assert state.phase is WriterPhase.CHANGING
    _, done = state.commit_change(change(state, 0, "new"), {0: "new"})
    assert done == [] and state.phase is WriterPhase.NEEDS_CHANGE and state.begin_change() == (1,)


def test_without_a_spare_the_rest_goes_on_and_below_the_quorum_it_ends():
    state = LedgerWriterState(metadata())
    state.add(b"x")
    state.added(0, 0, 0)
    state.added(0, 1, 0)
    state.add(b"y")
    state.slot_failed(2, 0)
    state.added(1, 0, 0)
    state.added(1, 1, 0)
    assert ids(state.abandon_change(state.begin_change())) == [1] and state.degraded
    assert state.targets(2) == (0, 1) or set(state.targets(2)) == {0, 1}
    state.add(b"z")
    state.slot_failed(0, 0)
    assert state.abandon_change(state.begin_change()) == []
    assert isinstance(state.end_error, NotEnoughBookies) and ids(state.take_pending()) == [2]
    with pytest.raises(NotEnoughBookies):
        state.add(b"")


def test_an_empty_slot_can_be_filled_by_a_later_change():
    state = LedgerWriterState(metadata())
    state.slot_failed(2, 0)
    state.abandon_change(state.begin_change())
    state.add(b"x")
    state.slot_failed(1, 0)
    state.begin_change()
    resend, _ = state.commit_change(change(state, 1, "n1"), {1: "n1", 2: "n2"})
    assert sorted(slot for _, slot in resend) == [1, 2] and not state.degraded


def test_what_was_acknowledged_while_a_slot_was_empty_lacks_a_copy_for_good():
    state = LedgerWriterState(metadata())
    state.slot_failed(2, 0)
    state.abandon_change(state.begin_change())
    acknowledged_by(state, (0, 1), 1)
    state.slot_failed(1, 0)
    state.begin_change()
    state.commit_change(change(state, 1, "n1"), {1: "n1", 2: "n2"})
    assert state.slots == [SlotState.LIVE] * 3 and state.degraded


def test_some_spares_for_several_failures():
    state = LedgerWriterState(metadata())
    state.add(b"x")
    state.slot_failed(1, 0)
    state.slot_failed(2, 0)
    slots = state.begin_change()
    assert slots == (1, 2)
    state.commit_change(change(state, 1, "new"), {1: "new"}, [2])
    assert state.slots == [SlotState.LIVE, SlotState.LIVE, SlotState.EMPTY] and state.phase is WriterPhase.WRITING
    assert state.added(0, 0, 0) is None
    assert ids(state.added(0, 1, 1)) == [0]


def test_the_end_is_the_end():
    state = LedgerWriterState(metadata())
    state.add(b"x")
    assert ids(state.end(LedgerFenced("f"))) == [0]
    assert state.end() == [] and isinstance(state.end_error, LedgerFenced)
    assert state.added(0, 0, 0) is None and not state.slot_failed(0, 0)
    closed = LedgerWriterState(metadata())
    closed.end()
    with pytest.raises(LedgerClosed):
        closed.add(b"")


def test_steps_out_of_order_are_programmers_errors():
    state = LedgerWriterState(metadata())
    for step in (state.begin_change, lambda: state.abandon_change([]), lambda: state.commit_change(metadata(), {})):
        with pytest.raises(ValueError):
            step()


class WriterMachine(RuleBasedStateMachine):
    """Random events; the model knows which bookie truly stores what."""

    def __init__(self):
        super().__init__()
        self.state = LedgerWriterState(metadata(4, 3, 2))
        self.requests: list[tuple[int, int, int, str]] = []
        self.stored: dict[int, set[str]] = {}
        self.acknowledged: list[int] = []
        self.ensembles: dict[int, tuple[str, ...]] = {}
        self.bookies = 4
        self.changed_at: int | None = None

    def _send(self, entry_id, slot):
        self.requests.append((entry_id, slot, self.state.tenures[slot], self.state.ensemble[slot]))

    def _take(self, entries):
        for entry in entries or []:
            self.acknowledged.append(entry.entry_id)
            write_set = {self.state.metadata.write_set(entry.entry_id)[i] for i in range(3)}
            assert len(write_set & self.stored[entry.entry_id]) >= 2, "acknowledged means stored where readers look"

    @precondition(lambda self: self.state.end_error is None)
    @rule()
    def add(self):
        entry = self.state.add(b"x")
        self.stored[entry.entry_id] = set()
        for slot in self.state.targets(entry.entry_id):
            self._send(entry.entry_id, slot)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def answer(self, data):
        entry_id, slot, tenure, bookie = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        self.stored[entry_id].add(bookie)
        self._take(self.state.added(entry_id, slot, tenure))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def fail(self, data):
        _, slot, tenure, _ = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        self.state.slot_failed(slot, tenure)

    @precondition(lambda self: self.state.phase is WriterPhase.NEEDS_CHANGE)
    @rule()
    def begin(self):
        self.slots = self.state.begin_change()
        self.changed_at = self.state.change_start

    @precondition(lambda self: self.state.phase is WriterPhase.CHANGING)
    @rule(spares=st.integers(1, 4))
    def commit(self, spares):
        assert self.state.change_start == self.changed_at, "the start stays while the change is under way"
        replaced = {slot: f"b{self.bookies + i}" for i, slot in enumerate(self.slots[:spares])}
        self.bookies += len(replaced)
        ensemble = list(self.state.ensemble)
        for slot, bookie in replaced.items():
            ensemble[slot] = bookie
        new = self.state.metadata.with_ensemble(self.state.change_start, tuple(ensemble))
        unreplaced = [slot for slot in self.slots if slot not in replaced]
        resend, done = self.state.commit_change(new, replaced, unreplaced)
        for entry, slot in resend:
            self._send(entry.entry_id, slot)
        self._take(done)

    @precondition(lambda self: self.state.phase is WriterPhase.CHANGING)
    @rule()
    def abandon(self):
        self._take(self.state.abandon_change(self.slots))

    @precondition(lambda self: len(self.acknowledged) > 3)
    @rule()
    def fence(self):
        self.state.end(LedgerFenced("another owner"))

    @precondition(lambda self: self.state.end_error is not None)
    @rule(slot=st.integers(0, 3))
    def nothing_counts_after_the_end(self, slot):
        assert self.state.added(self.state.lac + 1, slot, self.state.tenures[slot]) is None
        assert not self.state.slot_failed(slot, self.state.tenures[slot])

    @invariant()
    def in_order_without_gaps(self):
        assert self.acknowledged == list(range(len(self.acknowledged)))
        assert self.state.lac == len(self.acknowledged) - 1
        if self.state.end_error is None:
            assert sorted(self.state.pending) == list(range(self.state.lac + 1, self.state.last_added + 1))


TestWriterMachine = WriterMachine.TestCase
TestWriterMachine.settings = settings(max_examples=40, stateful_step_count=30)


def acknowledged_by(state, slots, count):
    """Add entries that these slots have, and no others."""
    for _ in range(count):
        entry = state.add(b"x")
        for slot in slots:
            state.added(entry.entry_id, slot, state.tenures[slot])


def test_a_failed_bookie_that_owed_copies_of_acknowledged_entries_is_remembered():
    state = LedgerWriterState(metadata())
    acknowledged_by(state, (0, 1), 2)
    state.add(b"x")
    assert state.lac == 1 and state.slot_failed(2, 0, unanswered=3)
    state.begin_change()
    resend, _ = state.commit_change(change(state, 2, "new"), {2: "new"})
    assert [(entry.entry_id, slot) for entry, slot in resend] == [(2, 2)] and state.degraded


@pytest.mark.parametrize("unanswered", [0, 1, 2])
def test_a_failed_bookie_that_owed_nothing_but_pending_entries_leaves_all_copies(unanswered):
    state = LedgerWriterState(metadata(4, 3, 2))
    acknowledged_by(state, (0, 1, 2, 3), 2)
    state.add(b"2")
    state.add(b"3")
    state.add(b"4: not for slot 3")
    state.added(3, 3, 0)
    state.slot_failed(3, 0, unanswered=min(unanswered, 1))
    state.begin_change()
    state.commit_change(change(state, 3, "new"), {3: "new"})
    assert not state.degraded
