"""Copies entries to this bookie from the others that hold them: the work of a repair, which the auditor plans.

The auditor names a *part*: entries of a ledger that belong here, and the bookies that should hold them, too. For each
part, in order:

1. the bookie finds out what it lacks. In limbo it reads and verifies each entry before it counts as held;
2. it reads the missing entries from one source after the other, in answers of up to `READ_BYTES`;
3. it adds each with the recovery flag to its own store. The bytes are those that the writer sent, LAC included, so a
   copy that is made twice is the same entry. The store verifies the digest, so damaged bytes of a source are refused;
4. it answers when everything that it counts as copied is durable.

An entry counts as copied only when this bookie holds it durably. If no source returns an intact one, the copy ends with
an error. After `COPY_S` the bookie answers how far it has come, and the auditor asks for the rest. So a repair costs
one message for `COPY_S` of work. Nothing of it is remembered here: after a crash the next question finds what is
missing.

Bounds: `COPIES_UNDER_WAY_MAX` parts at a time, `IN_FLIGHT_BYTES_MAX` read and not yet durable, and
`replicationRateByBytes` for all of them. In flight is a quarter of `bookieMaxPendingAddBytes` at most, so that writers
are not refused.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ...protocol.bookie_wire import (
    ADD_FLAG_RECOVERY,
    ENTRY_ID_MAX,
    BookieOp,
    BookieStatus,
    decode_entry_header,
    decode_read_answer,
    encode_read,
    error_for_status,
)
from ...protocol.errors import (
    EntryCorrupt,
    EntryUnknown,
    ForeignLedger,
    MagnetarError,
    NoSuchEntry,
    NoSuchLedger,
    ProtocolError,
    ServiceUnitNotReady,
)
from ...runtime.environment import Environment
from ...runtime.rpc.contract import Contract
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ...storage.bookie.store import BookieStore
from ...storage.metadata.entry_gaps import Range, Stripe, missing_entries
from ..members.contracts_bookie import Copied, CopySource, DamagedEntry, EntryPlace, Lacking, Part, RepairContract
from ..members.peer_calls import MemberCalls

logger = logging.getLogger(__name__)

COPY_S = 5.0
LOOK_S = 2.0
"""After this time of looking for what is missing, a question is answered in part."""
READ_BYTES = 1 << 20
COPIES_UNDER_WAY_MAX = 4
IN_FLIGHT_BYTES_MAX = 16 << 20
OVERLOADED_RETRY_S = 0.05
ENTRIES_PER_TURN = 64
"""Added before other work of the loop gets its turn."""

_RECOVERY = bytes([ADD_FLAG_RECOVERY])


class EntryCopies(RepairContract):
    """See the module. `store` returns the engine; it raises AlreadyClosed when there is none."""

    def __init__(
        self, env: Environment, identity: Identity, keys: Keys, settings: Settings, store: Callable[[], BookieStore]
    ) -> None:
        self.settings = settings
        self.store = store
        self._addresses: dict[str, tuple[str, str, int]] = {}
        frame_size_max = settings.bookie_frame_size_max_bytes + READ_BYTES + 1024
        self._links = MemberCalls(env, identity, keys, self._addresses.get, Contract, frame_size_max=frame_size_max)
        self._places = asyncio.Semaphore(COPIES_UNDER_WAY_MAX)
        self._in_flight_max = min(IN_FLIGHT_BYTES_MAX, settings.bookie_pending_bytes_max // 4)
        self._in_flight = 0
        self._landed = asyncio.Event()
        self._not_before = 0.0

    async def close(self) -> None:
        """End the connections to other bookies."""
        await self._links.close()

    async def damaged_entries(self, *, after: EntryPlace, limit: int = 1000) -> list[DamagedEntry]:
        if limit < 1:
            raise ProtocolError(f"a page of damaged entries cannot have {limit} of them: ask for 1 or more")
        entries = self.store().entries
        page = entries.damage.notes.page((after.ledger, after.entry), limit)
        return [DamagedEntry(*key, entries.ledgers[key[0]].nonce) for key in page if key[0] in entries.ledgers]

    async def forget_damage(self, *, ledger: int, above: int) -> None:
        self.store().entries.damage.forget(ledger, above)

    async def lacking(self, *, parts: list[Part]) -> Lacking:
        for part in parts:
            _check_part(part)
        store, loop = self.store(), asyncio.get_running_loop()
        ends = loop.time() + LOOK_S
        found: list[int] = []
        for index, part in enumerate(parts):
            if index and loop.time() >= ends:
                return Lacking(found, index)
            if store.limbo or not await self._holds(store, part):
                found.append(index)
        return Lacking(found, len(parts))

    async def _holds(self, store: BookieStore, part: Part) -> bool:
        first = part.first
        while first <= part.last:
            try:
                held, following = await find_held(store, part, first, intact_only=False)
            except (EntryCorrupt, ForeignLedger):
                return False  # the copy will tell
            if missing_entries(first, following - 1, stripe_of(part), held):
                return False
            first = following
        return True

    async def copy_entries(self, *, part: Part, sources: list[CopySource]) -> Copied:
        _check_part(part)
        for source in sources:
            address = f"{source.host}:{source.port}"
            self._addresses[source.bookie] = (address, source.host, source.port)
        async with self._places:
            return await _PartCopy(self, part, sources).run()

    # -- for one part ------------------------------------------------------------------------------------------------

    async def read(self, source: CopySource, part: Part, first: int, last: int) -> tuple[int, list[memoryview]]:
        """`(next entry, entries)` that a source holds, unverified. Raises what its answer says, and EntryUnknown."""
        done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        def answered(status: int, payload: bytes) -> None:
            if not done.done():
                done.set_result((status, payload))

        try:
            async with asyncio.timeout(self.settings.read_entry_timeout_s):
                connection = await self._links.connect(source.bookie)
                request = encode_read(part.ledger, part.nonce, first, last, READ_BYTES)
                connection.request(BookieOp.READ, (request,), answered)
                status, payload = await done
        except (TimeoutError, ServiceUnitNotReady, OSError) as error:
            raise EntryUnknown(f"bookie {source.bookie} did not answer a read: {error!r}") from error
        if status != BookieStatus.OK:
            raise error_for_status(status, bookie=source.bookie, ledger_id=part.ledger)
        return decode_read_answer(payload)

    async def keep_pace(self) -> None:
        """Wait until the rate allows more, and there is room for it."""
        delay_s = self._not_before - asyncio.get_running_loop().time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        while self._in_flight >= self._in_flight_max:
            self._landed.clear()
            await self._landed.wait()

    def took(self, size_bytes: int) -> None:
        """Bytes are on their way to the disk."""
        self._in_flight += size_bytes
        rate = self.settings.repair_bytes_per_s
        if rate > 0:
            self._not_before = max(self._not_before, asyncio.get_running_loop().time()) + size_bytes / rate

    def landed(self, size_bytes: int) -> None:
        """They are there, or failed."""
        self._in_flight -= size_bytes
        self._landed.set()


class _PartCopy:
    """One call. It is the responder of its adds: the request id of each is its size."""

    def __init__(self, copies: EntryCopies, part: Part, sources: Sequence[CopySource]) -> None:
        turn = part.ledger % max(1, len(sources))
        self._sources = [*sources[turn:], *sources[:turn]]
        self._demerits = dict.fromkeys((source.bookie for source in sources), 0)
        self._copies = copies
        self._store = copies.store()
        self._part = part
        self._stripe = stripe_of(part)
        self._ends = asyncio.get_running_loop().time() + COPY_S
        self._under_way = 0
        self._failed: int | None = None
        self._settled = asyncio.Event()
        self._taken: dict[int, None] = {}
        """Entries at or behind the present region that were added already."""
        self._entries = self._bytes = 0

    async def run(self) -> Copied:
        part, first = self._part, self._part.first
        while first <= part.last and (first == part.first or not self._late()):
            held, following = await find_held(self._store, part, first, intact_only=bool(self._store.limbo))
            stopped = await self._copy(missing_entries(first, following - 1, self._stripe, held))
            first = following if stopped is None else stopped
        await self._all_durable()
        self._check()
        return Copied(first, self._entries, self._bytes)

    def _late(self) -> bool:
        return asyncio.get_running_loop().time() >= self._ends

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _copy(self, wanted: list[Range]) -> int | None:
        """Copy all of these; None, or the first entry that was left for want of time. At least one region is copied."""
        for first, last in self._windows(wanted):
            following = first
            while following <= last:
                if self._entries and self._late():
                    return following
                await self._copies.keep_pace()
                self._check()
                following = await self._copy_region(wanted, following, last)
        return None

    def _windows(self, wanted: list[Range]) -> list[Range]:
        """What is read at a time: of a striped ledger the foreign entries in between, too."""
        windows: list[Range] = []
        for first, last in wanted:
            if windows and first - windows[-1][1] <= self._stripe.ensemble_size:
                windows[-1] = (windows[-1][0], last)
            else:
                windows.append((first, last))
        return windows

    async def _copy_region(self, wanted: list[Range], first: int, last: int) -> int:
        """Copy what is missing from `first` on, as far as one answer goes; returns the entry behind."""
        end = -1
        missing: list[int] | None = None
        errors: list[MagnetarError] = []
        for source in sorted(self._sources, key=lambda one: self._demerits[one.bookie]):
            low, high = (first, last) if missing is None else (missing[0], missing[-1])
            try:
                following, entries = await self._copies.read(source, self._part, low, high)
            except MagnetarError as error:
                self._disappointed(source, error)
                errors.append(error)
                continue
            if following <= low:
                continue
            if missing is None:
                end = min(following - 1, last)
                missing = self._wanted_in(wanted, first, end)
            elif following <= missing[-1]:
                end = following - 1
                missing = [entry_id for entry_id in missing if entry_id <= end]
            await self._take(source, entries, dict.fromkeys(missing))
            missing = [entry_id for entry_id in missing if entry_id not in self._taken]
            if not missing:
                self._taken = {entry_id: None for entry_id in self._taken if entry_id > end}
                return end + 1
        raise self._why_not(first if missing is None else missing[0], errors)

    def _wanted_in(self, wanted: list[Range], first: int, last: int) -> list[int]:
        return [
            entry_id
            for low, high in wanted
            if low <= last and high >= first
            for entry_id in range(max(low, first), min(high, last) + 1)
            if entry_id not in self._taken
        ]

    def _disappointed(self, source: CopySource, error: MagnetarError) -> None:
        self._demerits[source.bookie] += 1
        logger.info("ledger %d: a copy cannot be read from %s: %s", self._part.ledger, source.bookie, error)

    def _why_not(self, entry_id: int, errors: Sequence[MagnetarError]) -> MagnetarError:
        where = f"entry {self._part.ledger}:{entry_id}"
        if not self._sources:
            return EntryUnknown(f"{where} cannot be copied: no bookie that should hold it is alive")
        if all(isinstance(error, NoSuchEntry | NoSuchLedger) for error in errors):
            return NoSuchEntry(f"{where} cannot be copied: none of {', '.join(self._demerits)} has it")
        return EntryUnknown(f"{where} cannot be copied: no intact copy can be reached ({errors[-1]})")

    # -- adding ------------------------------------------------------------------------------------------------------

    async def _take(self, source: CopySource, entries: Sequence[memoryview], wanted: dict[int, None]) -> None:
        """Add those of a source's entries that are wanted."""
        part = self._part
        for number, entry in enumerate(entries):
            header = decode_entry_header(entry)
            if header.entry_id not in wanted:
                continue
            if (header.ledger_id, header.nonce) != (part.ledger, part.nonce):
                self._disappointed(source, EntryCorrupt(f"it returned entry {header.ledger_id}:{header.entry_id}"))
                continue
            status = await self._add(_RECOVERY + entry)
            if status == BookieStatus.CORRUPT:
                self._disappointed(source, EntryCorrupt(f"entry {header.entry_id} is damaged"))
                continue
            if status is not None and status != BookieStatus.OK:
                raise error_for_status(status, ledger_id=part.ledger, entry_id=header.entry_id)
            self._taken[header.entry_id] = None
            self._entries += 1
            if number % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1:
                await asyncio.sleep(0)

    async def _add(self, payload: bytes) -> int | None:
        """None when the answer follows. An overloaded disk is waited for, as long as an add may take."""
        gives_up = asyncio.get_running_loop().time() + self._copies.settings.add_entry_timeout_s
        while True:
            status = self._store.add(payload, self, len(payload))
            if status is None:
                self._under_way += 1
                self._bytes += len(payload)
                self._copies.took(len(payload))
            if status != BookieStatus.OVERLOADED or asyncio.get_running_loop().time() >= gives_up:
                return status
            await asyncio.sleep(OVERLOADED_RETRY_S)

    def respond(self, request_id: int, status: int, parts: Sequence[object] = ()) -> None:
        """See `Responder`."""
        self.respond_all((request_id,), status)

    def respond_all(self, request_ids: Sequence[int], status: int) -> None:
        """See `Responder`."""
        self._under_way -= len(request_ids)
        if status != BookieStatus.OK and self._failed is None:
            self._failed = status
        self._copies.landed(sum(request_ids))
        self._settled.set()

    async def _all_durable(self) -> None:
        while self._under_way:
            self._settled.clear()
            await self._settled.wait()

    def _check(self) -> None:
        if self._failed is not None:
            raise error_for_status(self._failed, ledger_id=self._part.ledger)


def stripe_of(part: Part) -> Stripe:
    """Which entries of a part's range belong to it."""
    return Stripe(part.slot, part.ensemble_size, part.write_quorum)


async def find_held(store: BookieStore, part: Part, first: int, *, intact_only: bool) -> tuple[list[Range], int]:
    """Ranges of a part that are held from `first` on, and the first entry not looked at. Raises ForeignLedger,
    EntryCorrupt, OSError.
    """
    try:
        held, following = await store.held_ranges(part.ledger, part.nonce, first, part.last, intact_only)
    except NoSuchLedger:
        return [], part.last + 1
    return held, min(max(following, first + 1), part.last + 1)


def _check_part(part: Part) -> None:
    """Raise ProtocolError for one that no ledger has."""
    in_range = 0 <= part.first <= part.last <= ENTRY_ID_MAX
    if not in_range or not 0 <= part.slot < part.ensemble_size or not 1 <= part.write_quorum <= part.ensemble_size:
        raise ProtocolError(f"{part} is no part of a ledger")
    if not 0 <= part.ledger < 1 << 63 or not 0 <= part.nonce < 1 << 64:
        raise ProtocolError(f"{part} names an impossible ledger")
