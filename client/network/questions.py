"""How questions to other brokers follow each other while the broker of one connection is silent; see `liveness`."""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Protocol

from ...protocol.addresses import Address
from ...protocol.errors import MagnetarError
from ...protocol.topics import TopicName
from .requests import PendingRequests

ASKING_PAUSE_S = 0.5
ASKING_PAUSE_MAX_S = 5.0
EAGER_QUESTIONS = 10
"""So many questions follow each other without longer pauses. A topic of a lost broker moves meanwhile."""


class OfTopic(Protocol):
    """A producer or consumer on the connection."""

    @property
    def topic(self) -> TopicName: ...


class Sent(Protocol):
    """An entry without a receipt."""

    first_sequence_id: int


class SendingEndpoint(OfTopic, Protocol):
    """A producer on the connection."""

    @property
    def inflight(self) -> Sequence[Sent]:
        """The entries without a receipt, in their order."""
        ...


class WatchedConnection(Protocol):
    """A connection, as it is seen from here."""

    heard_at: float
    chunks: int
    """How many chunks of bytes have come."""
    closed: bool
    address: Address
    requests: PendingRequests

    @property
    def producers(self) -> Mapping[int, SendingEndpoint]: ...
    @property
    def consumers(self) -> Mapping[int, OfTopic]: ...
    @property
    def watchers(self) -> Collection[int]: ...
    def write(self, data: bytes) -> None: ...
    def unacknowledged_s(self) -> float: ...
    def acknowledged_bytes(self) -> int | None: ...
    def close(self, reason: MagnetarError | None = None) -> None: ...


Elsewhere = Callable[[str, bool], Awaitable[str]]
"""From a topic, and whether the connection may be dead: what another broker says against staying; empty if nothing."""
Start = Callable[[Coroutine[object, object, None], str], object]
"""Starts a task with that name."""


class Questions:
    """How the questions to other brokers follow each other."""

    def __init__(self) -> None:
        self.elsewhere: Elsewhere | None = None
        self.start: Start | None = None
        self.under_way = False
        self.next_at = 0.0
        self.stuck_pause_s = 0.0
        self._pause_s = ASKING_PAUSE_S
        self._asked = 0
        self._turn = 0

    def begin(self, now: float) -> None:
        """The broker has just fallen silent."""
        self.next_at = now
        self._pause_s = ASKING_PAUSE_S
        self._asked = 0

    def pause_s(self) -> float:
        """The pause after the question that is asked now."""
        self._asked += 1
        if self._asked > EAGER_QUESTIONS:
            self._pause_s = min(2 * self._pause_s, ASKING_PAUSE_MAX_S)
        return self._pause_s

    def choose(self, connection: WatchedConnection, producer_id: int | None) -> tuple[int, OfTopic] | None:
        """What to ask about: that producer, or the next one of those that wait, or else of all that are there."""
        if producer_id is not None:
            return producer_id, connection.producers[producer_id]
        waiting = [(number, one) for number, one in connection.producers.items() if one.inflight]
        found = waiting or [*connection.consumers.items(), *connection.producers.items()]
        self._turn += 1
        return found[self._turn % len(found)] if found else None
