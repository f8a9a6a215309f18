"""The readers of one Spark application: a few Ray actors on every node, which read splits and own the blocks.

RayDP finds a block through the process that owns it, and Spark's executors then fetch it from that process's node. So
the process that reads a block puts it, and must live as long as the block is wanted. The actors start with the first
`read_topic` of a session. They end with `close`, with the session (`magnetar.spark.stop`), or with the driver. They ask
for no CPUs, because Spark's executors have usually taken all.

A split goes to a reader on a node that has a copy of it, if one is free, and to any other otherwise. An attempt that
failed temporarily (a bookie restarts) is repeated with the current addresses. A lasting failure ends the read. A reader
that dies takes its blocks along, so that ends the read, too.
"""

# pyarrow brings no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ...bulk.access import ClusterAccess
from ...bulk.arrow_decoding import encode_block
from ...bulk.cluster_link import LocateBookies
from ...bulk.range_reader import RangeReader
from ...bulk.read_plan import ReadSplit
from ...protocol.errors import ClusterError, MagnetarError, is_retriable
from ...runtime.backoff import LimitedBackoff
from ...runtime.environment import Environment
from ...runtime.ray_calls import kill_actor, put, ray_nodes, start_actor
from ...runtime.tasks import together
from ...storage.ledger.bookie_directory import BookieInfo
from .progress import ReadProgress

logger = logging.getLogger(__name__)

READERS_PER_NODE_MAX = 8
SPLITS_PER_READER_UNDER_WAY = 2
"""While one is decoded, the next is asked for."""
RETRY_INITIAL_S = 0.2
RETRY_MAX_S = 2.0
RETRY_LIMIT_S = 30.0
LOCAL_SEARCH_MAX = 64


class Block(NamedTuple):
    """Rows as an Arrow IPC stream, in Ray's object store."""

    ref: object
    rows: int
    size_bytes: int


class RangeReaderActor:
    """`RangeReader` as Ray sees it; wrapped by `ray.remote` where it is created.

    It owns the blocks that it puts: they are there for as long as its process and somebody who refers to them.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._env = Environment.real()
        self._access = access
        self._reader: RangeReader | None = None

    async def read(self, split: ReadSplit, bookies: Sequence[BookieInfo]) -> list[Block]:
        """The blocks of a split, in the order of its entries. Raises what `RangeReader.read` raises."""
        if self._reader is None:
            self._reader = RangeReader(self._env, self._access)
        blocks: list[Block] = []
        async for batch in self._reader.read(split, bookies):
            data = encode_block(batch)
            blocks.append(Block(put(data), batch.num_rows, len(data)))
        return blocks


class PlacedReader:
    """One actor and the address of its node."""

    def __init__(self, actor: RangeReaderActor, host: str) -> None:
        self.actor = actor
        self.host = host

    async def read(self, split: ReadSplit, bookies: Sequence[BookieInfo]) -> list[Block]:
        """Read a split. Raises what `RangeReader.read` raises, ClusterError if the actor is gone."""
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return await self.actor.read(split, bookies)
        except RayTaskError as error:
            if isinstance(error.cause, MagnetarError):
                raise error.cause from None
            raise
        except RayActorError as error:
            raise ClusterError(f"a reader of a bulk read died: {error}") from error


class ReaderPool:
    def __init__(self, readers: Sequence[PlacedReader]) -> None:
        self.readers = list(readers)

    @classmethod
    def start(cls, access: ClusterAccess, readers_per_node: int | None = None) -> "ReaderPool":
        """Start the actors: on every node as many as it has CPUs, at most 8, or `readers_per_node`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        readers: list[PlacedReader] = []
        for node in ray_nodes():
            cpus = int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0
            count = min(cpus, READERS_PER_NODE_MAX) if readers_per_node is None else min(cpus, 1) * readers_per_node
            for _ in range(count):
                options: dict[str, object] = {
                    "num_cpus": 0,
                    "max_restarts": 0,
                    "max_concurrency": SPLITS_PER_READER_UNDER_WAY,
                    "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
                }
                actor = start_actor(RangeReaderActor, options, access)
                readers.append(PlacedReader(actor, node["NodeManagerAddress"]))
        if not readers:
            raise ClusterError("no node of Ray has a free CPU for a reader: add CPUs")
        return cls(readers)

    async def read(
        self, env: Environment, splits: Sequence[ReadSplit], locate: LocateBookies, progress: ReadProgress
    ) -> list[Block]:
        """All blocks of the splits, in their order. Raises the first error that lasts; then nothing is kept."""
        waiting = deque(enumerate(splits))
        results: list[list[Block]] = [[] for _ in splits]
        bookies = list(await locate())

        async def work(reader: PlacedReader) -> None:
            nonlocal bookies
            backoff = LimitedBackoff(env.random, RETRY_INITIAL_S, RETRY_MAX_S, RETRY_LIMIT_S)
            while waiting:
                index, split = _take(waiting, reader.host, bookies)
                while True:
                    try:
                        blocks = await reader.read(split, bookies)
                        break
                    except MagnetarError as error:
                        if isinstance(error, ClusterError) and reader in self.readers:
                            self.readers.remove(reader)  # it is gone; the next read does without it
                        delay_s = backoff.next_delay_s() if is_retriable(error) else None
                        if delay_s is None:
                            raise
                        logger.warning(
                            "a read of %s failed and is tried again in %.1f s: %s", split.topic, delay_s, error
                        )
                    await asyncio.sleep(delay_s)
                    bookies = list(await locate())
                backoff.reset()
                results[index] = blocks
                progress.advance(split.entries, sum(block.rows for block in blocks))

        workers = [reader for _ in range(SPLITS_PER_READER_UNDER_WAY) for reader in self.readers]
        await together([work(reader) for reader in workers[: len(splits)]])
        return [block for blocks in results for block in blocks]

    def close(self) -> None:
        """End the actors; the blocks they own go with them."""
        import ray

        if ray.is_initialized():
            for reader in self.readers:
                kill_actor(reader.actor)
        self.readers.clear()


def _take(waiting: deque[tuple[int, ReadSplit]], host: str, bookies: Sequence[BookieInfo]) -> tuple[int, ReadSplit]:
    """The next split for a reader at `host`: the first with a copy there, or else simply the first."""
    local = {bookie.id for bookie in bookies if bookie.host == host}
    if local:
        for place, (_, split) in enumerate(waiting):
            if place == LOCAL_SEARCH_MAX:
                break
            if local.intersection(split.ranges[0].ledger.fragment_of(split.ranges[0].first_entry).bookies):
                found = waiting[place]
                del waiting[place]
                return found
    return waiting.popleft()
