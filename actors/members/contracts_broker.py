"""What a broker offers about the topics that it owns to the coordinator, the admin and readers over the internal RPC.

Topics are named in full. Each method raises ServiceUnitNotReady for a topic that this broker does not own, so that the
caller asks the coordinator again.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ...protocol.slots import TopicGrant
from ...protocol.topic_figures import CompactionFigures, StorageFigures, TopicFigures
from ...runtime.rpc.contract import Contract, method
from ...storage.ledger.bookie_directory import BookieInfo
from .contracts_coordinator import Point as Point
from .permissions import ADMIN, COORDINATOR, READER

ANALYSIS_TIMEOUT_S = 130.0


class StoredEntry(NamedTuple):
    """An entry of a topic, as its producer sent it."""

    ledger: int
    entry: int
    data: bytes


class EntryPosition(NamedTuple):
    """The place of an entry, (−1, −1) for none."""

    ledger: int
    entry: int


@dataclass(frozen=True)
class BacklogAnalysis:
    """What a read of a subscription's backlog has found; `aborted` says that it ended at a bound.

    `first` and `last` are the places of the first and the last entry, (−1, −1) for none.
    """

    entries: int
    messages: int
    aborted: bool
    first: EntryPosition
    last: EntryPosition


class MessageContract(Contract):
    """What a broker offers about messages of the topics that it owns: end a topic, pass messages over, look at some."""

    @method(ADMIN)
    async def terminate(self, *, topic: str) -> EntryPosition:
        """Let a topic take no message from now on, for ever. Returns the place of its last entry."""
        ...

    @method(ADMIN)
    async def truncate(self, *, topic: str) -> None:
        """Acknowledge the backlog of every subscription, and delete what is no longer needed."""
        ...

    @method(ADMIN)
    async def skip(self, *, topic: str, subscription: str, entries: int) -> None:
        """Acknowledge the next entries of a subscription. Raises SubscriptionNotFound."""
        ...

    @method(ADMIN)
    async def peek(self, *, topic: str, subscription: str, number: int) -> StoredEntry:
        """An entry of the backlog of a subscription, from 1. Raises SubscriptionNotFound, NoSuchEntry."""
        ...

    @method(ADMIN)
    async def examine(self, *, topic: str, number: int, from_latest: bool = False) -> StoredEntry:
        """An entry of a topic, from 1, counted from its first or its last one. Raises NoSuchEntry."""
        ...

    @method(ADMIN)
    async def entry_at(self, *, topic: str, ledger: int, entry: int) -> StoredEntry:
        """An entry of a topic. Raises NoSuchEntry."""
        ...

    @method(ADMIN)
    async def bytes_after(self, *, topic: str, ledger: int, entry: int) -> int:
        """How many bytes a topic stores behind an entry."""
        ...

    @method(ADMIN)
    async def find_entry(self, *, topic: str, publish_time_ms: int) -> EntryPosition:
        """Where the first entry is that was published then or later, else where the next one will be."""
        ...

    @method(ADMIN)
    async def trim(self, *, topic: str) -> None:
        """Delete the ledgers that no cursor, no reader and no retention needs. Raises what trimming raises."""
        ...

    @method(ADMIN, timeout_s=ANALYSIS_TIMEOUT_S)
    async def analyze_backlog(
        self, *, topic: str, subscription: str, position: list[int] | None = None
    ) -> BacklogAnalysis:
        """Read the backlog of a subscription, from a place on, and count. Raises SubscriptionNotFound."""
        ...


@dataclass(frozen=True)
class SchemaRow:
    """One version of a topic's schema. `type` is the number of Pulsar's protocol."""

    version: int
    type: int
    data: bytes
    created_ms: int
    properties: dict[str, str] = field(default_factory=dict[str, str])


class SchemaContract(Contract):
    """What any broker offers to the admin about schemas: it reads and writes them wherever their topic is.

    A bulk reader reads them.
    """

    @method(ADMIN | READER)
    async def schemas(self, *, topic: str) -> list[SchemaRow]:
        """The versions since the last deletion, oldest first."""
        ...

    @method(ADMIN)
    async def put_schema(self, *, topic: str, type: int, data: bytes, properties: dict[str, str]) -> int:
        """Add a schema, whether or not clients may, and return its version. Raises IncompatibleSchema, TopicNotFound
        (no such namespace).
        """
        ...

    @method(ADMIN)
    async def find_schema(self, *, topic: str, type: int, data: bytes) -> int:
        """The version that has exactly this definition, −1 for none."""
        ...

    @method(ADMIN)
    async def check_schema(self, *, topic: str, type: int, data: bytes, properties: dict[str, str]) -> str:
        """The strategy by which the topic may get a schema. Raises IncompatibleSchema."""
        ...

    @method(ADMIN)
    async def delete_schemas(self, *, topic: str, force: bool = False) -> int:
        """Delete all versions and return the version of the deletion. Raises TopicNotFound (no such namespace)."""
        ...


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

    `ledgers` are packed LedgerMetadata in order, perhaps with some before `first`. `pin` keeps them, and is None when
    there is nothing to keep. `compacted` is that of the compacted ledger, which is read first; None without one.
    `open_entry_bytes` is the size of an entry of the ledger that is still open, on average, and 0 if it has none.
    """

    first: Place
    last: Place
    ledgers: list[bytes]
    pin: str | None
    partition: int
    epoch: int
    bookies: list[BookieInfo]
    compacted: bytes | None = None
    open_entry_bytes: int = 0


