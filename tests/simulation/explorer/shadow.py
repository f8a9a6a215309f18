"""Production coroutines that follow a plain exploration event by event, to keep its mirrored order of calls honest.

The explorer's nodes drive production decisions but order the calls themselves, as `LedgerWriter._change_while_needed`,
`close` and `LedgerRecovery.run` do. Here the real `LedgerWriter` or `LedgerRecovery` runs on an event loop: bookies and
metadata store are in-boxes that answer only when the exploration's event says so. After each event the shadow must wait
for the same answers, propose the same compare-and-set and have the same state as the node. Names of slots are the one
difference: where the explorer tries all orders, `follow` picks the state that the coroutine agrees with.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from magnetar.protocol.bookie_wire import (
    LedgerEnd,
    decode_add,
    decode_entry,
    decode_read,
    encode_entry_header,
    encode_read,
)
from magnetar.protocol.errors import BadVersion, EntryUnknown, NoSuchEntry, OutcomeUnknown
from magnetar.protocol.rpc_frames import STATUS_DISCONNECTED
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.ledger.bookie_client import ReadAnswer
from magnetar.storage.ledger.bookie_directory import BookieDirectory
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from magnetar.storage.metadata.ledger_records import LedgerRecord

from .nodes import LATE_ANSWER, LEDGER, LOST, NAMES, FirstChance, Frozen, first_record, freeze_metadata
from .nodes import thaw_metadata as thaw
from .system import CHANNEL, INFO, RECORD_BITS, State, System

TURNS = 30
"""Turns of the event loop after which nothing moves any longer without an answer."""

Reply = tuple[Any, ...]


async def settle() -> None:
    """Let all coroutines run until they wait for an answer."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


@dataclass
class Asked:
    """A request that waits at a bookie."""

    request: tuple[Any, ...]
    answer: Callable[[Reply], None]
    given_up: Callable[[], bool] = lambda: False


class Bookies:
    """`BookieClient` to the coroutine: keeps what it asks until told the answer."""

    def __init__(self, bookies: int) -> None:
        self.names = NAMES[:bookies]
        self.directory = BookieDirectory()  # nothing is in doubt
        self._waiting: dict[str, list[Asked]] = {name: [] for name in self.names}

    def usable(self) -> Sequence[str]:
        return self.names

    def report_slow(self, bookie: str) -> None:
        """Nobody listens."""

    def add(self, bookie: str, parts: Sequence[bytes], callback: Callable[[int, bytes], None]) -> None:
        recovery, data = decode_add(b"".join(parts))
        entry = decode_entry(data)

        def answer(reply: Reply) -> None:
            callback(int(reply[2]) if reply[0] == "add" else STATUS_DISCONNECTED, b"")

        self._waiting[bookie].append(Asked(("add", entry.entry_id, entry.lac, int(recovery)), answer))

    async def fence(self, bookie: str, ledger_id: int, nonce: int) -> LedgerEnd:
        return LedgerEnd((await self._ask(bookie, ("fence",)))[1], -1)

    async def read(
        self, bookie: str, ledger_id: int, nonce: int, first: int, last: int, bytes_max: int, *, fence: bool = False
    ) -> ReadAnswer:
        if not fence:
            raise NoSuchEntry("what is not part of recovery's decisions (the ledger's length) is not answered")
        _, found, lac_of_1 = await self._ask(
            bookie, ("read", encode_read(ledger_id, nonce, first, last, 1 << 20, True))
        )
        if not found:
            raise NoSuchEntry("none of them")
        headers = [encode_entry_header(LEDGER, 0, entry, lac_of_1 if entry else -1, entry + 1, b"x") for entry in found]
        return ReadAnswer(last + 1, [memoryview(header + b"x") for header in headers])

    async def _ask(self, bookie: str, request: tuple[Any, ...]) -> Reply:
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answer(reply: Reply) -> None:
            if reply in (LOST, LATE_ANSWER):
                answered.set_exception(EntryUnknown("no answer"))
            else:
                answered.set_result(reply)

        self._waiting[bookie].append(Asked(request, answer, answered.done))
        return await answered

    def waiting(self, bookie: int) -> list[tuple[Any, ...]]:
        """What a bookie was asked and has not answered, as the explorer writes it."""
        queue = self._waiting[NAMES[bookie]]
        queue[:] = [asked for asked in queue if not asked.given_up()]
        return [asked.request for asked in queue]

    def tell(self, bookie: int, reply: Reply) -> None:
        """The oldest request is answered; all of them, when no answer comes."""
        self.waiting(bookie)
        queue = self._waiting[NAMES[bookie]]
        told = queue[:1] if reply[0] in ("add", "fence", "read") else queue[:]
        del queue[: len(told)]
        for asked in told:
            asked.answer(reply)


