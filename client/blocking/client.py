"""The blocking client: the public `Client`, with the names and defaults of the official Python client."""

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...protocol.errors import AlreadyClosed
from ...protocol.topics import TopicName
from ..aio.client import topic_partitions
from ..aio.reader import TopicReader
from ..consuming.listeners import check_called_on_thread
from ..consuming.message import Message
from ..consuming.topic_consumer import TopicConsumer
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
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerConfiguration,
    ReaderConfiguration,
    RegexSubscriptionMode,
)
from ..core.context import Closeable
from ..core.key_shared_policy import ConsumerKeySharedPolicy
from ..core.message_id import MessageId
from ..core.options import WantedTopics
from ..core.outgoing_message import OutgoingMessage
from ..crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader
from ..letters.handling import open_consumer
from ..producing.topic_producer import TopicProducer
from .consumer import Consumer
from .loop import Running, obtain
from .producer import Producer
from .reader import Reader
from .table_view import TableView


class Client:
    """A client for ordinary code, usable from any thread.

    All network work happens on one thread of its own. Inside Ray tasks and actors, clients with equal arguments share
    the thread and the connections for the life of the process. Pickles as its arguments. Also a context manager.

    In the child of a fork a client with a service URL begins again when it is used. A client without one raises
    AlreadyClosed, and so do producers, consumers and readers that were made before the fork.
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
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self.running, self._shared = obtain(self.configuration)
        self._made: dict[Closeable, None] = {}
        if not self._shared:
            # For clients that are not closed: end the thread before the interpreter ends.
            self._finalizer = weakref.finalize(self, self.running.stop)

    def __repr__(self) -> str:
        where = self.configuration.service_url or "the cluster on this Ray"
        return f"<{type(self).__name__} of {where}, {'closed' if self._closed else 'open'}>"

    def __reduce__(self) -> tuple[object, ...]:
        return (_client, (asdict(self.configuration),))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_producer(
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
        batching_enabled: bool = False,
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
    ) -> Producer:
        """Create a producer on a topic. The broker creates the topic if it does not exist.

        Batching is off unless you ask for it.

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
        return Producer(self, self.open_producer(configuration))

    def subscribe(
        self,
        topic: WantedTopics,
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: object = None,
        message_listener: Callable[[Consumer, Message], object] | None = None,
        receiver_queue_size: int = 1_000,
        max_total_receiver_queue_size_across_partitions: int = 50_000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30_000,
        negative_ack_redelivery_delay_ms: int = 60_000,
        is_read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
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
        **options: object,
    ) -> Consumer:
        """Create a consumer. The broker creates the topic and the subscription if they do not exist.

        The client calls a `message_listener` on a thread of its own.

        Args:
            topic: A topic's name in any form, a list of names, or a compiled pattern.
            subscription_name: The subscription, which is created if it does not exist.
            consumer_type: How the consumers of the subscription share its messages.
            schema: How values are decoded, such as `JsonSchema(Order)`; without one they are bytes.
            message_listener: Called as `listener(consumer, message)`, for one message at a time.
            receiver_queue_size: Approximate number of messages that wait in the client; 0 = none.
            max_total_receiver_queue_size_across_partitions: The same for all partitions together.
            consumer_name: Shown in the topic's statistics.
            unacked_messages_timeout_ms: Milliseconds after which an unacknowledged message is delivered again;
                0 = never.
            broker_consumer_stats_cache_time_ms: Accepted without effect.
            negative_ack_redelivery_delay_ms: Milliseconds from a negative acknowledgement to the redelivery.
            is_read_compacted: Get only the last message of each key of what is compacted.
            properties: Shown in the topic's statistics.
            pattern_auto_discovery_period: Seconds between two looks for topics that match the pattern, or that a list
                names.
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
        return Consumer(self, self.open_consumer(configuration))

    def create_reader(
        self,
        topic: str | Sequence[str],
        start_message_id: MessageId,
        schema: object = None,
        reader_listener: Callable[[Reader, Message], object] | None = None,
        receiver_queue_size: int = 1_000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        **options: object,
    ) -> Reader:
        """Create a reader that begins behind a message.

        Args:
            topic: A topic's name in any form, or a list of names.
            start_message_id: The reader starts behind this message.
            schema: How values are decoded, such as `JsonSchema(Order)`; without one they are bytes.
            reader_listener: Called as `listener(reader, message)`, for one message at a time.
            receiver_queue_size: Approximate number of messages that wait in the client.
            reader_name: Shown in the topic's statistics.
            subscription_role_prefix: Prefix of the name of the reader's subscription.
            is_read_compacted: Get only the last message of each key of what is compacted.
            crypto_key_reader: Where the private keys come from.
            start_message_id_inclusive: Start at the start message, not behind it.
            crypto_failure_action: What happens to a message that cannot be decrypted.
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
        return Reader(
            self,
            self.open_reader(ReaderConfiguration.of({**locals(), **options})),
        )

    def create_table_view(self, topic: str, subscription_name: str | None = None, schema: object = None) -> TableView:
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
        return TableView(
            self.create_reader(
                topic,
                MessageId.earliest,
                is_read_compacted=TopicName.parse(topic).persistent,
                subscription_name=subscription_name,
                schema=schema,
            )
        )

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the partitions of a topic.

        Args:
            topic: Any form of a topic's name.

        Returns:
            The full name of each partition, or of the topic if it has none.

        Raises:
            TopicNotFound: If the topic does not exist.
            ConnectError: If no broker can be reached.
        """
        self._check_open()
        return self.running.run(topic_partitions(self.running.core, topic))

    def close(self) -> None:
        """Flush and close everything that this client made.

        A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        if self.running.error is not None:
            return  # of the parent process: nothing of it is ours to close
        if self._shared:
            made = list(self._made)
            self._made.clear()
            self.running.run(_close_all(made))
        else:
            self.running.close()
            self._finalizer.detach()

    def shutdown(self) -> None:
        """End the client at once. Pending messages may or may not have been sent."""
        if self._shared:
            self.close()
            return
        self._closed = True
        self.running.stop()
        self._finalizer.detach()

    # ---- For the faces of producers, consumers and readers ----

    def open_producer(self, configuration: ProducerConfiguration) -> TopicProducer:
        """What a producer of this configuration is the face of."""
        self._check_open()
        producer = TopicProducer(self.running.core, configuration)
        self._made[producer] = None
        try:
            self.running.run(producer.open())
        except BaseException:
            self._made.pop(producer, None)
            raise
        return producer

    def open_consumer(self, configuration: ConsumerConfiguration) -> TopicConsumer:
        """What a consumer of this configuration is the face of."""
        check_called_on_thread("message_listener", configuration.message_listener)
        self._check_open()
        consumer = self.running.run(open_consumer(self.running.core, configuration))
        self._made[consumer] = None
        return consumer

    def open_reader(self, configuration: ReaderConfiguration) -> TopicReader:
        """What a reader of this configuration is the face of."""
        check_called_on_thread("reader_listener", configuration.reader_listener)
        self._check_open()
        reader = TopicReader(self.running.core, configuration)
        self.running.run(reader.open())
        self._made[reader.consumer] = None
        return reader

    def close_when_forgotten(self, face: object, made: Closeable) -> None:
        """Close `made` when the application no longer refers to `face`.

        The loop, and inside Ray the process, may live on. A consumer that is not read would keep its messages from
        others.
        """
        weakref.finalize(face, _forgotten, self.running, self._made, made).atexit = False

    def close_one(self, made: Closeable) -> None:
        """Close a producer or consumer of this client; nothing happens if it is closed."""
        if self._made.pop(made, None) is None and made not in self.running.core.opened:
            return
        try:
            self.running.run(made.close())  # pyright: ignore[reportArgumentType]
        except AlreadyClosed:
            return  # with its client

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("the client is closed: create a new one")
        if self.running.error is not None:
            if self.configuration.service_url is None:
                raise self.running.error  # to find the cluster again takes Ray, which does not survive a fork
            self._begin()


async def _close_all(made: list[Closeable]) -> None:
    await asyncio.gather(*[one.close() for one in made])


def _forgotten(running: Running, registry: dict[Closeable, None], made: Closeable) -> None:
    registry.pop(made, None)
    running.close_soon(made)


def _client(options: dict[str, Any]) -> Client:
    return Client(**options)
