"""What a broker offers about the topics that it owns to the coordinator, the admin and readers over the internal RPC.

Topics are named in full. Each method raises ServiceUnitNotReady for a topic that this broker does not own, so that the
caller asks the coordinator again.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.topic_figures import CompactionFigures, StorageFigures, TopicFigures
from ...runtime.rpc.contract import method
from ...storage.ledger.bookie_directory import BookieInfo
from .contracts_coordinator import TopicGrant
from .contracts_messages import MessageContract
from .contracts_schemas import SchemaContract
from .contracts_topics import Point as Point
from .permissions import ADMIN, COORDINATOR, READER

PIN_TTL_DEFAULT_S = 600.0
RELEASE_TIMEOUT_S = 5.0
DELETE_TIMEOUT_S = 60.0


class Place(NamedTuple):
    """An entry of a topic."""

    ledger: int
    entry: int


class LastMessage(NamedTuple):
    """The last message of a topic, −1 each where there is none."""

    ledger: int
    entry: int
    partition: int
    batch_index: int


@dataclass(frozen=True)
class PlannedRead:
    """What a bulk read of a topic needs. `first` and `last` are inclusive; first > last: there is nothing to read.

    `ledgers` are packed LedgerMetadata in order. `pin` keeps them, and is None when there is nothing to keep.
    `compacted` is that of the compacted ledger, which is read first; None without one.
    """

    first: Place
    last: Place
    ledgers: list[bytes]
    pin: str | None
    partition: int
    epoch: int
    bookies: list[BookieInfo]
    compacted: bytes | None = None


class BrokerContract(SchemaContract, MessageContract):
    """See the module."""

    # -- figures -------------------------------------------------------------------------------------------------

    @method(ADMIN)
    async def topic_stats(self, *, topic: str) -> TopicFigures:
        """Pulsar's topic statistics."""
        ...

    @method(ADMIN | COORDINATOR)
    async def internal_stats(self, *, topic: str) -> StorageFigures:
        """Pulsar's internal statistics: ledgers and cursors."""
        ...

    @method(ADMIN | READER)
    async def last_message_id(self, *, topic: str) -> LastMessage:
        """Where the topic ends now."""
        ...

    # -- subscriptions -------------------------------------------------------------------------------------------

    @method(ADMIN | COORDINATOR)
    async def create_subscription(
        self, *, topic: str, subscription: str, position: Point = "latest", properties: dict[str, str] | None = None
    ) -> None:
        """Create a durable subscription at a place. Raises NotAllowedError when it exists."""
        ...

    @method(ADMIN)
    async def delete_subscription(self, *, topic: str, subscription: str, force: bool = False) -> None:
        """Raises SubscriptionNotFound; BrokerMetadataError while consumers are connected, unless forced."""
        ...

    @method(ADMIN)
    async def reset_cursor(
        self, *, topic: str, subscription: str, position: Point, batch_index: int = -1, excluded: bool = False
    ) -> None:
        """Move a subscription to a place (inclusive, or behind it). Raises SubscriptionNotFound, and NoSuchEntry where
        an index in a batch names no entry."""
        ...

    @method(ADMIN)
    async def set_subscription_properties(self, *, topic: str, subscription: str, properties: dict[str, str]) -> None:
        """Replace the properties of a subscription. Raises SubscriptionNotFound, InvalidConfiguration."""
        ...

    @method(ADMIN)
    async def skip_all(self, *, topic: str, subscription: str) -> None:
        """Acknowledge the whole backlog. Raises SubscriptionNotFound."""
        ...

    @method(ADMIN)
    async def expire_messages(self, *, topic: str, age_s: int, subscription: str = "") -> int:
        """Count messages that were published longer ago as acknowledged, at one durable subscription or (without a
        name) at all. Returns how many entries that were. Raises SubscriptionNotFound."""
        ...

    # -- topics --------------------------------------------------------------------------------------------------

    @method(COORDINATOR, timeout_s=RELEASE_TIMEOUT_S)
    async def release(self, *, number: int, slots: list[int], topics: list[str]) -> None:
        """Close these topics and all in these slots: they are about to move, or deleted. Grants with a lower number
        than this release are void."""
        ...

    @method(COORDINATOR, timeout_s=RELEASE_TIMEOUT_S)
    async def unload(self, *, topic: str, number: int, inactive: bool = False) -> None:
        """Close a topic that is about to be deleted. Grants of it with a lower number than this release are void.

        Raises NotAllowedError, and closes nothing, while a client is connected. With `inactive` also while the topic
        is not inactive.
        """
        ...

    @method(COORDINATOR)
    async def take_topics(self, *, grants: list[TopicGrant]) -> None:
        """Load these topics: they were released, and are not deleted after all."""
        ...

    @method(COORDINATOR)
    async def is_inactive(self, *, topic: str) -> bool:
        """Whether a topic is loaded here and inactive: nobody has used it for as long as its policy says."""
        ...

    @method(COORDINATOR)
    async def lacking_copies(self) -> int:
        """How many ledgers that the broker writes get fewer copies than configured. They move by themselves."""
        ...

    @method(COORDINATOR, timeout_s=DELETE_TIMEOUT_S)
    async def delete_topics(self, *, topics: list[tuple[str, int]]) -> None:
        """Delete all that these topics store, each under the epoch beside its name. Raises the first error."""
        ...

    @method(ADMIN, timeout_s=RELEASE_TIMEOUT_S)
    async def check_health(self) -> float:
        """Store an entry in the broker's topic `heartbeat` and read it again. Returns how many seconds that took."""
        ...

    # -- compaction ----------------------------------------------------------------------------------------------

    @method(ADMIN)
    async def compact(self, *, topic: str) -> None:
        """Begin to compact a topic. Raises NotAllowedError while that is under way."""
        ...

    @method(ADMIN)
    async def compaction_status(self, *, topic: str) -> CompactionFigures:
        """How the last compaction of a topic went."""
        ...

    # -- bulk reads ----------------------------------------------------------------------------------------------

    @method(ADMIN | READER)
    async def plan_read(
        self,
        *,
        topic: str,
        start: Point = "earliest",
        end: Point = "latest",
        ttl_s: float = PIN_TTL_DEFAULT_S,
        compacted: bool = False,
    ) -> PlannedRead:
        """Where a topic begins and ends now, and its ledgers in between, pinned for `ttl_s` seconds.

        With `compacted` also its compacted ledger, and of the log only what is behind that.
        """
        ...

    @method(ADMIN | READER)
    async def prolong_pin(self, *, topic: str, pin: str, ttl_s: float) -> bool:
        """Let a pin last `ttl_s` seconds from now on. Returns whether it is still there."""
        ...

    @method(ADMIN | READER)
    async def unpin(self, *, topic: str, pin: str) -> None:
        """The planned read has ended. Nothing happens when the pin has expired."""
        ...
