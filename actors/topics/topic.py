"""What the rest of a broker sees of a topic, whichever way the topic keeps its messages.

Connections attach producers (`publishing`) and consumers (`subscription`), members of the cluster ask for figures and
move subscriptions, and `loaded_topics` closes what has moved. They know this protocol only. Implementations:
`persistent`.

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

import asyncio
import enum
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...protocol.errors import ServiceUnitNotReady
from ...protocol.message_id import Position, WireMessageId
from ...protocol.topic_figures import TopicFigures
from ...protocol.topics import TopicName
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from ...storage.metadata.store import Guard
from ..compaction.topic_compaction import RUNNING_MAX
from ..dispatch.failover import HeldTopics
from ..keeping.checks import TopicChecks
from ..policies.effective import EffectivePolicies
from ..rates.subscribe import SubscribeRates
from .message_counts import MessageCounts
from .producer import PublishTarget
from .subscription_members import SubscriptionMembers

DRAIN_TIMEOUT_S = 3.0


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


class Topic(Protocol):
    """One topic, or one partition, on its owner broker. See the module."""

    @property
    def name(self) -> TopicName: ...

    @property
    def epoch(self) -> int:
        """The epoch of the ownership under which it was loaded."""
        ...

    @property
    def state(self) -> TopicState: ...

    @property
    def in_use(self) -> bool:
        """Whether a producer or a consumer is connected."""
        ...

    @property
    def policies(self) -> EffectivePolicies:
        """What holds for it now."""
        ...

    @property
    def keeping(self) -> TopicChecks:
        """What its broker checks now and then."""
        ...

    @property
    def has_messages(self) -> bool:
        """Whether it stores messages. Of one that stores none, whether it has passed some on."""
        ...

    @property
    def publishing(self) -> PublishTarget:
        """Its producers, and the way of their entries."""
        ...

    @property
    def subscriptions(self) -> Mapping[tuple[str, bool], SubscriptionMembers]:
        """By name and whether it is durable: a durable and a non-durable one may share a name."""
        ...

    def use_policies(self, policies: EffectivePolicies) -> None:
        """These hold from now on; clients that are there already stay."""
        ...

    async def subscription(
        self,
        name: str,
        *,
        durable: bool,
        start: SubscriptionStart,
        properties: Mapping[str, str] | None = None,
        create: bool = True,
    ) -> SubscriptionMembers:
        """The subscription of that name, created if need be.

        Raises SubscriptionNotFound without `create`, ServiceUnitNotReady, and what writing the cursor raises.
        """
        ...

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Remove a durable subscription. Raises SubscriptionNotFound; BrokerMetadataError while it has consumers,
        unless forced."""
        ...

    async def last_message_id(self, *, compacted: bool = False) -> WireMessageId:
        """Id of the last message, with the index of the last one in a batch; earliest if there is none. With
        `compacted` it is the last one that a reader of the compacted topic gets."""
        ...

    def describe(self) -> TopicFigures:
        """Its figures, for the admin."""
        ...

    def check(self) -> None:
        """Called now and then; see Subscription.check."""
        ...

    def begin_to_close(self) -> bool:
        """Take no client from now on. `close` follows. Returns whether the topic did not close already."""
        ...

    async def close(self, *, drain_s: float = DRAIN_TIMEOUT_S) -> None:
        """Stop taking publishes, complete those under way (for at most `drain_s`), send all clients away, and let go
        of what is stored. Concurrent callers wait for the first one."""
        ...


@dataclass(frozen=True)
class CommonState:
    """What the topics of one broker have in common."""

    counts: MessageCounts = field(default_factory=MessageCounts)
    held_topics: HeldTopics = field(default_factory=HeldTopics)
    subscribes: SubscribeRates = field(default_factory=SubscribeRates)
    """How often consumers subscribe."""
    prepare: PrepareSubscription | None = None
    """Called before a durable subscription is created on partition 0 of a topic."""
    left: Callable[[TopicName], None] = lambda name: None
    """Called when a client has left a topic."""
    compactions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RUNNING_MAX))
    """Held by each compaction that runs."""


class TopicLife:
    """The states of a topic, and the tasks that end with it: what all implementations share."""

    def __init__(self, name: TopicName) -> None:
        self.name = name
        self.state = TopicState.OPEN
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
        self._tasks.spawn(coroutine, f"{name} {self.name.full}")

    def _become(self, state: TopicState) -> None:
        check_transition(TRANSITIONS, self.name.full, self.state, state)
        self.state = state
