"""What clients, producers, consumers and readers are created with: frozen, checked once, picklable.

Names and defaults are those of the official Python client. A value that is impossible is refused here with
InvalidConfiguration, before anything is sent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ...protocol.compression import CompressionType
from ...protocol.errors import InvalidConfiguration
from .message_id import MessageId
from .outgoing_message import OutgoingMessage


class ConsumerType(IntEnum):
    """How the consumers of one subscription share its messages."""

    Exclusive = 0
    Shared = 1


class InitialPosition(IntEnum):
    """Where a subscription starts that does not exist yet."""

    Latest = 0
    Earliest = 1


class PartitionsRoutingMode(IntEnum):
    """Which partition a message goes to. With a key both built-in modes choose by its hash."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class HashingScheme(IntEnum):
    """The hash of a key that chooses the partition. Murmur3 is the one that clients of all languages share."""

    JavaStringHash = 0
    Murmur3_32Hash = 1


class BatchingType(IntEnum):
    """What may share a batch: anything, or only messages of one key."""

    Default = 0
    KeyBased = 1


def _refuse(what: str) -> None:
    raise InvalidConfiguration(what)


def _check_range(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        _refuse(f"{name} must be an integer of at least {minimum}, not {value!r}")


def _check_choice(name: str, value: object, kind: type[IntEnum]) -> None:
    if not isinstance(value, kind):
        _refuse(f"{name} must be a {kind.__name__}, such as {kind.__name__}.{next(iter(kind)).name}, not {value!r}")


def _check_text(name: str, value: str | None, *, required: bool = False) -> None:
    if value is None and not required:
        return
    if not isinstance(value, str) or not value:
        _refuse(f"{name} must be a non-empty string, not {value!r}")


def _check_properties(name: str, value: Mapping[str, str]) -> None:
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            _refuse(f"{name} must map strings to strings, not {key!r} to {text!r}")


@dataclass(frozen=True)
class ClientConfiguration:
    """One client. Without `service_url` the cluster is found through Ray."""

    service_url: str | None = None
    operation_timeout_seconds: int = 30
    connection_timeout_ms: int = 10_000
    concurrent_lookup_requests: int = 50_000
    keep_alive_interval_s: float = 30.0
    """A PING after so many silent seconds; a peer that stays silent for as many again is given up."""
    backoff_initial_ms: int = 20
    backoff_maximum_ms: int = 5_000
    decompressed_size_max_bytes: int = 80 * 1024 * 1024
    """A batch that claims to be larger is not delivered: `receive` fails with MessageTooBig, and it is kept."""

    def __post_init__(self) -> None:
        _check_text("service_url", self.service_url)
        _check_range("operation_timeout_seconds", self.operation_timeout_seconds, 1)
        _check_range("connection_timeout_ms", self.connection_timeout_ms, 1)
        _check_range("concurrent_lookup_requests", self.concurrent_lookup_requests, 1)
        _check_range("backoff_initial_ms", self.backoff_initial_ms, 1)
        _check_range("backoff_maximum_ms", self.backoff_maximum_ms, self.backoff_initial_ms)


@dataclass(frozen=True)
class ProducerConfiguration:
    """One producer."""

    topic: str
    producer_name: str | None = None
    initial_sequence_id: int | None = None
    send_timeout_millis: int = 30_000
    compression_type: CompressionType = CompressionType.NONE
    max_pending_messages: int = 1_000
    max_pending_messages_across_partitions: int = 50_000
    block_if_queue_full: bool = False
    batching_enabled: bool = False
    batching_max_messages: int = 1_000
    batching_max_allowed_size_in_bytes: int = 128 * 1024
    batching_max_publish_delay_ms: int = 10
    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    properties: Mapping[str, str] = field(default_factory=dict)
    batching_type: BatchingType = BatchingType.Default
    message_router: Callable[[OutgoingMessage, int], int] | None = None

    def __post_init__(self) -> None:
        _check_text("topic", self.topic, required=True)
        _check_text("producer_name", self.producer_name)
        if self.initial_sequence_id is not None:
            _check_range("initial_sequence_id", self.initial_sequence_id, -1)
        _check_range("send_timeout_millis", self.send_timeout_millis, 0)
        _check_range("max_pending_messages", self.max_pending_messages, 1)
        _check_range("max_pending_messages_across_partitions", self.max_pending_messages_across_partitions, 1)
        _check_range("batching_max_messages", self.batching_max_messages, 1)
        _check_range("batching_max_allowed_size_in_bytes", self.batching_max_allowed_size_in_bytes, 1)
        _check_range("batching_max_publish_delay_ms", self.batching_max_publish_delay_ms, 0)
        _check_properties("properties", self.properties)
        _check_choice("compression_type", self.compression_type, CompressionType)
        _check_choice("message_routing_mode", self.message_routing_mode, PartitionsRoutingMode)
        _check_choice("hashing_scheme", self.hashing_scheme, HashingScheme)
        _check_choice("batching_type", self.batching_type, BatchingType)
        custom = self.message_routing_mode is PartitionsRoutingMode.CustomPartition
        if custom and self.message_router is None:
            _refuse("CustomPartition needs a message_router")


@dataclass(frozen=True)
class ConsumerConfiguration:
    """One consumer."""

    topic: str
    subscription_name: str
    consumer_type: ConsumerType = ConsumerType.Exclusive
    message_listener: Callable[[Any, Any], None] | None = None
    receiver_queue_size: int = 1_000
    max_total_receiver_queue_size_across_partitions: int = 50_000
    consumer_name: str | None = None
    negative_ack_redelivery_delay_ms: int = 60_000
    properties: Mapping[str, str] = field(default_factory=dict)
    initial_position: InitialPosition = InitialPosition.Latest
    start_message_id_inclusive: bool = False
    batch_receive_policy: "ConsumerBatchReceivePolicy | None" = None
    ack_group_time_ms: int = 100
    ack_group_max: int = 1_000

    def __post_init__(self) -> None:
        _check_text("topic", self.topic, required=True)
        _check_text("subscription_name", self.subscription_name, required=True)
        _check_text("consumer_name", self.consumer_name)
        _check_choice("consumer_type", self.consumer_type, ConsumerType)
        _check_choice("initial_position", self.initial_position, InitialPosition)
        _check_range("receiver_queue_size", self.receiver_queue_size, 0)
        name = "max_total_receiver_queue_size_across_partitions"
        _check_range(name, self.max_total_receiver_queue_size_across_partitions, 1)
        _check_range("negative_ack_redelivery_delay_ms", self.negative_ack_redelivery_delay_ms, 0)
        _check_range("ack_group_time_ms", self.ack_group_time_ms, 0)
        _check_range("ack_group_max", self.ack_group_max, 1)
        _check_properties("properties", self.properties)


@dataclass(frozen=True)
class ReaderConfiguration:
    """One reader."""

    topic: str
    start_message_id: MessageId
    reader_listener: Callable[[Any, Any], None] | None = None
    receiver_queue_size: int = 1_000
    reader_name: str | None = None
    subscription_role_prefix: str | None = None
    start_message_id_inclusive: bool = False

    def __post_init__(self) -> None:
        _check_text("topic", self.topic, required=True)
        _check_text("reader_name", self.reader_name)
        _check_text("subscription_role_prefix", self.subscription_role_prefix)
        if not isinstance(self.start_message_id, MessageId):
            _refuse(f"start_message_id must be a MessageId, not {self.start_message_id!r}")
        _check_range("receiver_queue_size", self.receiver_queue_size, 1)


@dataclass(frozen=True)
class ConsumerBatchReceivePolicy:
    """When `batch_receive` has enough: so many messages, so many bytes, or so many milliseconds; below 1 = no limit."""

    max_num_message: int = -1
    max_num_bytes: int = 10 * 1024 * 1024
    timeout_ms: int = 100

    def __post_init__(self) -> None:
        if self.max_num_message < 1 and self.max_num_bytes < 1 and self.timeout_ms < 1:
            _refuse("a batch receive policy needs at least one limit")
