"""The damaged entries of a bookie, and how far its scrub has come: what must outlive a restart of the bookie.

An entry is noted when no copy of it on this disk is as it was written. A read or the scrub (`scrub.py`) detects that.

    INTACT ── a read or the scrub finds no good copy ──→ NOTED     (no longer held; the auditor is told)
    NOTED ── a new copy is durable, or a good one found ──→ INTACT
    NOTED ── the ledger is deleted, or ends before it ──→ forgotten

Invariants: a note ends only when a good copy is durable, or when no reader may ask for the entry again. A crash between
the copy and the end of its note brings the note back. The entry is then copied again, which finds the good copy and
ends the note. A crash between finding damage and writing the note loses the note: the next read or scrub finds it
again.

The file `damage` is replaced as a whole, off the loop, one write at a time. A list that cannot be decoded counts as
damage of the directory. The bookie goes into limbo, in which every entry is read before it counts as held.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from dataclasses import astuple, dataclass, field
from typing import Any

from crc32c import crc32c

from ...protocol.errors import DiskFull, EntryCorrupt, ProtocolError, StorageFailed
from ...runtime.files import Files
from ...runtime.offload import Lane
from ...runtime.rpc.messages import pack, unpack
from ...runtime.tasks import Tasks

logger = logging.getLogger(__name__)

DAMAGE_NAME = "damage"
NOTES_MAX = 10_000
"""With more damaged entries than this the bookie goes into limbo instead."""
DISK_FULL_RETRY_S = 10.0
_MAGIC = b"MGNTRDM1"
_HEAD_SIZE = len(_MAGIC) + 4

EntryKey = tuple[int, int]
"""Ledger id, entry id."""


@dataclass
class ScrubProgress:
    """How far the scrub is. Times in ms since 1970, sizes in bytes."""

    began_ms: int = 0
    """When the latest pass began; 0 before the first."""
    running: bool = False
    after: int = 0
    """The pass has read the segments up to this file id."""
    until: int = 0
    """… and reads those below this one."""
    pass_bytes: int = 0
    total_bytes: int = 0
    """Read by all passes together."""
    passes: int = 0
    """Complete ones."""


@dataclass
class DamageNotes:
    """See the module. Pure."""

    instance: str
    progress: ScrubProgress = field(default_factory=ScrubProgress)
    found_total: int = 0
    repaired_total: int = 0
    count: int = 0
    """Entries noted now."""
    _noted: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """By ledger, ascending."""

    def has(self, ledger_id: int, entry_id: int) -> bool:
        noted = self.of(ledger_id)
        at = bisect_left(noted, entry_id)
        return at < len(noted) and noted[at] == entry_id

    def of(self, ledger_id: int) -> list[int]:
        """The damaged entries of a ledger, ascending."""
        return self._noted.get(ledger_id, [])

    def note(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was new and there was room for it."""
        if self.has(ledger_id, entry_id) or self.count >= NOTES_MAX:
            return False
        noted = self._noted.setdefault(ledger_id, [])
        noted.insert(bisect_left(noted, entry_id), entry_id)
        self.count += 1
        self.found_total += 1
        return True

    def end(self, ledger_id: int, entry_id: int) -> bool:
        """A good copy is durable, or none is needed. Whether it was noted."""
        if not self.has(ledger_id, entry_id):
            return False
        noted = self._noted[ledger_id]
        del noted[bisect_left(noted, entry_id)]
        if not noted:
            del self._noted[ledger_id]
        self.count -= 1
        self.repaired_total += 1
        return True

    def forget(self, ledger_id: int, above: int) -> bool:
        """No reader asks again for entries of a ledger above this one. Whether any was noted."""
        noted = self._noted.pop(ledger_id, [])
        kept = noted[: bisect_left(noted, above + 1)]
        if kept:
            self._noted[ledger_id] = kept
        self.count -= len(noted) - len(kept)
        return len(kept) < len(noted)

    def keep(self, ledger_ids: Container[int]) -> None:
        """Forget all ledgers but these: a crash came between the end of one and the end of its notes."""
        for ledger_id in [ledger_id for ledger_id in self._noted if ledger_id not in ledger_ids]:
            self.forget(ledger_id, -1)

    def page(self, after: EntryKey, limit: int) -> list[EntryKey]:
        """At most `limit` damaged entries behind `after`, in order."""
        found: list[EntryKey] = []
        for ledger_id in sorted(ledger_id for ledger_id in self._noted if ledger_id >= after[0]):
            found += [(ledger_id, entry_id) for entry_id in self._noted[ledger_id] if (ledger_id, entry_id) > after]
            if len(found) >= limit:
                break
        return found[:limit]

    def encode(self) -> bytes:
        noted = [[ledger_id, entry_ids] for ledger_id, entry_ids in self._noted.items()]
        totals = [self.found_total, self.repaired_total]
        fields = {"instance": self.instance, "scrub": list(astuple(self.progress)), "totals": totals, "noted": noted}
        body = pack(fields)
        return _MAGIC + crc32c(_MAGIC + body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, data: bytes) -> "DamageNotes":
        """Raises EntryCorrupt for a file that is damaged, or holds what no bookie writes."""
        body = data[_HEAD_SIZE:]
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : _HEAD_SIZE] != crc32c(_MAGIC + body).to_bytes(4, "big"):
            raise EntryCorrupt("the list of damaged entries is damaged")
        try:
            return cls._from_fields(unpack(body))
        except (KeyError, TypeError, ValueError, ProtocolError) as error:
            raise EntryCorrupt(f"the list of damaged entries cannot be decoded: {error!r}") from error

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> "DamageNotes":
        began, running, *others = fields["scrub"]
        progress = ScrubProgress(_number(began), bool(running), *(_number(value) for value in others))
        notes = cls(str(fields["instance"]), progress)
        for ledger_id, entry_ids in fields["noted"]:
            for entry_id in entry_ids:
                notes.note(_number(ledger_id), _number(entry_id))
        notes.found_total, notes.repaired_total = (_number(value) for value in fields["totals"])
        return notes


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.100} is not a count of entries, bytes or milliseconds")
    return value


