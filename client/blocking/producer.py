"""The blocking face of a producer.

`send_async` is the hot path: for a plain payload it does no more than find the partition and append to its outbox. The
loop is woken once per batch.
"""

import threading
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from ...protocol.errors import MagnetarError, OperationNotSupported
from ..aio.facts import ProducerFacts
from ..aio.producer import report
from ..core.configuration import ProducerConfiguration
from ..core.message_id import MessageId
from ..producing.interception import Interception
from ..producing.outbox import Outbox, SendCallback, ignore
from ..producing.outgoing import Outgoing, seen_of
from ..producing.send_outcome import SendOutcome
from ..producing.topic_producer import TopicProducer
from .pickling import OpensLater

if TYPE_CHECKING:
    from .client import Client

ON_LOOP = "a callback runs on the client's loop and cannot wait for a receipt: use send_async"


class Producer(ProducerFacts, OpensLater[ProducerConfiguration]):
    """Publishes to one topic, from any thread. Made by `Client.create_producer`.

    Pickles as its client and configuration: what comes out is a new producer like it, created when it is first used.
    """

    _SET_BY_OPENING = frozenset({"_running", "_producer", "_blocks", "_plain", "_router", "_outboxes", "_outbox"})

    def __init__(self, client: "Client", producer: TopicProducer) -> None:
        self._client = client
        self._configuration = producer.configuration
        self._running = client.running
        self._producer = producer
        self._blocks = producer.configuration.block_if_queue_full
        configuration = producer.configuration
        self._plain = configuration.schema is None and not configuration.interceptors
        """Whether bytes are payloads as they are."""
        if configuration.interceptors:
            producer.interception = Interception(weakref.proxy(self), configuration.interceptors)
        self._router = producer.router
        self._outboxes = [one.outbox for one in producer.producers]
        self._outbox = self._outboxes[0]
        client.close_when_forgotten(self, producer)

    def _open(self) -> None:
        Producer.__init__(self, self._client, self._client.open_producer(self._configuration))

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
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

        It sends the open batch at once.

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
        if self._running.is_here():
            raise OperationNotSupported(ON_LOOP)
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
        if self._producer.interception is None:
            return self._store(message)
        return self._store_intercepted(message, self._producer.interception)

    def send_async(
        self,
        content: object,
        callback: SendCallback | None,
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
        """Queue a message and return.

        The client calls `callback` on its own thread, one message after the other. The callback must not block. With a
        full queue this waits (`block_if_queue_full`) or passes Result.ProducerQueueIsFull to the callback.

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
            InvalidMessage: If the message cannot be sent as it is.
            OperationNotSupported: If an option asks for a feature that is not supported.
        """
        if (
            self._plain
            and content.__class__ is bytes
            and properties is None
            and partition_key is None
            and ordering_key is None
            and sequence_id is None
            and replication_clusters is None
            and disable_replication is None
            and event_timestamp is None
            and deliver_at is None
            and deliver_after is None
        ):
            router = self._router
            if router is None:
                outbox = self._outbox
            elif router.current >= 0:
                outbox = self._outboxes[router.current]
            else:
                outbox = self._producer.choose(content)  # pyright: ignore[reportArgumentType] - checked above
            if outbox.add(content, callback or ignore):  # pyright: ignore[reportArgumentType] - checked above
                return
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
        while not (outbox := self._producer.choose(message)).offer(message, callback or ignore):
            if outbox.failure is not None or not self._blocks or self._running.is_here():
                report(callback, self._producer.refusal(outbox))
                return
            self._wait_for_space(outbox, True)

    def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
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
        if self._running.is_here():
            raise OperationNotSupported(ON_LOOP)
        if self._producer.interception is not None:  # one by one
            if callback is None:
                return [self.send(payload) for payload in payloads]
            for payload in payloads:
                self.send_async(payload, callback)
            return []
        contents = self._producer.plain(payloads)
        if not contents:
            return []
        count = len(contents)
        done = _Gate()
        outcome = SendOutcome(count, done.open)
        start = 0
        while start < count:
            accepted, outbox = self._producer.extend(contents, start, callback or outcome)
            start += accepted
            if not accepted:
                self._wait_for_space(outbox, True)
        if callback is not None:
            return []
        for outbox in self._outboxes:
            outbox.seal()
        done.wait()
        if outcome.error is not None:
            raise outcome.error
        return outcome.ids

    def flush(self) -> None:
        """Wait until everything sent so far is stored.

        Raises:
            MagnetarError: The first failure.
        """
        self._running.run(self._producer.flush())

    def close(self) -> None:
        """Flush pending messages and close the producer on the broker.

        A second call does nothing.
        """
        if self.is_unopened:
            return
        self._client.close_one(self._producer)
        if self._producer.interception is not None:
            self._producer.interception.close()

    def _store_intercepted(self, message: bytes | Outgoing, interception: Interception) -> MessageId:
        try:
            message_id = self._store(message)
        except MagnetarError as error:
            interception.outcome(seen_of(message), None, error)
            raise
        interception.outcome(seen_of(message), message_id, None)
        return message_id

    def _store(self, message: bytes | Outgoing) -> MessageId:
        done = _Gate()
        outcome = SendOutcome(1, done.open)
        while not (outbox := self._producer.choose(message)).offer(message, outcome):
            self._wait_for_space(outbox, self._blocks)
        outbox.seal()
        done.wait()
        if outcome.error is not None:
            raise outcome.error
        return outcome.ids[0]

    def _wait_for_space(self, outbox: Outbox, blocks: bool) -> None:
        """Until `outbox` has space. Raises why it never will, or ProducerQueueIsFull if this is not to wait."""
        if outbox.failure is not None or not blocks:
            raise self._producer.refusal(outbox)
        outbox.seal()
        space = outbox.space
        assert isinstance(space, threading.Condition)
        with space:
            outbox.waiting += 1
            try:
                while not outbox.has_room():
                    space.wait()
            finally:
                outbox.waiting -= 1
        if outbox.failure is not None:
            raise self._producer.refusal(outbox)


class _Gate:
    """Opens once; a lock is the cheapest event there is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.open = self._lock.release
        self.wait = self._lock.acquire
