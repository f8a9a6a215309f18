"""What topics have in common, whichever way they keep their messages: `persistent` and `non_persistent`.

Connections attach producers (`publishing`) and consumers (`subscription`), members of the cluster ask for figures and
move subscriptions, and `loaded_topics` closes what has moved. They take both kinds (`loaded_topics.Topic`).

States of a topic:

- *open*: it takes clients.
- *fenced*: an entry was not stored. Nothing more is taken until nothing is pending. Then the topic sends the producers
  away, to come back and resend, and is *open* again.
- *terminating*: the topic is about to end for ever. Nothing more is taken. Then it is *open* again, and its stages
  refuse every entry; if that fails it closes, and what is stored tells when it is loaded again.
- *closing*: the ownership is lost, the topic is unloaded, or another owner has fenced the ledger.
- *closed*, which is final. A client that needs the topic after that makes `loaded_topics` load it again where it
  belongs.
"""

import enum
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from ...protocol.errors import ServiceUnitNotReady
from ...protocol.message_id import Position, WireMessageId
from ...protocol.topics import TopicName
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from ...storage.metadata.store import Guard
from ..dispatch.failover import HeldTopics
from ..dispatch.message_counts import MessageCounts
from ..rates.subscribe import SubscribeRates
from .feature import FeatureKinds
from .traffic import Traffic

DRAIN_TIMEOUT_S = 3.0

_T = TypeVar("_T")


class TopicState(enum.Enum):
    """See the module."""

    OPEN = "open"
    FENCED = "fenced"
    TERMINATING = "terminating"
    CLOSING = "closing"
    CLOSED = "closed"


TRANSITIONS = {
    TopicState.OPEN: frozenset({TopicState.FENCED, TopicState.TERMINATING, TopicState.CLOSING}),
    TopicState.FENCED: frozenset({TopicState.OPEN, TopicState.CLOSING}),
    TopicState.TERMINATING: frozenset({TopicState.OPEN, TopicState.CLOSING}),
    TopicState.CLOSING: frozenset({TopicState.CLOSED}),
    TopicState.CLOSED: frozenset[TopicState](),
}


class SubscriptionStart(NamedTuple):
    """Where a subscription begins that does not exist yet.

    The first of these that is given: `position` (inclusive), `publish_time_ms` (the first message published then or
    later), `rollback_s` (that far back in time), `start_message_id` (non-durable only), `earliest`, the end of the
    topic.

    A `start_message_id` names an entry, and delivery begins with that entry, whatever batch index it carries. The
    broker cannot know which messages of the entry the client has: clients drop what they do not want. As in Pulsar, an
    id behind the end of the topic counts as none.
    """

    earliest: bool = False
    start_message_id: WireMessageId | None = None
    rollback_s: int = 0
    position: Position | None = None
    publish_time_ms: int | None = None
    compacted: bool = False
    """Whether its consumer reads the compacted ledger."""


PrepareSubscription = Callable[[TopicName, str, SubscriptionStart, Mapping[str, str]], Awaitable[Guard | None]]
"""Has a subscription created on the partitions that its client may not know (see `coordinator.topic_growth`). Returns
the condition on which it may then be created on partition 0."""


@dataclass(frozen=True)
class CommonState:
    """What the topics of one broker have in common."""

    counts: MessageCounts = field(default_factory=MessageCounts)
    traffic: Traffic = field(default_factory=Traffic)
    held_topics: HeldTopics = field(default_factory=HeldTopics)
    subscribes: SubscribeRates = field(default_factory=SubscribeRates)
    """How often consumers subscribe."""
    prepare: PrepareSubscription | None = None
    """Called before a durable subscription is created on partition 0 of a topic."""
    left: Callable[[TopicName], None] = lambda name: None
    """Called when a client has left a topic."""
    features: FeatureKinds = ()
    """The table of features."""
    _shared: dict[type, object] = field(default_factory=dict[type, object], init=False)

    def shared(self, kind: type[_T]) -> _T:
        """What a feature shares between the topics of a broker: the one object of a class, made when it is first
        asked for."""
        return cast(_T, self._shared.get(kind) or self._shared.setdefault(kind, kind()))


class TopicLife:
    """The states of a topic, and the tasks that end with it: what all implementations share."""

    def __init__(self, name: TopicName) -> None:
        self.name = name
        self.state = TopicState.OPEN
        self._full_name = name.full
        self._tasks = Tasks()

    @property
    def is_open(self) -> bool:
        """Whether the topic takes clients."""
        return self.state is TopicState.OPEN

    @property
    def has_tasks(self) -> bool:
        """Whether something is under way for the topic."""
        return len(self._tasks) > 0

    def check_open(self) -> None:
        """Raise ServiceUnitNotReady unless the topic takes clients."""
        if self.state is not TopicState.OPEN:
            raise ServiceUnitNotReady(f"{self.name.full} is {self.state.value}")

    def begin_to_close(self) -> bool:
        """Take no client from now on. `close` follows. Returns whether the topic did not close already."""
        if self.state in (TopicState.CLOSING, TopicState.CLOSED):
            return False
        self._become(TopicState.CLOSING)
        return True

    def spawn(self, coroutine: Coroutine[object, object, object], name: str) -> None:
        """Start a task that ends with the topic at the latest."""
        self._tasks.spawn(coroutine, f"{name} {self._full_name}")

    def _become(self, state: TopicState) -> None:
        check_transition(TRANSITIONS, self.name.full, self.state, state)
        self.state = state
