"""Every `typing.Protocol` of production code, and why it is one.

A Protocol exists where two real implementations exist, or where a floor is crossed. Then the lower room cannot name
the class of the upper one. Fakes of tests do not count as implementations. What the simulator replaces does: clock,
chance, files, network. Everywhere else the concrete class is named. A module of the same sub-room may import it for
types only, even in a circle.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "runtime", "storage", "client", "actors", "spark", "cluster")

PROTOCOLS_MAX = 45

PROTOCOLS: dict[str, str] = {
    "actors.compaction.topic_compaction.CompactionHost": (
        "`PersistentTopic`, across a floor: it makes the compaction, which asks it for its ledger and starts tasks"
    ),
    "actors.connections.link.ConnectionHost": (
        "`BrokerService`, across a floor: connections lie below the broker that makes them"
    ),
    "actors.delays.delay_gate.DelaysHost": (
        "`PersistentTopic` and `NonPersistentTopic`, across a floor: a topic's policies, message counts and tasks"
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
}
"""By module and name: its implementations, and the floor that it crosses."""

TO_BE_LOOKED_AT: frozenset[str] = frozenset(
    {
        "actors.balancing.balancer.UnitMover",
        "actors.bookie.service.BookieCalls",
        "actors.bookie.service.Coordinator",
        "actors.desired.drains.BrokerEmptier",
        "actors.desired.drains.ProcessEnds",
        "actors.members.coordinator_link.PushedTo",
        "actors.members.feeds.PolicyFeed",
        "actors.members.feeds.SlotFeed",
        "actors.members.feeds.TopicFeed",
        "actors.members.matched_topics.Watcher",
        "actors.members.topic_lookup.Owning",
        "actors.members.topic_watch.TopicListener",
        "actors.processes.assembly.MemberService",
        "actors.processes.ray_deputy.MachineList",
        "actors.processes.ray_handles.CoordinatorHandle",
        "actors.processes.ray_handles.DeputyHandle",
        "actors.processes.ray_handles.MemberHandle",
        "actors.processes.reconciler.Eraser",
        "actors.processes.reconciler.MachineWatch",
        "actors.processes.supervisor.Launcher",
        "actors.slots.placement.BrokerSessions",
        "actors.slots.placement.LiveBroker",
        "client.acknowledging.ack_receipts.Receiving",
        "client.aio.listeners.PausableListener",
        "client.blocking.pickling.Opener",
        "client.consuming.ack_sender.AckRoute",
        "client.consuming.ack_sender.Acknowledging",
        "client.consuming.message.ValueReader",
        "client.consuming.partition_consumer.ChunkAcks",
        "client.consuming.receive_queue.ArrivalGate",
        "client.consuming.receive_queue.Source",
        "client.consuming.topic_consumer.LetterHandling",
        "client.consuming.topic_consumer.Listening",
        "client.core.connection.ConsumerEndpoint",
        "client.core.connection.EndOfTopic",
        "client.core.connection.Endpoint",
        "client.core.connection.ProducerEndpoint",
        "client.core.connection.WatcherEndpoint",
        "client.core.context.Closeable",
        "client.core.context.Statistics",
        "client.core.forking.Inheritable",
        "client.core.message_id.PlacedLikeAnId",
        "client.core.message_id._New",
        "client.core.pending_pool.Borrower",
        "client.core.redelivery_backoff.RedeliveryBackoff",
        "client.core.threading_bridge.Handover",
        "client.core.threading_bridge.Signal",
        "client.core.threading_bridge.ThreadLock",
        "client.network.questions.OfTopic",
        "client.network.questions.SendingEndpoint",
        "client.network.questions.Sent",
        "client.network.questions.WatchedConnection",
        "client.producing.producer_statistics.Producing",
        "client.producing.topic_producer.Router",
        "client.schemas.models._Field",
        "client.schemas.models._Model",
        "client.schemas.models._ModelField",
        "client.schemas.models._RecordClass",
        "cluster.demo.program._Process",
        "cluster.demo.tasks.ProgressHandle",
        "cluster.load.report.Histogram",
        "cluster.load.report.LogWriter",
        "cluster.ray_authentication.Configuration",
        "cluster.ray_authentication.TokenLoader",
        "cluster.ray_authentication.TokenLoaders",
        "cluster.ray_head.NodeTable",
        "cluster.ray_head.Services",
        "cluster.terminal.addresses.RunningCluster",
        "runtime.environment.Chance",
        "runtime.environment.Clock",
        "runtime.files.File",
        "runtime.files.FileLock",
        "runtime.files.Files",
        "runtime.offload.Lane",
        "runtime.offload.Offload",
        "runtime.ray_calls.Answer",
        "runtime.ray_calls.Gcs",
        "runtime.ray_calls.GcsNode",
        "runtime.ray_calls.RemoteMethod",
        "runtime.rpc.keys.Keys",
        "runtime.rpc.server.Abortable",
        "spark.reading.planner.ReadingCoordinator",
        "spark.reading.read_plan.SerializableId",
        "spark.reading.reader_pool.ReaderHandle",
        "storage.bookie.journal.Responder",
        "storage.ledger.bookie_client.BookieConnection",
        "storage.managed.publish_times.StoredEntries",
        "storage.metadata.store.MetadataStore",
    }
)
"""Protocols of rooms in which nobody has asked yet which of them are needed. No new one joins."""


def protocols_of(source: str) -> list[str]:
    """The names of the classes that are Protocols. `asyncio.Protocol` is another thing."""

    def is_protocol(base: ast.expr) -> bool:
        while isinstance(base, ast.Subscript):
            base = base.value
        return ast.unparse(base) in ("Protocol", "typing.Protocol")

    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return [node.name for node in classes if any(map(is_protocol, node.bases))]


def found() -> set[str]:
    files = [*ROOT.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))]
    return {
        ".".join([*file.relative_to(ROOT).with_suffix("").parts, name])
        for file in files
        if not file.name.endswith("_pb2.py")
        for name in protocols_of(file.read_text())
    }


def test_each_protocol_of_production_code_is_in_the_table() -> None:
    assert sorted(found() - PROTOCOLS.keys() - TO_BE_LOOKED_AT) == []


def test_each_row_of_the_table_names_a_protocol() -> None:
    assert sorted((PROTOCOLS.keys() | TO_BE_LOOKED_AT) - found()) == []


def test_there_are_not_more_protocols_than_the_bound_and_each_has_a_reason() -> None:
    assert len(PROTOCOLS) <= PROTOCOLS_MAX
    assert [name for name, reason in PROTOCOLS.items() if not reason] == []
    assert sorted(PROTOCOLS.keys() & TO_BE_LOOKED_AT) == []


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
    assert sorted(protocols_of(source)) == ["Generic", "Local", "Narrower", "View"]
