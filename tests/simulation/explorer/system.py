"""The transition system that explorers search: nodes, connections and the ledger's record, one event at a time.

**State.** The writer's machine, its record and its compare-and-set; each recoverer's phase, machine and records; the
ledger's record in the store; per bookie what it holds (known, fenced, entries, LAC), requests that nobody waits for any
more, and for each client the requests and replies on the way (in order on a connection) and what that client knows of
the bookie. All of it is interned: a state is a tuple of small ints.

**Events.** Each method makes one event happen: a request arrives at a bookie and is answered; a client hears an answer,
or that its connection broke or that it waited too long; a client does what its own state allows (`Writer.choices`,
`Recoverer.choices`), the arrival of a compare-and-set at the store among it. Nodes are pure, so what an event does is
computed by production code once for each (node, event) and looked up from then on.
"""

from collections.abc import Sequence
from typing import Any

from magnetar.protocol.bookie_wire import BookieStatus
from magnetar.storage.ledger.writer_state import SlotState

from .nodes import (
    LATE_ANSWER,
    LOST,
    MUST_NOT,
    NEW_BOOKIE,
    SLOT_ORDERS,
    Frozen,
    Outcome,
    Violation,
    bookie_step,
    first_record,
    freeze_metadata,
    still_matters,
    thaw_metadata,
)
from .recoverer import Recoverer
from .report import Options, judge
from .writer import Writer

State = tuple[int, ...]
"""Ids of: writer's core, two recoverers' cores, record's core, one column per bookie."""

BOOKIE, LATE, CHANNEL, INFO, RECORD_BITS = 0, 1, 2, 5, 8
"""Places in a column; CHANNEL and INFO are followed by those of the other two clients."""
QUIET: tuple[tuple[Any, ...], tuple[Any, ...]] = (), ()
"""A connection with (requests, replies) on the way: none."""
ABSENT = ("absent",)

NEEDS_RECORD = frozenset(("cas arrives", "cas answered", "reads the record", "late cas arrives"))
PICKS_SLOTS = frozenset(("begin change", "cas answered", "replaces a bookie"))


