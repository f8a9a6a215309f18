"""What the coordinator offers to members, readers and the admin over the internal RPC, and what it tells members.

Topics are named in full. Permissions: a reader (a bulk read in a Ray task or in Spark) finds topics and their brokers.
It creates, changes and deletes nothing.

`CoordinatorContract` is the whole of what it offers. Each of its parts is served by one object of the coordinator.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ...protocol.cluster_status import ClusterView, DesiredView, MemberData, rpc_address
from ...protocol.load_figures import ClusterLoad, LoadReport
from ...protocol.slots import TopicGrant
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.contract import CALLER, Contract, method
from ...storage.ledger.bookie_directory import BookieInfo
from ...storage.metadata.contract import MetadataContract
from .permissions import ADMIN, BOOKIE, BROKER, COORDINATOR, MEMBERS, READER

NAMESPACE_DELETE_TIMEOUT_S = 120.0


class NamespacePolicies(NamedTuple):
    """The policies of a namespace or a topic by name, and the version of its record. `policies` None: it has no record.

    `namespace` is the name: `tenant/namespace`, or the full name of a topic, which has `://` in it.
    """

    namespace: str
    version: int
    policies: dict[str, object] | None


@dataclass(frozen=True)
class PolicyPage:
    """A part of all namespaces and topics that have policies, and whether more follow."""

    items: list[NamespacePolicies]
    more: bool


Point = str | int | list[int]
"""A place in a topic: "earliest", "latest", `[ledger, entry]`, or milliseconds since the epoch (publish time)."""


class TopicRecord(NamedTuple):
    """A topic by its full name, and how many partitions it has, 0: plain."""

    topic: str
    partitions: int


class TopicChange(NamedTuple):
    """A topic that was created or got more partitions. `partitions` None: it was deleted."""

    topic: str
    partitions: int | None


@dataclass(frozen=True)
class TopicPage:
    """A part of a namespace's persistent topics, and whether more follow.

    `number` is that of the last change that is in it. Changes with a greater number came later.
    """

    number: int
    items: list[TopicRecord]
    more: bool


STATUS_TIMEOUT_S = 5.0
UNLOAD_TIMEOUT_S = 60.0
PREPARE_TIMEOUT_S = 30.0
DELETE_TIMEOUT_S = 120.0
GROW_TIMEOUT_S = 60.0
"""How long who ordered a growth waits for its end."""


@dataclass(frozen=True)
class Greeting:
    """Which coordinator this is, and how many slots its cluster has."""

    epoch: int
    cluster_id: str
    slots: int


@dataclass(frozen=True)
class BrokerInfo:
    """A live broker. `host` and `port` are those of its Pulsar port, `data` is what it registered with."""

    id: str
    incarnation: str
    host: str
    port: int
    url: str
    data: MemberData

    @property
    def rpc_address(self) -> tuple[str, int] | None:
        """(host, port) of its internal RPC."""
        return rpc_address(self.data)


@dataclass(frozen=True)
class GrantPage:
    """The topics of the first `done` of the slots that were asked for."""

    grants: list[TopicGrant]
    done: int


@dataclass(frozen=True)
class SlotListing:
    """Who owns which slot, behind change `number`: packed `SlotRows`."""

    number: int
    rows: bytes


@dataclass(frozen=True)
class Registered:
    """The answer to a registration: the lists of which the coordinator's pushes tell the changes."""

    epoch: int
    bookies: list[BookieInfo]
    brokers: list[BrokerInfo]
    slots: SlotListing | None = None
    policies: PolicyPage = field(default_factory=lambda: PolicyPage([], False))


@dataclass(frozen=True)
class Owner:
    """The broker that owns a partition or plain topic, and the epoch under which it opens it.

    `grant` is for that broker, if it is the one that asked.
    """

    broker: str
    incarnation: str
    epoch: int
    url: str
    grant: TopicGrant | None = None


