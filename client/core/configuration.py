"""What clients, producers, consumers and readers are created with: frozen, checked once, picklable.

Names and defaults are those of the official Python client. A value that is impossible is refused here with
InvalidConfiguration, before anything is sent.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias

from ...protocol.compression import CompressionType
from ...protocol.errors import InvalidConfiguration
from ...runtime.tls_contexts import ClientTls, tls_of_process
from ..crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader, ProducerCryptoFailureAction
from ..schemas.given import as_schema
from ..schemas.schema import Schema
from .authentication import Authentication, check_authentication
from .failover_events import ConsumerEventListener
from .interceptors import ConsumerInterceptor, ProducerInterceptor
from .key_shared_policy import ConsumerKeySharedPolicy, checked_ranges
from .message_id import MessageId
from .options import (
    OFFICIAL_MODULE,
    Options,
    WantedTopics,
    check_function,
    checked_topics,
    compiled_pattern,
    option,
    unsupported,
    without_effect,
)
from .outgoing_message import OutgoingMessage
from .redelivery_backoff import RedeliveryBackoff, check_backoff
from .service_url import asks_for_tls


class ConsumerType(IntEnum):
    """How the consumers of one subscription share its messages."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3

    @property
    def keeps_order(self) -> bool:
        """Whether one consumer at a time gets everything in order, so that it may acknowledge cumulatively.

        With the other types messages are acknowledged and redelivered one by one.
        """
        return self in (ConsumerType.Exclusive, ConsumerType.Failover)


class InitialPosition(IntEnum):
    """Where a new subscription starts."""

    Latest = 0
    Earliest = 1


class SubscriptionMode(IntEnum):
    """Whether a subscription outlives its consumers. The names are those of the Java client."""

    Durable = 0
    NonDurable = 1


class RegexSubscriptionMode(IntEnum):
    """Which topics a pattern takes."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


@dataclass(frozen=True)
class ConsumerDeadLetterPolicy:
    """When messages go to a dead letter topic: after so many redeliveries.

    By default the topic is `<topic>-<subscription>-DLQ`. `initial_subscription_name` creates that subscription with the
    topic; without it nobody is subscribed.
    """

    max_redeliver_count: int
    dead_letter_topic: str | None = None
    initial_subscription_name: str | None = None

    def __post_init__(self) -> None:
        count = self.max_redeliver_count
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidConfiguration(f"max_redeliver_count must be greater than 0, not {count!r}")
        for name in ("dead_letter_topic", "initial_subscription_name"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text):
                raise InvalidConfiguration(f"{name} must be a non-empty string, not {text!r}")


@dataclass(frozen=True)
class DeadLetterProducerContext:
    """What a customizer of a retry letter or dead letter producer is told."""

    default_topic_name: str
    """The name that the retry letter or dead letter topic has by default."""
    input_topic_name: str
    input_topic_subscription_name: str
    input_topic_consumer_name: str


ProducerCustomizer: TypeAlias = Callable[[DeadLetterProducerContext, dict[str, object]], object]
"""Changes the options of a retry letter or dead letter producer, which have the names of `create_producer`."""


class PartitionsRoutingMode(IntEnum):
    """Which partition a message goes to. With a key both built-in modes choose by its hash."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class HashingScheme(IntEnum):
    """The hash of a key that chooses the partition. Murmur3 is the one that clients of all languages share."""

    JavaStringHash = 0
    Murmur3_32Hash = 1


