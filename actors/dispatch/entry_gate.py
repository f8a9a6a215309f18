"""The seam between reading and distributing: a gate holds entries back that were read and are not to be sent yet.

A dispatcher without a gate pays one truth test per entry. One with a gate asks it once per read which of the entries
are not visible (`hidden`), and hands each of those over when it moves past it (`hold`). It asks for those that have
become visible (`due`) before each read. A gate holds what its dispatcher gave it, and forgets it with `clear`.

A gate may know of entries that an earlier dispatcher held. It gives them out as its own, and says which positions need
not be read because of them (`skip`). Before it knows them all it is not `ready`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...protocol.message_id import Position

HeldEntry = tuple[Position, int]
"""An entry, and its slot on a Key_Shared subscription (else 0)."""


class EntryGate(Protocol):
    """See the module."""

    def ready(self) -> bool:
        """Whether the dispatcher may read now. If not, the gate wakes dispatch when it may."""
        ...

    def skip(self, position: Position) -> tuple[Position, int] | None:
        """Where to read instead of a position, and how many entries at most. None: there, and as many as wanted."""
        ...

    def has(self, position: Position) -> bool:
        """Whether the gate gives an entry out that an earlier dispatcher held. Right until reading has passed it."""
        ...

    def hidden(self, entries: Sequence[tuple[Position, bytes]]) -> Mapping[Position, int]:
        """Those of the entries that are not to be sent now, and the time from which each is, in ms since the epoch."""
        ...

    def hold(self, position: Position, from_ms: int, slot: int) -> None:
        """Keep an entry until that time. Its dispatcher has moved past it."""
        ...

    def due(self, count: int) -> list[HeldEntry]:
        """Up to so many entries whose time has come. The gate does not hold them from now on. When it gives fewer, it
        wakes dispatch for the others. Else the dispatcher has to ask again."""
        ...

    def passed(self, *, all_held: bool) -> None:
        """The cursor passed over entries. With `all_held` over all that the dispatcher gave: hold nothing of them."""
        ...

    def clear(self) -> None:
        """Hold nothing: the dispatcher has lost its last consumer."""
        ...

    @property
    def wakes_now(self) -> bool:
        """Whether the gate is about to wake dispatch, by a timer whose moment has come."""
        ...

    @property
    def holds(self) -> bool:
        """Whether anything is held, or may turn out to be: else nothing has to be asked before a read."""
        ...

    @property
    def held(self) -> int:
        """How many entries are held."""
        ...

    @property
    def size_bytes(self) -> int:
        """The memory that this takes."""
        ...
