"""Target: a coordinator, and a member that holds the cluster's secret but says anything: registrations, heartbeats,
assignments, topics, metadata, with odd values where others belong.

Each of its calls is answered or its connection ends; the other members stay, hear of nothing that they cannot
understand, and are served; so is a newcomer.
"""

import asyncio
import copy
import dataclasses
from collections import Counter
from random import Random
from typing import Any

from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.actors.members.contracts_broker import BrokerContract
from magnetar.actors.members.coordinator_link import OP_HEARTBEAT, CoordinatorClient
from magnetar.protocol.errors import MagnetarError
from magnetar.protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER
from magnetar.protocol.rpc_frames import KIND_NOTIFY, KIND_REQUEST, KIND_RESPONSE, RpcFrameDecoder
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import Identity, RpcService
from magnetar.runtime.rpc.messages import pack
from magnetar.runtime.rpc.server import RpcServer
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from support.servers.open_rpc import PartialService
from support.stores.memory_store import MemoryMetadataStore

from .loop import MemoryTransport, make_env, run, turns
from .mutation import make_odd, mutate
from .records import pack_odd
from .rpc import KEYS, frame, shake
from .target import Target, Wrong

CLUSTER = "c"
TOPIC = "persistent://public/default/t"
SETTINGS = dataclasses.replace(Settings(), auditor_interval_s=5.0, lost_bookie_grace_s=2.0)
SLOTS = 256
"""What an input costs is mostly what all slots of its clusters cost: they are assigned, written and told."""
ROLES = (ROLE_BROKER, ROLE_BOOKIE, ROLE_ADMIN, "reader")
_ANSWER_S = 70.0
_FORGIVEN = ("method ",)
"""A member's nonsense is logged where it was met, and answered."""


class BrokerStub(PartialService):
    """The internal side of a broker that agrees to everything."""

    contract = BrokerContract

    async def release(self, *, number: int, slots: list[int], topics: list[str]) -> None: ...

    async def unload(self, *, topic: str, number: int, inactive: bool = False) -> None: ...
    async def delete_topics(self, *, topics: list[list[Any]]) -> None: ...


class Cluster:
    """A active coordinator and a well-behaved broker, over connections in memory."""

    def __init__(self, stub: RpcService | None = None) -> None:
        self.env: Environment = make_env()
        self.store = MemoryMetadataStore()
        self.coordinator = CoordinatorService(self.env, self.store, CLUSTER, KEYS, SETTINGS, "127.0.0.1", 0, "")
        self.lost = 0
        self._members: list[CoordinatorClient] = []
        self._stub = stub or BrokerStub()
        self._server: RpcServer

    async def start(self) -> None:
        await create_cluster(self.store, CLUSTER, 0, slots=SLOTS)
        await self.store.put(
            metadata_keys.bookie("bad"), pack({"id": "bad", "cluster_id": CLUSTER, "instance": "i"}), None
        )
        await self.coordinator.start()
        identity = Identity(CLUSTER, ROLE_BROKER, "broker-1", "1")
        self._server = RpcServer(self.env, identity, KEYS, self._stub, frame_size_max=1 << 20)
        rpc = await self._server.start("127.0.0.1")
        client = await self.join(ROLE_BROKER, "broker-1")
        client.on_session_lost.append(self._lose)
        await client.register("127.0.0.1", 6650, {"url": "pulsar://broker-1:6650", "rpc": list(rpc)}, 5)

    def _lose(self) -> None:
        self.lost += 1

    async def locate(self) -> tuple[str, int]:
        return self.coordinator.address

    async def join(self, role: str, node_id: str) -> CoordinatorClient:
        client = CoordinatorClient(self.env, Identity(CLUSTER, role, node_id, "1"), KEYS, SETTINGS, self.locate)
        self._members.append(client)
        await client.start(5)
        return client

    async def close(self) -> None:
        for member in self._members:
            await member.close()
        await self._server.close()
        await self.coordinator.close()


