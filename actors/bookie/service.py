"""The bookie as a service: a `BookieStore` behind the internal RPC, known to the coordinator.

Start, in this order: lock the directory for life → reach the coordinator (its metadata says whose disk this is) → claim
the directory by its cookie → replay → listen → register. So no request is served before the answers are right, and two
processes never serve one directory.

`TRANSITIONS` has the states. In FAILED the bookie stops listening at once and drops every connection, so that writers
treat the outcome of pending adds as unknown. It tells `on_fatal` and waits to be closed; the supervisor starts a new
process. Losing the connection to the coordinator changes nothing: adds and reads go on, and garbage collection waits.

Entries are data requests straight into the store, without a coroutine each. The rest of its contract is served by the
service itself and by `EntryCopies`.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace

from ...protocol.bookie_wire import BookieOp, decode_read
from ...protocol.cluster_status import BookieFigures, MemberData, ScrubReport
from ...protocol.errors import AlreadyClosed, AuthorizationError, MagnetarError, ProtocolError, StorageFailed
from ...protocol.names import ROLE_BOOKIE, ROLE_READER
from ...runtime.environment import Environment
from ...runtime.files import DiskUsage, FileLock
from ...runtime.rpc.connection import RpcConnection, RpcService
from ...runtime.rpc.contract import handlers_of
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.rpc.server import RpcServer
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from ...storage.bookie.collection_scope import CollectionScope
from ...storage.bookie.compaction import Compactor
from ...storage.bookie.cookie import Cookie, claim_directory
from ...storage.bookie.garbage_collection import collect_garbage
from ...storage.bookie.scrub import Scrubber
from ...storage.bookie.store import BookieStore
from ...storage.metadata.keys import LEDGER_COUNTER
from ..members.contracts_bookie import BookieContract, StoreContract
from ..members.contracts_coordinator import CoordinatorContract, LedgerChanges
from ..members.coordinator_link import CoordinatorClient
from ..members.permissions import BOOKIE_OPERATIONS
from .copying import EntryCopies

logger = logging.getLogger(__name__)

FULL_COMPARISON_S = 86_400.0
LEDGERS_PER_QUESTION = 5000
"""The coordinator looks them up in one turn of its loop, in some milliseconds."""


class Collecting:
    """What a bookie was told of ledgers whose records changed: how far it has read `actors/auditor/index.py`.

    What it has to ask the metadata for:

        FOLLOWING   it knows what the feed of this coordinator said: what was told since
        LEFT BEHIND there is another coordinator, or the feed forgot something: see below
        DUE         it has just started, or `FULL_COMPARISON_S` have passed: all ledgers

        DUE ── a collection succeeded ──→ FOLLOWING
        FOLLOWING ── the feed does not continue where it was read ──→ LEFT BEHIND
        LEFT BEHIND ── a collection of what the auditor did not know or place here ──→ FOLLOWING

    A bookie that is left behind has the auditor compare its ledgers with the index, which a walk has filled. That costs
    no read of the metadata. Changes since that coordinator began are in its feed, and are asked for, too. While the
    auditor has not yet walked through all records, only new ledgers are asked for, and the bookie stays left behind.
    Where that feed has forgotten something, all ledgers are asked for.

    `FULL_COMPARISON_S` is the safety net under all of this: one read of each ledger's record a day.

    One collection at a time, under `lock`.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.scope = CollectionScope()
        self._told: LedgerChanges | None = None
        self._epoch, self._since = -1, 0
        self._full_at = 0.0

    async def changed(self, ask: CoordinatorContract, held: Iterable[int]) -> list[int] | None:
        """The ledgers to ask the metadata for, beside those in doubt; None for all. The bookie has those in `held`."""
        self._told = None
        try:
            return await self._changed(ask, held)
        except MagnetarError:  # an older coordinator does not have the methods
            self._told = None
            return None

    async def _changed(self, ask: CoordinatorContract, held: Iterable[int]) -> list[int] | None:
        found: list[int] = []
        compared = False
        epoch, since = self._epoch, self._since
        while True:
            told = await ask.ledger_changes(epoch=epoch, since=since)
            if asyncio.get_running_loop().time() >= self._full_at or (compared and not told.complete):
                self._told = replace(told, next=told.end)
                return None
            if not told.complete:
                unnamed = await _unnamed(ask, told.epoch, held)
                if unnamed is None:
                    return []
                found, epoch, since, compared = unnamed, told.epoch, 0, True
                continue
            found += told.ledgers
            if told.next >= told.end:
                self._told = told
                return found
            epoch, since = told.epoch, told.next

    def succeeded(self, changed: list[int] | None) -> None:
        """A collection has asked for all of these."""
        if self._told is not None:
            self._epoch, self._since = self._told.epoch, self._told.next
        if changed is None:
            self._full_at = asyncio.get_running_loop().time() + FULL_COMPARISON_S


