"""What a topic tells about itself, for the admin and for clients that ask: figures with their units, and no JSON names.

Brokers fill these in, and answer with them over the internal RPC. The admin alone knows under which names they are
shown, and which of them add up over the partitions of a topic. Rates are per second, sizes in bytes, times in
milliseconds since the epoch (0: never).
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    producer_id: int
    name: str
    access_mode: str
    address: str
    client_version: str
    connected_since_ms: int
    metadata: dict[str, str]
    message_rate: float
    byte_rate: float
    chunk_rate: float
    average_message_bytes: float


@dataclass(frozen=True, slots=True)
class DrainingFigures:
    """A slot that drains at a consumer, which still holds so many unacknowledged messages of it."""

    slot: int
    unacked_messages: int
    blocked_attempts: int


@dataclass(frozen=True, slots=True)
class KeySharedFigures:
    """What a consumer has of a Key_Shared subscription. `ranges` are the first and last slots that it owns."""

    mode: str
    """As Pulsar writes it."""
    allow_out_of_order: bool
    ranges: list[tuple[int, int]]
    drained: int
    """Slots that have drained at the consumer since it connected."""
    draining: list[DrainingFigures]


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    """One consumer. `messages`, `bytes` and their rates count what was sent to it."""

    name: str
    address: str
    client_version: str
    connected_since_ms: int
    metadata: dict[str, str]
    messages: int
    bytes: int
    message_rate: float
    byte_rate: float
    redelivery_rate: float
    acknowledge_rate: float
    chunk_rate: float
    messages_per_entry: int
    permits: int
    unacked_messages: int
    blocked: bool
    last_consumed_ms: int
    last_acknowledged_ms: int
    last_flow_ms: int
    first_consumed_ms: int = 0
    first_flow_ms: int = 0
    key_shared: KeySharedFigures | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionFigures:
    """One subscription. `messages` and `bytes` count what was sent to its consumers, those that have left included."""

    name: str
    durable: bool
    type: str
    """As Pulsar writes it; empty without a consumer."""
    properties: dict[str, str]
    messages: int
    bytes: int
    backlog_entries: int
    replay_entries: int
    unacked_messages: int
    blocked: bool
    consumers: list[ConsumerFigures]
    active_consumer: str | None = None
    """The name of the consumer that gets the messages, where only one does."""
    dropped_messages: int = 0
    """On a non-persistent topic: messages that no consumer could get."""
    drop_rate: float | None = None
    """None on a persistent topic."""
    backlog_bytes: int = 0
    acknowledged_ranges: int = 0
    """Ranges that are acknowledged behind the first entry that is not."""
    last_flow_ms: int = 0
    last_mark_delete_ms: int = 0
    """When everything up to a later place was acknowledged for the last time."""
    expired_entries: int = 0
    """Since the topic was loaded."""
    expire_rate: float = 0.0
    last_expire_ms: int = 0
    delayed_entries: int = 0
    """Entries that wait for their delivery time. One that was acknowledged counts until then."""
    delayed_index_bytes: int = 0
    """The memory that this takes."""


@dataclass(frozen=True, slots=True)
class CompactionFigures:
    """How the last compaction of a topic went, since it was loaded. `state` is Pulsar's name of it."""

    state: str
    error: str
    removed_messages: int
    succeeded_ms: int
    failed_ms: int
    duration_ms: int


@dataclass(frozen=True, slots=True)
class CompactedFigures:
    """A topic's compacted ledger; −1 where nothing is left of the messages up to `horizon`."""

    ledger_id: int
    entries: int
    size_bytes: int
    horizon: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """One topic, or one partition. `messages`, `bytes` and their rates count what was published.

    `epoch` is that of the ownership. `topic_epoch` is that of the last grant of exclusive access, None for none.
    """

    state: str
    epoch: int
    messages: int
    bytes: int
    message_rate: float
    byte_rate: float
    pending_publishes: int
    has_chunks: bool
    """Whether a message in chunks was published since the topic was loaded."""
    storage_bytes: int
    backlog_bytes: int
    producers: list[ProducerFigures]
    subscriptions: list[SubscriptionFigures]
    topic_epoch: int | None = None
    waiting_producers: int = 0
    """How many producers wait for exclusive access."""
    persistent: bool = True
    broker: str = ""
    """`host:port` of the broker that owns it."""
    backlog_age_s: int = -1
    """Of the oldest message that is not acknowledged, −1 while that is not known."""
    backlog_quota_bytes: int = -1
    backlog_quota_s: int = -1
    created_ms: int = 0
    last_publish_ms: int = 0
    compaction: CompactionFigures | None = None
    """None on a non-persistent topic."""
    deduplication: str = "Disabled"
    """How far deduplication is, in Pulsar's words."""


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    ledger_id: int
    entries: int
    size_bytes: int
    closed: bool
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class CursorFigures:
    """One durable cursor. Positions are (ledger, entry)."""

    name: str
    mark_delete: tuple[int, int]
    read: tuple[int, int]
    backlog_entries: int
    acknowledged_ranges: int
    """Ranges that are acknowledged behind `mark_delete`."""
    properties: dict[str, str]
    entries_to_read: int = 0
    """From the one behind `mark_delete` to the one at `read`, whether or not that one is written yet."""
    first_ranges: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """The first of the acknowledged ranges: ledger, first and last entry of each."""
    ledger_id: int = -1
    """The ledger that the cursor is written to, −1 for none."""


@dataclass(frozen=True, slots=True)
class StorageFigures:
    """What a topic stores: its ledgers and cursors. `entries_added` counts since the topic was loaded."""

    state: str
    entries_added: int
    pending_publishes: int
    size_bytes: int
    last_confirmed: tuple[int, int]
    ledgers: list[LedgerFigures]
    cursors: list[CursorFigures]
    compacted: CompactedFigures | None = None
