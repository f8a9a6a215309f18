"""Target: a broker's internal methods, over a real managed ledger on bookies in memory, asked by a proven peer that
says anything: subscriptions, places, plans of bulk reads, unloading.

Each call is answered; what is stored, and where the subscription is that nobody named, stay as they were, also for the
next owner of the topic.
"""

import asyncio
import copy
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from magnetar.actors.broker.health import HealthMethods
from magnetar.actors.broker.methods import BrokerRpc
from magnetar.actors.broker.ownership import Ownership
from magnetar.actors.features.table import FEATURES
from magnetar.actors.schemas.registry import SchemaRegistry
from magnetar.actors.topics.loaded_topics import Topics
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.errors import MagnetarError
from magnetar.protocol.message_id import EARLIEST_POSITION
from magnetar.protocol.rpc_frames import KIND_NOTIFY, KIND_REQUEST, KIND_RESPONSE, RpcFrameDecoder
from magnetar.protocol.topics import TopicName
from magnetar.runtime.rpc.connection import Identity, RpcConnection
from magnetar.runtime.rpc.messages import pack
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.ledger.ledgers import Ledgers
from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.record import LeftBehind, left_behind
from support.fakes.bookies import Adds, FakeCluster

from .loop import MemoryTransport, make_env, run, turns
from .mutation import make_odd, mutate
from .records import pack_odd
from .rpc import KEYS, frame, shake
from .target import Target, Wrong
from .wire import make_entry

_TOPIC = TopicName.parse("persistent://public/default/t")
_OTHER = "persistent://public/default/other"
_KEEPER = "keeper"
_BODIES = [make_entry(Random(number)) for number in range(5)]
_SETTINGS = Settings()
_ANSWER_S = 60.0
_FORGIVEN = ("method ", "notification ")
"""A member's nonsense is logged where it was met, and answered."""


class _Broker:
    """Two topics; `t` holds `_BODIES` and two subscriptions."""

    def __init__(self) -> None:
        self._bookies = FakeCluster(settings=_SETTINGS)
        self._bookies.env.close()  # its threads; the ones below run on the loop
        self._bookies.env = self._env = make_env()
        self._ledgers = Ledgers(self._env, self._bookies.metadata, self._bookies.new_client(), _SETTINGS)
        ledgers = (self._open_ledger, self._delete_ledger, self._read_left)
        self.topics = Topics(self._env, _SETTINGS, *ledgers, self._claim, self._retire, features=FEATURES)  # type: ignore[arg-type]
        self.topics.policies.listing_began()
        self.topics.policies.listing_ended()
        schemas = SchemaRegistry(self._env, lambda: self._bookies.metadata)
        health = HealthMethods(self._env, self.topics, self._heartbeat_topic)
        bookies, ownership = self._bookies.directory.bookies.values, Ownership(self._env, self.topics)
        self.rpc = BrokerRpc(self.topics, ownership, schemas, bookies, health)

    async def _claim(self, name: TopicName, create: bool) -> bool:
        raise Wrong("a member's call claimed a topic")

    async def _heartbeat_topic(self) -> str:
        return _OTHER

    async def _retire(self, name: TopicName) -> None:
        """Topics of this target are used within seconds."""

    async def _open_ledger(self, name: TopicName, epoch: int) -> ManagedLedger:
        return await ManagedLedger.open(self._env, self._ledgers, self._bookies.metadata, name.path, epoch, _SETTINGS)

    async def _delete_ledger(self, name: TopicName, epoch: int) -> None:
        await delete_managed_ledger(self._env, self._ledgers, self._bookies.metadata, name.path, epoch)

    async def _read_left(self, names: Sequence[TopicName]) -> list[LeftBehind]:
        return await left_behind(self._bookies.metadata, [name.path for name in names])

    async def start(self) -> None:
        self.topics.assign(_TOPIC.full, 1, load=False)
        self.topics.assign(_OTHER, 1, load=False)
        topic = await self.topics.get(_TOPIC)
        assert isinstance(topic, PersistentTopic)
        adds = Adds()
        for body in _BODIES:
            topic.ledger.append(body, adds.callback)
        await adds.wait(len(_BODIES))
        for name in (_KEEPER, "s"):
            await self._call("create_subscription", topic=_TOPIC.full, subscription=name, position="earliest")

    def _call(self, method: str, **arguments: object) -> Any:
        return self.rpc.handlers[method](**arguments)

    async def check(self) -> None:
        """Of the topic, as its next owner finds it."""
        self.topics.assign(_TOPIC.full, 2, load=False)
        topic = await self.topics.get(_TOPIC)
        assert isinstance(topic, PersistentTopic)
        found = [body for _, body in await topic.ledger.read(EARLIEST_POSITION, 100, 1 << 24)]
        if found != _BODIES:
            raise Wrong(f"{len(found)} of {len(_BODIES)} entries are what they were")
        stats: Any = await self._call("topic_stats", topic=_TOPIC.full)
        pack(stats)
        backlogs = {one.name: one.backlog_entries for one in stats.subscriptions}
        if backlogs.get(_KEEPER) != len(_BODIES):
            raise Wrong(f"a subscription that nobody named has moved: {backlogs}")
        for name, backlog in backlogs.items():
            if not 0 <= backlog <= len(_BODIES):
                raise Wrong(f"the subscription {name} has a backlog of {backlog}")

    async def close(self) -> None:
        await self.topics.close()
        await self._bookies.close()


