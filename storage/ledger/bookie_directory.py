"""Which bookies there are, where they listen and whether they take writes: what the coordinator last said.

Metadata names bookies by id only, so this is the one place that turns an id into an address. An entry that is absent
means that the bookie has no session now; it says nothing about the data it holds.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple


class BookieInfo(NamedTuple):
    """A live bookie. `writable` is false while it is read-only (disk full) or in limbo (it lost data).

    `doubtful_end` is not the bookie's own: ledgers below it may be newer than their records, as the coordinator knew
    when it listed the bookie (`metadata.ledger_ids`). So no member learns of a bookie without it.
    """

    id: str
    host: str
    port: int
    writable: bool = True
    limbo: bool = False
    doubtful_end: int = 0


class BookieDirectory:
    """The latest list. `on_change` is called after each update that changed something."""

    def __init__(self, bookies: Iterable[BookieInfo] = ()) -> None:
        self.bookies: dict[str, BookieInfo] = {info.id: info for info in bookies}
        self.on_change: list[Callable[[], None]] = []

    def get(self, bookie_id: str) -> BookieInfo | None:
        return self.bookies.get(bookie_id)

    def in_doubt(self, ledger_id: int) -> bool:
        """Whether a ledger may be newer than its record, because the metadata was restored from a backup."""
        return any(ledger_id < info.doubtful_end for info in self.bookies.values())

    def update(self, bookies: Iterable[BookieInfo]) -> None:
        """Replace the whole list."""
        latest = {info.id: info for info in sorted(bookies)}
        if latest == self.bookies:
            return
        self.bookies = latest
        for listener in list(self.on_change):
            listener()
