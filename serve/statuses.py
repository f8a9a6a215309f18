"""The statuses of a queue's tasks, as one process knows them: a view of the status topic, up to a bound.

Invariants:

- What `publish` has returned for is stored, and every later `current` of any process sees it or something later.
- At most `STATUSES_MAX` tasks are known. Beyond that the one whose status is oldest is forgotten, and counts as
  PENDING.
"""

import asyncio
import logging
from collections import OrderedDict

from ..client.aio.client import AsyncClient
from ..client.aio.producer import AsyncProducer
from ..client.aio.reader import AsyncReader
from ..client.consuming.message import Message
from ..client.core.message_id import MessageId
from ..protocol.errors import AlreadyClosed, InvalidMessage, MagnetarError
from .records import FINAL, SERIALIZER, TaskStatus, dump, load_status

logger = logging.getLogger(__name__)

STATUSES_MAX = 100_000


class Statuses:
    """See the module. For the loop of the client."""

    def __init__(self, client: AsyncClient, topic: str, serializer: str) -> None:
        self._client = client
        self._topic = topic
        self._serializer = serializer
        self._known: OrderedDict[str, TaskStatus] = OrderedDict()
        self._reader: AsyncReader | None = None
        self._producer: AsyncProducer | None = None
        self._catching_up = asyncio.Lock()

    async def publish(self, task_id: str, status: TaskStatus) -> None:
        """Store a status. Raises TypeError for a result that cannot be written, and what `send` raises."""
        payload = dump(self._serializer, status)
        if self._producer is None:
            self._producer = await self._client.create_producer(self._topic, batching_enabled=True)
        try:
            await self._producer.send(payload, properties={SERIALIZER: self._serializer}, partition_key=task_id)
        except AlreadyClosed:
            self._producer = None  # it has ended: the next call begins with a new one
            raise

    async def current(self, task_id: str) -> TaskStatus | None:
        """What is stored at this moment. Raises what kept the reader from being asked."""
        async with self._catching_up:
            reader = await self._opened()
            try:
                while await reader.has_message_available():
                    self._enter(await reader.read_next())
            except MagnetarError:
                if not reader.is_open():
                    self._reader = None  # the next call begins with a new one
                raise
        return self._known.get(task_id)

    async def _opened(self) -> AsyncReader:
        if self._reader is None:
            self._reader = await self._client.create_reader(
                self._topic, MessageId.earliest, is_read_compacted=True, receiver_queue_size=1_000
            )
        return self._reader

    def _enter(self, message: Message) -> None:
        task_id = message.partition_key()
        try:
            status = load_status(self._serializer, message.properties(), message.data())
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