class OwnerContract(Contract):
    """What only the owner of a topic can answer."""

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
        """Create a durable subscription at a place. Raises NotAllowedError when it exists, or its name is too long."""
        ...

    @method(ADMIN)
    async def delete_subscription(self, *, topic: str, subscription: str, force: bool = False) -> None:
        """Raises SubscriptionNotFound; BrokerMetadataError while consumers are connected, unless forced."""
        ...

    @method(ADMIN)
    async def reset_cursor(
        self, *, topic: str, subscription: str, position: Point, batch_index: int = -1, excluded: bool = False
    ) -> None:
        """Move a subscription to a place (inclusive, or behind it), as a consumer's seek does. Raises
        SubscriptionNotFound, and NoSuchEntry where an index in a batch names no entry."""
        ...

    @method(ADMIN)
    async def set_subscription_properties(self, *, topic: str, subscription: str, properties: dict[str, str]) -> None:
        """Replace the properties of a subscription. Raises SubscriptionNotFound, InvalidConfiguration.

        They are durable when this returns: the cursor writes them with the place where it is.
        """
        ...

    @method(ADMIN)
    async def skip_all(self, *, topic: str, subscription: str) -> None:
        """Acknowledge the whole backlog. Raises SubscriptionNotFound."""
        ...

    @method(ADMIN)
    async def expire_messages(self, *, topic: str, age_s: int, subscription: str = "") -> int:
        """Count messages that were published longer ago as acknowledged, at one durable subscription or (without a
        name) at all. Returns how many entries that were. Raises SubscriptionNotFound; InvalidConfiguration for a
        negative age.
        """
        ...

    @method(COORDINATOR)
    async def lacking_copies(self) -> int:
        """How many ledgers that the broker writes get fewer copies than configured. They move by themselves."""
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
        before_bytes: int = 0,
    ) -> PlannedRead:
        """Where a topic begins and ends now, and its ledgers in between, pinned for `ttl_s` seconds.

        With `compacted` also its compacted ledger, and of the log only what is behind that. With `before_bytes` also
        the ledgers before `start` that have about so many bytes. Raises NotAllowedError for a non-persistent topic,
        InvalidConfiguration for a negative number.
        """
        ...

    @method(ADMIN | READER)
    async def prolong_pin(self, *, topic: str, pin: str, ttl_s: float) -> bool:
        """Let a pin last `ttl_s` seconds from now on, by this broker's clock. Returns whether it is still there."""
        ...

    @method(ADMIN | READER)
    async def unpin(self, *, topic: str, pin: str) -> None:
        """The planned read has ended. Nothing happens when the pin has expired."""
        ...


class OwnershipContract(Contract):
    """What the coordinator asks of the owner of topics: to release them, take them back, delete what they store."""

    @method(COORDINATOR, timeout_s=RELEASE_TIMEOUT_S)
    async def release(self, *, number: int, slots: list[int], topics: list[str]) -> None:
        """Close these topics and all in these slots: they are about to move, or deleted. Grants with a lower number
        than this release are void. What has a later grant, or a later entry, stays: the request has come late.

        Raises ServiceUnitNotReady, and closes nothing, when the coordinator that asks is superseded.
        """
        ...

    @method(COORDINATOR, timeout_s=RELEASE_TIMEOUT_S)
    async def unload(self, *, topic: str, number: int, inactive: bool = False) -> None:
        """Close a topic that is about to be deleted. Grants of it with a lower number than this release are void.

        Raises NotAllowedError, and closes nothing, while a client is connected. With `inactive` also while the topic
        is not inactive. Raises what `release` raises.
        """
        ...

    @method(COORDINATOR)
    async def take_topics(self, *, grants: list[TopicGrant]) -> None:
        """Load these topics: they were released, and are not deleted after all."""
        ...

    @method(COORDINATOR)
    async def is_inactive(self, *, topic: str) -> bool:
        """Whether a topic is loaded here and inactive: nobody has used it for as long as its policy says. One that is
        not persistent, and not loaded, is inactive.
        """
        ...

    @method(COORDINATOR, timeout_s=DELETE_TIMEOUT_S)
    async def delete_topics(self, *, topics: list[tuple[str, int]]) -> None:
        """Delete all that these topics store, each under the epoch beside its name; no broker can open them.

        A topic that was created again since has a greater epoch: nothing of it is closed or deleted. Every one of them
        is tried. Raises the first error.
        """
        ...


class HealthContract(Contract):
    """The health check of a broker."""

    @method(ADMIN, timeout_s=RELEASE_TIMEOUT_S)
    async def check_health(self) -> float:
        """Store an entry in the broker's topic `heartbeat` and read it again. Returns how many seconds that took."""
        ...


class BrokerContract(OwnerContract, OwnershipContract, MessageContract, SchemaContract, HealthContract):
    """See the module. Each part is served by one object of the broker."""
