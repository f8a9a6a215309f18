"""The asyncio face of a producer."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

from ...protocol.errors import AlreadyClosed, MagnetarError
from ..core.context import Core
from ..core.message_id import MessageId
from ..core.results import Result
from ..core.threading_bridge import LoopSignal
from ..producing.interception import Interception
from ..producing.outbox import Outbox, SendCallback, ignore
from ..producing.outgoing import Outgoing, seen_of
from ..producing.partition_producer import Failing
from ..producing.send_outcome import SendOutcome
from ..producing.topic_producer import TopicProducer
from .facts import ProducerFacts


class AsyncProducer(ProducerFacts):
    """Publishes to one topic. Made by `AsyncClient.create_producer`."""

    def __init__(self, core: Core, producer: TopicProducer) -> None:
        self._core = core
        self._producer = producer
        self._blocks = producer.configuration.block_if_queue_full
        self._sealing = False
        self._closed = False
        if producer.configuration.interceptors:
            producer.interception = Interception(self, producer.configuration.interceptors)

    async def send(
        self,
        content: object,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: object = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Publish a message and wait until it is stored.

        It does not wait for the batching delay. Messages that tasks send at the same moment share a batch.

        Args:
            content: The payload as bytes, or a value of the producer's schema; None is a null value.
            properties: Properties of the message.
            partition_key: Key that chooses the partition.
            ordering_key: Key for KeyShared consumers, instead of `partition_key`.
            sequence_id: Number of the message; by default one more than the last.
            replication_clusters: Not supported. Leave it out.
            disable_replication: Not supported. Leave it out.
            event_timestamp: Time of the event, in ms since the epoch.
            deliver_at: Time before which it is not to be delivered, in ms since the epoch. See `deliver_after`.
            deliver_after: Delay of its delivery, a timedelta. Shared and KeyShared consumers get it then.

        Returns:
            The id of the message.

        Raises:
            ProducerQueueIsFull: If too many messages are pending, unless `block_if_queue_full`.
            MemoryBufferIsFull: If the client has reached `memory_limit_bytes`, unless `block_if_queue_full`.
            MessageTooBig: If the message is larger than the broker accepts.
            Timeout: If no receipt comes within `send_timeout_millis`. The message may be stored.
            AlreadyClosed: If the producer is closed.
            OperationNotSupported: If an option asks for a feature that is not supported.
            MagnetarError: What the broker answers, as the class of its error.
        """
        message = self._producer.outgoing(
            content,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )
        return await self._send(message)

    def send_async(
        self,
        content: object,
        callback: SendCallback | None = None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: object = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """Queue a message and return at once.

        The client calls `callback` on the loop. It passes Result.ProducerQueueIsFull if the queue is full.

        Args:
            content: The payload as bytes, or a value of the producer's schema; None is a null value.
            callback: Called as `callback(result, message_id)`.
            properties: Properties of the message.
            partition_key: Key that chooses the partition.
            ordering_key: Key for KeyShared consumers, instead of `partition_key`.
            sequence_id: Number of the message; by default one more than the last.
            replication_clusters: Not supported. Leave it out.
            disable_replication: Not supported. Leave it out.
            event_timestamp: Time of the event, in ms since the epoch.
            deliver_at: Time before which it is not to be delivered, in ms since the epoch. See `deliver_after`.
            deliver_after: Delay of its delivery, a timedelta. Shared and KeyShared consumers get it then.

        Raises:
            ProducerQueueIsFull: If the queue is full and there is no callback.
            OperationNotSupported: If an option asks for a feature that is not supported.
        """
        message = self._producer.outgoing(
            content,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )
        if self._producer.interception is not None:
            callback = self._producer.interception.told(message, callback)
        outbox = self._choose(message)
        if not outbox.offer(message, callback or ignore):
            report(callback, self._producer.refusal(outbox))

    async def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
        """Publish many plain messages at the cost of a few list operations.

        This waits for space in the queue. All messages of a batch go to the partition whose turn it is.

        Args:
            payloads: Payloads, or values of the schema, of messages without key and properties.
            callback: Called for each message as by `send_async`; None waits until all are stored.

        Returns:
            The ids in order; empty with a callback.

        Raises:
            MessageTooBig: If the message is larger than the broker accepts.
            Timeout: If no receipt comes within `send_timeout_millis`. The message may be stored.
            AlreadyClosed: If the producer is closed.
            MagnetarError: What the broker answers, as the class of its error.
        """
        if self._producer.interception is not None:  # one by one
            if callback is None:
                return [await self.send(payload) for payload in payloads]
            for payload in payloads:
                self.send_async(payload, callback)
            return []
        contents = self._producer.plain(payloads)
        if self._closed:
            raise AlreadyClosed("the producer is closed: create a new one")
        if not contents:
            return []
        outcome, future = self._outcome(len(contents))
        start = 0
        while start < len(contents):
            accepted, outbox = self._producer.extend(contents, start, callback or outcome)
            start += accepted
            if not accepted:
                await self._space(outbox, wait=True)
        if callback is not None:
            return []
        self._producer.seal()
        await future
        return outcome.ids

    async def flush(self) -> None:
        """Wait until everything sent so far is stored.

        Raises:
            MagnetarError: The first failure.
        """
        await self._producer.flush()

    async def close(self) -> None:
        """Flush pending messages and close the producer on the broker.

        A second call does nothing.
        """
        self._closed = True
        await self._producer.close()
        if self._producer.interception is not None:
            self._producer.interception.close()

    async def _send(self, message: bytes | Outgoing) -> MessageId:
        interception = self._producer.interception
        if interception is None:
            return await self._store(message)
        try:
            message_id = await self._store(message)
        except MagnetarError as error:
            interception.outcome(seen_of(message), None, error)
            raise
        interception.outcome(seen_of(message), message_id, None)
        return message_id

    async def _store(self, message: bytes | Outgoing) -> MessageId:
        outcome, future = self._outcome(1)
        while not (outbox := self._choose(message)).offer(message, outcome):
            await self._space(outbox)
        self._seal_soon()
        await future
        return outcome.ids[0]

    def _choose(self, message: bytes | Outgoing) -> Outbox:
        if self._closed:
            raise AlreadyClosed("the producer is closed: create a new one")
        return self._producer.choose(message)

    def _outcome(self, expected: int) -> tuple[SendOutcome, "asyncio.Future[None]"]:
        future: asyncio.Future[None] = self._core.loop.create_future()

        def done() -> None:
            if future.done():
                return
            if outcome.error is not None:
                future.set_exception(outcome.error)
            else:
                future.set_result(None)

        outcome = SendOutcome(expected, done)
        return outcome, future

    async def _space(self, outbox: Outbox, *, wait: bool = False) -> None:
        """Until `outbox` has space. Raises ProducerQueueIsFull at once if this producer does not wait."""
        if outbox.failure is not None or not (wait or self._blocks):
            raise self._producer.refusal(outbox)
        outbox.seal()
        signal = outbox.space
        assert isinstance(signal, LoopSignal)
        outbox.waiting += 1
        try:
            while not outbox.has_room():
                await signal.wait()
        finally:
            outbox.waiting -= 1
        if outbox.failure is not None:
            raise self._producer.refusal(outbox)

    def _seal_soon(self) -> None:
        if not self._sealing:
            self._sealing = True
            self._core.loop.call_soon(self._seal)

    def _seal(self) -> None:
        self._sealing = False
        self._producer.seal()


def report(callback: SendCallback | None, error: MagnetarError) -> None:
    """Tell the callback that its message was not accepted; raise without one."""
    if callback is None:
        raise error
    if isinstance(callback, Failing):
        callback.fail(error)
    else:
        callback(Result.of(error), MessageId())