class _Peer:
    """The member that says anything; it counts the answers."""

    def __init__(self, coordinator: CoordinatorService, role: str) -> None:
        self.answers: Counter[int] = Counter()
        self._decoder = RpcFrameDecoder(1 << 26)
        self.connection = coordinator._require_active().server._accept()
        self.transport = MemoryTransport(self.connection, self._heard)
        shake(self.connection, self.transport, initiator=False, theirs=Identity(CLUSTER, role, "bad", "1"))

    def _heard(self, data: bytes) -> None:
        for kind, _, request_id, _ in self._decoder.feed(data):
            if kind == KIND_RESPONSE:
                self.answers[request_id] += 1

    async def say(self, stream: bytes, step: int) -> None:
        asked: Counter[int] = Counter()
        told = RpcFrameDecoder(1 << 26)
        for start in range(0, len(stream), step):
            if self.transport.closing:
                return
            chunk = stream[start : start + step]
            try:
                asked.update(request_id for kind, _, request_id, _ in told.feed(chunk) if kind == KIND_REQUEST)
            except MagnetarError:
                asked.clear()  # nothing behind it can be answered
            self.transport.feed(chunk)
            await turns(4)
        waited = 0.0
        while not self.transport.closing and asked - self.answers:
            if waited > _ANSWER_S:
                raise Wrong(f"calls {list(asked - self.answers)} were not answered")
            waited += 0.4
            self.transport.feed(frame(KIND_REQUEST, OP_HEARTBEAT, 0xFFFF0000, pack({})))
            await asyncio.sleep(0.4)
        if not self.transport.closing and +(self.answers - asked) - Counter({0xFFFF0000: 1 << 30}):
            raise Wrong("more answers than calls")


async def _check(cluster: Cluster, name: str) -> None:
    """A newcomer, and the broker that was there before, are served."""
    client = await cluster.join(ROLE_ADMIN, name)
    assigned = await client.call("assign", topic=TOPIC + name, create=True)
    if not isinstance(assigned["url"], str):
        raise Wrong(f"the owner of a topic is at {assigned}")
    for method in ("brokers", "bookies", "status", "tenants"):
        await client.call(method)
    writer = await cluster.join(ROLE_BROKER, f"writer-{name}")
    key = f"{metadata_keys.PINS_PREFIX}test/{name}"
    version = await writer.metadata.put(key, b"value", None)
    if await writer.metadata.get(key) != (b"value", version):
        raise Wrong("the metadata store does not keep what it took")
    await cluster.join(ROLE_ADMIN, "admin-" + name)
    await client.register("127.0.0.1", 1, {})
    if "broker-1" not in client.brokers or cluster.lost:
        raise Wrong("a broker lost its session over what another member said")


async def _main(data: bytes) -> None:
    mode, stream = data[0] if data else 0, data[1:]
    cluster = Cluster()
    await cluster.start()
    try:
        if mode & 4:
            await asyncio.sleep(SETTINGS.session_timeout_s)  # otherwise the coordinator is still young
        peer = _Peer(cluster.coordinator, ROLES[mode & 3])
        await peer.say(stream, len(stream) or 1 if mode & 8 else 1 + mode * 5)
        await _check(cluster, "beside")
        peer.transport.close()
        await asyncio.sleep(6)
        await _check(cluster, "after")
    finally:
        await cluster.close()


# ---- Inputs ----