class System:
    """States, and what single events make of them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.bookies = options.bookies
        self.values: list[Any] = []
        self._ids: dict[Any, int] = {}
        self._steps: dict[Any, Any] = {}
        self._pushes: dict[Any, int] = {}
        self._verdicts: dict[Any, str] = {}
        self._choices: dict[tuple[bool, int], list[str]] = {}

    def intern(self, value: Any) -> int:
        """The id of a core or column."""
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self.values)
            self.values.append(value)
        return found

    def initial(self) -> State:
        """The ledger was created, nobody has begun."""
        writer, recoverer = Writer.initial(self.bookies), Recoverer.initial(self.bookies)
        record = freeze_metadata(first_record(), self.bookies)
        columns = [
            (NEW_BOOKIE, (), QUIET, QUIET, QUIET, writer[1][i], recoverer[1][i], recoverer[1][i], record[1][i])
            for i in range(self.bookies)
        ]
        cores = [recoverer[0] if self.options.recoverers > i else ABSENT for i in range(2)]
        return tuple(map(self.intern, (writer[0], *cores, record[0], *columns)))

    # -- bookies ------------------------------------------------------------------------------------------------------

    def serve(self, column_id: int, client: int) -> int:
        """The first request on a connection arrives; its reply is on the way."""
        column = self.values[column_id]
        requests, replies = column[CHANNEL + client]
        bookie, reply = self._answer(column, requests[0])
        return self.with_channel((bookie, *column[1:]), client, (requests[1:], (*replies, reply)))

    def serve_late(self, column_id: int, request: tuple[Any, ...]) -> int:
        """A request arrives whose answer nobody waits for."""
        column = self.values[column_id]
        bookie, _ = self._answer(column, request)
        late = tuple([other for other in column[LATE] if other != request])
        return self.tidy((bookie, late, *column[CHANNEL:]))

    def _answer(self, column: tuple[Any, ...], request: tuple[Any, ...]) -> tuple[Any, Any]:
        bookie, reply = bookie_step(column[BOOKIE], request)
        if reply[0] == "add" and reply[2] == BookieStatus.CONFLICT:
            raise Violation("I2: two different entries under one id", ())
        return bookie, reply

    def with_channel(self, column: tuple[Any, ...], client: int, channel: Any) -> int:
        """A column with another state of one connection."""
        return self.tidy((*column[: CHANNEL + client], channel, *column[CHANNEL + client + 1 :]))

    def tidy(self, column: tuple[Any, ...]) -> int:
        """The id of a column without late requests that would change nothing."""
        if column[LATE]:
            late = tuple([request for request in column[LATE] if still_matters(column[BOOKIE], request)])
            column = (column[BOOKIE], late, *column[CHANNEL:])
        return self.intern(column)

    # -- clients ------------------------------------------------------------------------------------------------------

    def choices(self, client: int, core_id: int) -> list[str]:
        """What a client may do on its own."""
        found = self._choices.get((client > 0, core_id))
        if found is None:
            core = self.values[core_id]
            if core == ABSENT:
                found = []
            else:
                found = Recoverer.choices(core) if client else Writer.choices(core, self.options)
            self._choices[client > 0, core_id] = found
        return found

    def step(self, state: State, client: int, event: Any, bookie: int = -1) -> list[State]:
        """A client hears `event` from a bookie, or does what it may (no bookie). Raises Violation.

        More than one state when production code picks among slots, which have no order here.
        """
        values = self.values
        columns = [values[column] for column in state[4:]]
        infos = tuple([column[INFO + client] for column in columns])
        record: Any = None
        if bookie < 0 and event in NEEDS_RECORD:
            record = values[state[3]], tuple([column[RECORD_BITS] for column in columns])
        key = client > 0, state[client], infos, event, bookie, record
        outcomes = self._steps.get(key)
        if outcomes is None:
            outcomes = self._steps[key] = self._compute(client, (values[state[client]], infos), event, bookie, record)
        if isinstance(outcomes, Violation):
            raise Violation(str(outcomes), ())
        heard = bookie if event not in (LOST, LATE_ANSWER) else -1
        return [self._apply(state, columns, client, outcome, heard) for outcome in outcomes]

    def _compute(self, client: int, node: Frozen, event: Any, bookie: int, record: Any) -> list[Outcome] | Violation:
        outcomes: list[Outcome] = []
        try:
            orders = SLOT_ORDERS if event in PICKS_SLOTS and self._slots_down(client, node) > 1 else SLOT_ORDERS[:1]
            for order in orders:
                if client == 0:
                    writer = Writer(node, self.bookies, order)
                    outcome = writer.hear(bookie, event) if bookie >= 0 else writer.happen(event, record)
                else:
                    recoverer = Recoverer(node, self.bookies)
                    outcome = recoverer.hear(bookie, event) if bookie >= 0 else recoverer.happen(event, record, order)
                if outcome not in outcomes:
                    outcomes.append(outcome)
        except Violation as violation:
            return violation
        except MUST_NOT as error:
            return Violation(f"production code raised {type(error).__name__}: {error}")
        return outcomes

    def _slots_down(self, client: int, node: Frozen) -> int:
        """How many slots the production code can pick from."""
        slots = [(info[2] if client else info[0])[0] for info in node[1]]
        return sum(slot in (SlotState.FAILED.value, SlotState.EMPTY.value) for slot in slots)

    def _apply(self, state: State, columns: list[Any], client: int, outcome: Outcome, heard: int) -> State:
        core, infos = outcome.frozen
        cores = [*state[:4]]
        cores[client] = self.intern(core)
        record_bits: Any = None
        if outcome.store is not None:
            self._check_store(self.values[state[3]], [column[RECORD_BITS] for column in columns], outcome.store)
            cores[3] = self.intern(outcome.store[0])
            record_bits = outcome.store[1]
            for other in range(3):
                if other != client:
                    cores[other] = self._stale(other, cores[other])
        sends: dict[int, tuple[Any, ...]] = {}
        for target, request in outcome.sends:
            if request[0] == "add" and request[1] == 1:
                self._check_content(columns, request[2])
            sends[target] = (*sends.get(target, ()), request)
        new: list[int] = []
        for i in range(self.bookies):
            bits = None if record_bits is None else record_bits[i]
            sent, unheard = sends.get(i, ()), ()
            if outcome.over:
                sent, unheard = unheard, sent
            key = state[4 + i], client, infos[i], i in outcome.forget, sent, unheard, i == heard, bits
            found = self._pushes.get(key)
            if found is None:
                found = self._pushes[key] = self._push(columns[i], *key[1:])
            new.append(found)
        return (*cores, *new)

    def _push(
        self,
        column: tuple[Any, ...],
        client: int,
        info: Any,
        forget: bool,
        sent: tuple[Any, ...],
        unheard: tuple[Any, ...],
        heard: bool,
        bits: Any,
    ) -> int:
        requests, replies = column[CHANNEL + client]
        late = column[LATE]
        if heard:
            replies = replies[1:]
        if forget:
            late = tuple(sorted({*late, *filter(self.may_matter_late, (*requests, *unheard))}))
            requests, replies = (), ()
        channels, infos = list(column[CHANNEL:INFO]), list(column[INFO:RECORD_BITS])
        channels[client] = (*requests, *sent), replies
        infos[client] = info
        record_bits = column[RECORD_BITS] if bits is None else bits
        return self.tidy((column[BOOKIE], late, *channels, *infos, record_bits))

    def may_matter_late(self, request: tuple[Any, ...]) -> bool:
        """Whether a request is kept when nobody waits for its answer any longer."""
        return True

    def _stale(self, client: int, core_id: int) -> int:
        """A client's version is no longer the store's, and a compare-and-set that names it is in vain."""
        core = self.values[core_id]
        if core == ABSENT:
            return core_id
        if client == 0:
            return self.intern((*core[:2], False, *core[3:6], None))
        return self.intern((core[0], False, *core[2:]))

    # -- invariants ---------------------------------------------------------------------------------------------------

    def _check_content(self, columns: Sequence[Any], lac: int) -> None:
        """Entry 1 is sent with the LAC, which stands for all its bytes, that it has wherever it is."""
        if any(bookie[2] >> 1 & 1 and bookie[4] != lac for bookie, *_ in columns):
            raise Violation("I2: two different entries under one id", ())

    def _check_store(self, core: Any, bits: Sequence[int], new: Frozen) -> None:
        before = thaw_metadata((core, tuple(bits)))
        if before.closed and (core, tuple(bits)) != new:
            raise Violation("I3: a CLOSED ledger was changed", ())

    def check(self, state: State) -> str:
        """The invariant that a state breaks, or nothing."""
        core = self.values[state[3]]
        if core[0] != "CLOSED":
            return ""
        held = tuple([(self.values[c][BOOKIE][2], self.values[c][RECORD_BITS]) for c in state[4:]])
        key = state[:4], held
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = judge(
                self.values[state[0]][0][1], [self.values[c] for c in state[1:3]], core, held
            )
        return found

    def outcome(self, state: State) -> Any:
        """What a user can see: the record but for the names of bookies, and the last acknowledged entry."""
        bits = tuple(sorted(self.values[column][RECORD_BITS] for column in state[4:]))
        return self.values[state[3]], bits, self.values[state[0]][0][1]
