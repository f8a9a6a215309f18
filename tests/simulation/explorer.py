"""An exhaustive explorer of fencing and recovery: every interleaving of one writer, two recoverers and their bookies.

It drives the production decisions (see `explorer_nodes`) breadth first from "ledger created" and checks each distinct
state, so that a counter-example is a shortest one.

**State.** The writer's machine, its record and its compare-and-set; each recoverer's phase, machine and records; the
ledger's record in the store; per bookie what it holds (known, fenced, entries, LAC), whether it ever broke a
connection, requests that nobody waits for any more, and for each client the requests and replies on the way (in order
on a connection) and what that client knows of the bookie.

**Actions.** The writer adds an entry (`entries` at most), begins an ensemble change, closes; its compare-and-set
arrives, is answered, or is given up while it is still on the way. A recoverer reads the record, claims it, replaces a
bookie, closes. A request arrives at a bookie; a reply arrives at a client; a request that is not waited for any more
arrives late. A bookie crashes: it breaks a connection, and what was on the way there in both directions is lost. A
client waits for a request too long (`timeouts` for each client); the request stays on the way.

**Crashes.** A crash of a client is an execution in which it takes no further step, so all prefixes cover it: the
properties are safety properties. A bookie that has crashed once may break any connection from then on, whenever it
likes: that is more than one crash with a restart at any time, or never, can do. Bookies keep what they answered
(`test_bookie_crash` and the simulator are about disks); an add that was not yet durable is one that did not arrive.

**Reductions**. Each keeps a violation reachable when there is one:
- *Memory of steps*: nodes are pure, so a node's step is computed once for each (node, event); the search itself only
  looks up.
- *Symmetry*: slots are alike while ensemble size = write quorum, so bookies may be renamed; the two recoverers may be
  swapped. A state is stored as one of its images: columns (one per bookie) sorted, for both orders of the recoverers.
  Where the production code picks the lowest slot, both orders of slots are tried.
- *Versions* are kept as one bit, whether a client's version is the store's: versions only grow.
- *A fence only takes behaviour away.* A refused ordinary add is as good as one that never arrives, and a writer that
  was told so is as good as one that takes no further step; so refused adds are not delivered, and a fence or read that
  nobody waits for any more vanishes. Whether an add is refused is the production rule's decision.
- *Questions of recoverers* (fence, read) are answered and heard in one step. What a bookie says can change between the
  two only by an add that it accepts; so each accepted add is also tried with every subset of the questions waiting at
  that bookie answered just before it, these answers then being heard at any time. (An ordinary add is refused behind a
  fence; if a mutant's read does not fence, it is not, and this matters.)
- *A connection breaks* when its client hears of it: until then, what was on the way need not be delivered.
- *Waiting for the store* is all a recoverer does then, so the arrival and the answer of its compare-and-set, and the
  re-reading after a conflict, are one step; a staler read would only lead to one more conflict. Of the writer's
  ensemble change, arrival and answer are two steps, its closing is one.
- *Without crashes and time-outs* recovery adds are answered and heard in one step: nothing can come between.
- *After CLOSED*, a recoverer that is not yet closing can only find that out; it stops there. The writer goes on.

What is not explored: time-outs of the store for recoverers (the same as a crash with the compare-and-set on the way),
a writer's re-planning after its own end, two compare-and-sets of the writer on the way besides its closing, more copies
than the write quorum (striping), damage and limbo.

**Invariants** in every state:
- I1: once CLOSED, each entry up to the last is on an ack quorum of the write set that the record names.
- I2: a bookie is never asked to store other bytes under the id of an entry that exists: nobody answers CONFLICT.
- I3: CLOSED never changes, and its last entry is at or behind every acknowledged one.
- Agreement: each recoverer that is done reports the last entry of the record.
- No step of production code raises what its shell does not expect.
"""

import time
from collections.abc import Iterator
from typing import Any

from magnetar.protocol.bookie_wire import BookieStatus

from .explorer_nodes import (
    CLIENTS,
    LATE_ANSWER,
    LOST,
    MUST_NOT,
    NEW_BOOKIE,
    Frozen,
    Outcome,
    Violation,
    bookie_step,
    first_record,
    freeze_metadata,
    still_matters,
    thaw_metadata,
)
from .explorer_recoverer import CLOSING, DONE, Recoverer
from .explorer_report import Options, Report, judge
from .explorer_transcript import describe, describe_state
from .explorer_writer import Writer

