"""One reader of a followed topic: a Ray actor with a consumer of its own, which gives the rows of some partitions.

States: OPENING (it subscribes, and moves the subscription where the application wants to begin) → READING → FAILED,
where every call raises the same error. The process is killed from any of them. The broker sees that its connection is
gone, and gives what is not acknowledged to the next reader of the partitions.

Invariants: what `EntryBatches` keeps. Calls of `read` are answered in the order of their numbers. Only what the driver
names is acknowledged.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# Ray and pyarrow bring no types.

import asyncio

import pyarrow as pa
import ray

from ..client.aio.client import AsyncClient
from ..client.aio.consumer import AsyncConsumer, entry_feed
from ..client.consuming.entry_feed import EntryFeed
from ..client.core.configuration import ConsumerType
from ..client.core.message_id import MessageId
from ..protocol.errors import NoSuchEntry
from ..protocol.message_id import Position
from ..protocol.topics import TopicName
from ..runtime.environment import Environment
from .entry_batches import EntryBatches, FollowOrder
from .positions import Marks, RowPlace


class FollowReader:
    """See the module. Its methods are called by the driver."""

    def __init__(self, name: str, order: FollowOrder) -> None:
        self._name = name
        self._order = order
        self._env = Environment.real(threads_max=1)
        self._feed: EntryFeed | None = None
        self._client: AsyncClient | None = None
        self._opening: asyncio.Task[dict[str, RowPlace]] | None = None
        self._turns: dict[int, asyncio.Event] = {}
        self._next = 0
        """The call of `read` whose turn it is. Ray does not begin the calls of an asynchronous actor in their order."""
        self._closed = False
        self._batches: EntryBatches | None = None

    async def open(self) -> dict[str, RowPlace]:
        """Subscribe. Returns for each partition the place behind which its rows begin.

        Raises NoSuchEntry where rows behind the wanted place may be gone, and what `subscribe` raises.
        """
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
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
            assert self._batches is not None
            table, marks = await self._batches.next()
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
        self._acknowledge(marks)

    def _acknowledge(self, marks: Marks) -> None:
        """Not beyond a chunk that is missing here: what acknowledges its message later is the row of that."""
        assert self._feed is not None
        assert self._batches is not None
        found = {name: self._batches.acknowledged_by(name, place) for name, place in marks.items()}
        self._feed.acknowledge(
            {name: _message_id(name, place) for name, place in found.items() if _can_be_acknowledged(place)}
        )

    async def close(self, finished: Marks) -> None:
        """Acknowledge what is finished, and end the consumer. It does not matter which earlier calls have begun."""
        if self._batches is not None and not self._closed:
            self._acknowledge(finished)
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    # -- opening -----------------------------------------------------------------------------------------------------

    async def _open(self) -> dict[str, RowPlace]:
        order = self._order
        self._client = client = AsyncClient(order.service_url)
        if order.is_start and order.behind:
            # By a consumer of its own. One that receives may hand out an entry from before the seek behind its answer.
            mover = await self._subscribe(client, f"{self._name}:start", 1)
            feed = entry_feed(mover)
            marks = await feed.marks()
            for name, place in order.behind.items():
                if _may_have_begun(marks[name], place):
                    await self._move_back(feed, name, place, marks[name])
            await mover.close()
        self._feed = feed = entry_feed(await self._subscribe(client, self._name, order.receiver_queue_size))
        marks = await feed.marks()
        self._batches = EntryBatches(self._env, feed, order)
        return {name: order.behind.get(name) or RowPlace(*marks[name]) for name in order.topics}

    async def _subscribe(self, client: AsyncClient, name: str, receiver_queue_size: int) -> AsyncConsumer:
        return await client.subscribe(
            list(self._order.topics),
            self._order.subscription,
            ConsumerType.Failover,
            receiver_queue_size=receiver_queue_size,
            consumer_name=name,
            initial_position=self._order.initial_position,
            batch_index_ack_enabled=True,
            ack_group_time_ms=0,
        )

    async def _move_back(self, feed: EntryFeed, name: str, place: RowPlace, before: Position) -> None:
        """What lies behind `place` may be acknowledged, but the application has not stored it: have it delivered again.

        `before` is up to where everything was acknowledged. If that is behind the place, rows may be gone.
        """
        first, wanted = place.chunks_from, place.position
        if place.ledger < 0:
            await feed.seek(name, MessageId.earliest, inclusive=True)
        elif first is None:
            await feed.seek(name, _message_id(name, place), inclusive=False)
        else:
            await feed.seek(name, _message_id(name, RowPlace(*first)), inclusive=True)
            wanted = (first[0], first[1] - 1)
        mark = (await feed.marks())[name]
        if place.ledger >= 0 and mark > wanted and _has_passed(before, place):
            raise NoSuchEntry(
                f"rows of {name} behind {place} may be gone: they were acknowledged, and the topic now begins behind "
                f"{mark[0]}:{mark[1]}. Acknowledge only what is stored together with the positions. To go on without "
                "them, take this partition out of the positions",
                topic=name,
            )


def _message_id(name: str, place: RowPlace) -> MessageId:
    return MessageId(TopicName.parse(name).partition, *place[:4])


def _can_be_acknowledged(place: RowPlace) -> bool:
    """A part of a batch of unknown size cannot: it came from the positions of an earlier program."""
    return place.entry >= 0 and (place.batch_index < 0 or place.batch_size > 0)


def _may_have_begun(mark: Position, place: RowPlace) -> bool:
    """Whether something behind the place may be acknowledged. Of the entry behind the mark a part may be."""
    return place.entry <= 0 or mark >= (place.ledger, place.entry - 1)


def _has_passed(mark: Position, place: RowPlace) -> bool:
    """Whether the entry behind the place, or what is left of its own, is acknowledged whole."""
    return mark > place.position or (mark == place.position and place.batch_index >= 0)
