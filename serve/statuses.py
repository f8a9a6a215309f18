"""The statuses of a queue's tasks, as one process knows them: a view of the status topic, up to a bound.

Invariants:

- What `publish` has returned for is stored, and every later `current` of any process sees it or something later.
- `follow` asks nothing. Where it answers yes, the view was read up to the end since the reader has its present place at
  its broker. It has all that came since then. What was stored in the last moment may be missing. More is missing where
  the connection is dead and nobody knows it yet.
- At most `STATUSES_MAX` tasks are known. Beyond that the one whose status is oldest is forgotten, and counts as
  PENDING.
"""

import asyncio
import logging
from collections import OrderedDict
from functools import partial

from ..client.aio.client import AsyncClient
from ..client.aio.producer import AsyncProducer
from ..client.aio.reader import ArrivedMessages, AsyncReader
from ..client.consuming.message import Message
from ..client.core.message_id import MessageId
from ..client.core.results import Result
from ..protocol.errors import AlreadyClosed, InvalidMessage, MagnetarError, TopicNotFound
from .known_deaths import Deaths, KnownDeaths
from .records import ALONE, DIED, FINAL, NOTE, RETRY, SERIALIZER, TaskStatus, dump, load_status

logger = logging.getLogger(__name__)

STATUSES_MAX = 100_000


class Statuses:
    """See the module. For the loop of the client."""

    def __init__(self, client: AsyncClient, topic: str, serializer: str) -> None:
        self._client = client
        self._topic = topic
        self._serializer = serializer
        self._known: OrderedDict[str, TaskStatus] = OrderedDict()
        self._deaths = KnownDeaths()
        self._reader: AsyncReader | None = None
        self._read_up_as: tuple[int, ...] | None = None
        """Under which ids the reader has come to the end of the topic."""
        self._producer: AsyncProducer | None = None
        self._producing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._next_look: asyncio.Future[bool] | None = None
        """A look that has not begun. All calls until it begins share it. Its result says whether it was finished."""

    async def publish(self, task_id: str, status: TaskStatus) -> None:
        """Store a status. Raises TypeError for a result that cannot be written, and what `send` raises."""
        await self._send(dump(self._serializer, status), {}, task_id)

    async def publish_death(self, task_id: str, note: str, at: float, *, alone: bool) -> None:
        """Store that a task was running in a replica that died. Told twice by one note it counts once.

        Raises what `send` raises.
        """
        payload = dump(self._serializer, TaskStatus(RETRY, at))
        properties = {DIED: task_id, NOTE: note} | ({ALONE: "yes"} if alone else {})
        await self._send(payload, properties, f"death {task_id} {note}")

    async def _send(self, payload: bytes, properties: dict[str, str], key: str) -> None:
        producer = self._producer or await self._made_producer()
        try:
            await producer.send(payload, properties=properties | {SERIALIZER: self._serializer}, partition_key=key)
        except (AlreadyClosed, TopicNotFound):
            self._producer = None  # it has ended: the next call begins with a new one
            raise

    def tell(self, task_id: str, status: TaskStatus) -> None:
        """Store a status that needs no answer, before those of later calls. If it cannot be stored, it is left out."""
        if self._producer is None:
            logger.info("nobody is told that task %s is %s: there is no producer", task_id, status.status)
            return
        payload = dump(self._serializer, status)
        try:
            self._producer.send_async(
                payload, partial(_told, task_id), {SERIALIZER: self._serializer}, partition_key=task_id
            )
        except MagnetarError as error:
            logger.info("nobody is told that task %s is %s: %s", task_id, status.status, error)

    async def open(self) -> None:
        """Make the producer. Raises what `create_producer` raises."""
        await self._made_producer()

    async def _made_producer(self) -> AsyncProducer:
        async with self._producing:
            if self._producer is None:
                self._producer = await self._client.create_producer(self._topic, batching_enabled=True)
            return self._producer

    async def current(self, task_id: str) -> TaskStatus | None:
        """What is stored at this moment. Raises what kept the reader from being asked."""
        while (shared := self._next_look) is not None:
            if await asyncio.shield(shared):  # a caller that is cancelled does not end it for the others
                return self._known.get(task_id)
        await self._look()
        return self._known.get(task_id)

    def follow(self) -> bool:
        """Take in what the broker has sent so far, without a question. Returns whether `known` may then be used.

        Raises why a status that came cannot be opened.
        """
        if self._reader is None or self._read_up_as is None or self._looking.locked():
            return False
        arrived = ArrivedMessages(self._reader)
        if arrived.subscribed_as != self._read_up_as:
            return False  # what was stored while the reader had no place may be on its way
        while (message := arrived.take()) is not None:
            self._enter(message)
        return not arrived.is_held_up

    def known(self, task_id: str) -> TaskStatus | None:
        """What this view has of a task."""
        return self._known.get(task_id)

    def deaths_of(self, task_id: str) -> Deaths:
        """In how many replicas that died the task was running, as `current` or `follow` saw it last."""
        return self._deaths.of(task_id)

    async def _look(self) -> None:
        """Look, also for those who call until this begins.

        The first caller looks itself: a task for it would begin a turn of the loop later, and end one later.
        """
        coming = self._next_look = asyncio.get_running_loop().create_future()
        try:
            async with self._looking:
                self._next_look = None
                await self._read_up()
        except asyncio.CancelledError:
            coming.set_result(False)
            raise
        except BaseException as error:
            coming.set_exception(error)
            coming.exception()  # this caller raises it, and perhaps nobody else waits
            raise
        else:
            coming.set_result(True)
        finally:
            if self._next_look is coming:
                self._next_look = None

    async def _read_up(self) -> None:
        """Read up to the end. What was stored before this began is known when it returns."""
        reader = await self._opened()
        subscribed_as = ArrivedMessages(reader).subscribed_as
        try:
            while await reader.has_message_available():
                self._enter(await reader.read_next())
        except MagnetarError:
            if not reader.is_open():
                self._reader = self._read_up_as = None  # the next call begins with a new one
            raise
        self._read_up_as = subscribed_as

    async def _opened(self) -> AsyncReader:
        if self._reader is None:
            self._reader = await self._client.create_reader(
                self._topic, MessageId.earliest, is_read_compacted=True, receiver_queue_size=1_000
            )
        return self._reader

    def _enter(self, message: Message) -> None:
        properties = message.properties()
        if DIED in properties:
            self._deaths.enter(properties[DIED], properties.get(NOTE, ""), alone=ALONE in properties)
            return
        task_id = message.partition_key()
        try:
            status = load_status(self._serializer, properties, message.data())
        except InvalidMessage as error:
            logger.warning("a status of task %s in %s is left out: %s", task_id, self._topic, error)
            return
        known = self._known.get(task_id)
        if known is not None and known.status in FINAL and status.status not in FINAL:
            return  # of a replica that was cut off, and did not know it yet
        self._known[task_id] = status
        self._known.move_to_end(task_id)
        if len(self._known) > STATUSES_MAX:
            self._known.popitem(last=False)

    async def close(self) -> None:
        """Leave the topic."""
        for one in (self._reader, self._producer):
            if one is not None:
                try:
                    await one.close()
                except (AlreadyClosed, MagnetarError) as error:
                    logger.info("%s could not be left in good order: %s", self._topic, error)


def _told(task_id: str, result: Result, message_id: MessageId) -> None:
    if result is not Result.Ok:
        logger.info("nobody is told that task %s has started: %s", task_id, result)
