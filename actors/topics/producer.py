"""A producer attached to a topic, and one of its publishes under way.

States of a producer's session:

- *open*: its entries are taken.
- *refused*: one of its entries cannot be stored as it is. Nothing later is taken; the entries before it are completed.
- *failed*: one of its entries was not stored. Nothing later of this session is acknowledged, and the topic disconnects
  the producer. A refused session fails, too, when one of the entries before the refused one is not stored.
- *closed*, which is final: by the client, by the end of its connection, or by the topic.
"""

import asyncio
import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from ...protocol.errors import MagnetarError
from ...protocol.message_id import Position
from ...protocol.topic_figures import ProducerFigures
from ...runtime.meter import Meter
from ...runtime.transitions import check_transition
from ..dispatch.consumer import Outlet
from ..rates.publish import Holdable
from .access_modes import SHARED_REQUEST, AccessMode, AccessRequest

if TYPE_CHECKING:
    from .publishing import Publishing

Turn = Callable[[MagnetarError | None], None]
"""Tells a producer that waited that it may publish now, or why it never will."""


class ProducerState(enum.Enum):
    """The state of a producer's session; see the module."""

    OPEN = "open"
    REFUSED = "refused"
    FAILED = "failed"
    CLOSED = "closed"


TRANSITIONS = {
    ProducerState.OPEN: frozenset({ProducerState.REFUSED, ProducerState.FAILED, ProducerState.CLOSED}),
    ProducerState.REFUSED: frozenset({ProducerState.FAILED, ProducerState.CLOSED}),
    ProducerState.FAILED: frozenset({ProducerState.CLOSED}),
    ProducerState.CLOSED: frozenset[ProducerState](),
}


class PublishOutlet(Outlet, Holdable, Protocol):
    """A connection, as a producer sees it: it also bounds the publishes under way."""

    def producer_closed(self, producer: "AttachedProducer") -> None: ...
    def publish_began(self, size_bytes: int) -> None: ...
    def publish_ended(self, size_bytes: int) -> None: ...


class AttachedProducer:
    """One producer session."""

    def __init__(
        self,
        publishing: "Publishing",
        connection: PublishOutlet,
        producer_id: int,
        name: str,
        *,
        user_provided_name: bool,
        encrypted: bool = False,
        asks: AccessRequest = SHARED_REQUEST,
        metadata: Mapping[str, str] | None = None,
        connected_since_ms: int = 0,
        now_s: float = 0.0,
    ) -> None:
        self.publishing = publishing
        self.connection = connection
        self.producer_id = producer_id
        self.name = name
        self.user_provided_name = user_provided_name
        self.encrypted = encrypted
        """Whether its client says that it encrypts."""
        self.asks = asks
        self.topic_epoch = asks.topic_epoch
        """Of its grant, or the topic's when it was admitted as Shared; None if the topic never had one."""
        self.metadata = dict(metadata or {})
        self.schema_version = b""
        """As it travels; empty for a producer without a schema."""
        self.connected_since_ms = connected_since_ms
        self.pending = 0
        self.state = ProducerState.OPEN
        self.refusal: tuple[int, MagnetarError] | None = None
        """Sequence id and error of the entry that cannot be stored."""
        self.published = Meter(now_s)
        self.chunks = Meter(now_s)
        """Of what was published, the entries that are chunks of a larger message."""
        self.last: Publish | None = None
        """Of a topic with stages, the entry that was admitted last."""
        self._drained: asyncio.Event | None = None

    def may_replace(self, other: "AttachedProducer") -> bool:
        """Whether this is the other one come back: the same client's next epoch. A generated name belongs to one
        client; of a chosen name it is known only within one connection. A topic epoch belongs to one producer, too."""
        if self.asks.producer_epoch <= other.asks.producer_epoch or self.asks.mode is not other.asks.mode:
            return False
        if self.asks.mode is not AccessMode.SHARED and self.asks.topic_epoch == other.topic_epoch is not None:
            return True
        if not self.user_provided_name and not other.user_provided_name:
            return True
        return self.connection is other.connection and self.producer_id == other.producer_id

    def refuse(self, sequence_id: int, error: MagnetarError) -> None:
        """An entry of an open session cannot be stored."""
        self._become(ProducerState.REFUSED)
        self.refusal = (sequence_id, error)

    def fail(self) -> None:
        """An entry was not stored."""
        self._become(ProducerState.FAILED)

    def end(self) -> None:
        """It leaves, or has left."""
        if self.state is not ProducerState.CLOSED:
            self._become(ProducerState.CLOSED)

    def _become(self, state: ProducerState) -> None:
        check_transition(TRANSITIONS, f"the session of producer {self.name}", self.state, state)
        self.state = state

    def publish_ended(self) -> None:
        """One publish less is under way."""
        self.pending -= 1
        if self.pending == 0 and self._drained is not None:
            self._drained.set()

    async def drained(self) -> None:
        """Wait until no publish is under way."""
        if self.pending:
            if self._drained is None:
                self._drained = asyncio.Event()
            self._drained.clear()
            await self._drained.wait()

    def figures(self, now_s: float) -> ProducerFigures:
        published = self.published
        return ProducerFigures(
            producer_id=self.producer_id,
            name=self.name,
            access_mode=self.asks.mode.text,
            address=self.connection.remote_address,
            client_version=self.connection.client_version,
            connected_since_ms=self.connected_since_ms,
            metadata=self.metadata,
            message_rate=published.message_rate(now_s),
            byte_rate=published.byte_rate(now_s),
            chunk_rate=self.chunks.message_rate(now_s),
            average_message_bytes=published.bytes / published.messages if published.messages else 0.0,
        )


class Publish:
    """One entry on its way into the ledger. `completed` is the callback of the append."""

    __slots__ = (
        "highest_sequence_id",
        "is_chunk",
        "is_parsed_later",
        "judged_id",
        "messages",
        "producer",
        "sequence_id",
        "size_bytes",
    )

    judged_id: int
    """What deduplication goes by, −1 for an entry that it does not judge. Set by that stage."""

    def __init__(
        self, producer: AttachedProducer, sequence_id: int, highest_sequence_id: int, messages: int, size_bytes: int
    ) -> None:
        self.producer = producer
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.messages = messages
        self.size_bytes = size_bytes
        self.is_chunk = False
        self.is_parsed_later = False

    def completed(self, position: Position | None, error: BaseException | None) -> None:
        """The ledger's answer."""
        self.producer.publishing.publish_completed(self, position, error)
