"""Stores tasks in queues: new ones, those that are tried again, and those that go to another queue."""

from ..client.aio.client import AsyncClient
from ..client.aio.producer import AsyncProducer
from ..protocol.errors import AlreadyClosed, TopicNotFound
from ..runtime.environment import Environment
from .records import ATTEMPT, SERIALIZER, Task, dump


class TaskSender:
    """A producer for each queue. For the loop of the client, which closes them."""

    def __init__(self, env: Environment, client: AsyncClient, serializer: str) -> None:
        self._env = env
        self._client = client
        self._serializer = serializer
        self._producers: dict[str, AsyncProducer] = {}

    def new(self, name: str, args: list[object]) -> Task:
        """A task with an id of its own."""
        return Task(self._env.random.hex(16), name, args, {}, self._env.clock.now_ms() / 1_000)

    async def send(
        self, queue: str, task: Task, *, attempt: int = 0, delay_s: float = 0.0, key: str | None = None
    ) -> None:
        """Returns when the task is stored. It may run after `delay_s`.

        Raises TypeError for arguments that cannot be written, and what `send` of a producer raises.
        """
        payload = dump(self._serializer, task)
        producer = self._producers.get(queue)
        if producer is None:
            producer = self._producers[queue] = await self._client.create_producer(queue, batching_enabled=False)
        properties = {SERIALIZER: self._serializer} | ({ATTEMPT: str(attempt)} if attempt else {})
        deliver_at = self._env.clock.now_ms() + round(delay_s * 1_000) if delay_s > 0 else None
        try:
            await producer.send(payload, properties=properties, partition_key=key, deliver_at=deliver_at)
        except (AlreadyClosed, TopicNotFound):
            self._producers.pop(queue, None)  # it has ended: the next call begins with a new one
            raise