@dataclass(frozen=True)
class LedgerChanges:
    """Ledgers whose records were written or deleted, up to, and without, change number `next`. The feed ends at `end`.

    Not `complete`: the coordinator does not know all that changed since the number that was asked for.
    """

    epoch: int
    next: int
    end: int
    ledgers: list[int]
    complete: bool


@dataclass(frozen=True)
class UnnamedLedgers:
    """Those of some ledgers that the bookie which asked may not have to keep, as far as the auditor with that epoch
    knows. It does not know it before it is `ready`.
    """

    epoch: int
    ready: bool
    ledgers: list[int]


class SessionContract(Contract):
    """What the coordinator offers to members that register, and to all who ask which members are alive."""

    @method(MEMBERS | READER)
    async def hello(self, *, caller: RpcConnection = CALLER) -> Greeting:
        """The first call of every connection. Raises StaleEpoch for a broker or bookie that should not run."""
        ...

    @method(MEMBERS)
    async def register(
        self, *, role: str, host: str, port: int, data: MemberData, caller: RpcConnection = CALLER
    ) -> Registered:
        """Begin a session. Answers the lists that the member will be kept informed of by pushes.

        A bookie is listed only when no ledger id that it knows can be given out again (see `ledger_ids`).

        Raises NotAllowedError, ProtocolError (a malformed registration), CookieMismatch, StaleEpoch, MetadataError.
        """
        ...

    @method(BROKER | ADMIN)
    async def slot_listing(self) -> SlotListing:
        """Who owns which slot, as of the last change that members were told of."""
        ...

    @method(BROKER | ADMIN)
    async def policies(self, *, after: str) -> PolicyPage:
        """Tenants with admins, and namespaces and topics with policies, ordered by name, behind the name `after`."""
        ...

    @method(BROKER | ADMIN | READER)
    async def bookies(self) -> list[BookieInfo]:
        """Live bookies."""
        ...

    @method(BROKER | ADMIN | READER)
    async def brokers(self) -> list[BrokerInfo]:
        """Live brokers."""
        ...


class AuditContract(Contract):
    """What the coordinator's auditor offers."""

    @method(ADMIN)
    async def audit(self) -> None:
        """Begin a round of the auditor soon, and try again in it what failed, whenever that was."""
        ...

    @method(BOOKIE)
    async def unnamed_ledgers(self, *, ledgers: list[int], caller: RpcConnection = CALLER) -> UnnamedLedgers:
        """Which of the calling bookie's ledgers it may not have to keep: they have no record, or one that does not name
        it.

        It is a hint, like the feed. Together with all changes since this coordinator began, it leaves out no ledger
        that has to go: a walk that began since then has put every record into the index.
        """
        ...


class LedgerFeedContract(Contract):
    """What the auditor tells bookies of ledgers whose records changed."""

    @method(BOOKIE)
    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges:
        """Which ledgers' records changed since change number `since` of the coordinator with that epoch: as many as an
        answer has, and where the feed ends now.
        """
        ...


class StatusContract(Contract):
    """What the coordinator says of the cluster."""

    @method(ADMIN, timeout_s=STATUS_TIMEOUT_S)
    async def status(self) -> ClusterView:
        """Members and what they report, epochs, topics, disks, repairs. Sizes are in bytes."""
        ...

    @method(ADMIN)
    async def registered_bookies(self) -> list[str]:
        """Ids of all bookies that have a cookie, alive or not."""
        ...


class LoadContract(Contract):
    """What brokers tell the coordinator about load, and what it says of all of them."""

    @method(BROKER)
    async def report_load(self, *, report: LoadReport, caller: RpcConnection = CALLER) -> None:
        """What the calling broker did since its last report. Raises StaleEpoch without a session, ProtocolError."""
        ...

    @method(ADMIN)
    async def cluster_load(self) -> ClusterLoad:
        """The last report of each broker that still reports, and what was moved for it."""
        ...


