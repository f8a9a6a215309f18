"""An auditor whose bookies and whose time are the test's: what it looks at, and what has bookies copy."""

import asyncio
from types import SimpleNamespace

from magnetar.actors.auditor import checks as checks_module
from magnetar.actors.auditor.service import Auditor
from magnetar.protocol.errors import EntryUnknown, MetadataUnavailable, ServiceUnitNotReady
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.storage.ledger.bookie_directory import BookieInfo
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.storage.metadata.store import Write
from support.stores.memory_store import MemoryMetadataStore

from .bookies import FakeCluster

A, B, C, D, E = NAMES = tuple(f"bookie-{letter}" for letter in "abcde")
HOST = "127.0.0.1"
GRACE_S = 60.0
LEDGERS = 30


class Store(MemoryMetadataStore):
    """Counts the records that are read one by one, and may be away."""

    read = 0
    away = False

    async def get(self, key):
        return (await self.get_many([key]))[0]

    async def get_many(self, keys):
        if self.away:
            raise MetadataUnavailable("away")
        self.read += len(keys)
        return await super().get_many(keys)


class World:
    """An auditor, its time, and bookies that say what they are told to say. It stands for `LedgerRepair`."""

    def __init__(self, monkeypatch):
        self.offset_s = 0.0
        self.held = {}
        self.asked = self.copies = 0
        self.silent, self.broken = [], []
        self.amid = None
        """Called once, while a bookie is asked."""
        self.cluster = FakeCluster(1, lost_bookie_grace_s=GRACE_S)
        self.store = Store()
        self.limbo = {}
        self.states = {}
        self.machines = {}
        """Those of bookies that say where they run."""
        self.metadata_written = []
        loop = asyncio.get_running_loop()
        real_time = loop.time
        monkeypatch.setattr(loop, "time", lambda: real_time() + self.offset_s)
        monkeypatch.setattr(checks_module, "LedgerRecovery", self.recovery)
        self.recovering = True
        self.auditor = Auditor(
            self.cluster.env,
            Identity("cluster", "coordinator", "coordinator", "1"),
            RootKeys(b"secret"),
            self.cluster.settings,
            self.store,
            self.cluster.directory,
            lambda: dict(self.limbo),
        )
        self.auditor._repair = self  # type: ignore[assignment]
        self.auditor._orphans.busy = True  # no record names the ledgers of these tests: they are not searched for

    # -- in the place of others ----------------------------------------------------------------------------------

    async def lacking(self, bookie, parts):
        if self.amid is not None:
            amid, self.amid = self.amid, None
            amid()
        self.asked += len(parts)
        if bookie in self.silent:
            raise ServiceUnitNotReady("no answer")
        return [index for index, part in enumerate(parts) if (bookie, part.ledger) not in self.held]

    async def fill(self, metadata, piece, sources=None):
        self.copies += 1
        if piece.bookie in self.broken or piece.bookie in self.silent:
            raise EntryUnknown("no copy")
        if (piece.bookie, metadata.ledger_id) in self.held:
            return 0
        self.held[piece.bookie, metadata.ledger_id] = None
        return 1

    def recovery(self, env, records, client, settings, ledger_id):
        async def run(record):
            if not self.recovering:
                raise EntryUnknown("no quorum")
            await self.write(ledger_id, record.metadata.close(-1, 0), record.version)

        return SimpleNamespace(run=run)

    # -- what happens --------------------------------------------------------------------------------------------

    async def write(self, ledger_id, metadata, version=None):
        await self.store.put(metadata_keys.ledger(ledger_id), metadata.pack(), version)
        self.auditor.written([Write(metadata_keys.ledger(ledger_id), metadata.pack(), version)])

    async def ledger(self, ledger_id, bookies=(A, B, C), *, state=LedgerState.CLOSED, thin=False):
        last = 9 if state is LedgerState.CLOSED else -1
        fragments = (Fragment(0, tuple(bookies)),)
        count = len(bookies)
        metadata = LedgerMetadata(
            ledger_id, count, count, 2, fragments, state, last_entry=last, under_replicated=thin, nonce=ledger_id
        )
        self.held.update({(bookie, ledger_id): None for bookie in bookies})
        await self.write(ledger_id, metadata)

    def list(self, **states):
        """By letter: `up`, `away`, `full`, `draining` or `limbo`. The others stay as they are.

        Nobody listens at their addresses, and a bookie in limbo is asked. A name would be looked up for seconds.
        """
        self.states.update({f"bookie-{letter}": state for letter, state in states.items()})
        self.limbo.clear()
        self.limbo.update({name: "a loss" for name, state in self.states.items() if state == "limbo"})
        self.cluster.directory.update(
            BookieInfo(
                name, HOST, 1, state == "up", state == "limbo", 0, state == "draining", self.machines.get(name, "")
            )
            for name, state in self.states.items()
            if state != "away"
        )

    async def rounds(self):
        """Until the next round has nothing to do at once. Returns records read, pieces asked for, and copies."""
        before = self.store.read, self.asked, self.copies
        self.auditor._changed = False
        await self.auditor.round()
        while self.auditor._unfinished() or self.auditor._due.written_count:
            await self.auditor.round()
        return self.store.read - before[0], self.asked - before[1], self.copies - before[2]

    async def pass_time(self, seconds):
        """A round each minute, and what they cost together."""
        costs = [0, 0, 0]
        while seconds > 0:
            self.offset_s += min(60.0, seconds)
            seconds -= 60.0
            costs = [sum(both) for both in zip(costs, await self.rounds(), strict=True)]
        return tuple(costs)

    async def bookies_of(self, ledger_id):
        record = await self.store.get(metadata_keys.ledger(ledger_id))
        return sorted(LedgerMetadata.unpack(record.value).bookies)

    def count(self, condition):
        return self.auditor._index.counts[condition]


NOTHING = (0, 0, 0)
"""What `World.rounds` gives where nothing was done."""
