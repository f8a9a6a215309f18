"""What a broker offers about the messages of the topics that it owns: to end a topic, to pass messages over, to look at
single ones."""

from dataclasses import dataclass
from typing import NamedTuple

from ...runtime.rpc.contract import Contract, method
from .permissions import ADMIN

ANALYSIS_TIMEOUT_S = 130.0


class StoredEntry(NamedTuple):
    """An entry of a topic, as its producer sent it."""

    ledger: int
    entry: int
    data: bytes


class EntryPosition(NamedTuple):
    """The place of an entry, (−1, −1) for none."""

    ledger: int
    entry: int


@dataclass(frozen=True)
class BacklogAnalysis:
    """What a read of a subscription's backlog has found; `aborted` says that it ended at a bound.

    `first` and `last` are the places of the first and the last entry, (−1, −1) for none.
    """

    entries: int
    messages: int
    aborted: bool
    first: EntryPosition
    last: EntryPosition


class MessageContract(Contract):
    """See the module."""

    @method(ADMIN)
    async def terminate(self, *, topic: str) -> EntryPosition:
        """Let a topic take no message from now on, for ever. Returns the place of its last entry."""
        ...

    @method(ADMIN)
    async def truncate(self, *, topic: str) -> None:
        """Acknowledge the backlog of every subscription, and delete what is no longer needed."""
        ...

    @method(ADMIN)
    async def skip(self, *, topic: str, subscription: str, entries: int) -> None:
        """Acknowledge the next entries of a subscription. Raises SubscriptionNotFound."""
        ...

    @method(ADMIN)
    async def peek(self, *, topic: str, subscription: str, number: int) -> StoredEntry:
        """An entry of the backlog of a subscription, from 1. Raises SubscriptionNotFound, NoSuchEntry."""
        ...

    @method(ADMIN)
    async def examine(self, *, topic: str, number: int, from_latest: bool = False) -> StoredEntry:
        """An entry of a topic, from 1, counted from its first or its last one. Raises NoSuchEntry."""
        ...

    @method(ADMIN)
    async def entry_at(self, *, topic: str, ledger: int, entry: int) -> StoredEntry:
        """An entry of a topic. Raises NoSuchEntry."""
        ...

    @method(ADMIN)
    async def bytes_after(self, *, topic: str, ledger: int, entry: int) -> int:
        """How many bytes a topic stores behind an entry."""
        ...

    @method(ADMIN)
    async def find_entry(self, *, topic: str, publish_time_ms: int) -> EntryPosition:
        """Where the first entry is that was published then or later, else where the next one will be."""
        ...

    @method(ADMIN)
    async def trim(self, *, topic: str) -> None:
        """Delete the ledgers that no cursor, no reader and no retention needs."""
        ...

    @method(ADMIN, timeout_s=ANALYSIS_TIMEOUT_S)
    async def analyze_backlog(
        self, *, topic: str, subscription: str, position: list[int] | None = None
    ) -> BacklogAnalysis:
        """Read the backlog of a subscription, from a place on, and count. Raises SubscriptionNotFound."""
        ...
