"""Which bookies there are, where they listen and whether they take writes: what the coordinator last said.

Metadata names bookies by id only, so this is the one place that turns an id into an address. An entry that is absent
means that the bookie has no session now; it says nothing about the data it holds.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .ensemble import UNKNOWN_PLACE, BookiePlace


class BookieInfo(NamedTuple):
    """A live bookie. `writable` is false while it is read-only (disk full) or in limbo (it lost data).

    `doubtful_end` is not the bookie's own: ledgers below it may be newer than their records, as the coordinator knew
    when it listed the bookie (`metadata.ledger_ids`). So no member learns of a bookie without it.

    A bookie that is `draining` is not writable, and shall lose its copies to others. `node` is the machine on which it
    runs and `zone` its rack or zone; both are empty where nothing is known.
    """

    id: str
    host: str
    port: int
    writable: bool = True
    limbo: bool = False
    doubtful_end: int = 0
    draining: bool = False
    node: str = ""
    zone: str = ""


class BookieDirectory:
    """The latest list. `on_change` is called after each update that changed something."""

    def __init__(self, bookies: Iterable[BookieInfo] = ()) -> None:
        self.bookies: dict[str, BookieInfo] = {info.id: info for info in bookies}
        self.on_change: list[Callable[[], None]] = []
        self._places: dict[str, BookiePlace] = {}
        """By bookie: where it was last listed. One that is away keeps its place."""
        self._note_places()

    def get(self, bookie_id: str) -> BookieInfo | None:
        return self.bookies.get(bookie_id)

    def place_of(self, bookie_id: str) -> "BookiePlace":
        """Where a bookie runs, or last ran."""
        return self._places.get(bookie_id, UNKNOWN_PLACE)

    def in_doubt(self, ledger_id: int) -> bool:
        """Whether a ledger may be newer than its record, because the metadata was restored from a backup."""
        return any(ledger_id < info.doubtful_end for info in self.bookies.values())

    def update(self, bookies: Iterable[BookieInfo]) -> None:
        """Replace the whole list."""
        latest = {info.id: info for info in sorted(bookies)}
        if latest == self.bookies:
            return
        self.bookies = latest
        self._note_places()
        for listener in list(self.on_change):
            listener()

    def _note_places(self) -> None:
        self._places.update((info.id, BookiePlace(info.node, info.zone)) for info in self.bookies.values() if info.node)