def load_notes(files: Files, directory: str, instance: str) -> DamageNotes:
    """The notes of a directory; none when there is no file, or one that another disk's life left behind.

    Raises EntryCorrupt, OSError. Blocks.
    """
    path = f"{directory}/{DAMAGE_NAME}"
    if files.exists(path):
        notes = DamageNotes.decode(files.read_bytes(path))
        if notes.instance == instance:
            return notes
    return DamageNotes(instance)


def without_entries(ranges: Iterable[tuple[int, int]], entry_ids: Iterable[int]) -> list[tuple[int, int]]:
    """Ranges (ascending, inclusive) less some ids (ascending)."""
    kept: list[tuple[int, int]] = []
    left = iter(entry_ids)
    gone = next(left, None)
    for first, last in ranges:
        while gone is not None and gone < first:
            gone = next(left, None)
        while gone is not None and gone <= last:
            if gone > first:
                kept.append((first, gone - 1))
            first = gone + 1
            gone = next(left, None)
        if first <= last:
            kept.append((first, last))
    return kept


class DamageKeeper:
    """Keeps the notes and writes them down. Belongs to the loop.

    `on_change` is called when the notes changed, `on_overflow` when more is damaged than can be noted, `on_fatal` when
    the notes could not be written.
    """

    def __init__(
        self,
        files: Files,
        lane: Lane,
        path: str,
        notes: DamageNotes,
        *,
        on_overflow: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.notes = notes
        self.on_change: Callable[[], None] = _nobody
        self._files = files
        self._lane = lane
        self._path = path
        self._on_overflow = on_overflow
        self._on_fatal = on_fatal
        self._dirty = False
        self._saving = False
        self._closed = False
        self._tasks = Tasks()

    async def close(self) -> None:
        """Write what is not written. Never raises for a failed disk."""
        self._closed = True
        await self._tasks.close()
        if self._dirty:
            try:
                await self._lane.run(self._files.write_atomic, self._path, self.notes.encode())
            except (OSError, DiskFull) as error:
                logger.warning("%s could not be written and is out of date: %s", self._path, error)

    def note(self, ledger_id: int, entry_id: int) -> None:
        """No copy of an entry is as it was written."""
        if self.notes.note(ledger_id, entry_id):
            logger.error(
                "%s: entry %d:%d is damaged; the auditor copies it from another bookie", self._path, ledger_id, entry_id
            )
            self._changed()
        elif not self.notes.has(ledger_id, entry_id):
            self._on_overflow()

    def end(self, ledger_id: int, entry_id: int) -> None:
        """See `DamageNotes.end`."""
        if self.notes.end(ledger_id, entry_id):
            self._changed()

    def forget(self, ledger_id: int, above: int = -1) -> None:
        """See `DamageNotes.forget`."""
        if self.notes.forget(ledger_id, above):
            self._changed()

    def save_soon(self) -> None:
        """Write the file in the background, unless a write that will include the change is about to begin."""
        self._dirty = True
        if not self._saving and not self._closed:
            self._saving = True
            self._tasks.spawn(self._save(), f"write {self._path}")

    def _changed(self) -> None:
        self.save_soon()
        self.on_change()

    async def _save(self) -> None:
        try:
            while self._dirty:
                content = self.notes.encode()
                try:
                    self._dirty = False
                    await self._lane.run(self._files.write_atomic, self._path, content)
                except DiskFull:
                    self._dirty = True
                    await asyncio.sleep(DISK_FULL_RETRY_S)
                except OSError as error:
                    self._on_fatal(StorageFailed(f"{self._path} could not be written: {error}"))
                    return
        finally:
            self._saving = False


def _nobody() -> None:
    """Nobody is told of changes."""
