"""The asyncio face of the client."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..protocol.errors import AlreadyClosed, OperationNotSupported
from ..protocol.topics import TopicName
from ..runtime.environment import Environment
from .async_consumer import AsyncConsumer
from .async_producer import AsyncProducer
from .configuration import (
    BatchingType,
    ClientConfiguration,
    CompressionType,
    ConsumerBatchReceivePolicy,
    ConsumerConfiguration,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerConfiguration,
    ReaderConfiguration,
)
from .core import Core
from .discovery import service_url_source
from .handover import SameThread
from .message_id import MessageId
from .partitioned import TopicProducer
from .reader import AsyncReader, TopicReader
from .routing import OutgoingMessage
from .topic_consumer import TopicConsumer


class AsyncClient:
    """A client for coroutines. It belongs to the loop on which it is first used, and pickles as its configuration.

    Also an asynchronous context manager, which closes it and everything it made.
    """

    def __init__(
        self,
        service_url: str | None = None,
        operation_timeout_seconds: int = 30,
        concurrent_lookup_requests: int = 50_000,
        connection_timeout_ms: int = 10_000,
        **options: Any,
    ) -> None:
        """`service_url`: `pulsar://host:port`, several as `pulsar://a:1,b:2`, or None to find the cluster through Ray.

        `options` are the other fields of `ClientConfiguration`. Raises InvalidConfiguration, InvalidUrl.
        """
        self.configuration = ClientConfiguration(
            service_url=service_url,
            operation_timeout_seconds=operation_timeout_seconds,
            concurrent_lookup_requests=concurrent_lookup_requests,
            connection_timeout_ms=connection_timeout_ms,
            **options,
        )
        self._core: Core | None = None
        self._environment: Environment | None = None
        self._closed = False

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (_client, (asdict(self.configuration),))

    def _running_core(self) -> Core:
        if self._closed:
            raise AlreadyClosed("the client is closed")
        if self._core is None:
            self._environment = Environment.real(threads_max=1)
            discover = service_url_source(self._environment, self.configuration)
            self._core = Core(self._environment, self.configuration, SameThread(), discover)
        elif self._core.loop is not asyncio.get_running_loop():
            raise OperationNotSupported("an AsyncClient belongs to one event loop")
        return self._core

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30_000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1_000,
        max_pending_messages_across_partitions: int = 50_000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1_000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        properties: Mapping[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        message_router: Callable[[OutgoingMessage, int], int] | None = None,
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
    ) -> AsyncProducer:
        """A producer on a topic, which is created if need be; batching is on here, as in the official asyncio client.

        Raises InvalidConfiguration, InvalidTopicName, ProducerBusy, ConnectError, Timeout, or what the broker answers.
        """
        configuration = ProducerConfiguration(
            topic=topic,
            producer_name=producer_name,
            initial_sequence_id=initial_sequence_id,
            send_timeout_millis=send_timeout_millis,
            compression_type=compression_type,
            max_pending_messages=max_pending_messages,
            max_pending_messages_across_partitions=max_pending_messages_across_partitions,
            block_if_queue_full=block_if_queue_full,
            batching_enabled=batching_enabled,
            batching_max_messages=batching_max_messages,
            batching_max_allowed_size_in_bytes=batching_max_allowed_size_in_bytes,
            batching_max_publish_delay_ms=batching_max_publish_delay_ms,
            message_routing_mode=message_routing_mode,
            hashing_scheme=hashing_scheme,
            properties=dict(properties or {}),
            batching_type=batching_type,
            message_router=message_router,
        )
        core = self._running_core()
        producer = TopicProducer(core, configuration)
        await producer.open()
        return AsyncProducer(core, producer)

    async def subscribe(
        self,
        topic: str,
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        receiver_queue_size: int = 1_000,
        max_total_receiver_queue_size_across_partitions: int = 50_000,
        consumer_name: str | None = None,
        negative_ack_redelivery_delay_ms: int = 60_000,
        properties: Mapping[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
    ) -> AsyncConsumer:
        """A consumer on a topic; the subscription is created if need be, at `initial_position`.

        Raises InvalidConfiguration, InvalidTopicName, ConsumerBusy, ConnectError, Timeout, or what the broker answers.
        """
        configuration = ConsumerConfiguration(
            topic=topic,
            subscription_name=subscription_name,
            consumer_type=consumer_type,
            receiver_queue_size=receiver_queue_size,
            max_total_receiver_queue_size_across_partitions=max_total_receiver_queue_size_across_partitions,
            consumer_name=consumer_name,
            negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
            properties=dict(properties or {}),
            initial_position=initial_position,
            start_message_id_inclusive=start_message_id_inclusive,
            batch_receive_policy=batch_receive_policy,
        )
        core = self._running_core()
        consumer = TopicConsumer(core, configuration)
        await consumer.open()
        return AsyncConsumer(core, consumer)

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        receiver_queue_size: int = 1_000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        start_message_id_inclusive: bool = False,
    ) -> AsyncReader:
        """A reader that begins behind `start_message_id`, or with it if `start_message_id_inclusive`.

        Raises as `subscribe`.
        """
        configuration = ReaderConfiguration(
            topic=topic,
            start_message_id=start_message_id,
            receiver_queue_size=receiver_queue_size,
            reader_name=reader_name,
            subscription_role_prefix=subscription_role_prefix,
            start_message_id_inclusive=start_message_id_inclusive,
        )
        core = self._running_core()
        reader = TopicReader(core, configuration)
        await reader.open()
        return AsyncReader(core, reader)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """The names of the topic's partitions, or its own name if it has none."""
        return await topic_partitions(self._running_core(), topic)

    async def close(self) -> None:
        """Close everything this client made, and its connections. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._core is not None:
            await self._core.close()
        if self._environment is not None:
            self._environment.close()


async def topic_partitions(core: Core, topic: str) -> list[str]:
    """The names of the topic's partitions, or its own name if it has none."""
    name = TopicName.parse(topic)
    count = await core.lookup.partitions(name.full)
    return [name.partition_name(index) for index in range(count)] if count else [name.full]


def _client(options: dict[str, Any]) -> AsyncClient:
    return AsyncClient(**options)