async def _main(data: bytes) -> None:
    stream = data[1:]
    broker = _Broker()
    answers: Counter[int] = Counter()
    decoder = RpcFrameDecoder(1 << 26)

    def heard(chunk: bytes) -> None:
        answers.update(request_id for kind, _, request_id, _ in decoder.feed(chunk) if kind == KIND_RESPONSE)

    try:
        await broker.start()
        connection = RpcConnection(
            make_env(), Identity("c", "broker", "k1", "i"), KEYS, broker.rpc, initiator=False, frame_size_max=1 << 20
        )
        transport = MemoryTransport(connection, heard)
        shake(connection, transport, initiator=False, theirs=Identity("c", "admin", "a", "i"))
        transport.feed(stream)
        asked = _requests(stream)
        waited = 0.0
        while not transport.closing and asked - answers:
            if waited > _ANSWER_S:
                raise Wrong(f"calls {list(asked - answers)} were not answered")
            waited += 0.5
            await asyncio.sleep(0.5)
        await turns(50)
        transport.close()
        await connection.wait_closed()
        await broker.check()
    finally:
        await broker.close()


def _requests(stream: bytes) -> Counter[int]:
    """Ids of the requests in a stream that is right to its end, nothing otherwise: the connection then ends."""
    try:
        found = RpcFrameDecoder(1 << 20).feed(stream)
    except MagnetarError:
        return Counter()
    return Counter(request_id for kind, _, request_id, _ in found if kind == KIND_REQUEST)


_T = _TOPIC.full
_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("topic_stats", {"topic": _T}),
    ("internal_stats", {"topic": _T}),
    ("last_message_id", {"topic": _T}),
    ("create_subscription", {"topic": _T, "subscription": "new", "position": "latest"}),
    ("create_subscription", {"topic": _T, "subscription": "time", "position": 1}),
    ("create_subscription", {"topic": _T, "subscription": "place", "position": [1, 2]}),
    ("delete_subscription", {"topic": _T, "subscription": "s", "force": True}),
    ("reset_cursor", {"topic": _T, "subscription": "s", "position": [1, 3]}),
    ("reset_cursor", {"topic": _T, "subscription": "s", "position": [(1 << 63) - 1, (1 << 63) - 1]}),
    ("reset_cursor", {"topic": _T, "subscription": "s", "position": 1}),
    ("skip_all", {"topic": _T, "subscription": "s"}),
    ("unload", {"topic": _T}),
    ("unload", {"topic": _OTHER, "unused": True}),
    ("delete_topics", {"topics": [[_OTHER, 2]]}),
    ("plan_read", {"topic": _T, "start": "earliest", "end": "latest", "ttl_s": 60.0}),
    ("plan_read", {"topic": _T, "start": [1, 1], "end": 1, "ttl_s": 60.0}),
    ("plan_read", {"topic": _T, "start": [1, 1], "end": "latest", "ttl_s": 60.0, "before_bytes": 1000}),
    ("unpin", {"topic": _T, "pin": "0123"}),
]


def make(random: Random) -> bytes:
    stream = b""
    for number in range(random.randint(1, 10)):
        method, arguments = copy.deepcopy(random.choice(_CALLS))
        for _ in range(random.choice((0, 1, 1, 2))):
            make_odd(arguments, random)
        payload = pack_odd([method, arguments])
        if random.random() < 0.05:
            payload = mutate(payload, random)
        stream += frame(KIND_NOTIFY if random.random() < 0.1 else KIND_REQUEST, 0, number, payload)
    return b"\0" + (mutate(stream, random) if random.random() < 0.05 else stream)


TARGETS = [Target("broker-rpc", make, lambda data: run(_main(data), forgiven=_FORGIVEN), share=3)]