@dataclass
class Proposal:
    """A compare-and-set on its way."""

    metadata: LedgerMetadata
    version: int
    answered: "asyncio.Future[LedgerRecord]"
    arrived: bool = False
    landed: bool = False


@dataclass
class Records:
    """`LedgerRecords` to the coroutine: reads are answered at once, a compare-and-set when told to."""

    metadata: LedgerMetadata = field(default_factory=first_record)
    version: int = 1
    proposals: list[Proposal] = field(default_factory=list)

    async def get(self, ledger_id: int) -> LedgerRecord:
        return LedgerRecord(self.metadata, self.version)

    async def replace(self, metadata: LedgerMetadata, version: int, **_: Any) -> LedgerRecord:
        proposal = Proposal(metadata, version, asyncio.get_running_loop().create_future())
        self.proposals.append(proposal)
        return await proposal.answered

    def waiting(self) -> list[Proposal]:
        """Those that somebody waits for."""
        return [proposal for proposal in self.proposals if not proposal.answered.done()]

    def arrive(self, proposal: Proposal) -> None:
        """It lands if it names the version of now."""
        proposal.arrived, proposal.landed = True, proposal.version == self.version
        if proposal.landed:
            self.metadata, self.version = proposal.metadata, self.version + 1

    def answer(self, proposal: Proposal) -> None:
        if proposal.landed:
            proposal.answered.set_result(LedgerRecord(proposal.metadata, proposal.version + 1))
        else:
            proposal.answered.set_exception(BadVersion("somebody else was first"))

    def time_out(self, proposal: Proposal) -> None:
        proposal.answered.set_exception(OutcomeUnknown("no answer"))


class Shadow:
    """What the writer's and the recoverer's shadow have in common. `client` is the node that is followed."""

    client = 0

    def __init__(self, system: System) -> None:
        self.system = system
        self.bookies = Bookies(system.bookies)
        self.records = Records()
        self.settings = Settings()
        self.env: Any = SimpleNamespace(random=FirstChance())
        self.task: asyncio.Task[LedgerMetadata] | None = None
        self.ahead = False
        """Whether the coroutine has done already what the node does in a step of its own, which has to be next."""

    async def follow(self, label: Any, before: State, after: list[State]) -> State:
        """Do what the label says; the state, of those it may lead to, that the coroutine agrees with.

        Raises AssertionError when there is none.
        """
        who, event, bookie = label
        if isinstance(who, int):
            return after[0]
        if who != ("writer", "recoverer 1", "recoverer 2")[self.client]:
            if self.stored(after[0]) != self.stored(before):
                self.records.metadata, self.records.version = thaw(self.stored(after[0])), self.records.version + 1
            return after[0]
        if bookie >= 0:
            await self.hear(bookie, event, after[0])
        else:
            await self.happen(event)
        differences = [self.difference(state) for state in after]
        assert "" in differences, f"{label}: {differences}"
        return after[differences.index("")]

    async def hear(self, bookie: int, reply: Reply, after: State) -> None:
        """An answer, or none."""
        raise NotImplementedError

    async def happen(self, event: str) -> None:
        """What the node does on its own."""
        raise NotImplementedError

    def difference(self, state: State) -> str:
        """How the coroutine differs from the node; nothing when it does not."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Leave nothing behind."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    # -- what both compare

    def stored(self, state: State) -> Frozen:
        """The record in the store."""
        return self.system.values[state[3]], tuple(self.system.values[c][RECORD_BITS] for c in state[4:])

    def node(self, state: State) -> tuple[Any, list[Any]]:
        """Core and infos of the node that is followed."""
        infos = [self.system.values[column][INFO + self.client] for column in state[4:]]
        return self.system.values[state[self.client]], infos

    def different_requests(self, state: State) -> str:
        """Requests without an answer, in order on each connection; an answer on the way is told by what it is about."""
        for i, column in enumerate(state[4:]):
            requests, replies = self.system.values[column][CHANNEL + self.client]
            node = [*[reply[:2] if reply[0] == "add" else reply[:1] for reply in replies], *map(_words, requests)]
            mine = [_words(request) for request in self.bookies.waiting(i)]
            told = [request[: len(words)] for request, words in zip(mine, node, strict=False)]
            if len(mine) != len(node) or told != node:
                return f"asks {NAMES[i]} {mine}, the node {node}"
        return ""

    def different_proposal(self, node: Frozen | None) -> str:
        """The compare-and-set that is waited for."""
        mine = [freeze_metadata(proposal.metadata, self.system.bookies) for proposal in self.records.waiting()]
        return "" if mine == ([node] if node else []) else f"proposes {mine}, the node {node}"


def _words(request: tuple[Any, ...]) -> tuple[Any, ...]:
    if request[0] != "read":
        return request
    wanted = decode_read(request[1])
    return "read", wanted.first, wanted.last, wanted.fence
