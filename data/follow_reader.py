"""One reader of a followed topic: a Ray actor with a `FollowedFeed` of its own, which gives rows of some partitions.

States: OPENING → READING → FAILED, where every call raises the same error. The process is killed from any of them.

Invariant: calls of `read` are answered in the order of their numbers.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# Ray and pyarrow bring no types.

import asyncio

import pyarrow as pa
import ray

from ..client.aio.client import AsyncClient
from ..runtime.environment import Environment
from .entry_batches import FollowOrder
from .followed_feed import FollowedFeed
from .positions import Marks, RowPlace


class FollowReader:
    """See the module. Its methods are called by the driver."""

    def __init__(self, name: str, order: FollowOrder) -> None:
        self._name = name
        self._order = order
        self._env = Environment.real(threads_max=1)
        self._client: AsyncClient | None = None
        self._feed: FollowedFeed | None = None
        self._opening: asyncio.Task[dict[str, RowPlace]] | None = None
        self._turns: dict[int, asyncio.Event] = {}
        self._next = 0
        """The call of `read` whose turn it is. Ray does not begin the calls of an asynchronous actor in their order."""
        self._closed = False

    async def open(self) -> dict[str, RowPlace]:
        """Subscribe. Returns for each partition the place behind which its rows begin.

        Raises NoSuchEntry where rows behind the wanted place may be gone, and what `subscribe` raises.
        """
        if self._opening is None:
            self._client = AsyncClient(self._order.service_url)
            self._feed = FollowedFeed(self._env, self._client, self._name, self._order)
            self._opening = asyncio.ensure_future(self._feed.open())
        return await asyncio.shield(self._opening)

    @ray.method(num_returns=2)
    async def read(self, number: int) -> tuple[pa.Table, dict[str, RowPlace]]:
        """The next batch, and where it ends in each of its partitions. It waits for the first entry without end.

        Calls are numbered from 0, and answered in that order. The batch has no rows if those of its entries were left
        out, or if the reader is closed. Raises why the reader has failed.
        """
        turn = self._turn(number)
        try:
            await self.open()
            await turn.wait()
            assert self._feed is not None
            table, marks = await self._feed.next()
            return table, dict(marks)
        except (Exception, asyncio.CancelledError):
            if self._closed:  # nobody waits for the answer
                return self._order.shape.schema.empty_table(), {}
            raise
        finally:
            self._turns.pop(number, None)
            self._next = number + 1
            self._turn(self._next)

    def _turn(self, number: int) -> asyncio.Event:
        """What is set when it is the turn of this call."""
        turn = self._turns.setdefault(number, asyncio.Event())
        if number == self._next:
            turn.set()
        return turn

    async def acknowledge(self, marks: Marks) -> None:
        """The application has finished everything up to these places."""
        await self.open()
        assert self._feed is not None
        self._feed.acknowledge(marks)

    async def close(self, finished: Marks) -> None:
        """Acknowledge what is finished, and end the consumer. It does not matter which earlier calls have begun."""
        if self._feed is not None and not self._closed:
            self._feed.acknowledge(finished)
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
