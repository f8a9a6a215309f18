"""What the metadata store knows about one ledger: its quorums, where its entries lie, whether it is still written.

`TRANSITIONS` has the states and who may make them change, each by a compare-and-set on the record's version. CLOSED
never changes its last entry. While OPEN only the writer appends or replaces the last fragment; the auditor may replace
lost bookies in fragments that are complete, whatever the state.

Invariants: ensemble size ≥ write quorum ≥ ack quorum ≥ 1. Fragments start at entry 0 and ascend. Every fragment names
`ensemble_size` different bookies. `last_entry` and `length` are valid only when CLOSED. The nonce never changes.

The nonce is a random number that stands in every entry, too. After a restore of the metadata from a backup, a second
ledger may get the same id. The nonce tells the entries of the two apart.
"""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from ...protocol.errors import MetadataError, ProtocolError
from ...runtime.transitions import check_transition
from .store import pack, unpack


class LedgerState(enum.StrEnum):
    """See `TRANSITIONS`."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


TRANSITIONS: Mapping[LedgerState, Collection[LedgerState]] = {
    LedgerState.OPEN: (
        LedgerState.IN_RECOVERY,  # a recoverer begins
        LedgerState.CLOSED,  # its writer closes it
    ),
    LedgerState.IN_RECOVERY: (LedgerState.CLOSED,),  # a recoverer settled the end
    LedgerState.CLOSED: (),
}


class Fragment(NamedTuple):
    """Entries from `first_entry` up to the next fragment lie on `bookies`, slot by slot."""

    first_entry: int
    bookies: tuple[str, ...]


@dataclass(frozen=True)
class LedgerMetadata:
    """The record of a ledger. `length` is in bytes of bodies; `last_entry` is −1 for a closed ledger without entries.

    `under_replicated` marks a ledger that was created with a smaller write quorum than configured, because too few
    bookies were alive; the auditor may restore it.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    length: int = 0
    under_replicated: bool = False
    nonce: int = 0

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise MetadataError(
                f"ledger {self.ledger_id}: impossible quorums "
                f"{self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}"
            )
        if not 0 <= self.nonce < 1 << 64:
            raise MetadataError(f"ledger {self.ledger_id}: its nonce {self.nonce} does not fit into 64 bits")
        if not self.fragments or self.fragments[0].first_entry != 0:
            raise MetadataError(f"ledger {self.ledger_id}: its first fragment does not start at entry 0")
        previous = -1
        for first_entry, bookies in self.fragments:
            if first_entry <= previous:
                raise MetadataError(f"ledger {self.ledger_id}: fragments are out of order at entry {first_entry}")
            if len(bookies) != self.ensemble_size or len(dict.fromkeys(bookies)) != self.ensemble_size:
                raise MetadataError(f"ledger {self.ledger_id}: fragment {first_entry} has a wrong ensemble {bookies}")
            previous = first_entry

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    @property
    def closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def bookies(self) -> tuple[str, ...]:
        """All bookies that the record names, in order of appearance."""
        return tuple(dict.fromkeys(bookie for fragment in self.fragments for bookie in fragment.bookies))

    def fragment_of(self, entry_id: int) -> Fragment:
        """The fragment that holds an entry. Raises ValueError for a negative id."""
        return self.fragments[self._index_of(entry_id)]

    def fragment_end(self, entry_id: int) -> int | None:
        """The last entry of the fragment that holds `entry_id`, or None when that fragment is the last, still open."""
        following = self._index_of(entry_id) + 1
        if following < len(self.fragments):
            return self.fragments[following].first_entry - 1
        return self.last_entry if self.closed else None

    def write_set(self, entry_id: int) -> tuple[str, ...]:
        """The bookies that an entry is written to: slots `(entry + i) mod E` for i < Qw of its fragment."""
        bookies = self.fragment_of(entry_id).bookies
        return tuple(bookies[slot] for slot in write_slots(entry_id, self.ensemble_size, self.write_quorum))

    def in_recovery(self) -> "LedgerMetadata":
        """The record as a recoverer claims it."""
        return replace(self, state=self._following(LedgerState.IN_RECOVERY))

    def close(self, last_entry: int, length: int) -> "LedgerMetadata":
        """The closed record. Fragments that would start behind the last entry hold nothing and go."""
        kept = tuple(fragment for fragment in self.fragments if fragment.first_entry <= max(last_entry, 0))
        state = self._following(LedgerState.CLOSED)
        return replace(self, state=state, last_entry=last_entry, length=length, fragments=kept)

    def with_ensemble(self, first_entry: int, bookies: tuple[str, ...]) -> "LedgerMetadata":
        """A new last fragment from `first_entry` on; it replaces the last one when both start at the same entry.

        Raises MetadataError when it would start before the last fragment.
        """
        change = Fragment(first_entry, bookies)
        if self.last_fragment.first_entry == first_entry:
            return replace(self, fragments=(*self.fragments[:-1], change))
        return replace(self, fragments=(*self.fragments, change))

    def pack(self) -> bytes:
        """The record as it is stored; equal records give equal bytes."""
        return pack(
            {
                "ledger_id": self.ledger_id,
                "ensemble_size": self.ensemble_size,
                "write_quorum": self.write_quorum,
                "ack_quorum": self.ack_quorum,
                "fragments": [[first_entry, list(bookies)] for first_entry, bookies in self.fragments],
                "state": self.state.value,
                "last_entry": self.last_entry,
                "length": self.length,
                "under_replicated": self.under_replicated,
                "nonce": self.nonce,
            }
        )

    @staticmethod
    def unpack(value: bytes) -> "LedgerMetadata":
        """The inverse of `pack`. Raises MetadataError for anything else."""
        try:
            record = cast(Mapping[str, Any], unpack(value))
            return LedgerMetadata(
                ledger_id=int(record["ledger_id"]),
                ensemble_size=int(record["ensemble_size"]),
                write_quorum=int(record["write_quorum"]),
                ack_quorum=int(record["ack_quorum"]),
                fragments=tuple(Fragment(int(first), tuple(map(str, ids))) for first, ids in record["fragments"]),
                state=LedgerState(record["state"]),
                last_entry=int(record["last_entry"]),
                length=int(record["length"]),
                under_replicated=bool(record["under_replicated"]),
                nonce=int(record["nonce"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"the record of a ledger cannot be decoded: {error!r}") from error

    def _following(self, state: LedgerState) -> LedgerState:
        check_transition(TRANSITIONS, f"ledger {self.ledger_id}", self.state, state)
        return state

    def _index_of(self, entry_id: int) -> int:
        if entry_id < 0:
            raise ValueError(f"ledger {self.ledger_id} has no entry {entry_id}")
        index = len(self.fragments) - 1
        while self.fragments[index].first_entry > entry_id:
            index -= 1
        return index


def write_slots(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """The slots of an ensemble that an entry is striped to."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))
