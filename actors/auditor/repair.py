"""Has bookies copy entries of ledgers among themselves: the auditor names what belongs where, and from whom to get it.

No entry passes through this process. The bookie that should hold entries finds out what it lacks, reads it from the
others, and says how far it has come (`actors/bookie/copying.py`). A piece counts as copied only when the bookie said
that it holds all of it durably.

What it costs: a question for each `PARTS_PER_QUESTION` pieces that are looked at, and one message for each few seconds
(`copying.COPY_S`) that a bookie copies.

Brings back what bookies say is damaged on their disks: a good copy of each such entry, from another bookie.

A bookie notes damaged entries durably and tells how many there are with its heartbeat (`storage/bookie/damage.py`). The
auditor asks the bookie for them, in pages. It has the bookie copy each from the others, as it copies missing entries.
The bookie ends the note when the copy is durable. So a failure at any step only means that the entry is still noted at
the next round.

This is done in every state of the ledger. The bookie had accepted just this entry. So with the same bytes again, a
writer or a recovery sees no change, except that a read succeeds. Two kinds are left out. The notes of a ledger that was
deleted or has another nonce end when the bookie collects it. Entries behind the end of a closed ledger are never read,
and the bookie is told to forget these.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

from ...protocol.errors import MagnetarError, NoSuchLedger, ProtocolError
from ...storage.ledger.bookie_directory import BookieDirectory
from ...storage.metadata.entry_gaps import ranges_of
from ...storage.metadata.ledger_metadata import LedgerMetadata
from ...storage.metadata.ledger_records import LedgerRecords
from ..members.contracts_bookie import BookieContract, CopySource, EntryPlace, Part
from ..members.peer_calls import MemberCalls
from .plan import Piece

PARTS_PER_QUESTION = 500


class LedgerRepair:
    """See the module. `on_copied(entries, bytes)` is called for each answer."""

    def __init__(
        self,
        calls: MemberCalls[BookieContract],
        directory: BookieDirectory,
        on_copied: Callable[[int, int], None],
    ) -> None:
        self._calls = calls
        self._directory = directory
        self._on_copied = on_copied

    async def lacking(self, bookie: str, parts: Sequence[Part]) -> list[int]:
        """Indexes of the parts that a bookie does not hold as a whole. Raises ServiceUnitNotReady."""
        found: list[int] = []
        begin = 0
        while begin < len(parts):
            asked = list(parts[begin : begin + PARTS_PER_QUESTION])
            answer = await self._calls.of(bookie).lacking(parts=asked)
            if not 0 < answer.examined <= len(asked):
                raise ProtocolError(f"bookie {bookie} examined {answer.examined} of {len(asked)} parts")
            if not all(0 <= index < answer.examined for index in answer.found):
                raise ProtocolError(f"bookie {bookie} says that it lacks parts that it was not asked for")
            found += [begin + index for index in answer.found]
            begin += answer.examined
        return found

    async def fill(self, metadata: LedgerMetadata, piece: Piece, sources: LedgerMetadata | None = None) -> int:
        """Have the piece's bookie copy what it lacks of it, and return how many entries that were.

        The entries come from the bookies that `sources` names, another record of the ledger (None: `metadata`). Raises
        what copying raises; what was copied stays.
        """
        holders = (sources or metadata).fragment_of(piece.first).bookies
        slots = piece.stripe(metadata)
        part = Part(metadata.ledger_id, metadata.nonce, piece.first, piece.last, *slots)
        return await self._copy(piece.bookie, part, holders)

    async def fill_range(self, metadata: LedgerMetadata, first: int, last: int, bookie: str) -> int:
        """Have a bookie copy all entries of a range that it lacks, whatever the record says of it. Raises as `fill`."""
        copied = 0
        while first <= last:
            fragment, end = metadata.fragment_of(first), metadata.fragment_end(first)
            end = last if end is None else max(first, min(end, last))
            part = Part(metadata.ledger_id, metadata.nonce, first, end, 0, 1, 1)
            copied += await self._copy(bookie, part, fragment.bookies)
            first = end + 1
        return copied

    async def _copy(self, target: str, part: Part, holders: Sequence[str]) -> int:
        found = [self._directory.get(bookie) for bookie in holders if bookie != target]
        sources = [CopySource(info.id, info.host, info.port) for info in found if info is not None]
        entries = 0
        while part.first <= part.last:
            answer = await self._calls.of(target).copy_entries(part=part, sources=sources)
            self._on_copied(answer.entries, answer.size_bytes)
            entries += answer.entries
            if answer.next <= part.first:
                raise ProtocolError(f"bookie {target} made no progress with {part}")
            part = part._replace(first=answer.next)
        return entries


ENTRIES_PER_PAGE = 1000


async def repair_damage(
    bookie: str,
    calls: MemberCalls[BookieContract],
    records: LedgerRecords,
    repair: LedgerRepair,
    on_failure: Callable[[str, MagnetarError], None],
) -> None:
    """Repair all that a bookie knows to be damaged; what fails is told and left out.

    Raises what asking the bookie for the list raises.
    """
    after = EntryPlace(-1, -1)
    while True:
        page = await calls.of(bookie).damaged_entries(after=after, limit=ENTRIES_PER_PAGE)
        for (ledger_id, nonce), keys in groupby(page, key=lambda key: (key.ledger, key.nonce)):
            entry_ids = [key.entry for key in keys]
            try:
                record = await records.get(ledger_id)
                if record.metadata.nonce != nonce:
                    continue
                if record.metadata.closed and entry_ids[-1] > record.metadata.last_entry:
                    last = record.metadata.last_entry
                    await calls.of(bookie).forget_damage(ledger=ledger_id, above=last)
                    entry_ids = [entry_id for entry_id in entry_ids if entry_id <= last]
            except NoSuchLedger:
                continue
            except MagnetarError as error:
                on_failure(f"damaged entries of ledger {ledger_id}", error)
                continue
            for first, last in ranges_of(entry_ids):
                try:
                    await repair.fill_range(record.metadata, first, last, bookie)
                except MagnetarError as error:
                    on_failure(f"damaged entries {first} to {last} of ledger {ledger_id} on {bookie}", error)
        if len(page) < ENTRIES_PER_PAGE:
            return
        after = EntryPlace(page[-1].ledger, page[-1].entry)
