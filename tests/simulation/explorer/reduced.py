"""An exhaustive explorer of fencing and recovery: every interleaving of one writer, two recoverers and their bookies.

The transition system is `system`'s, the decisions in it are production code. `plain` searches it as
it stands. This explorer takes several of its events in one step wherever the steps between cannot be told apart from
outside, and explores one of each set of executions that differ only in ways that no invariant and no other node can
notice. A test compares what both find.

**Faults.** A bookie's answer means that it is durable, so a crash of a bookie is that its connections break: what was
on the way there may have arrived or not. Here any connection breaks, and any client waits too long, as often as they
like; that contains the crash and restart of every bookie, and a time-out of every client, many times over. A crash of
a client is an execution in which it takes no further step. The writer's compare-and-set for an ensemble change may be
given up (`store_timeouts`) and land later or never; that of a recoverer or of a closing is the same as its crash with
the compare-and-set on the way.

**Steps.** The writer hears an ack quorum, replaces bookies, closes; a compare-and-set that it gave up lands. A
recoverer claims the ledger; hears enough answers to its fences, or to its reads; hears an ack quorum of adds; replaces
bookies.

**Reductions.** For each: why a violation is found if there is one.

- *Memory.* Nodes are pure: what an event does to one is computed once for each (node, event).
- *Renaming.* Ensemble size = write quorum, so slots are alike and bookies can be renamed; so can the two recoverers. A
  state is stored as its least image: columns (one per bookie) sorted, for both orders of the recoverers. Where
  production code picks the lowest slot, all orders of slots are tried.
- *Late arrival.* An add changes its bookie only; who asks there next notices that, and who waits for its answer. So
  an add arrives just before either; any add on the way may, in the order of its connection. One that nobody notices
  does not arrive: fewer copies can only break I1 sooner. A question that waits at the bookie is also tried as answered
  just before such an add.
- *A fence only takes behaviour away.* An add that is refused is as good as one on the way for ever, and a writer that
  is told so as good as one that stops; so refused adds vanish, and so do questions that nobody waits for. The
  production rule decides whether an add is refused.
- *Answers heard late.* Hearing that an entry is stored shows only in an acknowledgement, and an answer on the way does
  what a heard one does when the slot fails before: nothing. So answers stay on the way until an ack quorum is heard.
  Those about acknowledged entries vanish. A client may hear that a connection broke even if nothing was on the way.
- *Adding early.* A writer that has added an entry which has not arrived can do all that one can which has not added it:
  the only difference is the LAC in the add. So the writer adds as many entries as it likes at its beginning and after
  each acknowledgement, at least one, and never otherwise.
- *Waiting is not a state.* A client whose state lets it do nothing that others notice before its compare-and-set is
  answered has it answered at once; what others do before it arrives, they can do before it is sent. That is so for a
  claim, a closing and, while the machine says CHANGING, an ensemble change (one that did begin to count, as a mutant's
  does, is explored as it is). Failures during a change are failures after it: they join the next one either way. Failed
  slots wait for a change in the same way, so several fail and are replaced in one step.
- *Claimed for both.* In recovery the record changes only once more, so the second recoverer can read it at once.
- *Questions in bursts.* An answer to a question differs from a later one only by adds that arrived meanwhile, see late
  arrival; so a recoverer hears all the answers that end its phase in one step, in the order of the bookies, for its
  verdicts depend on who answered what. A question that fails is one that is never answered: recovery then gives up,
  but for the adds of entries that it found before the one it cannot decide.
- *Writing back alone.* From its write-back on, a recoverer is noticed only by its adds' arrival and by its closing.
  Either it closes the ledger: then whatever the other does from here is without effect, and that one stops. Or it does
  not: then only its adds remain, to be found by the other, in any order and at the bookies that the other asks.
- *A writer after the claim* cannot change the record any longer. Unless it has entries left to add, only its adds are
  noticed by others, so what it acknowledges is explored at the end, when no one will fence any more (`_alone`): all
  prefixes of it. One that cannot acknowledge anything more, even if nobody fences, has ended.
- *Leftovers*: what nobody will ask for is forgotten (LACs after the fences; late adds and who is fenced after the
  questions; everything but the record once it is CLOSED, when I1 and agreement have been checked).
- *Giving up* (RecoveryFailed, a fenced writer) is as good as taking no further step, unless the record was changed.

Most of these use what the state machines say at the moment (a phase, a refusal), not what they should say, so that
mutants do not hide behind them.

Not explored: striping (more bookies in the ensemble than copies), a third recoverer or a second attempt of one, an
auditor that changes the record, damage, limbo, and disks (`unit/storage/bookie/test_crash.py` and the simulator are
about disks).

**Invariants.**
- I1: once CLOSED, each entry up to the last is on an ack quorum of the write set that the record names.
- I2: a bookie is never asked to store other bytes under the id of an entry that exists: nobody answers CONFLICT.
- I3: CLOSED never changes, and its last entry is at or behind every acknowledged one.
- Agreement: each recoverer that is done reports the last entry of the record.
- No step of production code raises what its shell does not expect.
"""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from magnetar.protocol.bookie_wire import BookieStatus
from magnetar.storage.ledger.writer_state import SlotState, WriterPhase