async def _unnamed(ask: CoordinatorContract, epoch: int, held: Iterable[int]) -> list[int] | None:
    """Those of these ledgers that the auditor with that epoch does not place here; None when it cannot say so now."""
    found: list[int] = []
    ledgers = sorted(held)
    for first in range(0, len(ledgers), LEDGERS_PER_QUESTION):
        answer = await ask.unnamed_ledgers(ledgers=ledgers[first : first + LEDGERS_PER_QUESTION])
        if not answer.ready or answer.epoch != epoch:
            return None
        found += answer.ledgers
    return found


LOCK_NAME = "lock"
MAY_NOT_FENCE = (ROLE_READER, ROLE_BOOKIE)
"""Roles that only read entries."""


class BookieState(enum.Enum):
    """See `TRANSITIONS`."""

    STOPPED = enum.auto()
    STARTING = enum.auto()
    SERVING = enum.auto()
    FAILED = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[BookieState, Collection[BookieState]] = {
    BookieState.STOPPED: (
        BookieState.STARTING,  # `start`
        BookieState.CLOSED,  # `close`
    ),
    BookieState.STARTING: (  # from the lock of the directory to the registration
        BookieState.SERVING,  # the coordinator has registered it
        BookieState.FAILED,  # the disk failed, or the coordinator declared the session over
        BookieState.CLOSED,  # the start failed
    ),
    BookieState.SERVING: (
        BookieState.FAILED,  # as above
        BookieState.CLOSED,
    ),
    BookieState.FAILED: (BookieState.CLOSED,),
    BookieState.CLOSED: (),
}


