"""One segment file of a bookie, as the event loop sees it: its name, its place in its life, which ledgers are in it.

`SegmentState` says what each state means, `TRANSITIONS` which may follow which.

A journal (`.journal`) is what group commits append to; a `.compacted` file is written by compaction and is sealed
before the store has it. Invariants: a sealed segment never changes, only disappears as a whole; `synced_end` never
moves back; rows at or behind `synced_end` are not shown to readers.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from ...runtime.files import File
from ...runtime.transitions import check_transition
from .records import FILE_HEADER_SIZE, file_seed
from .segment_index import Rows, SegmentTable

JOURNAL_SUFFIX = ".journal"
COMPACTED_SUFFIX = ".compacted"
INDEX_SUFFIX = ".index"


class SegmentState(Enum):
    """See `TRANSITIONS`."""

    PREPARED = "prepared"
    """Pre-allocated, header synced, no record in it."""
    ACTIVE = "active"
    """The journal appends to it; its rows are in memory."""
    SEALING = "sealing"
    """Full: nothing is added. Once its last batch is durable, its index is written."""
    SEALED = "sealed"
    """Its index is on disk; its rows are no longer in memory."""
    REMOVED = "removed"
    """No longer part of the store; the file is deleted."""


TRANSITIONS: Mapping[SegmentState, Collection[SegmentState]] = {
    SegmentState.PREPARED: (
        SegmentState.ACTIVE,  # the one before is full
        SegmentState.SEALED,  # found at the start, or written by compaction
        SegmentState.REMOVED,  # the disk has no room for its file
    ),
    SegmentState.ACTIVE: (
        SegmentState.SEALING,  # the next one takes over, or the store closes
        SegmentState.REMOVED,  # used before its file was there, and the disk has no room for it
    ),
    SegmentState.SEALING: (
        SegmentState.SEALED,  # the index is durable
        SegmentState.REMOVED,  # as for ACTIVE
    ),
    SegmentState.SEALED: (SegmentState.REMOVED,),  # compacted, or nothing in it is live
    SegmentState.REMOVED: (),
}


class Segment:
    """See the module. `file` is the journal lane's handle; readers open their own."""

    __slots__ = (
        "directory",
        "end",
        "file",
        "file_id",
        "kind",
        "live_bytes",
        "rows",
        "seed",
        "state",
        "synced_end",
        "table",
    )

    def __init__(self, directory: str, file_id: int, kind: str, instance: str) -> None:
        self.directory = directory
        self.file_id = file_id
        self.kind = kind
        self.seed = file_seed(instance, file_id)
        self.state = SegmentState.PREPARED
        self.file: File | None = None
        self.end = FILE_HEADER_SIZE
        self.synced_end = FILE_HEADER_SIZE
        self.rows: dict[int, Rows] = {}
        self.table = SegmentTable()
        self.live_bytes = 0

    def __repr__(self) -> str:
        return f"<segment {self.name} {self.state.value} {self.end} bytes>"

    @property
    def name(self) -> str:
        return segment_name(self.file_id, self.kind)

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name}"

    @property
    def index_path(self) -> str:
        return self.path + INDEX_SUFFIX

    @property
    def sealed(self) -> bool:
        return self.state is SegmentState.SEALED

    def ledger_ids(self) -> list[int]:
        return list(self.table if self.sealed else self.rows)

    def ledger_bytes(self, ledger_id: int) -> int:
        """Bytes of one ledger's entries in it."""
        if self.sealed:
            line = self.table.get(ledger_id)
            return line.entry_bytes if line is not None else 0
        rows = self.rows.get(ledger_id)
        return rows.entry_bytes if rows is not None else 0

    def last_entry(self, ledger_id: int) -> int:
        """The highest entry id of one ledger in it, −1 for none."""
        line, rows = self.table.get(ledger_id), self.rows.get(ledger_id)
        if line is not None:
            return line.last
        return rows.entries[-1] if rows is not None and len(rows) else -1

    def become(self, state: SegmentState) -> None:
        """Enter the next state. Raises ForbiddenTransition."""
        check_transition(TRANSITIONS, self, self.state, state)
        self.state = state

    def become_sealed(self, table: SegmentTable) -> None:
        """Its index is durable: readers use that from now on."""
        self.become(SegmentState.SEALED)
        self.table = table
        self.rows = {}


def segment_name(file_id: int, kind: str) -> str:
    return f"{file_id:016x}{kind}"


def parse_segment_name(name: str) -> tuple[int, str] | None:
    """(file id, kind) of a segment file's name, None for any other file."""
    for kind in (JOURNAL_SUFFIX, COMPACTED_SUFFIX):
        stem = name.removesuffix(kind)
        if stem != name and len(stem) == 16:
            try:
                return int(stem, 16), kind
            except ValueError:
                return None
    return None
