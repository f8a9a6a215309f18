"""Finding out, at start, what a bookie's directory holds: load the checkpoint, replay the journals behind it, judge.

Sealed segments cost one small read each (the table of their index). Unsealed journals are scanned record by record.
Then they are written again, cut off behind their last good record and given an index, so that the next start need not
scan them. Every start begins a new journal. No leftover file is deleted here: the caller does that once a new
checkpoint is durable. So after a crash in the middle, the next start repeats it.

Damage (`LoadedStore.damage`) sends the bookie into limbo. Damaged records: one that cannot be recognized, or an entry
whose content fails its digest. Damaged files: a journal that does not end where its successor says, or a missing
segment or journal that the checkpoint lists. An undecodable checkpoint or list of damaged entries also counts. A torn
write at the very end of the last journal is no damage: it was never acknowledged.

Everything here blocks; it runs off the loop.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ...protocol.errors import CookieMismatch, EntryCorrupt
from ...runtime.files import File, Files
from .checkpoint import CHECKPOINT_NAME, Checkpoint
from .damage import DamageNotes, load_notes
from .records import (
    BEGIN_BODY,
    ENTRY_HEAD,
    FENCE_BODY,
    KIND_BEGIN,
    KIND_ENTRY,
    KIND_FENCE,
    KIND_LOST,
    KIND_TOMBSTONE,
    LEDGER_BODY,
    LOST_BODY,
    Record,
    Scan,
)
from .segment import (
    COMPACTED_SUFFIX,
    INDEX_SUFFIX,
    JOURNAL_SUFFIX,
    Segment,
    SegmentState,
    parse_segment_name,
    segment_name,
)
from .segment_index import Rows, SegmentTable, decode_table, encode_index

WRITTEN_AGAIN_BYTES = 1 << 20
"""About so much is written at once."""


@dataclass
class LoadedStore:
    """What the directory holds. `checkpoint` has the fences and tombstones of the replayed journals added."""

    checkpoint: Checkpoint
    segments: list[Segment] = field(default_factory=list[Segment])
    """All SEALED, oldest first."""
    rubbish: list[str] = field(default_factory=list[str])
    """Names of files that belong to nothing."""
    damage: list[str] = field(default_factory=list[str])
    notes: DamageNotes = field(default_factory=lambda: DamageNotes(""))
    """Which entries were known to be damaged."""
    indexes: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    """Path and content of the indexes of damaged segments, to be written once limbo is durable."""


def format_directory(files: Files, directory: str, instance: str, limbo: str = "") -> None:
    """Make an empty store. `limbo` is why it begins its life in limbo: it takes a lost one's place."""
    files.make_directory(directory)
    files.write_atomic(f"{directory}/{CHECKPOINT_NAME}", Checkpoint(instance, limbo=limbo).encode())


def holds_store(files: Files, directory: str) -> bool:
    """Whether a store is in the directory, or part of one.

    One that `format_directory` made and that was never used does not count: it can be made again.
    """
    names = files.list(directory) if files.exists(directory) else []
    if any(parse_segment_name(name) is not None for name in names):
        return True
    if CHECKPOINT_NAME not in names:
        return False
    data = files.read_bytes(f"{directory}/{CHECKPOINT_NAME}")
    try:
        found = Checkpoint.decode(data)
    except EntryCorrupt:
        return True
    return data != Checkpoint(found.instance, limbo=found.limbo).encode()


def load_store(files: Files, directory: str, instance: str) -> LoadedStore:
    """See the module. `instance` is the cookie's. Raises CookieMismatch (the checkpoint is of another instance, or
    there is none), OSError."""
    loaded = _load_segments(files, directory, instance)
    try:
        loaded.notes = load_notes(files, directory, instance)
    except EntryCorrupt as error:
        loaded.notes = DamageNotes(instance)
        loaded.damage.append(str(error))
    return loaded