class ProducerAccessMode(IntEnum):
    """Whether others may publish to the topic beside this producer."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class BatchingType(IntEnum):
    """What may share a batch: anything, or only messages of one key."""

    Default = 0
    KeyBased = 1


@dataclass(frozen=True)
class ConsumerBatchReceivePolicy:
    """When `batch_receive` has enough: so many messages, so many bytes, or so many milliseconds; below 1 = no limit."""

    max_num_message: int = -1
    max_num_bytes: int = 10 * 1024 * 1024
    timeout_ms: int = 100

    def __post_init__(self) -> None:
        if self.max_num_message < 1 and self.max_num_bytes < 1 and self.timeout_ms < 1:
            raise InvalidConfiguration(
                "a batch receive policy without a limit would never end: give at least one limit"
            )


@dataclass(frozen=True)
class ClientConfiguration(Options):
    """One client. Without `service_url` the cluster is found through Ray."""

    CALL = "Client"

    service_url: str | None = option(
        None,
        "`pulsar://host:port`, several as `pulsar://a:1,b:2`; `pulsar+ssl://` for TLS. With "
        "`pulsar+proxy://` these brokers forward to the others, which the client does not reach. None finds the "
        "cluster through Ray.",
        text=True,
    )
    authentication: Authentication | None = option(
        None,
        "How the client proves who it is: `AuthenticationToken`, `AuthenticationBasic`, `AuthenticationTLS`, or a "
        "class of your own that derives from `Authentication`.",
    )
    operation_timeout_seconds: int = option(
        30, "Seconds that creating a producer, subscribing and seeking may take.", minimum=1
    )
    io_threads: ClassVar[int] = without_effect(1)
    message_listener_threads: ClassVar[int] = without_effect(1)
    concurrent_lookup_requests: int = option(50_000, "Maximum number of lookups in flight.", minimum=1)
    log_conf_file_path: ClassVar[object] = unsupported(None)
    stats_interval_in_seconds: int = option(
        600,
        "Seconds of an interval of statistics. `get_stats` shows the rates and latencies of the last whole interval, "
        "and the client logs them with level INFO. With 0 it logs nothing, and the rates are of the time since the "
        "beginning.",
        minimum=0,
    )
    use_tls: bool = option(False, "Whether to speak TLS with any service URL. With `pulsar+ssl://` it always does.")
    tls_trust_certs_file_path: str | None = option(
        None,
        "File with the CAs that brokers' certificates must be of, in PEM. None takes the variable "
        "`MAGNETAR_TLS_TRUST_CERTS_FILE_PATH`, and else trusts the CAs of the system.",
        text=True,
    )
    tls_allow_insecure_connection: bool = option(
        False, "Whether any certificate of a broker will do. Then others on the way can read and change everything."
    )
    tls_validate_hostname: bool = option(
        True,
        "Whether the certificate must be for the host that the client connects to. The official client does not check "
        "that by default.",
    )
    logger: ClassVar[object] = unsupported(None)
    connection_timeout_ms: int = option(10_000, "Milliseconds that opening a connection may take.", minimum=1)
    listener_name: str | None = option(
        None, "The listener whose address lookups ask for, one of the brokers' `advertisedListeners`.", text=True
    )
    tls_private_key_file_path: str | None = option(
        None, "File with the key of `tls_certificate_file_path`, in PEM.", text=True
    )
    tls_certificate_file_path: str | None = option(
        None, "File with the certificate that the client shows to brokers, in PEM.", text=True
    )
    _: KW_ONLY
    keep_alive_interval_s: float = option(
        30.0, "The client sends a PING after this many silent seconds. After as many more it closes the connection."
    )
    silence_timeout_ms: int = option(
        1_000,
        "Milliseconds without a receipt or an answer after which the client asks another broker who owns the topic. It "
        "moves there if that changed; 0 = it never asks.",
        minimum=0,
    )
    backoff_initial_ms: int = option(20, "Milliseconds before the first retry.", minimum=1)
    backoff_maximum_ms: int = option(5_000, "Maximum milliseconds between two retries.", minimum=1)
    partitions_update_interval_s: int = option(
        60, "Seconds between two looks for added partitions of a topic; 0 = never.", minimum=0
    )
    memory_limit_bytes: int = option(
        0,
        "Maximum bytes of messages without a receipt, of all producers together; 0 = no limit. A send beyond it fails "
        "with MemoryBufferIsFull, or waits with `block_if_queue_full`.",
        minimum=0,
    )
    decompressed_size_max_bytes: int = option(
        80 * 1024 * 1024,
        "A larger batch is not delivered: `receive` fails with MessageTooBig, and the batch stays unacknowledged.",
    )
    allow_auto_topic_creation: bool = option(
        True,
        "Whether brokers may create the topics of producers and consumers. If not, these fail with TopicNotFound when "
        "their topic does not exist, also when it is deleted later.",
    )

    def check(self) -> None:
        check_authentication(self.authentication)
        if (self.tls_certificate_file_path is None) != (self.tls_private_key_file_path is None):
            raise InvalidConfiguration(
                "tls_certificate_file_path and tls_private_key_file_path belong together: pass both, or none"
            )
        if self.backoff_maximum_ms < self.backoff_initial_ms:
            raise InvalidConfiguration(
                f"backoff_maximum_ms must be an integer of at least {self.backoff_initial_ms}, "
                f"not {self.backoff_maximum_ms!r}"
            )

    @property
    def tls(self) -> ClientTls:
        """What contexts of TLS are made of in this process. `AuthenticationTLS` names a certificate, too."""
        shown = self.authentication
        given = ClientTls(
            trust=self.tls_trust_certs_file_path or "",
            certificate=self.tls_certificate_file_path or (shown and shown.certificate_path) or "",
            key=self.tls_private_key_file_path or (shown and shown.private_key_path) or "",
            insecure=self.tls_allow_insecure_connection,
            host_name_checked=self.tls_validate_hostname,
        )
        return tls_of_process(given)

    def speaks_tls(self, url: str) -> bool:
        """Whether a client with this service URL speaks TLS."""
        return self.use_tls or asks_for_tls(url)


@dataclass(frozen=True)
class ProducerConfiguration(Options):
    """One producer."""

    CALL = "create_producer"
    topic: str = option(doc="Any form of a topic's name.", text=True)
    producer_name: str | None = option(None, "By default the broker chooses a name.", text=True)
    schema: Schema | None = option(
        None, "How values are encoded, such as `JsonSchema(Order)`; without one they are bytes.", given="object"
    )
    initial_sequence_id: int | None = option(None, "The first message gets the next sequence id.", minimum=-1)
    send_timeout_millis: int = option(30_000, "Milliseconds until a send fails with Timeout; 0 = never.", minimum=0)
    compression_type: CompressionType = option(
        CompressionType.NONE, "How batches are compressed.", choice=CompressionType
    )
    max_pending_messages: int = option(1_000, "Maximum number of messages without a receipt per partition.", minimum=1)
    max_pending_messages_across_partitions: int = option(50_000, "The same for all partitions together.", minimum=1)
    block_if_queue_full: bool = option(False, "Wait for room instead of raising ProducerQueueIsFull.")
    batching_enabled: bool = option(False, "Whether messages share entries.")
    batching_max_messages: int = option(1_000, "Maximum number of messages in a batch.", minimum=1)
    batching_max_allowed_size_in_bytes: int = option(128 * 1024, "Approximate maximum of bytes in a batch.", minimum=1)
    batching_max_publish_delay_ms: int = option(
        10, "Maximum milliseconds that a batch waits for more messages.", minimum=0
    )
    chunking_enabled: bool = option(
        False,
        "Whether a message that is too large for one entry is published in chunks. Needs batching off, and a "
        "persistent topic.",
    )
    message_routing_mode: PartitionsRoutingMode = option(
        PartitionsRoutingMode.RoundRobinDistribution, "Which partition a message goes to.", choice=PartitionsRoutingMode
    )
    lazy_start_partitioned_producers: bool = option(
        False, "Whether a partition gets its producer with its first message only."
    )
    properties: Mapping[str, str] = option(doc="Shown in the topic's statistics.", texts=True)
    batching_type: BatchingType = option(BatchingType.Default, "Which messages may share a batch.", choice=BatchingType)
    encryption_key: str | Sequence[str] | None = option(
        None, "Name of the key that messages are encrypted with, or several names."
    )
    crypto_key_reader: CryptoKeyReader | None = option(None, "Where the public keys come from.")
    access_mode: ProducerAccessMode = option(
        ProducerAccessMode.Shared, "Whether others may publish beside this producer.", choice=ProducerAccessMode
    )
    message_router: Callable[[OutgoingMessage, int], int] | None = option(
        None, "Called as `router(message, partitions)` with CustomPartition; returns the partition's index."
    )
    hashing_scheme: HashingScheme = option(
        HashingScheme.JavaStringHash, "The hash of a key that chooses the partition.", choice=HashingScheme
    )
    _: KW_ONLY
    interceptors: Sequence[ProducerInterceptor] = option((), "What is told of messages and receipts, in order.")
    initial_subscription_name: str | None = option(
        None, "A subscription that the broker creates with the topic, at its beginning.", text=True
    )
    crypto_failure_action: ProducerCryptoFailureAction = option(
        ProducerCryptoFailureAction.FAIL,
        "What happens when no public key is to be had.",
        choice=ProducerCryptoFailureAction,
    )
    stop_on_failure: bool = option(
        False, "Whether a message that fails ends its producer of the topic or partition, so that none overtakes it."
    )

    def check(self) -> None:
        object.__setattr__(self, "schema", as_schema(self.schema))
        if self.encryption_keys and self.crypto_key_reader is None:
            raise InvalidConfiguration("encryption_key is set, but crypto_key_reader is not: pass both")
        _check_reader(self.crypto_key_reader)
        if self.batching_enabled and self.chunking_enabled:
            raise InvalidConfiguration(
                "Batching and chunking of messages can't be enabled together: set batching_enabled to False"
            )
        if self.message_routing_mode is PartitionsRoutingMode.CustomPartition and self.message_router is None:
            raise InvalidConfiguration("CustomPartition needs a message_router: pass one")
        for one in self.interceptors:
            if not isinstance(one, ProducerInterceptor):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                raise InvalidConfiguration(f"interceptors must be ProducerInterceptors, and {one!r} is none")

    @property
    def encryption_keys(self) -> tuple[str, ...]:
        """The names of the keys to encrypt with, none without encryption."""
        given = self.encryption_key
        names = (given,) if isinstance(given, str) else tuple(given or ())
        if not all(isinstance(name, str) and name for name in names):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidConfiguration(f"encryption_key must be a non-empty string or several, not {given!r}")
        return names


@dataclass(frozen=True)
class ConsumerConfiguration(Options):
    """One consumer."""

    CALL = "subscribe"
    marks_first_deliveries: ClassVar[bool] = False
    """Whether brokers are asked to say which deliveries are first ones. No option; see `MarkedConsumer`."""

    topic: WantedTopics = option(doc="A topic's name in any form, a list of names, or a compiled pattern.")
    subscription_name: str = option(doc="The subscription, which is created if it does not exist.", text=True)
    consumer_type: ConsumerType = option(
        ConsumerType.Exclusive, "How the consumers of the subscription share its messages.", choice=ConsumerType
    )
    schema: Schema | None = option(
        None, "How values are decoded, such as `JsonSchema(Order)`; without one they are bytes.", given="object"
    )
    message_listener: Callable[..., object] | None = option(
        None, "Called as `listener(consumer, message)`, for one message at a time."
    )
    receiver_queue_size: int = option(
        1_000, "Approximate number of messages that wait in the client; 0 = none.", minimum=0
    )
    max_total_receiver_queue_size_across_partitions: int = option(
        50_000, "The same for all partitions together.", minimum=1
    )
    consumer_name: str | None = option(None, "Shown in the topic's statistics.", text=True)
    unacked_messages_timeout_ms: int | None = option(
        None, "Milliseconds after which an unacknowledged message is delivered again; 0 = never.", minimum=0
    )
    broker_consumer_stats_cache_time_ms: ClassVar[int] = without_effect(30_000)
    negative_ack_redelivery_delay_ms: int = option(
        60_000, "Milliseconds from a negative acknowledgement to the redelivery.", minimum=0
    )
    is_read_compacted: bool = option(False, "Get only the last message of each key of what is compacted.")
    properties: Mapping[str, str] = option(doc="Shown in the topic's statistics.", texts=True)
    pattern_auto_discovery_period: int = option(
        60, "Seconds between two looks for topics that match the pattern, or that a list names.", minimum=1, unit="s"
    )
    initial_position: InitialPosition = option(
        InitialPosition.Latest, "Where a new subscription starts.", choice=InitialPosition
    )
    crypto_key_reader: CryptoKeyReader | None = option(None, "Where the private keys come from.")
    replicate_subscription_state_enabled: ClassVar[bool] = unsupported(False)
    max_pending_chunked_message: int = option(
        10, "Maximum number of messages that the consumer puts together from chunks at a time; 0 = no limit.", minimum=0
    )
    auto_ack_oldest_chunked_message_on_queue_full: bool = option(
        False, "Beyond that number the oldest incomplete message is acknowledged, instead of asked for again."
    )
    start_message_id_inclusive: bool = option(False, "Whether a seek to a message redelivers that message.")
    batch_receive_policy: ConsumerBatchReceivePolicy | None = option(None, "When `batch_receive` returns.")
    key_shared_policy: ConsumerKeySharedPolicy | None = option(
        None, "How KeyShared consumers divide the keys; by default AutoSplit, in order."
    )
    batch_index_ack_enabled: bool = option(
        False, "Whether single messages of a batch are acknowledged, where the broker has that switched on, too."
    )
    regex_subscription_mode: RegexSubscriptionMode = option(
        RegexSubscriptionMode.PersistentOnly, "Which topics a pattern takes.", choice=RegexSubscriptionMode
    )
    dead_letter_policy: ConsumerDeadLetterPolicy | None = option(
        None, "When messages go to a dead letter topic. For Shared and KeyShared subscriptions."
    )
    crypto_failure_action: ConsumerCryptoFailureAction = option(
        ConsumerCryptoFailureAction.FAIL,
        "What happens to a message that cannot be decrypted.",
        choice=ConsumerCryptoFailureAction,
    )
    is_pattern_topic: bool = option(False, "Whether `topic` is the text of a pattern.")
    _: KW_ONLY
    ack_timeout_tick_time_ms: int = option(
        1_000, "Milliseconds between two looks for messages that are unacknowledged for too long.", minimum=1
    )
    ack_timeout_redelivery_backoff: RedeliveryBackoff | None = option(
        None, "Added to `unacked_messages_timeout_ms`, such as a `MultiplierRedeliveryBackoff`."
    )
    negative_ack_redelivery_backoff: RedeliveryBackoff | None = option(
        None, "In place of `negative_ack_redelivery_delay_ms`, such as a `MultiplierRedeliveryBackoff`."
    )
    enable_retry: bool = option(
        False, "Take the retry letter topic, too, and allow `reconsume_later`. For Shared subscriptions."
    )
    retry_letter_topic: str | None = option(
        None, "The retry letter topic; by default `<topic>-<subscription>-RETRY`.", text=True
    )
    retry_letter_producer_customizer: ProducerCustomizer | None = option(
        None, "Called as `customizer(context, options)` before the retry letter producer is made; changes the options."
    )
    dead_letter_producer_customizer: ProducerCustomizer | None = option(
        None, "Called as `customizer(context, options)` before the dead letter producer is made; changes the options."
    )
    priority_level: int = option(
        0, "Consumers of a lower level get messages first; 0 is the highest priority.", minimum=0
    )
    interceptors: Sequence[ConsumerInterceptor] = option((), "What is told of messages and acknowledgements, in order.")
    ack_group_time_ms: int = option(100, "Maximum milliseconds that the client gathers acknowledgements.", minimum=0)
    ack_receipt_enabled: bool = option(False, "Whether calls that acknowledge wait for the broker's receipt.")
    ack_group_max: int = option(1_000, "Maximum number of acknowledgements that the client gathers.", minimum=1)
    expire_time_of_incomplete_chunked_message_ms: int = option(
        60_000, "Milliseconds after which an incomplete message is acknowledged and dropped; 0 = never.", minimum=0
    )
    consumer_event_listener: ConsumerEventListener | None = option(
        None, "Told when a Failover consumer becomes active or inactive."
    )
    subscription_mode: SubscriptionMode = option(
        SubscriptionMode.Durable,
        "Whether the broker keeps the subscription and its backlog when the last consumer has left.",
        choice=SubscriptionMode,
    )

    def check(self) -> None:
        object.__setattr__(self, "schema", as_schema(self.schema))
        check_function("message_listener", self.message_listener)
        _check_reader(self.crypto_key_reader)
        for name in ("ack_timeout_redelivery_backoff", "negative_ack_redelivery_backoff"):
            check_backoff(name, getattr(self, name))
        if self.key_shared_policy is not None and not isinstance(self.key_shared_policy, ConsumerKeySharedPolicy):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidConfiguration(
                f"key_shared_policy must be a ConsumerKeySharedPolicy, not {self.key_shared_policy!r}"
            )
        if self.is_pattern_topic and isinstance(self.topic, str):
            object.__setattr__(self, "topic", compiled_pattern(self.topic))
        object.__setattr__(self, "topic", checked_topics(self.topic))
        if self.is_read_compacted and self.consumer_type.name not in ("Exclusive", "Failover"):
            raise InvalidConfiguration("is_read_compacted needs an Exclusive or Failover subscription")
        self._check_letters()
        for one in self.interceptors:
            if not isinstance(one, ConsumerInterceptor):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                raise InvalidConfiguration(f"interceptors must be ConsumerInterceptors, and {one!r} is none")

    def _check_letters(self) -> None:
        kind = self.consumer_type.name
        policy = self.dead_letter_policy
        if policy is not None and not isinstance(policy, ConsumerDeadLetterPolicy):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidConfiguration(f"dead_letter_policy must be a ConsumerDeadLetterPolicy, not {policy!r}")
        if policy is not None and kind not in ("Shared", "KeyShared"):
            raise InvalidConfiguration(
                f"a dead letter policy needs a Shared or KeyShared subscription, and this one is {kind}"
            )
        if self.enable_retry and kind != "Shared":
            raise InvalidConfiguration(f"enable_retry needs a Shared subscription, and this one is {kind}")
        if self.enable_retry and isinstance(self.topic, re.Pattern):
            raise InvalidConfiguration("a pattern of topics has no retry letter topic: subscribe to topics by name")
        if self.retry_letter_topic is not None and not self.enable_retry:
            raise InvalidConfiguration("retry_letter_topic has no effect without enable_retry: set it to True")

    @property
    def takes_several_topics(self) -> bool:
        """Whether messages of more than one topic may come."""
        return self.enable_retry or not isinstance(self.topic, str)


class MarkedConsumer(ConsumerConfiguration):
    """One consumer whose broker is asked to say which deliveries are first ones, for `is_first_delivery`."""

    marks_first_deliveries: ClassVar[bool] = True


@dataclass(frozen=True)
class ReaderConfiguration(Options):
    """One reader."""

    CALL = "create_reader"
    topic: str | Sequence[str] = option(doc="A topic's name in any form, or a list of names.")
    start_message_id: MessageId = option(doc="The reader starts behind this message.")
    schema: Schema | None = option(
        None, "How values are decoded, such as `JsonSchema(Order)`; without one they are bytes.", given="object"
    )
    reader_listener: Callable[..., object] | None = option(
        None, "Called as `listener(reader, message)`, for one message at a time."
    )
    receiver_queue_size: int = option(1_000, "Approximate number of messages that wait in the client.", minimum=1)
    reader_name: str | None = option(None, "Shown in the topic's statistics.", text=True)
    subscription_role_prefix: str | None = option(None, "Prefix of the name of the reader's subscription.", text=True)
    is_read_compacted: bool = option(False, "Get only the last message of each key of what is compacted.")
    crypto_key_reader: CryptoKeyReader | None = option(None, "Where the private keys come from.")
    start_message_id_inclusive: bool = option(False, "Start at the start message, not behind it.")
    crypto_failure_action: ConsumerCryptoFailureAction = option(
        ConsumerCryptoFailureAction.FAIL,
        "What happens to a message that cannot be decrypted.",
        choice=ConsumerCryptoFailureAction,
    )
    _: KW_ONLY
    subscription_name: str | None = option(
        None, "The name of the reader's subscription; by default a prefix and random characters.", text=True
    )
    key_hash_ranges: Sequence[tuple[int, int]] | None = option(
        None, "Read only messages whose key's hash is in one of these ranges within 0 to 65,535, both ends included."
    )
    max_pending_chunked_message: int = option(
        10, "Maximum number of messages that the reader puts together from chunks at a time; 0 = no limit.", minimum=0
    )
    auto_ack_oldest_chunked_message_on_queue_full: bool = option(
        False, "Beyond that number the oldest incomplete message is acknowledged, instead of asked for again."
    )
    expire_time_of_incomplete_chunked_message_ms: int = option(
        60_000, "Milliseconds after which an incomplete message is acknowledged and dropped; 0 = never.", minimum=0
    )

    def check(self) -> None:
        object.__setattr__(self, "schema", as_schema(self.schema))
        check_function("reader_listener", self.reader_listener)
        _check_reader(self.crypto_key_reader)
        topics = checked_topics(self.topic)
        if isinstance(topics, re.Pattern):
            raise InvalidConfiguration("a reader takes topics by name: a pattern is for consumers")
        object.__setattr__(self, "topic", topics)
        if self.key_hash_ranges is not None:
            object.__setattr__(self, "key_hash_ranges", checked_ranges(self.key_hash_ranges))
        if type(self.start_message_id).__module__ in ("pulsar", OFFICIAL_MODULE):
            object.__setattr__(self, "start_message_id", MessageId.wrap(self.start_message_id))
        if not isinstance(self.start_message_id, MessageId):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidConfiguration(f"start_message_id must be a MessageId, not {self.start_message_id!r}")


def _check_reader(reader: object) -> None:
    if reader is not None and not isinstance(reader, CryptoKeyReader):
        raise InvalidConfiguration(f"crypto_key_reader must be a CryptoKeyReader, not {reader!r}")