State = tuple[int, ...]
"""Ids of: writer's core, two recoverers' cores, record's core, one column per bookie."""

BOOKIE, CRASHED, LATE, CHANNELS, INFOS, RECORD_BITS = 0, 1, 2, slice(3, 6), slice(6, 9), 9
"""Places in a column."""
QUIET: tuple[tuple[Any, ...], tuple[Any, ...]] = (), ()
"""A connection with (requests, replies) on the way: none."""


class Explorer:
    """One search; `writer` is the class of the writer's shell (a mutant brings its own)."""

    def __init__(self, options: Options, writer: type[Writer] | None = None) -> None:
        self.options = options
        self._writer = writer or Writer
        self._n = options.bookies
        self._ids: dict[Any, int] = {}
        self._values: list[Any] = []
        self._served: dict[int, list[tuple[Any, int]]] = {}
        self._broken: dict[tuple[int, int], int] = {}
        self._retired: dict[tuple[int, int], int] = {}
        self._failed = self._id(Recoverer.retired(self._n)[0])
        self._asked: dict[tuple[int, int], tuple[Any, int]] = {}
        self._eager = not options.crashes_max and not options.timeouts
        self._swapped: dict[int, int] = {}
        self._steps: dict[Any, Any] = {}
        self._pushes: dict[Any, int] = {}
        self._choices: dict[tuple[int, int], list[str]] = {}
        self._verdicts: dict[Any, str] = {}

    # -- ids and images -----------------------------------------------------------------------------------------------

    def _id(self, value: Any) -> int:
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self._values)
            self._values.append(value)
        return found

    def initial(self) -> State:
        """The ledger was created, nobody has begun."""
        options = self.options
        writer = Writer.initial(self._n, options.timeouts)
        recoverer = Recoverer.initial(self._n, options.timeouts)
        record = freeze_metadata(first_record(), self._n)
        columns = [
            self._id(
                (
                    NEW_BOOKIE,
                    False,
                    (),
                    QUIET,
                    QUIET,
                    QUIET,
                    writer[1][i],
                    recoverer[1][i],
                    recoverer[1][i],
                    record[1][i],
                )
            )
            for i in range(self._n)
        ]
        core = self._id(recoverer[0])
        second = core if options.recoverers > 1 else self._id(("absent",))
        return (self._id(writer[0]), core, second, self._id(record[0]), *columns)

    def canonical(self, state: State) -> State:
        """The least image of a state under renaming of bookies and swapping of recoverers."""
        plain = (*state[:4], *sorted(state[4:]))
        if state[2] < state[1]:
            return (state[0], state[2], state[1], state[3], *sorted(map(self._swap, state[4:])))
        if state[2] == state[1]:
            other = (*state[:4], *sorted(map(self._swap, state[4:])))
            return min(plain, other)
        return plain

    def _swap(self, column: int) -> int:
        found = self._swapped.get(column)
        if found is None:
            c = self._values[column]
            found = self._swapped[column] = self._id((*c[:4], c[5], c[4], c[6], c[8], c[7], c[9]))
        return found

    # -- what may happen ----------------------------------------------------------------------------------------------

    def successors(self, state: State) -> Iterator[tuple[Any, State]]:
        """(label, state) for each action. Raises Violation."""
        values = self._values
        columns = state[4:]
        crashes = sum(values[column][CRASHED] for column in columns)
        for i, column in enumerate(columns):
            served = self._served.get(column)
            if served is None:
                served = self._served[column] = list(self._serve(column))
            for label, changed in served:
                yield (i, label), (*state[: 4 + i], changed, *state[5 + i :])
        for client in range(3):
            for choice in self._choices_of(client, state[client]):
                yield from self._step(state, client, choice, -1)
            timeouts = self._timeouts(client, state[client])
            for i, column in enumerate(columns):
                requests, replies = values[column][3 + client]
                if requests and client and requests[0][0] != "add":
                    reply, asked = self._ask(column, client)
                    yield from self._step((*state[: 4 + i], asked, *state[5 + i :]), client, reply, i)
                elif requests and client and self._eager:
                    for changed, reply in self._added(column, client):
                        yield from self._step((*state[: 4 + i], changed, *state[5 + i :]), client, reply, i)
                if replies:
                    yield from self._step(state, client, replies[0], i)
                if requests or replies:
                    if timeouts:
                        yield from self._step(state, client, LATE_ANSWER, i)
                    if values[column][CRASHED] or crashes < self.options.crashes_max:
                        broken = self._break(column, client)
                        yield from self._step((*state[: 4 + i], broken, *state[5 + i :]), client, LOST, i)

    def _added(self, column_id: int, client: int) -> list[tuple[int, Any]]:
        """A recovery add arrives: (column with the reply on the way, reply)."""
        column = self._values[column_id]
        requests, replies = column[3 + client]
        found: list[tuple[int, Any]] = []
        for _, changed, reply in self._add(column, requests[0], client):
            channel = requests[1:], (*replies, reply)
            found.append((self._tidy((*changed[: 3 + client], channel, *changed[4 + client :])), reply))
        return found

    def _break(self, column_id: int, client: int) -> int:
        """A connection breaks and its client hears of it at once; the bookie counts as crashed while crashes are
        counted at all."""
        found = self._broken.get((column_id, client))
        if found is None:
            column = self._values[column_id]
            crashed = self.options.crashes_max < self._n
            channels = list(column[CHANNELS])
            channels[client] = (), (LOST,)
            new = (column[BOOKIE], crashed, column[LATE], *channels, *column[6:])
            found = self._broken[column_id, client] = self._id(new)
        return found

    def _timeouts(self, client: int, core_id: int) -> int:
        core = self._values[core_id]
        if core == ("absent",):
            return 0
        return core[3] if client == 0 else core[2]

    def _choices_of(self, client: int, core_id: int) -> list[str]:
        found = self._choices.get((client, core_id))
        if found is None:
            core = self._values[core_id]
            if core == ("absent",):
                found = []
            elif client == 0:
                found = self._writer.choices(core)
                if not self.options.writer_closes:
                    found = [choice for choice in found if choice != "close"]
                if core[0][2] + 1 >= self.options.entries:
                    found = [choice for choice in found if choice != "add"]
            else:
                found = Recoverer.choices(core)
            self._choices[client, core_id] = found
        return found

    def _serve(self, column_id: int) -> Iterator[tuple[Any, int]]:
        """Adds that may arrive at a bookie: (label, column)."""
        column = self._values[column_id]
        for request in column[LATE]:
            for _, changed, _ in self._add(column, request, -1):
                yield ("serves late", request), self._tidy(changed)
        for client in range(3):
            requests, replies = column[3 + client]
            if requests and requests[0][0] == "add" and not (client and self._eager):
                for _, changed, reply in self._add(column, requests[0], client):
                    channel = requests[1:], (*replies, reply)
                    new = (*changed[: 3 + client], channel, *changed[4 + client :])
                    yield ("serves", CLIENTS[client], requests[0], reply), self._tidy(new)

    def _add(self, column: tuple[Any, ...], request: Any, client: int) -> Iterator[tuple[int, tuple[Any, ...], Any]]:
        """Serve an add, after none, one or both recoverers' questions were answered just before: (how many, column,
        reply)."""
        asking = [
            other
            for other in (1, 2)
            if other != client and column[3 + other][0] and column[3 + other][0][0][0] in ("fence", "read")
        ]
        for first in ((), *((one,) for one in asking), *((tuple(asking),) if len(asking) == 2 else ())):
            before = column
            for other in first:
                bookie, answer = bookie_step(before[BOOKIE], before[3 + other][0][0])
                channel = before[3 + other][0][1:], (*before[3 + other][1], answer)
                before = (bookie, *before[1 : 3 + other], channel, *before[4 + other :])
            bookie, reply = bookie_step(before[BOOKIE], request)
            if reply[2] == BookieStatus.CONFLICT:
                raise Violation("I2: two different entries under one id")
            if bookie == before[BOOKIE] and (first or reply[2] != BookieStatus.OK):
                continue
            yield len(first), (bookie, *before[1:]), reply

    def _ask(self, column_id: int, client: int) -> tuple[Any, int]:
        """A bookie answers a recoverer's question: (reply, column with it on the way)."""
        found = self._asked.get((column_id, client))
        if found is None:
            column = self._values[column_id]
            requests, replies = column[3 + client]
            bookie, reply = bookie_step(column[BOOKIE], requests[0])
            channel = requests[1:], (*replies, reply)
            new = (bookie, *column[1 : 3 + client], channel, *column[4 + client :])
            found = self._asked[column_id, client] = reply, self._tidy(new)
        return found

    def _tidy(self, column: tuple[Any, ...]) -> int:
        """Without late requests that would change nothing."""
        if column[LATE]:
            late = tuple(request for request in column[LATE] if still_matters(column[BOOKIE], request))
            column = (*column[:LATE], late, *column[LATE + 1 :])
        return self._id(column)

    # -- steps of clients ---------------------------------------------------------------------------------------------

    def _step(self, state: State, client: int, event: Any, bookie: int) -> Iterator[tuple[Any, State]]:
        values = self._values
        columns = [values[column] for column in state[4:]]
        infos = tuple([column[6 + client] for column in columns])
        record: Any = None
        if bookie < 0 and event in ("cas arrives", "cas answered", "reads the record", "late cas arrives"):
            record = values[state[3]], tuple([column[RECORD_BITS] for column in columns])
        key = client > 0, state[client], infos, event, bookie, record
        outcomes = self._steps.get(key)
        if outcomes is None:
            outcomes = self._steps[key] = self._compute(client, (values[state[client]], infos), event, bookie, record)
        if isinstance(outcomes, Violation):
            raise Violation(str(outcomes), client, event)
        for outcome in outcomes:
            yield (CLIENTS[client], event, bookie), self._apply(state, columns, client, outcome, event, bookie)

    def _compute(self, client: int, node: Frozen, event: Any, bookie: int, record: Any) -> list[Outcome] | Violation:
        outcomes: list[Outcome] = []
        try:
            for flip in (False, True) if event in ("begin change", "replaces a bookie") else (False,):
                if client == 0:
                    writer = self._writer(node, self._n, flip)
                    outcome = writer.hear(bookie, event) if bookie >= 0 else writer.happen(event, record)
                else:
                    recoverer = Recoverer(node, self._n)
                    outcome = recoverer.hear(bookie, event) if bookie >= 0 else recoverer.happen(event, record, flip)
                if outcome not in outcomes:
                    outcomes.append(outcome)
        except Violation as violation:
            return violation
        except MUST_NOT as error:
            return Violation(f"production code raised {type(error).__name__}: {error}")
        return outcomes

    def _apply(self, state: State, columns: list[Any], client: int, outcome: Outcome, event: Any, bookie: int) -> State:
        core, infos = outcome.frozen
        cores = [*state[:4]]
        cores[client] = self._id(core)
        record_bits: Any = None
        if outcome.store is not None:
            self._check_store(self._values[state[3]], [column[RECORD_BITS] for column in columns], outcome.store)
            cores[3] = self._id(outcome.store[0])
            record_bits = outcome.store[1]
            for other in range(3):
                if other != client:
                    cores[other] = self._stale(other, cores[other])
        sends: dict[int, tuple[Any, ...]] = {}
        for target, request in outcome.sends:
            sends[target] = (*sends.get(target, ()), request)
        heard = bookie if bookie >= 0 and event != LATE_ANSWER else -1
        new: list[int] = []
        for i, column in enumerate(columns):
            forget, sent = i in outcome.forget, sends.get(i, ())
            key = (
                state[4 + i], client, infos[i], forget, sent, i == heard,
                None if record_bits is None else record_bits[i],
            )  # fmt: skip
            found = self._pushes.get(key)
            if found is None:
                found = self._pushes[key] = self._push(column, *key[1:])
            new.append(found)
        if outcome.store is not None and outcome.store[0][0] == "CLOSED":
            for other in (1, 2):
                if self._values[cores[other]][0] not in (CLOSING, DONE, "absent"):
                    cores[other] = self._failed
                    new = [self._retire(column, other) for column in new]
        return (*cores, *new)

    def _retire(self, column_id: int, client: int) -> int:
        """A column without a recoverer that can only find the ledger closed."""
        found = self._retired.get((column_id, client))
        if found is None:
            column = self._values[column_id]
            channels, infos = list(column[CHANNELS]), list(column[INFOS])
            channels[client], infos[client] = QUIET, Recoverer.retired(self._n)[1][0]
            found = self._retired[column_id, client] = self._id((*column[:3], *channels, *infos, column[9]))
        return found

    def _push(
        self,
        column: tuple[Any, ...],
        client: int,
        info: Any,
        forget: bool,
        sent: tuple[Any, ...],
        heard: bool,
        bits: Any,
    ) -> int:
        requests, replies = column[3 + client]
        late = column[LATE]
        if heard:
            replies = replies[1:]
        if forget:
            for request in requests:
                if request[0] == "add" and request not in late:
                    late = tuple(sorted((*late, request)))
            requests, replies = (), ()
        channels = list(column[CHANNELS])
        infos = list(column[INFOS])
        channels[client] = (*requests, *sent), replies
        infos[client] = info
        record_bits = column[RECORD_BITS] if bits is None else bits
        return self._tidy((column[BOOKIE], column[CRASHED], late, *channels, *infos, record_bits))

    def _stale(self, client: int, core_id: int) -> int:
        """A client's version is no longer the store's."""
        core = self._values[core_id]
        if core == ("absent",):
            return core_id
        if client == 0:
            return self._id((*core[:2], False, *core[3:7], None))
        return self._id((core[0], False, *core[2:]))

    # -- invariants ---------------------------------------------------------------------------------------------------

    def _check_store(self, core: Any, bits: list[int], new: Frozen) -> None:
        before = thaw_metadata((core, tuple(bits)))
        if before.closed and (core, tuple(bits)) != new:
            raise Violation("I3: a CLOSED ledger was changed")

    def check(self, state: State) -> str:
        """The invariant that a state breaks, or nothing."""
        core = self._values[state[3]]
        if core[0] != "CLOSED":
            return ""
        held = tuple([(self._values[c][BOOKIE][2], self._values[c][RECORD_BITS]) for c in state[4:]])
        key = state[:4], held
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = judge(
                self._values[state[0]][0][1], [self._values[c] for c in state[1:3]], core, held
            )
        return found

    # -- the search ---------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Explore breadth first, to the end or to the first violation."""
        report = Report(self.options)
        began = time.process_time()
        first = self.canonical(self.initial())
        parents: dict[State, State | None] = {first: None}
        level = [first]
        while level and not report.violation and len(parents) < self.options.states_max:
            following: list[State] = []
            for state in level:
                try:
                    for _, successor in self.successors(state):
                        report.transitions += 1
                        image = self.canonical(successor)
                        if image in parents:
                            continue
                        parents[image] = state
                        following.append(image)
                        report.violation = self.check(image)
                        if report.violation:
                            report.transcript = self._transcript(parents, image)
                            break
                except Violation as violation:
                    report.violation = str(violation.args[0])
                    report.transcript = self._transcript(parents, state, raising=True)
                if report.violation:
                    break
            level = following
            report.depth += bool(level)
        report.states, report.complete = len(parents), not level and not report.violation
        report.seconds = time.process_time() - began
        return report

    def _transcript(self, parents: dict[State, State | None], last: State, raising: bool = False) -> list[str]:
        """The way to a state, told with one fixed name for each bookie, and the step from it that raises."""
        path: list[State] = []
        at: State | None = last
        while at is not None:
            path.append(at)
            at = parents[at]
        path.reverse()
        state = self.initial()
        lines: list[str] = []
        for wanted in path[1:]:
            for label, successor in self.successors(state):
                if self.canonical(successor) == wanted:
                    lines.append(describe(label))
                    state = successor
                    break
            else:
                raise AssertionError("a step of the counter-example cannot be repeated")
            record = thaw_metadata((self._values[state[3]], tuple(self._values[c][RECORD_BITS] for c in state[4:])))
            bookies = [self._values[column][BOOKIE] for column in state[4:]]
            lines[-1] += describe_state(record, bookies, self._values[state[0]][0][1])
        if raising:
            try:
                for _ in self.successors(state):
                    pass
            except Violation as violation:
                client, event = violation.args[1:] if len(violation.args) > 1 else (0, "an add arrives")
                lines.append(f"{CLIENTS[client]}: {event}")
        return lines
