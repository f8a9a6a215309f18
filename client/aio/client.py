"""The asyncio face of the client."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from ...protocol.errors import AlreadyClosed, OperationNotSupported
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ..consuming.message import Message
from ..core.authentication import Authentication
from ..core.configuration import (
    BatchingType,
    ClientConfiguration,
    CompressionType,
    ConsumerBatchReceivePolicy,
    ConsumerConfiguration,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    MarkedConsumer,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerConfiguration,
    ReaderConfiguration,
    RegexSubscriptionMode,
)
from ..core.context import Core
from ..core.discovery import service_url_source
from ..core.key_shared_policy import ConsumerKeySharedPolicy
from ..core.message_id import MessageId
from ..core.options import WantedTopics
from ..core.outgoing_message import OutgoingMessage
from ..core.threading_bridge import SameThread
from ..crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader
from ..letters.handling import open_consumer
from ..producing.topic_producer import TopicProducer
from .consumer import AsyncConsumer
from .producer import AsyncProducer
from .reader import AsyncReader, TopicReader
from .table_view import AsyncTableView


class AsyncClient:
    """A client for coroutines. It belongs to the loop on which it is first used, and pickles as its configuration.

    Also an asynchronous context manager, which closes it and everything it made.
    """

    def __init__(
        self,
        service_url: str | None = None,
        authentication: Authentication | None = None,
        operation_timeout_seconds: int = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50_000,
        log_conf_file_path: object = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        logger: object = None,
        connection_timeout_ms: int = 10_000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        **options: object,
    ) -> None:
        """Make a client. It connects when it is first used.

        Logs go to the standard `logging`.

        Args:
            service_url: `pulsar://host:port`, several as `pulsar://a:1,b:2`; `pulsar+ssl://` for TLS. With
                `pulsar+proxy://` these brokers forward to the others, which the client does not reach. None finds the
                cluster through Ray.
            authentication: How the client proves who it is: `AuthenticationToken`, `AuthenticationBasic`,
                `AuthenticationTLS`, or a class of your own that derives from `Authentication`.
            operation_timeout_seconds: Seconds that creating a producer, subscribing and seeking may take.
            io_threads: Accepted without effect.
            message_listener_threads: Accepted without effect.
            concurrent_lookup_requests: Maximum number of lookups in flight.
            log_conf_file_path: Not supported. Leave it out.
            stats_interval_in_seconds: Seconds of an interval of statistics. `get_stats` shows the rates and latencies
                of the last whole interval, and the client logs them with level INFO. With 0 it logs nothing, and the
                rates are of the time since the beginning.
            use_tls: Whether to speak TLS with any service URL. With `pulsar+ssl://` it always does.
            tls_trust_certs_file_path: File with the CAs that brokers' certificates must be of, in PEM. None takes the
                variable `MAGNETAR_TLS_TRUST_CERTS_FILE_PATH`, and else trusts the CAs of the system.
            tls_allow_insecure_connection: Whether any certificate of a broker will do. Then others on the way can read
                and change everything.
            tls_validate_hostname: Whether the certificate must be for the host that the client connects to. The
                official client does not check that by default.
            logger: Not supported. Leave it out.
            connection_timeout_ms: Milliseconds that opening a connection may take.
            listener_name: The listener whose address lookups ask for, one of the brokers' `advertisedListeners`.
            tls_private_key_file_path: File with the key of `tls_certificate_file_path`, in PEM.
            tls_certificate_file_path: File with the certificate that the client shows to brokers, in PEM.
            options: Other [options of a client](#options-of-a-client), by name.

        Raises:
            InvalidConfiguration: If an option is impossible.
            OperationNotSupported: If an option asks for a feature that is not supported.
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

    def __repr__(self) -> str:
        where = self.configuration.service_url or "the cluster on this Ray"
        return f"<{type(self).__name__} of {where}, {'closed' if self._closed else 'open'}>"

    def __reduce__(self) -> tuple[object, ...]:
        return (_client, (asdict(self.configuration),))

    def _running_core(self) -> Core:
        if self._closed:
            raise AlreadyClosed("the client is closed: create a new one")
        if self._core is None:
            self._environment = Environment.real(threads_max=1)
            discover = service_url_source(self._environment, self.configuration)
            self._core = Core(self._environment, self.configuration, SameThread(), discover)
        elif self._core.error is not None:
            raise self._core.error
        elif self._core.loop is not asyncio.get_running_loop():
            raise OperationNotSupported(
                "the AsyncClient belongs to another event loop: create one client per event loop"
            )
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
        encryption_key: str | Sequence[str] | None = None,
        crypto_key_reader: CryptoKeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[[OutgoingMessage, int], int] | None = None,
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
        **options: object,
    ) -> AsyncProducer:
        """Create a producer on a topic. The broker creates the topic if it does not exist.

        Batching is on, as in the official asyncio client.

        Args:
            topic: Any form of a topic's name.
            producer_name: By default the broker chooses a name.
            schema: How values are encoded, such as `JsonSchema(Order)`; without one they are bytes.
            initial_sequence_id: The first message gets the next sequence id.
            send_timeout_millis: Milliseconds until a send fails with Timeout; 0 = never.
            compression_type: How batches are compressed.
            max_pending_messages: Maximum number of messages without a receipt per partition.
            max_pending_messages_across_partitions: The same for all partitions together.
            block_if_queue_full: Wait for room instead of raising ProducerQueueIsFull.
            batching_enabled: Whether messages share entries.
            batching_max_messages: Maximum number of messages in a batch.
            batching_max_allowed_size_in_bytes: Approximate maximum of bytes in a batch.
            batching_max_publish_delay_ms: Maximum milliseconds that a batch waits for more messages.
            chunking_enabled: Whether a message that is too large for one entry is published in chunks. Needs batching
                off, and a persistent topic.
            message_routing_mode: Which partition a message goes to.
            lazy_start_partitioned_producers: Whether a partition gets its producer with its first message only.
            properties: Shown in the topic's statistics.
            batching_type: Which messages may share a batch.
            encryption_key: Name of the key that messages are encrypted with, or several names.
            crypto_key_reader: Where the public keys come from.
            access_mode: Whether others may publish beside this producer.
            message_router: Called as `router(message, partitions)` with CustomPartition; returns the partition's index.
            hashing_scheme: The hash of a key that chooses the partition.
            options: Other [options of a producer](#options-of-a-producer), by name.

        Returns:
            The producer, connected.

        Raises:
            InvalidConfiguration: If an option is impossible.
            OperationNotSupported: If an option asks for a feature that is not supported.
            InvalidTopicName: If `topic` is not a topic name.
            ConnectError: If no broker can be reached.
            Timeout: If it takes longer than `operation_timeout_seconds`.
            MagnetarError: What the broker answers, as the class of its error.
            ProducerBusy: If another producer of that name is connected, or one with exclusive access.
            ProducerFenced: If another producer has exclusive access, or had it since.
        """
        configuration = ProducerConfiguration.of({**locals(), **options})
        return AsyncProducer(self._running_core(), await self.open_producer(configuration))

    async def open_producer(self, configuration: ProducerConfiguration) -> TopicProducer:
        """What a producer of this configuration is the face of."""
        producer = TopicProducer(self._running_core(), configuration)
        await producer.open()
        return producer

    async def subscribe(
        self,
        topic: WantedTopics,
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
        crypto_key_reader: CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_pattern_topic: bool = False,
        message_listener: Callable[[AsyncConsumer, Message], object] | None = None,
        pattern_auto_discovery_period: int = 60,
        **options: object,
    ) -> AsyncConsumer:
        """Create a consumer. The broker creates the topic and the subscription if they do not exist.

        The client calls a `message_listener` on the event loop, and awaits what it returns before the next message.

        Args:
            topic: A topic's name in any form, a list of names, or a compiled pattern.
            subscription_name: The subscription, which is created if it does not exist.
            consumer_type: How the consumers of the subscription share its messages.
            schema: How values are decoded, such as `JsonSchema(Order)`; without one they are bytes.
            receiver_queue_size: Approximate number of messages that wait in the client; 0 = none.
            max_total_receiver_queue_size_across_partitions: The same for all partitions together.
            consumer_name: Shown in the topic's statistics.
            unacked_messages_timeout_ms: Milliseconds after which an unacknowledged message is delivered again;
                0 = never.
            broker_consumer_stats_cache_time_ms: Accepted without effect.
            negative_ack_redelivery_delay_ms: Milliseconds from a negative acknowledgement to the redelivery.
            is_read_compacted: Get only the last message of each key of what is compacted.
            properties: Shown in the topic's statistics.
            initial_position: Where a new subscription starts.
            crypto_key_reader: Where the private keys come from.
            replicate_subscription_state_enabled: Not supported. Leave it out.
            max_pending_chunked_message: Maximum number of messages that the consumer puts together from chunks at a
                time; 0 = no limit.
            auto_ack_oldest_chunked_message_on_queue_full: Beyond that number the oldest incomplete message is
                acknowledged, instead of asked for again.
            start_message_id_inclusive: Whether a seek to a message redelivers that message.
            batch_receive_policy: When `batch_receive` returns.
            key_shared_policy: How KeyShared consumers divide the keys; by default AutoSplit, in order.
            batch_index_ack_enabled: Whether single messages of a batch are acknowledged, where the broker has that
                switched on, too.
            regex_subscription_mode: Which topics a pattern takes.
            dead_letter_policy: When messages go to a dead letter topic. For Shared and KeyShared subscriptions.
            crypto_failure_action: What happens to a message that cannot be decrypted.
            is_pattern_topic: Whether `topic` is the text of a pattern.
            message_listener: Called as `listener(consumer, message)`, for one message at a time. A coroutine function
                is awaited. A plain function must not block.
            pattern_auto_discovery_period: Seconds between two looks for topics that match the pattern, or that a list
                names.
            options: Other [options of a consumer](#options-of-a-consumer), by name.

        Returns:
            The consumer, connected.

        Raises:
            InvalidConfiguration: If an option is impossible.
            OperationNotSupported: If an option asks for a feature that is not supported.
            InvalidTopicName: If `topic` is not a topic name.
            ConnectError: If no broker can be reached.
            Timeout: If it takes longer than `operation_timeout_seconds`.
            MagnetarError: What the broker answers, as the class of its error.
            ConsumerBusy: If the subscription admits no other consumer.
        """
        configuration = ConsumerConfiguration.of({**locals(), **options})
        core = self._running_core()
        consumer = await open_consumer(core, configuration)
        return AsyncConsumer(core, consumer)

    async def create_reader(
        self,
        topic: str | Sequence[str],
        start_message_id: MessageId,
        schema: object = None,
        receiver_queue_size: int = 1_000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        reader_listener: Callable[[AsyncReader, Message], object] | None = None,
        **options: object,
    ) -> AsyncReader:
        """Create a reader that begins behind a message.

        The client calls a `reader_listener` on the event loop, and awaits what it returns before the next message.

        Args:
            topic: A topic's name in any form, or a list of names.
            start_message_id: The reader starts behind this message.
            schema: How values are decoded, such as `JsonSchema(Order)`; without one they are bytes.
            receiver_queue_size: Approximate number of messages that wait in the client.
            reader_name: Shown in the topic's statistics.
            subscription_role_prefix: Prefix of the name of the reader's subscription.
            is_read_compacted: Get only the last message of each key of what is compacted.
            crypto_key_reader: Where the private keys come from.
            start_message_id_inclusive: Start at the start message, not behind it.
            crypto_failure_action: What happens to a message that cannot be decrypted.
            reader_listener: Called as `listener(reader, message)`, for one message at a time. A coroutine function is
                awaited. A plain function must not block.
            options: Other [options of a reader](#options-of-a-reader), by name.

        Returns:
            The reader, connected.

        Raises:
            InvalidConfiguration: If an option is impossible.
            OperationNotSupported: If an option asks for a feature that is not supported.
            InvalidTopicName: If `topic` is not a topic name.
            ConnectError: If no broker can be reached.
            Timeout: If it takes longer than `operation_timeout_seconds`.
            MagnetarError: What the broker answers, as the class of its error.
        """
        configuration = ReaderConfiguration.of({**locals(), **options})
        core = self._running_core()
        reader = TopicReader(core, configuration)
        await reader.open()
        return AsyncReader(core, reader)

    async def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: object = None
    ) -> AsyncTableView:
        """Create a table view: the last value of each key of a topic, kept up to date.

        It reads the whole topic first, compacted as far as the broker has compacted it.

        Args:
            topic: Any form of a topic's name.
            subscription_name: The name of its subscription; by default a random one.
            schema: How values are decoded, such as `JsonSchema(Order)`; without one they are bytes.

        Returns:
            The table view, up to date with what is published now.

        Raises:
            OperationNotSupported: If an option asks for a feature that is not supported.
            InvalidTopicName: If `topic` is not a topic name.
            ConnectError: If no broker can be reached.
            MagnetarError: What the broker answers, as the class of its error.
        """
        reader = await self.create_reader(
            topic,
            MessageId.earliest,
            is_read_compacted=TopicName.parse(topic).persistent,
            subscription_name=subscription_name,
            schema=schema,
        )
        return await AsyncTableView.create(self._running_core(), reader)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the partitions of a topic.

        Args:
            topic: Any form of a topic's name.

        Returns:
            The full name of each partition, or of the topic if it has none.

        Raises:
            TopicNotFound: If the topic does not exist.
            ConnectError: If no broker can be reached.
        """
        return await topic_partitions(self._running_core(), topic)

    def shutdown(self) -> None:
        """End the client at once. Pending messages may or may not have been sent."""
        if self._closed:
            return
        self._closed = True
        if self._core is not None and self._core.error is None:
            self._core.give_up()
            self._ending = self._core.loop.create_task(self._end(self._core), name="shut the client down")

    async def _end(self, core: Core) -> None:
        await core.abandon()
        if self._environment is not None:
            self._environment.close()

    async def close(self) -> None:
        """Flush and close everything that this client made.

        A second call does nothing.
        """
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


async def subscribe_marked(client: AsyncClient, **options: object) -> AsyncConsumer:
    """A consumer whose messages `is_first_delivery` can be asked of. It takes the options of `subscribe` by name.

    Raises what `subscribe` does.
    """
    configuration = MarkedConsumer.of(options)
    core = client._running_core()  # pyright: ignore[reportPrivateUsage] (a call that is not of the face)
    return AsyncConsumer(core, await open_consumer(core, configuration))


def _client(options: dict[str, object]) -> AsyncClient:
    return AsyncClient(**options)  # pyright: ignore[reportArgumentType] (it checks them)
