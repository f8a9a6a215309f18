"""What goes wrong in a `LedgerWorld`: the faults of a whole cluster, faster and shorter, and some of its own."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from magnetar.protocol.bookie_wire import (
    BookieOp,
    BookieStatus,
    encode_add,
    encode_entry_header,
    encode_ledger,
    encode_read,
)
from magnetar.storage.bookie import store as bookie
from magnetar.storage.ledger.bookie_client import BookieClient

from ..checkers.cursor_watch import CursorWatch
from ..checkers.ledger_history import LedgerHistory
from ..world.chance import drawn_apart
from ..world.cluster import BOOKIE, BROKER, Node
from ..world.ledgers import LedgerWorld
from ..world.loop import PROCESS
from .common import Faults
from .doubt import CursorDoubt

logger = logging.getLogger("magnetar.simulation")

LARGE_BYTES = 1 << 20
"""Nonsense is not made larger than this."""
DOUBT_SHARE = 0.25
"""Of the runs; there most faults are doubts."""
DOUBT_MAX_S = 2.0


class LedgerFaults(Faults):
    """See the module. `damaged` is the one bookie whose disk may lose what was synced."""

    down_max_s = 1.5
    pause_max_s = 3.0
    hold_max_s = 0.4

    def __init__(self, world: LedgerWorld, history: LedgerHistory, random: Random) -> None:
        super().__init__(world, history, random)  # type: ignore[arg-type]  # it only counts
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.crash, self.crash_bookie, self.pause, self.partition, self.isolate, self.reset, self.slow, self.hold,
            self.metadata, self.full_disk, self.failing_sync, self.power_loss, self.usurp, self.damage, self.fade,
            self.delay, self.crash_amid_writes, self.misread, self.strike, self.rot,
            self.babble, self.stutter,
        ]  # fmt: skip
        share = random.choice((0.2, 0.5))
        self._kinds = [kind for kind in kinds if random.random() < share] or [random.choice(kinds)]
        self._pace_s = random.choice((0.05, 0.15, 0.4))
        self._rotting: dict[str, int] = {}
        self._doubt: CursorDoubt | None = None
        if drawn_apart(random).random() < DOUBT_SHARE:
            self._doubt = CursorDoubt(random)
            self._kinds = [self.doubt, self.doubt, random.choice(self._kinds)]
        self._world = world

    def install(self, stack: ExitStack) -> None:
        """Be able to mangle entries on their way, and to make cursors doubt, until the stack is left."""
        CursorWatch(self._history, self._world.records).install(stack)
        if self._doubt is not None:
            self._doubt.install(stack)
        encode, add = bookie.encode_read_answer, BookieClient.add

        def encode_read_answer(next_entry: int, entries: Sequence[Any]) -> Any:
            if entries and self._is_rotten():
                entries = [self._mangled(entry) if self._random.random() < 0.5 else entry for entry in entries]
            return encode(next_entry, entries)

        def adding(client: BookieClient, bookie_id: str, parts: Sequence[bytes], callback: Any) -> None:
            if self._is_rotten():
                parts = [*parts[:-1], self._mangled(parts[-1])]
            add(client, bookie_id, parts, callback)

        stack.enter_context(patch.object(bookie, "encode_read_answer", encode_read_answer))
        stack.enter_context(patch.object(BookieClient, "add", adding))

    def _is_rotten(self) -> bool:
        owner = PROCESS.get()
        left = self._rotting.get(owner.name, 0) if owner is not None else 0
        if left:
            assert owner is not None
            self._rotting[owner.name] = left - 1
        return left > 0

    def _mangled(self, entry: Any) -> bytes:
        data = bytearray(entry)
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        return bytes(data)

    async def heal(self) -> None:
        self._rotting.clear()
        await super().heal()

    @property
    def damaged(self) -> Node:
        return self._damaged

    async def crash_bookie(self) -> None:
        """A bookie dies, with what its disk had not made durable, and soon comes back."""
        node = self._node(BOOKIE)
        self._cluster.stop(node)
        await self._for_a_while(f"crash of {node.name}", 0.3, lambda: self._cluster.begin(node))

    async def hold(self) -> None:
        """What one node sends to another is held up for a moment, as by a lost packet; the other direction is not."""
        source, target = self._random.sample([node.name for node in self._cluster.nodes], 2)
        await self._cut([(source, target)], f"hold-up from {source} to {target}", self.hold_max_s)

    async def rot(self) -> None:
        """Memory flips a bit of entries on their way: of those that a host sends, or that the bookie reads which may be
        damaged. The digest is made before and looked at behind it."""
        node = self._random.choice([self._damaged, self._node(BROKER)])
        self._rotting[node.name] = self._random.randint(1, 3)
        self._history.counts["rot"] += 1
        logger.info("fault: entries rot at %s", node.name)

    async def doubt(self) -> None:
        """Cursors do not hear what became of their records."""
        assert self._doubt is not None
        self._doubt.begin()
        await self._for_a_while("doubt about cursors", DOUBT_MAX_S, self._doubt.end)

    async def babble(self) -> None:
        """A proven client asks what makes no sense, as one of another version might. It must get an error."""
        hosts = self._world.hosts()
        if not hosts:
            return
        host, node = self._random.choice(hosts), self._node(BOOKIE)
        name = node.name
        op, payload = self._random.choice([*self._nonsense(), *self._foreign(node)])

        def answered(status: int, answer: bytes) -> None:
            if status == BookieStatus.OK:
                self._history.violated(f"I2: {name} carried out nonsense: {op} {payload[:40]!r}")

        async def ask() -> None:
            channel = host.client._channels.get(name)
            if channel is not None and channel.connection is not None:
                channel.connection.request(op, (payload,), answered)

        self._history.counts["babble"] += 1
        host.process.spawn(ask(), "babble")

    def _nonsense(self) -> list[tuple[int, bytes]]:
        entry = b"".join(encode_add(encode_entry_header(1, 0, 0, -1, 1, b"x"), b"x"))
        size_max = self._world.settings.bookie_frame_size_max_bytes
        asked = [
            (99, b""),
            (BookieOp.READ, b"?"),
            (BookieOp.FENCE, b""),
            (BookieOp.READ_LAC, b"???"),
            (BookieOp.ADD, entry[:9]),
            (BookieOp.ADD, b"\xff" + entry[1:]),
            (BookieOp.ADD, entry[:-1] + b"y"),
        ]
        if size_max < LARGE_BYTES:
            asked.append((BookieOp.ADD, entry.ljust(size_max + 1)))
        return asked

    def _foreign(self, node: Node) -> list[tuple[int, bytes]]:
        """What one would ask who has another ledger by the id of one that the bookie holds."""
        held = list(node.service.store.entries.ledgers.values()) if node.ready and node.running else []
        if not held:
            return []
        state = self._random.choice(held)
        ledger_id, nonce = state.ledger_id, state.nonce ^ 1
        header = encode_entry_header(ledger_id, nonce, state.last_entry + 1, -1, 1, b"x")
        return [
            (BookieOp.ADD, b"".join(encode_add(header, b"x"))),
            (BookieOp.ADD, b"".join(encode_add(header, b"x", recovery=True))),
            (BookieOp.READ, encode_read(ledger_id, nonce, 0, max(state.last_entry, 0), LARGE_BYTES)),
            (BookieOp.READ_LAC, encode_ledger(ledger_id, nonce)),
            (BookieOp.FENCE, encode_ledger(ledger_id, nonce)),
        ]
