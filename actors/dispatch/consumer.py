"""A consumer attached to a subscription: its permits, what it holds unacknowledged, and how entries reach its socket.

A consumer is *able* to get entries unless it is closed, has no permits, or the write buffer of its connection is full.
A Shared consumer may also be blocked by too many unacknowledged messages. All but the last may end, each independently
of the others: a blocked consumer goes on when half of the bound is acknowledged, or when it gives entries back.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, NamedTuple, Protocol

from ...protocol.commands import encode, message_end, message_header
from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import CommandActiveConsumerChange, CommandReachedEndOfTopic
from ...protocol.topic_figures import ConsumerFigures, KeySharedFigures
from ...runtime.meter import Meter

Delivered = tuple[Position, bytes, int, int]
"""Position, entry body, messages in it, redelivery count."""


class KeySharedOptions(NamedTuple):
    """What a consumer asks of a Key_Shared subscription."""

    sticky: bool = False
    """Whether it brings its hash ranges, instead of getting a share (AUTO_SPLIT)."""
    allow_out_of_order: bool = False
    ranges: tuple[tuple[int, int], ...] = ()
    """With `sticky`: first and last slot of each."""

    @property
    def mode(self) -> str:
        """As Pulsar writes it."""
        return "STICKY" if self.sticky else "AUTO_SPLIT"


class Delivery(NamedTuple):
    """Entries that one consumer is to be sent, and the messages in them."""

    consumer: "AttachedConsumer"
    entries: list[Delivered]
    messages: int


class Outlet(Protocol):
    """What a consumer or producer needs of its connection."""

    writable: bool
    closed: bool
    remote_address: str
    client_version: str

    def write(self, data: bytes) -> None: ...
    def write_all(self, parts: list[bytes], size: int) -> None: ...
    def consumer_closed(self, consumer: "AttachedConsumer") -> None: ...
    async def check_alive(self) -> bool: ...


class SentMeter(Meter):
    """What a consumer was sent."""

    __slots__ = ("chunks",)

    def __init__(self, now_s: float) -> None:
        super().__init__(now_s)
        self.chunks = Meter(now_s)
        """The entries of it that are chunks of a larger message."""


class ConsumerTimes:
    """When what happened, in milliseconds since the epoch; 0: never."""

    __slots__ = (
        "connected_ms",
        "first_flow_ms",
        "first_sent_ms",
        "last_acknowledged_ms",
        "last_flow_ms",
        "last_sent_ms",
    )

    def __init__(self, connected_ms: int) -> None:
        self.connected_ms = connected_ms
        self.first_flow_ms = self.last_flow_ms = 0
        self.first_sent_ms = self.last_sent_ms = 0
        self.last_acknowledged_ms = 0

    def flow(self, now_ms: int) -> None:
        """The consumer asked for messages."""
        self.last_flow_ms = now_ms
        if not self.first_flow_ms:
            self.first_flow_ms = now_ms

    def sent(self, now_ms: int) -> None:
        """The consumer was sent messages."""
        self.last_sent_ms = now_ms
        if not self.first_sent_ms:
            self.first_sent_ms = now_ms


class AttachedConsumer:
    """One consumer. `permits`, `pending` and `unacked_messages` are changed by the dispatcher."""

    read_compacted: ClassVar[bool] = False
    """Whether it gets a compacted topic's messages from the compacted ledger."""
    takes_any_schema = False
    """Whether its client decodes by whatever schema the topic has (AUTO_CONSUME). Set when it is attached."""
    marks_first_deliveries = False
    """Whether its client wants to be told which deliveries are first ones. Set when it is attached."""

    def __init__(
        self,
        connection: Outlet,
        consumer_id: int,
        name: str,
        *,
        priority_level: int = 0,
        partition: int = -1,
        epoch: int | None = None,
        metadata: Mapping[str, str] | None = None,
        connected_since_ms: int = 0,
        now_s: float = 0.0,
    ) -> None:
        self.connection = connection
        self.consumer_id = consumer_id
        self.name = name
        self.priority_level = priority_level
        self.epoch = epoch
        self.metadata = dict(metadata or {})
        self.times = ConsumerTimes(connected_since_ms)
        self.permits = 0
        self.pending: dict[Position, int] = {}
        self.unacked_messages = 0
        self.blocked = False
        self.closed = False
        self.at_end = False
        """Whether its client knows that nothing more will come."""
        self.listens = False
        """Whether its client takes what the broker says of its own accord. The Go client drops what comes right behind
        the answer to its SUBSCRIBE."""
        self._unsaid: bool | None = None
        """What `announce` had to say before the client listened."""
        self.out = SentMeter(now_s)
        self.redelivered = Meter(now_s)
        self.acknowledged = Meter(now_s)
        self.key_shared = KeySharedOptions()
        self._partition = partition

    @property
    def able(self) -> bool:
        """Whether it may get entries now."""
        return self.permits > 0 and not self.blocked and not self.closed and self.connection.writable

    def charge(self, entries: list[Delivered], messages: int, unacked_messages_max: int) -> None:
        """Entries are about to be sent: they cost permits and are unacknowledged from now on."""
        self.permits -= messages
        self.unacked_messages += messages
        pending = self.pending
        for position, _, count, _ in entries:
            pending[position] = count
        if unacked_messages_max and self.unacked_messages >= unacked_messages_max:
            self.blocked = True

    def settle(self, messages: int, unacked_messages_max: int) -> bool:
        """Messages left `pending`. Returns whether that ends its being blocked."""
        self.unacked_messages -= messages
        if self.blocked and self.unacked_messages <= unacked_messages_max // 2:
            self.blocked = False
            return True
        return False

    def reconsider(self, unacked_messages_max: int) -> None:
        """The bound has changed: whether it blocks the consumer follows from what the consumer holds."""
        self.blocked = 0 < unacked_messages_max <= self.unacked_messages

    def give_back(self, positions: Iterable[Position], unacked_messages_max: int) -> list[Position]:
        """Those of the entries that it holds, which it holds no longer.

        Whether it is blocked is decided again, as in Pulsar. If it had to acknowledge half of the bound first, it would
        never get back the one entry that it gives back.
        """
        back: list[Position] = []
        for position in positions:
            count = self.pending.pop(position, None)
            if count is not None:
                self.unacked_messages -= count
                back.append(position)
        if back:
            self.reconsider(unacked_messages_max)
        return back

    def take_pending(self) -> list[Position]:
        """All that it holds, in order; it holds nothing afterwards."""
        positions = sorted(self.pending)
        self.pending.clear()
        self.unacked_messages = 0
        self.blocked = False
        return positions

    def deliver(
        self,
        delivery: Delivery,
        now_ms: int,
        ack_set_of: Callable[[Position], list[int] | None] | None = None,
        first_behind: Position | None = None,
    ) -> None:
        """Write the entries to the connection, as the producers sent them.

        `ack_set_of` says which messages of a partly acknowledged batch are open; None while there is no such batch.
        What lies behind `first_behind` comes for the first time; None where nobody knows.
        """
        parts: list[bytes] = []
        headers_size = entries_size = 0
        consumer_id, partition = self.consumer_id, self._partition
        behind = first_behind if self.marks_first_deliveries else None
        end = message_end(self.epoch)
        end_of_first = end if behind is None else message_end(self.epoch, first_delivery=True)
        for position, body, count, redeliveries in delivery.entries:
            ack_set = None if ack_set_of is None else ack_set_of(position)
            ends = end if behind is None or position <= behind else end_of_first
            header = message_header(consumer_id, *position, partition, redeliveries, ack_set, len(body), end=ends)
            parts.append(header)
            parts.append(body)
            headers_size += len(header)
            entries_size += len(body)
            if redeliveries:
                self.redelivered.add(count, len(body))
        self.out.add(delivery.messages, entries_size, len(delivery.entries))
        self.times.sent(now_ms)
        self.connection.write_all(parts, headers_size + entries_size)

    def note_acknowledged(self, entries: int, now_ms: int) -> None:
        """It acknowledged so many entries: for its statistics."""
        self.acknowledged.add(entries, 0)
        self.times.last_acknowledged_ms = now_ms

    def announce(self, active: bool) -> bool:
        """The active consumer of the Failover subscription has changed: tell the client, as soon as it listens. Returns
        whether news begin to wait for that."""
        if self.listens:
            self.tell_active(active)
            return False
        begins = self._unsaid is None
        self._unsaid = active
        return begins

    def listen(self) -> None:
        """The client has asked for messages for the first time, or had long enough to do so."""
        self.listens = True
        unsaid, self._unsaid = self._unsaid, None
        if unsaid is not None and not self.closed:
            self.tell_active(unsaid)

    def tell_active(self, active: bool) -> None:
        """Tell the client whether its consumer is the active one of a Failover subscription."""
        self.connection.write(encode(CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=active)))

    def tell_end(self) -> None:
        """Tell the client, once, that the topic was terminated and that there is nothing left for its consumer."""
        if not self.at_end:
            self.at_end = True
            self.connection.write(encode(CommandReachedEndOfTopic(consumer_id=self.consumer_id)))

    def figures(self, now_s: float, key_shared: KeySharedFigures | None = None) -> ConsumerFigures:
        out = self.out
        return ConsumerFigures(
            name=self.name,
            address=self.connection.remote_address,
            client_version=self.connection.client_version,
            connected_since_ms=self.times.connected_ms,
            metadata=self.metadata,
            messages=out.messages,
            bytes=out.bytes,
            message_rate=out.message_rate(now_s),
            byte_rate=out.byte_rate(now_s),
            redelivery_rate=self.redelivered.message_rate(now_s),
            chunk_rate=out.chunks.message_rate(now_s),
            acknowledge_rate=self.acknowledged.message_rate(now_s),
            messages_per_entry=round(out.messages / out.entries) if out.entries else 0,
            permits=self.permits,
            unacked_messages=self.unacked_messages,
            blocked=self.blocked,
            last_consumed_ms=self.times.last_sent_ms,
            last_acknowledged_ms=self.times.last_acknowledged_ms,
            last_flow_ms=self.times.last_flow_ms,
            first_consumed_ms=self.times.first_sent_ms,
            first_flow_ms=self.times.first_flow_ms,
            key_shared=key_shared,
        )


class CompactedReader(AttachedConsumer):
    """A consumer that reads a compacted topic."""

    read_compacted = True