class BookieService(RpcService, StoreContract):
    """See the module. With `accept_lost_disk`, or if the lost one had the cookie `lost_instance`, an empty directory
    takes a lost one's place, in limbo.

    `coordinator` replaces the link made from `locate_coordinator` (for tests).
    """

    contract = BookieContract
    operation_roles = BOOKIE_OPERATIONS

    def __init__(
        self,
        env: Environment,
        directory: str,
        bookie_id: str,
        cluster_id: str,
        keys: Keys,
        settings: Settings,
        host: str,
        port: int,
        locate_coordinator: Callable[[], Awaitable[tuple[str, int]]],
        *,
        accept_lost_disk: bool = False,
        lost_instance: str = "",
        coordinator: CoordinatorClient | None = None,
    ) -> None:
        self.identity = Identity(cluster_id, ROLE_BOOKIE, bookie_id, env.random.hex(8))
        self.on_fatal: Callable[[BaseException], None] | None = None
        """Called once when the disk has failed and the bookie has stopped serving."""
        self.place: MemberData = {}
        """Its machine and zone, if they are known: `node` and `zone`."""
        self.state = BookieState.STOPPED
        self.failure: BaseException | None = None
        """Why it is FAILED, or was before it was closed."""
        self._env = env
        self._directory = directory
        self._settings = settings
        self._place = host, port
        self._loss = accept_lost_disk, lost_instance
        self._coordinator = coordinator or CoordinatorClient(env, self.identity, keys, settings, locate_coordinator)
        self._server = RpcServer(
            env, self.identity, keys, self, frame_size_max=settings.bookie_frame_size_max_bytes + 1024
        )
        self._copies = EntryCopies(env, self.identity, keys, settings, lambda: self.store)
        self.handlers = handlers_of(BookieContract, self, self._copies)
        self._lock: FileLock | None = None
        self._cookie: Cookie | None = None
        self._store: BookieStore | None = None
        self._compactor: Compactor | None = None
        self._scrubber: Scrubber | None = None
        self._collecting = Collecting()
        self._usage = DiskUsage(0, 0, 0)
        self._unknown_ledgers = 0
        self._tasks = Tasks()

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of the internal RPC; the port is the real one once started."""
        return self._server.address

    @property
    def store(self) -> BookieStore:
        """The storage engine. Raises AlreadyClosed before the start and after the end."""
        if self._store is None:
            raise AlreadyClosed(f"bookie {self.identity.node_id} is not running")
        return self._store

    async def start(self) -> None:
        """Begin to serve. After an error everything is let go of again.

        Raises DirectoryLocked, CookieMismatch, CoordinatorUnavailable, HandshakeRefused, DiskFull, OSError.
        """
        self._become(BookieState.STARTING)
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        files, offload = self._env.files, self._env.offload
        await offload.run(files.make_directory, self._directory)
        self._lock = await offload.run(files.lock, f"{self._directory}/{LOCK_NAME}")
        await self._coordinator.start()
        self._cookie = await claim_directory(
            self._env,
            self._directory,
            self.identity.node_id,
            self.identity.cluster_id,
            self._coordinator.metadata,
            accept_lost_disk=self._loss[0],
            lost_instance=self._loss[1],
        )
        store = self._store = BookieStore(
            self._env, self._directory, self._cookie.instance, self._settings, on_fatal=self._failed
        )
        self._compactor = Compactor(store.entries, bytes_per_s=self._settings.compaction_bytes_per_s)
        self._scrubber = Scrubber(
            store.entries,
            interval_s=self._settings.scrub_interval_s,
            bytes_per_s=self._settings.scrub_bytes_per_s,
        )
        await store.open()
        self._usage = await store.check_disk()
        store.on_change = self._report
        self._report()
        host, port = await self._server.start(*self._place)
        self._coordinator.on_session_lost.append(self._session_lost)
        await self._coordinator.register(host, port, self._describe)
        self._tasks.spawn(self._watch_disk(), "watch-disk")
        self._tasks.spawn(self._collect_regularly(), "collect-garbage")
        if self._settings.scrub_interval_s:
            self._tasks.spawn(self._scrubber.run(), "scrub")
        if self.state is BookieState.STARTING:
            self._become(BookieState.SERVING)
        logger.info("bookie %s serves %s on %s:%d", self.identity.node_id, self._directory, host, port)

    async def close(self) -> None:
        """Leave in good order: everything accepted is durable, the directory is unlocked. May be called twice."""
        if self.state is BookieState.CLOSED:
            return
        self._become(BookieState.CLOSED)
        await self._tasks.close()
        await self._coordinator.close()
        await self._server.close()
        await self._copies.close()
        if self._compactor is not None:
            await self._compactor.close()
        if self._store is not None:
            await self._store.close()
            self._store = None
        if self._lock is not None:
            self._lock.release()

    # -- data ----------------------------------------------------------------------------------------------------------

    def data_request(self, connection: RpcConnection, op: int, request_id: int, payload: bytes) -> None:
        """ADD, READ, FENCE, READ_LAC of `protocol.bookie_wire`."""
        if op == BookieOp.READ and connection.peer.role in MAY_NOT_FENCE and decode_read(payload).fence:
            connection.respond_error(
                request_id,
                AuthorizationError(f"{connection.peer.node_id} may not fence ledgers: its role does not permit it"),
            )
            return
        store = self._store if self._store is not None else self.store  # the property raises
        store.request(connection, op, request_id, payload)

    # -- control -------------------------------------------------------------------------------------------------------

    async def status(self) -> BookieFigures:
        store = self.store
        segments = [segment for segment in store.entries.segments.values()]
        return {
            "bookie": self.identity.node_id,
            "incarnation": self.identity.incarnation,
            "directory": self._directory,
            "disk_used_bytes": self._usage.used_bytes,
            "disk_total_bytes": self._usage.total_bytes,
            "disk_free_bytes": self._usage.free_bytes,
            "disk_full": store.disk_full,
            "read_only": not store.writable,
            "limbo": bool(store.limbo),
            "limbo_reason": store.limbo,
            "failed": "" if store.failed is None else str(store.failed),
            "ledgers": len(store.entries.ledgers),
            "unknown_ledgers": self._unknown_ledgers,
            "tombstones": store.entries.tombstones.count,
            "segments": len(segments),
            "segment_bytes": sum(segment.end for segment in segments),
            "live_bytes": sum(segment.live_bytes for segment in segments),
            "pending_bytes": store.entries.journal.pending_bytes,
            "adds": store.entries.adds,
            "added_bytes": store.entries.added_bytes,
            "scrub": self._scrub_report(),
        }

    async def ledgers(self, *, after: int = -1, limit: int = 1000) -> list[int]:
        return sorted(ledger_id for ledger_id in self.store.entries.ledgers if ledger_id > after)[:limit]

    async def clear_limbo(self, *, fence_floor: int | None = None, reason: str | None = None) -> None:
        if fence_floor is not None and not 0 <= fence_floor < 1 << 63:
            raise ProtocolError(
                f"{fence_floor!r:.100} is not a ledger id"
            )  # it would be stored, and fail the next start
        if fence_floor is None:
            fence_floor = await self._coordinator.metadata.allocate(LEDGER_COUNTER, 1)
        await self.store.clear_limbo(fence_floor, reason)
        logger.warning("bookie %s has left limbo", self.identity.node_id)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _become(self, state: BookieState) -> None:
        check_transition(TRANSITIONS, f"bookie {self.identity.node_id}", self.state, state)
        self.state = state

    def _describe(self) -> MemberData:
        """What each registration says."""
        assert self._cookie is not None
        return {
            "instance": self._cookie.instance,
            "writable": _accepts_new_ledgers(self.store),
            **self.place,
            "ledgers_end": self.store.entries.ledgers_end,
        }

    def _report(self) -> None:
        """What the next heartbeat carries."""
        self._coordinator.report = {
            "writable": _accepts_new_ledgers(self.store),
            "limbo": self.store.limbo,
            "scrub": self._scrub_report(),
            "unknown_ledgers": self._unknown_ledgers,
            "disk": {
                "used": self._usage.used_bytes,
                "total": self._usage.total_bytes,
                "free": self._usage.free_bytes,
                "full": self.store.disk_full,
            },
        }

    def _scrub_report(self) -> ScrubReport:
        """Damaged entries, and how far the scrub is; sizes in bytes."""
        assert self._scrubber is not None
        notes = self.store.entries.damage.notes
        return {
            "damaged": notes.count,
            "found": notes.found_total,
            "repaired": notes.repaired_total,
            "passes": notes.progress.passes,
            "pass_share": round(self._scrubber.pass_share(), 3),
            "scrubbed_bytes": notes.progress.total_bytes,
        }

    async def _watch_disk(self) -> None:
        while True:
            await asyncio.sleep(self._settings.disk_check_interval_ms / 1000)
            was_full = self.store.disk_full
            try:
                self._usage = await self.store.check_disk()
            except StorageFailed:
                return  # the bookie has stopped, and said why
            except OSError as error:
                logger.warning("bookie %s cannot read its disk usage: %s", self.identity.node_id, error)
                continue
            self._report()
            if self.store.disk_full and not was_full:
                await self._try_to_collect(major=True)

    async def _collect_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        last_major = loop.time()
        while True:
            await asyncio.sleep(self._settings.gc_interval_ms / 1000 * self._env.random.uniform(0.9, 1.0))
            major = loop.time() - last_major >= self._settings.major_compaction_interval_s
            if await self._try_to_collect(major) and major:
                last_major = loop.time()

    async def _try_to_collect(self, major: bool) -> bool:
        try:
            await self.collect_garbage(major=major)
        except (MagnetarError, OSError) as error:
            logger.warning("bookie %s skipped a garbage collection: %s", self.identity.node_id, error)
            return False
        return True

    async def collect_garbage(self, *, major: bool = False) -> dict[str, int]:
        assert self._compactor is not None
        async with self._collecting.lock:
            identity = self.identity
            link = self._coordinator
            changed = await self._collecting.changed(link.ask, self.store.entries.ledgers)
            collected = await collect_garbage(
                self.store,
                link.metadata,
                lambda ledger_id, version: link.ask.renew_ledger(ledger=ledger_id, version=version),
                identity.cluster_id,
                identity.node_id,
                scope=self._collecting.scope,
                changed=changed,
            )
            self._collecting.succeeded(changed)
            await self.store.entries.forget_tombstones()
            if collected.ledgers_unknown != self._unknown_ledgers:
                self._unknown_ledgers = collected.ledgers_unknown
                self._report()
            settings = self._settings
            compacted = await self._compactor.run(
                settings.major_compaction_threshold if major else settings.minor_compaction_threshold
            )
        return {
            "ledgers_seen": collected.ledgers_seen,
            "ledgers_deleted": collected.ledgers_deleted,
            "ledgers_given_up": collected.ledgers_given_up,
            "ledgers_unknown": collected.ledgers_unknown,
            "segments_removed": compacted.segments_removed,
            "segments_written": compacted.segments_written,
            "bytes_freed": compacted.bytes_freed,
            "bytes_copied": compacted.bytes_copied,
        }

    def _session_lost(self) -> None:
        self._failed(
            AlreadyClosed(f"the coordinator ended the session of bookie {self.identity.node_id}, so this process ends")
        )

    def _failed(self, error: BaseException) -> None:
        if self.state in (BookieState.STARTING, BookieState.SERVING):
            self._become(BookieState.FAILED)
            self.failure = error
            self._tasks.spawn(self._stop_serving(error), "stop-serving")

    async def _stop_serving(self, error: BaseException) -> None:
        await self._server.close()
        await self._coordinator.close()
        if self.on_fatal is not None:
            self.on_fatal(error)


def _accepts_new_ledgers(store: BookieStore) -> bool:
    return store.writable and not store.limbo
