"""The asyncio face of a consumer."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from ...protocol.errors import Timeout
from ..consuming.message import Message, Messages
from ..consuming.topic_consumer import TopicConsumer
from ..core.configuration import ConsumerBatchReceivePolicy
from ..core.context import Core
from ..core.message_id import MessageId
from ..core.threading_bridge import LoopSignal
from .facts import ConsumerFacts

T = TypeVar("T")


class AsyncConsumer(ConsumerFacts):
    """Consumes one topic under a subscription. Made by `AsyncClient.subscribe`."""

    def __init__(self, core: Core, consumer: TopicConsumer) -> None:
        self._core = core
        self._consumer = consumer
        self._inbox = consumer.inbox
        self._inbox.defers = True
        self._preparing = asyncio.Lock()

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message. Raises Timeout if none comes in time, AlreadyClosed, or why the subscription ended.

        A message that cannot be opened is an error too (CryptoError, OperationNotSupported, MessageTooBig,
        ChecksumError, InvalidMessage; `details` say which message): it stays unacknowledged, and the next call goes on.
        """
        return await self._take(self._inbox.take, timeout_millis)

    async def receive_many(self, messages_max: int, timeout_millis: int | None = None) -> Messages:
        """At least one message and at most `messages_max`: what is here, or the first to come.

        Raises as `receive`; what lies before a message that cannot be opened is handed over first.
        """
        return await self._take(lambda: self._inbox.take_many(messages_max) or None, timeout_millis)

    async def _take(self, take: Callable[[], T | None], timeout_millis: int | None) -> T:
        """What `take` gives as soon as there is something."""
        taken = take()
        if taken is not None and self._inbox.failure is None:
            return taken
        try:
            async with asyncio.timeout(None if timeout_millis is None else timeout_millis / 1000):
                while True:
                    await self._arrival()
                    taken = take()
                    if taken is not None:
                        return taken
        except TimeoutError:
            raise Timeout(f"no message within {timeout_millis} ms") from None

    async def batch_receive(self) -> list[Message]:
        """Messages until one limit of the `batch_receive_policy` is reached; empty if its time passes without any."""
        policy = self._consumer.configuration.batch_receive_policy or ConsumerBatchReceivePolicy()
        messages: list[Message] = []
        size = 0
        try:
            async with asyncio.timeout(policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None):
                while not is_enough(policy, len(messages), size):
                    if messages:
                        await self._arrival()
                        message = self._inbox.take(raises=False)
                        if message is None:
                            if self._inbox.is_at_error:
                                break  # the messages first; the error is for the next call
                            continue
                    else:
                        message = await self.receive()
                    messages.append(message)
                    size += len(message.data())
        except TimeoutError:
            pass  # the policy's time is one of its limits
        return messages

    async def acknowledge(self, message: Message | MessageId) -> None:
        """The message is done. Sent within the grouping time, together with others."""
        self._consumer.acknowledge(message)

    async def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """All these messages are done."""
        self._consumer.acknowledge_many(messages)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Everything up to the message is done. Raises CumulativeAcknowledgementNotAllowedError on Shared."""
        self._consumer.acknowledge_cumulative(message)

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have the message delivered again after `negative_ack_redelivery_delay_ms`."""
        self._consumer.negative_acknowledge(message)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything unacknowledged delivered again."""
        self._consumer.redeliver_unacknowledged_messages()

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription to a message id, or to a publish time in milliseconds.

        The next message is the one after the id, or the one of that id with `start_message_id_inclusive`.
        """
        await self._consumer.seek(messageid)

    async def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message; `MessageId.earliest` if it has none."""
        return await self._consumer.get_last_message_id()

    async def unsubscribe(self) -> None:
        """Delete the subscription and close."""
        await self._consumer.unsubscribe()

    async def close(self) -> None:
        """Send waiting acknowledgements and close. May be called twice."""
        await self._consumer.close()

    async def _prepare(self) -> None:
        """Have a thread open the large entry that is next; one at a time, whoever waits."""
        async with self._preparing:
            entry = self._inbox.unprepared()
            if entry is not None:
                size_max = self._core.configuration.decompressed_size_max_bytes
                await self._core.environment.offload.run(entry.prepare, size_max)

    async def _arrival(self) -> None:
        """Until there may be a message. Raises why there will be none."""
        inbox = self._inbox
        if inbox.failure is not None:
            raise inbox.failure
        if inbox.unprepared() is not None:
            await self._prepare()
            return
        if not inbox.is_empty():
            return
        signal = inbox.arrival
        assert isinstance(signal, LoopSignal)
        self._consumer.ask_for_one()
        inbox.waiting += 1
        try:
            await signal.wait()
        finally:
            inbox.waiting -= 1
        if inbox.failure is not None:
            raise inbox.failure


def is_enough(policy: ConsumerBatchReceivePolicy, messages: int, size_bytes: int) -> bool:
    """Whether one of the policy's limits is reached."""
    if 0 < policy.max_num_message <= messages:
        return True
    return 0 < policy.max_num_bytes <= size_bytes
