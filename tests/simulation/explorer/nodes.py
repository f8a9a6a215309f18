"""The nodes of the exhaustive explorer: a writer, recoverers and bookies around the production decisions.

Each node is frozen into small tuples between two events and thawed for one: that builds the production object again
(`LedgerWriterState`, `FencingState`, `ReadingState`, `WriteBack`, `LedgerMetadata`, `admission`), lets it decide,
and freezes what became of it. A frozen node is a *core* without names of bookies and one *info* per bookie, so that
bookies can be renamed by permuting infos. What is mirrored here instead of driven is only the order of calls in the
two coroutines `LedgerWriter._change_while_needed`/`close` and `LedgerRecovery.run`; `shadow` compares it with
the coroutines themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from magnetar.protocol.bookie_wire import BookieStatus, decode_read
from magnetar.protocol.errors import MagnetarError
from magnetar.storage.bookie import store as bookie_rules
from magnetar.storage.bookie.held_ledgers import HeldLedger
from magnetar.storage.ledger import recovery as ledger_recovery
from magnetar.storage.ledger.writer_state import LedgerWriterState, PendingEntry, SlotState, WriterPhase
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState

LEDGER = 7
ENSEMBLE, WRITE_QUORUM, ACK_QUORUM = 3, 3, 2
NAMES = ("A", "B", "C", "D")
CLIENTS = ("writer", "recoverer 1", "recoverer 2")
LOST, LATE_ANSWER = ("lost",), ("late",)
"""What a client hears instead of a reply."""
READ_WINDOW = ledger_recovery.ENTRIES_PER_READ_FIRST

Frozen = tuple[Any, tuple[Any, ...]]
"""(core, info of each bookie)."""


class Violation(Exception):
    """An invariant does not hold, or production code raised what it must not."""


class FirstChance:
    """No chance at all: the explorer branches where order matters."""

    def shuffle(self, items: Any) -> None:
        """Leave the order."""


@dataclass
class Outcome:
    """What an event did to its node: the node, requests (bookie, request), channels that no longer count."""

    frozen: Frozen
    sends: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    forget: set[int] = field(default_factory=set)
    over: bool = False
    """Whether nobody waits for the answers to `sends` either."""
    store: Frozen | None = None
    """The new record, when a compare-and-set landed."""


# -- the ledger's record ---------------------------------------------------------------------------------------------


def freeze_metadata(metadata: LedgerMetadata | None, bookies: int) -> Frozen:
    """Fragments as sets of bookies: with ensemble size = write quorum, slots are alike."""
    if metadata is None:
        return None, (0,) * bookies
    core = (metadata.state.value, metadata.last_entry, tuple(first for first, _ in metadata.fragments))
    bits = tuple(
        sum(1 << k for k, fragment in enumerate(metadata.fragments) if name in fragment.bookies)
        for name in NAMES[:bookies]
    )
    return core, bits


def thaw_metadata(frozen: Frozen, ensemble: Sequence[str] = ()) -> LedgerMetadata:
    """The record; bookies of the last fragment take the slots that they have in `ensemble`."""
    (state, last_entry, firsts), bits = frozen
    fragments: list[Fragment] = []
    for k, first in enumerate(firsts):
        members = [NAMES[i] for i, bit in enumerate(bits) if bit >> k & 1]
        if ensemble:
            others = iter([name for name in members if name not in ensemble])
            members = [name if name in members else next(others) for name in ensemble]
        fragments.append(Fragment(first, tuple(members)))
    return LedgerMetadata(
        LEDGER, ENSEMBLE, WRITE_QUORUM, ACK_QUORUM, tuple(fragments), LedgerState(state), last_entry, last_entry + 1
    )


def same_members(one: LedgerMetadata, other: LedgerMetadata) -> bool:
    """Whether the last fragments are the same, whatever the slots."""
    mine, theirs = one.last_fragment, other.last_fragment
    return mine.first_entry == theirs.first_entry and set(mine.bookies) == set(theirs.bookies)


# -- a bookie --------------------------------------------------------------------------------------------------------

NEW_BOOKIE = (False, False, 0, -1, -1)
"""(knows the ledger, fenced, entries as bits, LAC, LAC in entry 1: it stands for the digest)."""


def bookie_step(frozen: tuple[Any, ...], request: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Serve one request durably: (bookie, reply). See `BookieStore` for the same steps with a disk."""
    known, fenced, entries, lac, lac_of_1 = frozen
    state = HeldLedger(LEDGER, 0) if known else None
    if state is not None:
        state.fenced, state.lac = fenced, lac
    if request[0] == "add":
        _, entry, entry_lac, recovery = request
        if state is None:
            refusal = bookie_rules.refuse_unknown_ledger(recovery, False, True, False)
            if refusal is not None:
                return frozen, ("add", entry, refusal)
            state = HeldLedger(LEDGER, 0)
        refusal = bookie_rules.refuse_known_ledger(recovery, state.fenced, True)
        if refusal is not None:
            return frozen, ("add", entry, refusal)
        if entries >> entry & 1:
            status = bookie_rules.judge_repeated(lac_of_1 if entry else -1, entry_lac)
            return frozen, ("add", entry, status)
        lac_of_1 = entry_lac if entry else lac_of_1
        state.lac = max(state.lac, entry_lac)
        return (True, state.fenced, entries | 1 << entry, state.lac, lac_of_1), ("add", entry, BookieStatus.OK)
    state = state or HeldLedger(LEDGER, 0)
    if request[0] == "fence":
        state.fenced = True
        return (True, True, entries, state.lac, lac_of_1), ("fence", state.lac)
    wanted = decode_read(request[1])
    if wanted.fence:
        state.fenced = known = True
    found = tuple(e for e in range(2) if entries >> e & 1 and wanted.first <= e <= wanted.last)
    return (known, state.fenced, entries, state.lac, lac_of_1), ("read", found, lac_of_1)