_LEDGER_KEY, _CURSOR_KEY = metadata_keys.ledger(7), "cursors/persistent/public/default/t/s"
_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("hello", {}),
    ("register", {"role": "ROLE", "host": "h", "port": 6651, "data": {"url": "pulsar://b:1", "rpc": ["127.0.0.1", 1]}}),
    ("register", {"role": "ROLE", "host": "h", "port": 3181, "data": {"instance": "i", "writable": True}}),
    ("slot_listing", {}),
    ("slot_topics", {"slots": [1, 2, 3]}),
    ("bookies", {}),
    ("brokers", {}),
    ("audit", {}),
    ("status", {}),
    ("assign", {"topic": TOPIC, "create": True}),
    ("assign", {"topic": TOPIC + "-partition-1", "create": None}),
    ("unload", {"topic": TOPIC, "destination": None}),
    ("unload", {"topic": TOPIC, "destination": "bad"}),
    ("partitions", {"topic": TOPIC, "create": True}),
    ("create_topic", {"topic": TOPIC, "partitions": 3}),
    ("grow_topic", {"topic": TOPIC, "partitions": 4}),
    ("delete_topic", {"topic": TOPIC, "force": True}),
    ("topics", {"namespace": "public/default"}),
    ("topic_records", {"namespace": "public/default", "after": "", "limit": 10}),
    ("namespaces", {"tenant": "public"}),
    ("namespace", {"namespace": "public/default"}),
    ("create_namespace", {"namespace": "public/n", "policies": {"max_producers_per_topic": 1}}),
    ("set_policy", {"namespace": "public/default", "policy": "encryption_required", "value": True}),
    ("set_policy", {"namespace": "public/default", "policy": "max_producers_per_topic", "value": None}),
    ("namespace", {"namespace": "public/default"}),
    ("policies", {"after": ""}),
    ("delete_namespace", {"namespace": "public/n"}),
    ("tenants", {}),
    ("tenant", {"tenant": "public"}),
    ("put_tenant", {"tenant": "x", "record": {"adminRoles": []}, "create": True}),
    ("delete_tenant", {"tenant": "x"}),
    ("metadata_get_many", {"keys": [_LEDGER_KEY, metadata_keys.CLUSTER]}),
    ("metadata_list", {"prefix": "ledgers/", "after": "", "limit": 10}),
    ("metadata_write_many", {"writes": [[_LEDGER_KEY, b"value", None, None]], "guard": None}),
    ("metadata_write_many", {"writes": [[_CURSOR_KEY, b"v", 0, [_LEDGER_KEY, 0]], [_CURSOR_KEY, b"v", None, None]],
                             "guard": None}),
    ("metadata_write_many", {"writes": [[_LEDGER_KEY, None, None, None]], "guard": [_CURSOR_KEY, 0]}),
    ("metadata_allocate", {"counter": "ledger", "count": 10, "guard": None}),
]  # fmt: skip
_REPORTS: list[dict[str, Any]] = [
    {"writable": True, "limbo": "", "disk": {"used": 1, "total": 2, "free": 1, "full": False}},
    {"topics": 3},
    {},
]


def make(random: Random) -> bytes:
    mode = random.randrange(64) | (8 if random.random() < 0.8 else 0)
    stream = b""
    for number in range(random.randint(1, 14)):
        if random.random() < 0.15:
            report = copy.deepcopy(random.choice(_REPORTS))
            if random.random() < 0.6:
                make_odd(report, random)
            stream += frame(KIND_REQUEST, OP_HEARTBEAT, number, pack_odd(report))
            continue
        method, arguments = copy.deepcopy(
            random.choice(_CALLS) if number or random.random() < 0.3 else _CALLS[1 + (mode & 1)]
        )
        if arguments.get("role") == "ROLE":
            arguments["role"] = ROLES[mode & 3]
        for _ in range(random.choice((0, 1, 1, 2))):
            make_odd(arguments, random)
        payload = pack_odd([method, arguments])
        if random.random() < 0.1:
            payload = mutate(payload, random)
        stream += frame(KIND_NOTIFY if random.random() < 0.1 else KIND_REQUEST, 0, number, payload)
    return bytes([mode]) + (mutate(stream, random) if random.random() < 0.1 else stream)


TARGETS = [Target("coordinator", make, lambda data: run(_main(data), forgiven=_FORGIVEN), share=3)]