def _load_segments(files: Files, directory: str, instance: str) -> LoadedStore:
    path = f"{directory}/{CHECKPOINT_NAME}"
    names = files.list(directory)
    if not files.exists(path):
        raise CookieMismatch(
            f"{directory} has a cookie but no checkpoint, so its data is missing: restore the directory, or accept "
            "the lost disk"
        )
    present = {found: name for name in names if (found := parse_segment_name(name)) is not None}
    try:
        checkpoint = Checkpoint.decode(files.read_bytes(path))
    except EntryCorrupt:
        loaded = LoadedStore(Checkpoint(instance), damage=["the checkpoint could not be decoded"])
        _load_without_checkpoint(files, directory, loaded, sorted(present))
        return loaded
    if checkpoint.instance != instance:
        raise CookieMismatch(f"the data in {directory} was written under another cookie")
    loaded = LoadedStore(checkpoint)
    for file_id, kind, end in checkpoint.segments:
        if (file_id, kind) in present:
            _load_sealed(files, directory, loaded, file_id, kind, end)
        else:
            loaded.damage.append(f"segment {segment_name(file_id, kind)} is missing")
    sealed = {(file_id, kind) for file_id, kind, _ in checkpoint.segments}
    journals = sorted(
        file_id
        for file_id, kind in present
        if kind == JOURNAL_SUFFIX and file_id >= checkpoint.replay_from and (file_id, kind) not in sealed
    )
    for file_id in checkpoint.journals:
        if file_id not in journals:
            loaded.damage.append(f"journal {segment_name(file_id, JOURNAL_SUFFIX)} is missing")
    _replay(files, directory, loaded, journals)
    checkpoint.next_file_id = max([checkpoint.next_file_id, *(file_id + 1 for file_id, _ in present)])
    kept = {segment.name for segment in loaded.segments}
    kept |= {name + INDEX_SUFFIX for name in kept}
    loaded.rubbish = [
        name
        for name in names
        if name not in kept
        and (parse_segment_name(name.removesuffix(INDEX_SUFFIX)) is not None or name.endswith(".tmp"))
    ]
    return loaded


class RebuiltIndex(NamedTuple):
    """The bytes of a sealed segment's index, its table, and what damage was found on the way, if any.

    The index of a damaged segment looks like that of a whole one. It may be written only after limbo is durable, or a
    crash in between would make lost entries look as if they had never been.
    """

    content: bytes
    table: SegmentTable
    damage: str


def rebuild_index(files: Files, segment: Segment) -> RebuiltIndex:
    """A sealed segment's index, rebuilt from its records; nothing is written."""
    file = files.open(segment.path)
    try:
        scan = Scan(file.read_at, min(file.size(), segment.end), segment.file_id, segment.seed)
        rows = _Rows()
        for record in scan:
            rows.take(record.kind, record.offset, record.body)
    finally:
        file.close()
    index, table = encode_index(segment.file_id, segment.seed, segment.end, rows.by_ledger)
    damaged = scan.damaged or scan.end != segment.end
    return RebuiltIndex(index, table, f"segment {segment.name} is damaged" if damaged else "")


class _Rows:
    """Rows of a segment as its records are met."""

    def __init__(self) -> None:
        self.by_ledger: dict[int, Rows] = {}
        self.fenced: dict[int, int] = {}
        self.tombstones: list[int] = []
        self.begin: tuple[int, int] | None = None
        self.records = 0

    def take(self, kind: int, offset: int, body: memoryview) -> None:
        self.records += 1
        if kind == KIND_ENTRY:
            _, ledger_id, nonce, entry_id, lac, _, digest = ENTRY_HEAD.unpack_from(body)
            self._rows(ledger_id, nonce).put(entry_id, offset, len(body) - 1, digest, lac)
        elif kind == KIND_LOST:
            ledger_id, nonce, entry_id = LOST_BODY.unpack(body)
            self._rows(ledger_id, nonce).put(entry_id, offset, 0, 0, -1)
        elif kind == KIND_FENCE:
            ledger_id, nonce = FENCE_BODY.unpack(body)
            self.fenced[ledger_id] = nonce
        elif kind == KIND_TOMBSTONE:
            self.tombstones.append(LEDGER_BODY.unpack(body)[0])
        elif kind == KIND_BEGIN:
            self.begin = BEGIN_BODY.unpack(body)

    def _rows(self, ledger_id: int, nonce: int) -> Rows:
        rows = self.by_ledger.get(ledger_id)
        if rows is None:
            rows = self.by_ledger[ledger_id] = Rows(nonce)
        return rows


def _load_sealed(files: Files, directory: str, loaded: LoadedStore, file_id: int, kind: str, end: int) -> None:
    segment = Segment(directory, file_id, kind, loaded.checkpoint.instance)
    segment.end = segment.synced_end = end
    try:
        index = files.open(segment.index_path)
        try:
            table = decode_table(index.read_at, file_id, segment.seed, end)
        finally:
            index.close()
    except (FileNotFoundError, EntryCorrupt):
        index, table, damage = rebuild_index(files, segment)
        if damage:
            loaded.damage.append(damage)
            loaded.indexes.append((segment.index_path, index))
        else:
            files.write_atomic(segment.index_path, index)
    segment.become_sealed(table)
    loaded.segments.append(segment)