def still_matters(bookie: tuple[Any, ...], request: tuple[Any, ...]) -> bool:
    """Whether a request whose answer nobody waits for can still change the bookie."""
    return bookie_step(bookie, request)[0] != bookie


# -- the writer's state machine, frozen ------------------------------------------------------------------------------


def freeze_writer_state(state: LedgerWriterState, bookies: int) -> Frozen:
    """(phase, LAC, last added, ended by), per bookie (slot's state, acknowledgements as bits)."""
    infos: list[Any] = [(0, 0)] * bookies
    ended = state.phase is WriterPhase.ENDED
    if not ended:
        for slot, name in enumerate(state.ensemble):
            acks = sum(1 << e for e, entry in state.pending.items() if entry.acks >> slot & 1)
            infos[NAMES.index(name)] = (state.slots[slot].value, acks)
    return (state.phase.value, state.lac, state.last_added), tuple(infos)


SLOT_ORDERS = tuple(permutations(range(ENSEMBLE)))
"""Which of the bookies that hold a slot holds which: where production code picks the lowest slot, all are tried."""


def thaw_writer_state(frozen: Frozen, metadata: LedgerMetadata, order: Sequence[int]) -> LedgerWriterState:
    (phase, lac, last_added), infos = frozen
    state = LedgerWriterState(metadata)
    state.lac, state.last_added = lac, last_added
    if phase == WriterPhase.ENDED.value:
        state.end()
        return state
    state.phase = WriterPhase(phase)
    holders = [i for i, (slot, _) in enumerate(infos) if slot]
    holders = [holders[place] for place in order]
    state.ensemble = [NAMES[i] for i in holders]
    state.slots = [SlotState(infos[i][0]) for i in holders]
    for e in range(lac + 1, last_added + 1):
        entry = state.pending[e] = PendingEntry(e, b"x", None)
        entry.acks = sum(1 << slot for slot, i in enumerate(holders) if infos[i][1] >> e & 1)
    state._slots_changed()
    return state


def lost_interest(before: tuple[list[str], list[int]], state: LedgerWriterState) -> set[int]:
    """Bookies whose earlier requests no longer count: their slot's tenure rose, or all is over."""
    names, tenures = before
    if state.phase is WriterPhase.ENDED:
        return set(range(len(NAMES)))
    return {NAMES.index(name) for slot, name in enumerate(names) if tenures[slot] != state.tenures[slot]}


def first_record() -> LedgerMetadata:
    return LedgerMetadata(LEDGER, ENSEMBLE, WRITE_QUORUM, ACK_QUORUM, (Fragment(0, NAMES[:3]),))


MUST_NOT = (MagnetarError, ValueError, AssertionError)
"""What production code must not raise in any of these steps."""
