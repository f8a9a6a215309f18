"""The subscription behind one reader of a followed topic: where it begins, its batches, and what is acknowledged.

States: NEW → OPENING (it subscribes, and moves the subscription where the application wants to begin) → OPEN. The
client ends it. An `open` that failed is not tried again. The process may be killed in any state. The broker sees that
its connection is gone, and gives what is not acknowledged to the next one that subscribes.

Invariants: what `EntryBatches` keeps. Only what the application names is acknowledged.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false
# pyarrow brings no types.

import pyarrow as pa

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


class FollowedFeed:
    """See the module. One call of `next` at a time. The client belongs to the caller."""

    def __init__(self, env: Environment, client: AsyncClient, name: str, order: FollowOrder) -> None:
        self._env = env
        self._client = client
        self._name = name
        self._order = order
        self._opened: tuple[EntryFeed, EntryBatches] | None = None

    async def open(self) -> dict[str, RowPlace]:
        """Subscribe. Returns for each partition the place behind which its rows begin.

        Raises NoSuchEntry where rows behind the wanted place may be gone, and what `subscribe` raises.
        """
        order = self._order
        if order.is_start and order.behind:
            # By a consumer of its own. One that receives may hand out an entry from before the seek behind its answer.
            mover = await self._subscribe(f"{self._name}:start", 1)
            feed = entry_feed(mover)
            marks = await feed.marks()
            for name, place in order.behind.items():
                if _may_have_begun(marks[name], place):
                    await self._move_back(feed, name, place, marks[name])
            await mover.close()
        feed = entry_feed(await self._subscribe(self._name, order.receiver_queue_size))
        marks = await feed.marks()
        self._opened = feed, EntryBatches(self._env, feed, order)
        return {name: order.behind.get(name) or RowPlace(*marks[name]) for name in order.topics}

    async def next(self) -> tuple[pa.Table, Marks]:
        """The next batch, and where it ends in each of its partitions. It waits for the first entry without end.

        Raises why the reader has failed, also the next time.
        """
        assert self._opened is not None
        return await self._opened[1].next()

    def acknowledge(self, marks: Marks) -> None:
        """The application has finished everything up to these places. Before `open` has returned, nothing happens.

        Not beyond a chunk that is missing here: what acknowledges its message later is the row of that.
        """
        if self._opened is None:
            return
        feed, batches = self._opened
        found = {name: batches.acknowledged_by(name, place) for name, place in marks.items()}
        feed.acknowledge(
            {name: _message_id(name, place) for name, place in found.items() if _can_be_acknowledged(place)}
        )

    async def _subscribe(self, name: str, receiver_queue_size: int) -> AsyncConsumer:
        return await self._client.subscribe(
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
    """Whether something behind the place may be acknowledged.

    Of the entry behind the mark a part may be. Where a chunk waits for its message, entries behind it may be, too: the
    mark does not move beyond that chunk.
    """
    return place.chunks_from is not None or place.entry <= 0 or mark >= (place.ledger, place.entry - 1)


def _has_passed(mark: Position, place: RowPlace) -> bool:
    """Whether the entry behind the place, or what is left of its own, is acknowledged whole."""
    return mark > place.position or (mark == place.position and place.batch_index >= 0)