from .arrivals import Arrivals, Lacs
from .endings import OVER, SETTLED, UNFENCED, Endings
from .nodes import ACK_QUORUM, CLIENTS, LOST, Violation, bookie_step
from .recoverer import CLOSING, FAILED, FENCING, IDLE, READING, WRITING, Recoverer
from .report import Options, judge_acknowledged
from .search import Search, Way
from .system import ABSENT, BOOKIE, CHANNEL, INFO, QUIET, State

NOTHING_AWAITED = 1 << 30
ENDED, LIVE = WriterPhase.ENDED.value, SlotState.LIVE.value
ASKING = IDLE, FENCING, READING


class Explorer(Search):
    """One search; see the module."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._gone = self.intern(Recoverer.retired(self.bookies)[0])
        self._arrivals = Arrivals(self)
        self._endings = Endings(self)
        self._futures: dict[State, dict[int, Any]] = {}

    # -- what is alike ------------------------------------------------------------------------------------------------

    def canonical(self, state: State) -> State:
        """The least image, under renaming of bookies and swapping of recoverers, of what can still be noticed."""
        state = self._settled(state)
        plain = (*state[:4], *sorted(state[4:]))
        if state[2] > state[1]:
            return plain
        swapped = (state[0], state[2], state[1], state[3], *sorted(map(self._endings.swapped, state[4:])))
        return min(plain, swapped)

    def _settled(self, state: State) -> State:
        record = self._record(state)
        if record == "OPEN":
            return state
        phases = self._phase(state, 1), self._phase(state, 2)
        if record == "CLOSED":
            left, state = OVER, (state[0], self._gone, self._gone, *state[3:])
        else:
            if not self._ended(state) and len(self._alone(state)) == 1:
                state = self._end_writer(state, self.values[state[0]][0][1])
            if IDLE in phases or FENCING in phases:
                return state
            left = UNFENCED if READING in phases else SETTLED
        return (*state[:4], *[self._endings.strip(column, left) for column in state[4:]])

    def tidy(self, column: tuple[Any, ...]) -> int:
        """Also without adds of the writer that would be refused, and ordinary late ones like a recoverer's."""
        requests, replies = column[CHANNEL]
        if requests and bookie_step(column[BOOKIE], requests[0])[1][2] == BookieStatus.FENCED:
            column = (*column[:CHANNEL], ((), replies), *column[CHANNEL + 1 :])
        late = tuple([request for request in column[1] if request[3] or (*request[:3], 1) not in column[1]])
        return super().tidy((column[BOOKIE], late, *column[CHANNEL:]))

    def may_matter_late(self, request: tuple[Any, ...]) -> bool:
        """A fence or a read that nobody waits for vanishes."""
        return request[0] == "add"

    # -- what a state says --------------------------------------------------------------------------------------------

    def _record(self, state: State) -> str:
        return self.values[state[3]][0]

    def _phase(self, state: State, client: int) -> str:
        return self.values[state[client]][0]

    def _ended(self, state: State) -> bool:
        return self.values[state[0]][0][0] == ENDED

    def _lac(self, state: State, client: int) -> int:
        core = self.values[state[client]]
        if client == 0:
            return NOTHING_AWAITED if core[0][0] == ENDED else core[0][1]
        return core[4][0][1] if core[0] == WRITING else NOTHING_AWAITED

    def _lacs(self, state: State) -> Lacs:
        return self._lac(state, 0), self._lac(state, 1), self._lac(state, 2)

    def _live(self, state: State, client: int) -> list[int]:
        infos = [self.values[column][INFO + client] for column in state[4:]]
        return [i for i, info in enumerate(infos) if (info[2] if client else info[0])[0] == LIVE]

    def _did(self, labels: Any, state: State, client: int, event: Any, bookie: int = -1) -> list[Way]:
        label = CLIENTS[client], event, bookie
        try:
            return [((*labels, label), after) for after in self.step(state, client, event, bookie)]
        except Violation as violation:
            raise Violation(violation.args[0], (*labels, label)) from None

    # -- steps --------------------------------------------------------------------------------------------------------

    def starts(self) -> list[Way]:
        """The writer has added one entry or more."""
        return list(self._adding((), self.initial()))

    def successors(self, state: State) -> Iterator[Way]:
        """See the module."""
        if self._writer_matters(state):
            yield from self._writer_steps(state)
        alike = state[1] == state[2] and all(self._endings.swapped(column) == column for column in state[4:])
        for client in (1,) if alike else (1, 2):
            for way in self._recoverer_steps(state, client):
                yield from self._parted(*way)

    def _writer_matters(self, state: State) -> bool:
        """Whether anybody else can notice what the writer does from here on."""
        record = self._record(state)
        last_added = self.values[state[0]][0][2]
        return record == "OPEN" or (
            record == "IN_RECOVERY" and not self._ended(state) and last_added + 1 < self.options.entries
        )

    def _parted(self, labels: Any, state: State) -> Iterator[Way]:
        """A recoverer that writes back goes on alone, or only its adds remain; when nobody asks, the writer ends."""
        record, phases = self._record(state), (self._phase(state, 1), self._phase(state, 2))
        if record == "IN_RECOVERY" and WRITING in phases and (FENCING in phases or READING in phases):
            writing = 1 + phases.index(WRITING)
            yield from self._parted((*labels, (CLIENTS[3 - writing], "stops", -1)), self._leave(state, 3 - writing))
            yield (*labels, (CLIENTS[writing], "stops", -1)), self._leave(state, writing)
        elif record == "OPEN" or self._ended(state) or (record == "IN_RECOVERY" and set(phases) & set(ASKING)):
            yield labels, state
        else:
            for lac, more in self._alone(state).items():
                yield (*labels, *more), self._end_writer(state, lac)

    def _leave(self, state: State, client: int) -> State:
        cores = [*state[:4]]
        cores[client] = self._gone
        return (*cores, *[self._endings.without(column, client) for column in state[4:]])

    # -- the writer

    def _writer_steps(self, state: State) -> Iterator[Way]:
        core = self.values[state[0]]
        cas, late = core[4], core[6]
        if core[0][0] == WriterPhase.WRITING.value:
            yield from self._acknowledge(state, 0)
            if self.options.breaks:
                for way in self._fail((), state, 0):
                    yield from self._change(*way)
            if self.options.writer_closes and self._record(state) == "OPEN":
                yield from self._close(state)
        if cas:
            yield from self._change((), state, answered=False)
        if late is not None:
            yield from self._did((), state, 0, "late cas arrives")

    def _change(self, labels: Any, state: State, answered: bool = True) -> Iterator[Way]:
        """An ensemble change begins and comes to its end; only if not `answered`, the machine may be beyond it."""
        waiting = [(labels, state)]
        while waiting:
            labels, state = waiting.pop()
            core = self.values[state[0]]
            if core[0][0] == WriterPhase.NEEDS_CHANGE.value and not core[4]:
                waiting.extend(self._did(labels, state, 0, "begin change"))
            elif core[4] and (not answered or core[0][0] == WriterPhase.CHANGING.value):
                for choice in self.choices(0, state[0]):
                    if choice in ("cas arrives", "cas answered", "cas times out"):
                        waiting.extend(self._did(labels, state, 0, choice))
            else:
                yield labels, state

    def _close(self, state: State) -> Iterator[Way]:
        ((labels, state),) = self._did((), state, 0, "close")
        while self.values[state[0]][4]:
            ((labels, state),) = self._did(labels, state, 0, "cas arrives")
        if self._record(state) == "CLOSED":
            self._check_closed(labels, state)
            yield labels, state

    def _adding(self, labels: Any, state: State) -> Iterator[Way]:
        """The writer adds as many entries as it likes, at least one if none is on the way."""
        _, lac, last_added = self.values[state[0]][0]
        may_add = "add" in self.choices(0, state[0])
        if lac != last_added or not may_add:
            yield labels, state
        if may_add:
            for way in self._did(labels, state, 0, "add"):
                yield from self._adding(*way)

    def _alone(self, state: State) -> dict[int, Any]:
        """What the writer can acknowledge by itself, if no bookie is fenced any longer: last entry → how."""
        alone = (state[0], self._gone, self._gone, state[3], *map(self._endings.for_writer, state[4:]))
        found = self._futures.get(alone)
        if found is None:
            found = self._futures[alone] = {}
            known: dict[State, Any] = {alone: ()}
            waiting = [alone]
            for one in waiting:
                found.setdefault(self.values[one[0]][0][1], known[one])
                for labels, after in self._writer_steps(one):
                    after = (*after[:4], *map(self._endings.for_writer, after[4:]))
                    if after not in known:
                        known[after] = (*known[one], *labels)
                        waiting.append(after)
        return found

    def _end_writer(self, state: State, lac: int) -> State:
        over = (ENDED, lac, self.options.entries - 1), None, False, -1, None, None, None
        return (self.intern(over), *state[1:4], *[self._endings.without(column, 0) for column in state[4:]])

    # -- adds

    def _acknowledge(self, state: State, client: int) -> Iterator[Way]:
        """An ack quorum stores the next entry, and its answers are heard."""
        lacs = self._lacs(state)
        entry = lacs[client] + 1
        live = self._live(state, client)
        served = {i: self._arrivals.of_add(state[4 + i], client, entry, lacs) for i in live}
        for quorum in combinations(live, ACK_QUORUM):
            for choices in product(*[served[i] for i in quorum]):
                labels: tuple[Any, ...] = ()
                after = state
                for i, (more, column) in zip(quorum, choices, strict=True):
                    after = (*after[: 4 + i], column, *after[5 + i :])
                    labels += tuple((i, *label) for label in more)
                for i in quorum:
                    while (replies := self.values[after[4 + i]][CHANNEL + client][1]) and replies[0][1] <= entry:
                        ((labels, after),) = self._did(labels, after, client, replies[0], i)
                yield from self._acknowledged(labels, after, client, entry)

    def _acknowledged(self, labels: Any, state: State, client: int, entry: int) -> Iterator[Way]:
        if client and self._phase(state, client) != WRITING:
            yield from self._finish(labels, state, client)
        elif self._lac(state, client) >= entry:
            lac = self._lac(state, client)
            columns = [self._endings.without_answers(column, client, lac) for column in state[4:]]
            state = (*state[:4], *columns)
            if client:
                yield labels, state
            else:
                yield from self._adding(labels, state)

    def _fail(self, labels: Any, state: State, client: int) -> Iterator[Way]:
        """Connections to one live bookie or more break."""
        live = self._live(state, client)
        for count in range(1, len(live) + 1):
            for lost in combinations(live, count):
                more, after = labels, state
                for i in lost:
                    ((more, after),) = self._did(more, after, client, LOST, i)
                yield more, after

    # -- recoverers

    def _recoverer_steps(self, state: State, client: int) -> Iterator[Way]:
        phase = self._phase(state, client)
        if phase == IDLE and self._record(state) == "OPEN":
            yield self._claim(state, client)
        elif phase in (FENCING, READING):
            yield from self._hear_enough((), state, client, 0)
        elif phase == WRITING:
            yield from self._acknowledge(state, client)
            if self.options.breaks:
                for labels, failed in self._fail((), state, client):
                    for way in self._did(labels, failed, client, "replaces a bookie"):
                        yield from self._finish(*way, client)

    def _claim(self, state: State, client: int) -> Way:
        """A recoverer claims the ledger; the other one finds it claimed."""
        ((labels, state),) = self._did((), state, client, "reads the record")
        ((labels, state),) = self._did(labels, state, client, "cas arrives")
        other = 3 - client
        if self.values[state[other]] != ABSENT:
            ((labels, state),) = self._did(labels, state, other, "reads the record")
        return labels, state

    def _hear_enough(self, labels: Any, state: State, client: int, first: int) -> Iterator[Way]:
        """Questions are answered and heard, bookie by bookie, until the recoverer's phase ends."""
        phase, lacs = self._phase(state, client), self._lacs(state)
        if phase == READING and first and self.options.breaks:
            yield from self._give_up(labels, state, client)
        for i in range(first, self.bookies):
            for more, column in self._arrivals.of_question(state[4 + i], client, lacs):
                asked = (*state[: 4 + i], column, *state[5 + i :])
                reply = self.values[column][CHANNEL + client][1][0]
                told = (*labels, *[(i, *label) for label in more])
                for further, after in self._did(told, asked, client, reply, i):
                    if self._phase(after, client) == phase:
                        yield from self._hear_enough(further, after, client, i + 1)
                    else:
                        yield from self._finish(further, after, client)

    def _give_up(self, labels: Any, state: State, client: int) -> Iterator[Way]:
        """No more answers come; the adds of what was found are all that remains."""
        for i, column in enumerate(state[4:]):
            if self.values[column][CHANNEL + client] != QUIET:
                ((labels, state),) = self._did(labels, state, client, LOST, i)
        if self._phase(state, client) == WRITING:
            yield labels, self._leave(state, client)

    def _finish(self, labels: Any, state: State, client: int) -> Iterator[Way]:
        """What became of a recoverer, if anything: one that can close the ledger does."""
        phase = self._phase(state, client)
        if phase == CLOSING:
            for more, closed in self._did(labels, state, client, "cas arrives"):
                self._check_closed(more, closed)
                yield more, closed
        elif phase != FAILED:
            yield labels, state

    # -- invariants ---------------------------------------------------------------------------------------------------

    def check(self, state: State) -> str:
        """I3 in each state; the rest was checked when the ledger was closed."""
        record = self.values[state[3]]
        return judge_acknowledged(self.values[state[0]][0][1], record) if record[0] == "CLOSED" else ""

    def _check_closed(self, labels: Any, state: State) -> None:
        reason = super().check(state)
        if reason:
            raise Violation(reason, labels)
