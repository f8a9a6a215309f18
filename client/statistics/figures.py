"""What `get_stats` returns: plain data, with the names of Pulsar's Java client."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProducerStats:
    """What a producer has sent. A partitioned topic's figures are those of all its partitions together.

    - `num_…` counts from the beginning of the current interval on, `total_…` from the producer's beginning on. The
      client's `stats_interval_in_seconds` is the length of an interval.
    - `msgs_sent`: messages. `bytes_sent`: bytes of their payloads, before compression and encryption.
    - `send_failed`: messages that failed, and calls that a full queue or a closed producer refused.
    - `acks_received`: receipts, one for each entry (a message, a batch or a chunk).
    - `send_msgs_rate` and `send_bytes_rate`: per second, of the last whole interval. Before one has ended, of the time
      so far.
    - `send_latency_millis_…`: percentiles and maximum of the same time, in milliseconds, 0.0 without receipts. An
      entry's latency begins when the client takes it to send it, and ends with the receipt. Percentiles are exact to
      2 %, the maximum is exact.
    - `pending_queue_size`: messages that have no receipt yet.
    - `partition_stats`: the same of each partition, by its full name; empty for a topic without partitions.
    """

    num_msgs_sent: int
    num_bytes_sent: int
    num_send_failed: int
    num_acks_received: int
    send_msgs_rate: float
    send_bytes_rate: float
    send_latency_millis_50pct: float
    send_latency_millis_75pct: float
    send_latency_millis_95pct: float
    send_latency_millis_99pct: float
    send_latency_millis_999pct: float
    send_latency_millis_max: float
    total_msgs_sent: int
    total_bytes_sent: int
    total_send_failed: int
    total_acks_received: int
    pending_queue_size: int
    partition_stats: Mapping[str, "ProducerStats"] = field(default_factory=dict[str, "ProducerStats"])


@dataclass(frozen=True)
class ConsumerStats:
    """What a consumer has received. Several topics or partitions add up.

    - `num_…` counts from the beginning of the current interval on, `total_…` from the consumer's beginning on. The
      client's `stats_interval_in_seconds` is the length of an interval.
    - `msgs_received`: messages that the application took. `bytes_received`: bytes of their payloads, after
      decompression and decryption.
    - `rate_msgs_received` and `rate_bytes_received`: per second, of the last whole interval. Before one has ended, of
      the time so far.
    - `acks_sent`: messages that were acknowledged; a batch counts when the last of its messages is, and a cumulative
      acknowledgement as one. `acks_failed`: those that were refused, or whose receipt was an error.
    - `receive_failed` and `total_received_failed`: entries that could not be opened.
    - `msg_num_in_receiver_queue`: messages that wait in the client.
    - `partition_stats`: the same of each partition or topic, by its full name; empty for a single topic without
      partitions.
    - `dead_letter_producer_stats` and `retry_letter_producer_stats`: None before the first letter.
    """

    num_msgs_received: int
    num_bytes_received: int
    rate_msgs_received: float
    rate_bytes_received: float
    num_acks_sent: int
    num_acks_failed: int
    num_receive_failed: int
    total_msgs_received: int
    total_bytes_received: int
    total_received_failed: int
    total_acks_sent: int
    total_acks_failed: int
    msg_num_in_receiver_queue: int
    partition_stats: Mapping[str, "ConsumerStats"] = field(default_factory=dict[str, "ConsumerStats"])
    dead_letter_producer_stats: ProducerStats | None = None
    retry_letter_producer_stats: ProducerStats | None = None
