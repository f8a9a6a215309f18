"""The asyncio face of the client."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ...protocol.errors import AlreadyClosed, OperationNotSupported
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ..consuming.topic_consumer import TopicConsumer
from ..core.configuration import (
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
from ..core.context import Core
from ..core.discovery import service_url_source
from ..core.message_id import MessageId
from ..core.outgoing_message import OutgoingMessage
from ..core.threading_bridge import SameThread
from ..producing.topic_producer import TopicProducer
from .consumer import AsyncConsumer
from .producer import AsyncProducer
from .reader import AsyncReader, TopicReader


class AsyncClient:
    """A client for coroutines. It belongs to the loop on which it is first used, and pickles as its configuration.

    Also an asynchronous context manager, which closes it and everything it made.
    """

    def __init__(
        self,
        service_url: str | None = None,
        authentication: object = None,
        operation_timeout_seconds: int = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50_000,
        log_conf_file_path: object = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: object = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: object = None,
        connection_timeout_ms: int = 10_000,
        listener_name: object = None,
        tls_private_key_file_path: object = None,
        tls_certificate_file_path: object = None,
        **options: Any,
    ) -> None:
        """`service_url`: `pulsar://host:port`, several as `pulsar://a:1,b:2`, or None to find the cluster through Ray.

        `options` are the other fields of `ClientConfiguration`. The numbers of threads and the interval of statistics
        are taken and have no effect; authentication, TLS, listeners and loggers of its own are refused (what there is
        to log goes to the standard `logging`). Raises InvalidConfiguration, OperationNotSupported; a URL that leads
        nowhere shows when it is first used.
        """
        self.configuration = ClientConfiguration.of({**locals(), **options})
        self._core: Core | None = None
        self._environment: Environment | None = None
        self._closed = False
        self._ending: asyncio.Task[None] | None = None

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
        elif self._core.error is not None:
            raise self._core.error
        elif self._core.loop is not asyncio.get_running_loop():
            raise OperationNotSupported("an AsyncClient belongs to one event loop")
        return self._core

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: object = None,
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
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: Mapping[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: object = None,
        crypto_key_reader: object = None,
        access_mode: object = None,
        message_router: Callable[[OutgoingMessage, int], int] | None = None,
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
    ) -> AsyncProducer:
        """A producer on a topic, which is created if need be; batching is on here, as in the official asyncio client.

        What concerns features that are not here is refused with OperationNotSupported if it asks for one; bare figures
        of theirs are taken and have no effect.
        Raises InvalidConfiguration, InvalidTopicName, ProducerBusy, ConnectError, Timeout, or what the broker answers.
        """
        configuration = ProducerConfiguration.of(locals())
        core = self._running_core()
        producer = TopicProducer(core, configuration)
        await producer.open()
        return AsyncProducer(core, producer)

    async def subscribe(
        self,
        topic: str,
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: object = None,
        receiver_queue_size: int = 1_000,
        max_total_receiver_queue_size_across_partitions: int = 50_000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30_000,
        negative_ack_redelivery_delay_ms: int = 60_000,
        is_read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: object = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: object = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: object = None,
        dead_letter_policy: object = None,
        crypto_failure_action: object = None,
        is_pattern_topic: bool = False,
    ) -> AsyncConsumer:
        """A consumer on a topic; the subscription is created if need be, at `initial_position`.

        What concerns features that are not here is refused with OperationNotSupported if it asks for one; bare figures
        of theirs are taken and have no effect.
        Raises InvalidConfiguration, InvalidTopicName, ConsumerBusy, ConnectError, Timeout, or what the broker answers.
        """
        configuration = ConsumerConfiguration.of(locals())
        core = self._running_core()
        consumer = TopicConsumer(core, configuration)
        await consumer.open()
        return AsyncConsumer(core, consumer)

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: object = None,
        receiver_queue_size: int = 1_000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: object = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: object = None,
    ) -> AsyncReader:
        """A reader that begins behind `start_message_id`, or with it if `start_message_id_inclusive`.

        Raises as `subscribe`.
        """
        configuration = ReaderConfiguration.of(locals())
        core = self._running_core()
        reader = TopicReader(core, configuration)
        await reader.open()
        return AsyncReader(core, reader)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """The names of the topic's partitions, or its own name if it has none."""
        return await topic_partitions(self._running_core(), topic)

    def shutdown(self) -> None:
        """End at once, without waiting for anything: what is pending may or may not have been sent."""
        if self._closed:
            return
        self._closed = True
        if self._core is not None and self._core.error is None:
            self._core.give_up()
            self._ending = self._core.loop.create_task(self._end(self._core), name="shut down a client")

    async def _end(self, core: Core) -> None:
        await core.abandon()
        if self._environment is not None:
            self._environment.close()

    async def close(self) -> None:
        """Close everything this client made, and its connections. May be called twice."""
        if self._ending is not None:
            await asyncio.shield(self._ending)
        if self._closed:
            return
        self._closed = True
        if self._core is not None and self._core.error is not None:
            return  # of the parent process: nothing of it is ours to close
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