def _replay(files: Files, directory: str, loaded: LoadedStore, journals: list[int]) -> None:
    """Scan unsealed journals in order, then seal them."""
    ended: dict[int, int] = {}
    torn_at: int | None = None
    fenced = loaded.checkpoint.fenced
    for file_id in journals:
        segment = Segment(directory, file_id, JOURNAL_SUFFIX, loaded.checkpoint.instance)
        file = files.open(segment.path)
        try:
            scan = Scan(file.read_at, file.size(), file_id, segment.seed)
            rows, again = _Rows(), _WritingAgain(file)
            for record in scan:
                rows.take(record.kind, record.offset, record.body)
                if record.intact:
                    again.take(record)
            again.flush()
            ended[file_id] = scan.end
            if scan.damaged:
                loaded.damage.append(f"journal {segment.name} is damaged")
            if rows.records and torn_at is not None:
                loaded.damage.append(f"the end of journal {segment_name(torn_at, JOURNAL_SUFFIX)} is damaged")
            if rows.begin is not None:
                before, before_end = rows.begin
                if before in journals and ended.get(before) != before_end:
                    loaded.damage.append(
                        f"journal {segment_name(before, JOURNAL_SUFFIX)} does not end where its successor says"
                    )
                elif before >= loaded.checkpoint.replay_from and before not in journals and not _listed(loaded, before):
                    loaded.damage.append(f"journal {segment_name(before, JOURNAL_SUFFIX)} is missing")
            torn_at = file_id if scan.torn else None
            if not rows.records:
                continue
            segment.end = segment.synced_end = scan.end
            file.truncate(scan.end)
            file.sync()
        finally:
            file.close()
        fenced.update(rows.fenced)
        for ledger_id in rows.tombstones:
            loaded.checkpoint.tombstones.add(ledger_id)
        index, table = encode_index(file_id, segment.seed, segment.end, rows.by_ledger)
        files.write_atomic(segment.index_path, index)
        segment.become_sealed(table)
        loaded.segments.append(segment)


class _WritingAgain:
    """Writes intact records where they are, so that the next sync covers them.

    When a sync fails, Linux marks the pages that it could not write as clean. They are read back as if they were
    stored, and no later sync writes them. The process before this one may have ended with such a failure. Only what has
    just been checked is written, from the bytes that were checked, so that a bit misread now is not made to stay.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._size = 0
        self._parts: list[memoryview] = []

    def take(self, record: Record) -> None:
        if record.offset != self._start + self._size or self._size >= WRITTEN_AGAIN_BYTES:
            self.flush()
            self._start = record.offset
        self._parts.append(record.whole)
        self._size += len(record.whole)

    def flush(self) -> None:
        if self._parts:
            self._file.write_at(self._start, [b"".join(self._parts)])
            self._size = 0
            self._parts = []


def _listed(loaded: LoadedStore, file_id: int) -> bool:
    return any(segment.file_id == file_id for segment in loaded.segments)


def _load_without_checkpoint(files: Files, directory: str, loaded: LoadedStore, present: list[tuple[int, str]]) -> None:
    """Every file that is there, nothing deleted: what the lost checkpoint knew is unknown now."""
    compacted = [file_id for file_id, kind in present if kind == COMPACTED_SUFFIX]
    for file_id in compacted:
        segment = Segment(directory, file_id, COMPACTED_SUFFIX, loaded.checkpoint.instance)
        file = files.open(segment.path)
        try:
            scan = Scan(file.read_at, file.size(), file_id, segment.seed)
            for _ in scan:
                continue
            segment.end = segment.synced_end = scan.end
        finally:
            file.close()
        index, table, _ = rebuild_index(files, segment)
        files.write_atomic(segment.index_path, index)  # as long as the checkpoint is unreadable, a start ends in limbo
        segment.become_sealed(table)
        loaded.segments.append(segment)
    _replay(files, directory, loaded, [file_id for file_id, kind in present if kind == JOURNAL_SUFFIX])
    loaded.segments.sort(key=lambda segment: (segment.file_id, segment.kind))
    loaded.checkpoint.next_file_id = max([0, *(file_id for file_id, _ in present)]) + 1
    loaded.checkpoint.replay_from = loaded.checkpoint.next_file_id
    assert all(segment.state is SegmentState.SEALED for segment in loaded.segments)