class PlacementContract(Contract):
    """What the coordinator offers about the owners of topics."""

    @method(BROKER | ADMIN)
    async def lookup(self, *, topic: str) -> str:
        """The URL of the broker that serves a partition or plain topic. Nothing is created.

        For a topic that is missing, but would be created by a producer or consumer, it is that of the broker which
        shall create it. Raises what `assign` raises.
        """
        ...

    @method(BROKER | ADMIN | READER)
    async def assign(self, *, topic: str, create: bool | None = None, caller: RpcConnection = CALLER) -> Owner:
        """The owner of a partition or plain topic. It gets a grant, if it is the broker that asks.

        `create` makes a missing topic (None: if automatic creation is allowed). Raises TopicNotFound, NotAllowedError,
        ServiceUnitNotReady (no broker, or it takes too long).
        """
        ...

    @method(BROKER)
    async def slot_topics(self, *, slots: list[int], caller: RpcConnection = CALLER) -> GrantPage:
        """Grants for what lies in these slots and is the calling broker's: of some of the slots, at least one.

        Slots that it does not own have none. Raises ServiceUnitNotReady when the first one may be about to move,
        ProtocolError for what is no slot.
        """
        ...

    @method(ADMIN, timeout_s=UNLOAD_TIMEOUT_S)
    async def unload(self, *, topic: str, destination: str | None = None) -> None:
        """Close a topic (of a partitioned one: every partition) where it is and give it to `destination`, or to any
        other broker. Raises TopicNotFound, InvalidConfiguration (no such broker), NotAllowedError (too many topics
        were moved alone).
        """
        ...

    @method(BROKER, timeout_s=UNLOAD_TIMEOUT_S)
    async def heartbeat_topic(self, *, caller: RpcConnection = CALLER) -> str:
        """The topic that the health check of the calling broker uses, made and moved to it if need be.

        Raises ServiceUnitNotReady: no session, or the topic is being deleted at this moment.
        """
        ...


