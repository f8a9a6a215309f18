"""Every `typing.Protocol` of production code, and why it is one.

A Protocol exists where two real implementations exist, or where a floor is crossed. Then the lower room cannot name
the class of the upper one. Fakes of tests do not count as implementations. What the simulator replaces does: clock,
chance, files, network. Everywhere else the concrete class is named. A module of the same sub-room may import it for
types only, even in a circle.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

from tools.syntax import nodes_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "runtime", "storage", "client", "actors", "bulk", "data", "serve", "spark", "tasks", "cluster")

PROTOCOLS_MAX = 45

PROTOCOLS: dict[str, str] = {
    "actors.connections.link.ConnectionHost": (
        "`BrokerService`, across a floor: connections lie below the broker that makes them"
    ),
    "actors.dispatch.consumer.Outlet": "`ServerConnection`, across a floor: where a consumer's entries are written",
    "actors.dispatch.dispatcher.CursorView": (
        "`Cursor`, `CompactedCursor` and `NoCursor`: dispatch reads all of them, and knows nothing of storage"
    ),
    "actors.dispatch.entry_gate.EntryGate": "A named seam: what holds entries back from a dispatcher, such as `Delays`",
    "actors.keeping.inactivity.UsedTopic": (
        "`PersistentTopic` and `NonPersistentTopic`, across a floor: whether a topic is in use"
    ),
    "actors.keeping.topic_keeping.KeepingHost": "`PersistentTopic`, across a floor: the topic whose backlog counts",
    "actors.keeping.topic_keeping.KeptSubscription": (
        "`Subscription`, across a floor: what expires, is evicted, or is deleted without use"
    ),
    "actors.rates.publish.Holdable": "`ServerConnection`, across a floor: a publish rate stops the broker reading it",
    "actors.topics.producer.PublishOutlet": (
        "`ServerConnection`, across a floor: where a producer's receipts are written, and its publishes are counted"
    ),
    "actors.coordinator.drains.ProcessEnds": (
        "`Reconciler`, across a floor: what keeps processes lies above the coordinator"
    ),
    "actors.members.feeds.Owning": ("`TopicOwnership`, across a floor: the link tells a broker what its slots are"),
    "actors.members.feeds.PolicyFeed": ("`PolicyWatch`, across a floor: the link tells a member what the policies are"),
    "actors.members.matched_topics.Watcher": (
        "`TopicListWatcher` of a broker's connection, and `TopicWatchers` of the coordinator"
    ),
    "actors.processes.assembly.MemberService": (
        "`BookieService`, `BrokerService` and `AdminService`, which share no base"
    ),
    "actors.processes.reconciler.MachineWatch": ("the machines of Ray's cluster, and those of the simulator"),
    "actors.processes.supervisor.Launcher": ("`LocalLauncher` and `RayLauncher`, each with a handle of its own"),
    "client.consuming.listeners.PausableListener": ("the listeners of the asyncio face and of the blocking one"),
    "client.consuming.topic_consumer.LetterHandling": (
        "`LetterHandling` of `client/letters`, across a floor: only consumers with letters load it"
    ),
    "client.core.connection.ConsumerEndpoint": (
        "`PartitionConsumer`, across a floor: connections lie below what uses them"
    ),
    "client.core.connection.ProducerEndpoint": (
        "`PartitionProducer`, across a floor: connections lie below what uses them"
    ),
    "client.core.connection.WatcherEndpoint": ("`TopicListing`, across a floor: connections lie below what uses them"),
    "client.core.context.Closeable": (
        "`TopicProducer` and `TopicConsumer`, across a floor: a client closes what it has made"
    ),
    "client.core.forking.Inheritable": ("the client, and its statistics: what a child process may inherit"),
    "client.core.message_id.PlacedLikeAnId": ("`MessageId`, and the message ids of the official client"),
    "client.core.pending_pool.Borrower": ("`Outbox`, across a floor: a producer that waits for room"),
    "client.core.redelivery_backoff.RedeliveryBackoff": ("a named seam: users write their own, as in Pulsar's clients"),
    "client.core.threading_bridge.Handover": (
        "`SameThread` of the asyncio face, and the loop's thread of the blocking one"
    ),
    "client.schemas.models._RecordClass": ("classes of the official client, which has no types"),
    "cluster.terminal.addresses.RunningCluster": (
        "`ClusterHandle`, across a floor: commands of the terminal lie below what starts clusters"
    ),
    "actors.security.authorization.AuthorizationProvider": "A named seam: the operator may have a class of his own",
    "actors.security.providers.AuthenticationProvider": "A named seam: the operator may have a class of his own",
    "runtime.environment.Chance": ("real chance, and that of the simulator's seed"),
    "runtime.environment.Clock": ("the machine's clock, and that of the simulator"),
    "runtime.files.File": ("a file of the machine, and one of the simulator's disk"),
    "runtime.files.FileLock": ("a lock of the machine, and one of the simulator's disk"),
    "runtime.files.Files": ("the machine's file system, and the simulator's disk"),
    "runtime.offload.Offload": ("threads, and the simulator, which has none"),
    "runtime.rpc.keys.Keys": ("`RootKeys` of the coordinator, and `NodeKeys` of every other process"),
    "bulk.access.ReadingCoordinator": ("the coordinator's actor, across a floor: Spark does not import the actors"),
    "bulk.read_plan.SerializableId": ("`MessageId`, and the message ids of the official client"),
    "storage.bookie.journal.Responder": ("`RpcConnection`, and the copying of ledgers inside a bookie"),
    "storage.metadata.store.MetadataStore": (
        "`SqlMetadataStore`, `MemoryMetadataStore`, and those that other processes and one epoch use"
    ),
}
"""By module and name: its implementations, and the floor that it crosses."""


def protocols_of(nodes: Iterable[ast.AST]) -> list[str]:
    """The names of the classes that are Protocols. `asyncio.Protocol` is another thing."""

    def is_protocol(base: ast.expr) -> bool:
        while isinstance(base, ast.Subscript):
            base = base.value
        return ast.unparse(base) in ("Protocol", "typing.Protocol")

    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return [node.name for node in classes if any(map(is_protocol, node.bases))]


def found() -> set[str]:
    files = [*ROOT.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))]
    return {
        ".".join([*file.relative_to(ROOT).with_suffix("").parts, name])
        for file in files
        if not file.name.endswith("_pb2.py")
        for name in protocols_of(nodes_of(file))
    }


def test_each_protocol_of_production_code_is_in_the_table() -> None:
    assert sorted(found() - PROTOCOLS.keys()) == []


def test_each_row_of_the_table_names_a_protocol() -> None:
    assert sorted(PROTOCOLS.keys() - found()) == []


def test_there_are_not_more_protocols_than_the_bound_and_each_has_a_reason() -> None:
    assert len(PROTOCOLS) <= PROTOCOLS_MAX
    assert [name for name, reason in PROTOCOLS.items() if not reason] == []


def test_a_class_counts_as_a_protocol_by_its_bases() -> None:
    source = """
class Plain(Base): ...
class Socket(asyncio.Protocol): ...
class View(Protocol): ...
class Generic(typing.Protocol[T]): ...
class Narrower(View, Protocol): ...
def inside():
    class Local(Protocol): ...
"""
    assert sorted(protocols_of(ast.walk(ast.parse(source)))) == ["Generic", "Local", "Narrower", "View"]
