"""What goes wrong in a `LedgerWorld`: the faults of a whole cluster, faster and shorter, and held-up streams."""

from collections.abc import Awaitable, Callable
from random import Random

from .cluster import BOOKIE, Node
from .faults import Faults
from .ledger_history import LedgerHistory
from .ledger_world import LedgerWorld


class LedgerFaults(Faults):
    """See the module. `damaged` is the one bookie whose disk may lose what was synced."""

    down_max_s = 1.5
    pause_max_s = 3.0
    hold_max_s = 0.4

    def __init__(self, world: LedgerWorld, history: LedgerHistory, random: Random) -> None:
        super().__init__(world, history, random)  # type: ignore[arg-type]  # it only counts
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.crash, self.crash_bookie, self.pause, self.partition, self.isolate, self.reset, self.slow, self.hold,
            self.metadata, self.full_disk, self.failing_sync, self.power_loss, self.usurp, self.damage,
            self.delay, self.crash_amid_writes, self.misread,
        ]  # fmt: skip
        share = random.choice((0.2, 0.5))
        self._kinds = [kind for kind in kinds if random.random() < share] or [random.choice(kinds)]
        self._pace_s = random.choice((0.05, 0.15, 0.4))

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