class TopicContract(Contract):
    """What the coordinator offers about the topics that exist."""

    @method(BROKER | ADMIN | READER)
    async def partitions(
        self, *, topic: str, create: bool = False, tell_missing: bool = False, caller: RpcConnection = CALLER
    ) -> int:
        """Partitions of a topic, 0 without. With `create`, a missing topic is created if clients create such topics,
        and as partitioned ones. One that is still missing then has 0, with `tell_missing` −1. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def create_topic(self, *, topic: str, partitions: int = 0, properties: dict[str, str] | None = None) -> None:
        """Raises KeyExists, TopicNotFound (no such namespace), NotAllowedError (a reserved name, or a partition's),
        InvalidConfiguration.
        """
        ...

    @method(ADMIN)
    async def topic_properties(self, *, topic: str) -> dict[str, str]:
        """What an administrator has noted of a topic. Those of a partition are empty. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def change_topic_properties(
        self, *, topic: str, put: dict[str, str], remove: list[str] | None = None
    ) -> None:
        """Add properties, and remove some. Raises TopicNotFound, NotAllowedError (a partition), InvalidConfiguration
        (too much).
        """
        ...

    @method(BROKER | ADMIN)
    async def topic_records(self, *, namespace: str, after: str = "", limit: int = 1000) -> list[TopicRecord]:
        """A page of a namespace's topics, behind the name `after`. Raises TopicNotFound."""
        ...


class TopicGrowthContract(Contract):
    """What the coordinator offers about topics that get more partitions."""

    @method(ADMIN, timeout_s=GROW_TIMEOUT_S + 10)
    async def grow_topic(self, *, topic: str, partitions: int) -> None:
        """Raise the number of partitions; the new ones have the subscriptions of the topic. Answers when clients can
        use them.

        Raises TopicNotFound, InvalidConfiguration (fewer than now), NotAllowedError (the namespace takes no more),
        ServiceUnitNotReady: it takes long and goes on.
        """
        ...

    @method(BROKER, timeout_s=PREPARE_TIMEOUT_S)
    async def prepare_subscription(
        self, *, topic: str, subscription: str, position: Point, properties: dict[str, str]
    ) -> int | None:
        """A subscription is about to be created on partition 0 of a topic. Create it on partitions that its client may
        not know. Returns the version of the topic's record under which it may be created, None: it has no record.

        Raises NotAllowedError for another partition, TopicNotFound, ServiceUnitNotReady (the topic grows all the time,
        or an owner does not answer), and what creating a subscription raises.
        """
        ...


class TopicDeletionContract(Contract):
    """What the coordinator offers about the deletion of topics."""

    @method(ADMIN, timeout_s=DELETE_TIMEOUT_S)
    async def delete_topic(self, *, topic: str, force: bool = False) -> None:
        """Delete a topic with all its partitions and data.

        Raises TopicNotFound, NotAllowedError (a partition; in use and not `force`), ServiceUnitNotReady: it takes long
        and goes on. After any error it can be called again.
        """
        ...

    @method(BROKER, timeout_s=DELETE_TIMEOUT_S)
    async def delete_inactive_topic(self, *, topic: str) -> None:
        """Delete a topic of which its owner says that nobody uses it; of a partition, the whole topic.

        Raises TopicNotFound, NotAllowedError (an owner of it says otherwise), ServiceUnitNotReady.
        """
        ...


class TopicWatchContract(Contract):
    """News of the topics of a namespace."""

    @method(BROKER)
    async def watch_topics(self, *, namespace: str, after: str = "", caller: RpcConnection = CALLER) -> TopicPage:
        """Tell this connection of topics that are created and deleted in a namespace, from now on.

        Answers a page of the persistent topics behind the name `after`; none for a missing namespace.
        """
        ...

    @method(BROKER)
    async def unwatch_topics(self, *, namespace: str, caller: RpcConnection = CALLER) -> None:
        """Tell this connection nothing more about the topics of a namespace."""
        ...


class TenantContract(Contract):
    """What the coordinator offers about tenants."""

    @method(ADMIN)
    async def tenants(self) -> list[str]:
        """Names of all tenants."""
        ...

    @method(ADMIN)
    async def tenant(self, *, tenant: str) -> dict[str, object]:
        """The record of a tenant. Raises NoSuchKey."""
        ...

    @method(ADMIN)
    async def put_tenant(self, *, tenant: str, record: dict[str, object], create: bool = True) -> None:
        """Create a tenant, or change one. Raises KeyExists, NoSuchKey, InvalidTopicName."""
        ...


class NamespaceContract(Contract):
    """What the coordinator offers about namespaces."""

    @method(ADMIN)
    async def namespaces(self, *, tenant: str) -> list[str]:
        """Names of a tenant's namespaces. Raises NoSuchKey for a missing tenant."""
        ...

    @method(BROKER | ADMIN)
    async def namespace(self, *, namespace: str) -> NamespacePolicies:
        """The policies of a namespace. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def create_namespace(
        self, *, namespace: str, policies: dict[str, object] | None = None, properties: dict[str, str] | None = None
    ) -> None:
        """Raises KeyExists, NoSuchKey (no such tenant), InvalidTopicName, InvalidConfiguration (a wrong policy)."""
        ...

    @method(ADMIN)
    async def namespace_properties(self, *, namespace: str) -> dict[str, str]:
        """What an administrator has noted of a namespace. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def change_namespace_properties(
        self, *, namespace: str, put: dict[str, str], remove: list[str] | None = None, clear: bool = False
    ) -> None:
        """Add properties, and remove some, or all others. Raises TopicNotFound, InvalidConfiguration (too much)."""
        ...

    @method(ADMIN)
    async def set_policy(self, *, namespace: str, policy: str, value: object = None) -> None:
        """Set one policy of a namespace, by its name in the table of policies; None takes the value away.

        Raises TopicNotFound, InvalidConfiguration (no such policy, or a wrong value).
        """
        ...


class NamespaceDeletionContract(Contract):
    """What the coordinator offers about the deletion of namespaces and tenants."""

    @method(ADMIN, timeout_s=NAMESPACE_DELETE_TIMEOUT_S)
    async def delete_namespace(self, *, namespace: str, force: bool = False) -> None:
        """Delete a namespace; with `force` also its topics, with all that they store.

        Raises TopicNotFound; NotAllowedError while it has topics, unless forced; ServiceUnitNotReady: it takes long and
        goes on.
        """
        ...

    @method(ADMIN, timeout_s=NAMESPACE_DELETE_TIMEOUT_S)
    async def delete_tenant(self, *, tenant: str, force: bool = False) -> None:
        """Delete a tenant; with `force` first its namespaces, one after the other, with all that is in them.

        Raises NoSuchKey; NotAllowedError while it has namespaces, with `force` if one was created meanwhile;
        ServiceUnitNotReady: it takes long. After any error the call can be repeated: it goes on with what is left.
        """
        ...


class TopicPolicyContract(Contract):
    """What the coordinator offers about the policies of topics."""

    @method(BROKER | ADMIN)
    async def topic_policies(self, *, topic: str) -> NamespacePolicies:
        """What is set for a topic. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def set_topic_policy(self, *, topic: str, policy: str, value: object = None) -> None:
        """Set one policy of a topic; None takes the value away.

        Raises TopicNotFound, InvalidConfiguration (no such policy, or a wrong value), NotAllowedError (a partition, or
        a topic without a record), ServiceUnitNotReady (it is being deleted, or grew just now).
        """
        ...


class DesiredContract(Contract):
    """What the coordinator offers about what should run. Members have ids such as `broker-2`."""

    @method(ADMIN)
    async def desired_state(self) -> DesiredView:
        """Which brokers and bookies should run, and how far those that drain have come. Raises ClusterError."""
        ...

    @method(ADMIN)
    async def scale(self, *, brokers: int | None = None, bookies: int | None = None) -> DesiredView:
        """Run so many; None leaves a role as it is. Raises NotAllowedError, ClusterError."""
        ...

    @method(ADMIN)
    async def drain(self, *, member: str) -> DesiredView:
        """Have a member give up what it has, and end. Raises NoSuchKey, NotAllowedError, ClusterError."""
        ...

    @method(ADMIN)
    async def undrain(self, *, member: str) -> DesiredView:
        """Have a member stay after all. Raises NoSuchKey, ClusterError."""
        ...


class CoordinatorContract(
    SessionContract,
    AuditContract,
    LedgerFeedContract,
    StatusContract,
    LoadContract,
    PlacementContract,
    TopicContract,
    TopicGrowthContract,
    TopicDeletionContract,
    TopicWatchContract,
    TenantContract,
    NamespaceContract,
    NamespaceDeletionContract,
    TopicPolicyContract,
    DesiredContract,
    MetadataContract,
):
    """See the module."""


class MemberContract(Contract):
    """What the coordinator tells registered members: notifications, each with the epoch of the coordinator."""

    @method(COORDINATOR)
    def bookies_changed(self, *, epoch: int, bookies: list[BookieInfo], caller: RpcConnection = CALLER) -> None:
        """All live bookies."""
        ...

    @method(COORDINATOR)
    def brokers_changed(self, *, epoch: int, brokers: list[BrokerInfo], caller: RpcConnection = CALLER) -> None:
        """All live brokers."""
        ...

    @method(COORDINATOR)
    def slots_changed(self, *, epoch: int, number: int, rows: bytes, caller: RpcConnection = CALLER) -> None:
        """Slots that have other owners now: packed `SlotRows`. Each change has the next number."""
        ...

    @method(COORDINATOR)
    def policies_changed(self, *, epoch: int, changes: list[NamespacePolicies], caller: RpcConnection = CALLER) -> None:
        """Namespaces that have other policies now, or are gone."""
        ...

    @method(COORDINATOR)
    def partitions_changed(self, *, epoch: int, topic: str, partitions: int, caller: RpcConnection = CALLER) -> None:
        """A topic has more partitions, or (−1) is gone, or about to be deleted."""
        ...

    @method(COORDINATOR)
    def topics_changed(
        self, *, epoch: int, namespace: str, number: int, changes: list[TopicChange], caller: RpcConnection = CALLER
    ) -> None:
        """Topics that were created or deleted in a watched namespace. Numbers grow from change to change."""
        ...
