"""Planning against a coordinator and brokers over loopback: pins, patience, and brokers or a coordinator that leave."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.actors.members.contracts_broker import BrokerContract
from magnetar.actors.members.contracts_coordinator import CoordinatorContract
from magnetar.bulk.access import ClusterAccess
from magnetar.bulk.cluster_link import ClusterLink
from magnetar.bulk.planner import Planner
from magnetar.bulk.read_plan import Bounds
from magnetar.protocol.errors import (
    CoordinatorUnavailable,
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowedError,
    ServiceUnitNotReady,
    StaleEpoch,
    TopicNotFound,
)
from magnetar.protocol.message_id import WireMessageId
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import RpcConnection
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.rpc.server import RpcServer
from magnetar.storage.ledger.bookie_directory import BookieInfo
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from support.servers.coordination import eventually
from support.servers.open_rpc import PartialService

KEYS = RootKeys(b"s" * 32)
LEDGER = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("bookie-1",)),), LedgerState.CLOSED, 9, 1000)
FULL = "persistent://public/default/"


class Coordinator(PartialService):
    """Knows `partitions` of topics, and who owns what."""

    contract = CoordinatorContract

    def __init__(self, env: Environment) -> None:
        self.server = RpcServer(
            env, Identity("cluster", "coordinator", "coordinator", "1"), KEYS, self, frame_size_max=1 << 20
        )
        self.topics = {FULL + "flights": 3, FULL + "plain": 0}
        self.listed_brokers: list[dict[str, Any]] = []
        self.listed_bookies: list[list[Any]] = [["bookie-1", "127.0.0.1", 1, True]]
        self.assign_errors: list[Exception] = []

    async def partitions(self, *, topic: str, create: bool, caller: RpcConnection) -> int:
        assert caller.peer.role == "reader"
        assert not create
        if topic not in self.topics:
            raise TopicNotFound(topic)
        return self.topics[topic]

    async def assign(self, *, topic: str, create: bool, caller: RpcConnection) -> dict[str, Any]:
        assert not create
        if self.assign_errors:
            raise self.assign_errors.pop(0)
        incarnation = self.listed_brokers[-1]["incarnation"] if self.listed_brokers else "gone"
        return {"broker": "broker-1", "incarnation": incarnation, "epoch": 1, "url": "pulsar://broker-1:6650"}

    async def brokers(self) -> list[dict[str, Any]]:
        return self.listed_brokers

    async def bookies(self) -> list[list[Any]]:
        return self.listed_bookies


class Broker(PartialService):
    """Plans ten entries of one ledger for every topic, and pins as a broker does."""

    contract = BrokerContract

    def __init__(self, env: Environment, coordinator: Coordinator, incarnation: str) -> None:
        identity = Identity("cluster", "broker", "broker-1", incarnation)
        self.server = RpcServer(env, identity, KEYS, self, frame_size_max=1 << 20)
        self.coordinator = coordinator
        self.asked: list[dict[str, Any]] = []
        self.errors: list[Exception] = []
        self.pins: dict[tuple[str, str], float] = {}
        self.prolonged = 0
        self.schemas_of = ""

    async def start(self) -> None:
        host, port = await self.server.start("127.0.0.1", 0)
        identity = self.server.identity
        self.coordinator.listed_brokers = [
            {
                "id": identity.node_id,
                "incarnation": identity.incarnation,
                "host": host,
                "port": 6650,
                "url": f"pulsar://{host}:6650",
                "data": {"rpc": [host, port]},
            }
        ]

    async def plan_read(self, **arguments: Any) -> dict[str, Any]:
        if self.errors:
            raise self.errors.pop(0)
        self.asked.append(arguments)
        pin = f"pin{len(self.asked)}"
        self.pins[arguments["topic"], pin] = arguments["ttl_s"]
        places: dict[str, Any] = {"first": [7, 0], "last": [7, 9], "ledgers": [LEDGER.pack()], "pin": pin}
        if arguments.get("compacted"):
            places["compacted"] = LEDGER.pack()
        return {**places, "partition": -1, "epoch": 1, "bookies": []}

    async def schemas(self, *, topic: str) -> list[dict[str, Any]]:
        if self.errors:
            raise self.errors.pop(0)
        self.schemas_of = topic
        return [{"version": 3, "type": 7, "data": b"", "created_ms": 0, "properties": {}}]

    async def prolong_pin(self, *, topic: str, pin: str, ttl_s: float) -> bool:
        self.prolonged += (topic, pin) in self.pins
        assert self.pins[topic, pin] == ttl_s
        return True

    async def unpin(self, *, topic: str, pin: str) -> None:
        del self.pins[topic, pin]


class Harness:
    def __init__(self, env: Environment) -> None:
        self.env = env
        self.coordinator = Coordinator(env)
        self.broker = Broker(env, self.coordinator, "1")

    async def locate(self) -> tuple[str, int]:
        return self.coordinator.server.address

    def planner(self, topic: str, timeout_s: float = 2.0, pin_ttl_s: float = 60.0) -> Planner:
        access = ClusterAccess("cluster", KEYS, self.coordinator.server.address)
        return Planner(self.env, access, topic, timeout_s=timeout_s, pin_ttl_s=pin_ttl_s, locate=self.locate)

    @property
    def pins(self) -> list[tuple[str, str]]:
        return list(self.broker.pins)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    env = Environment.real()
    made = Harness(env)
    await made.coordinator.server.start("127.0.0.1", 0)
    await made.broker.start()
    yield made
    await made.broker.server.close()
    await made.coordinator.server.close()
    env.close()


async def test_the_columns_are_those_of_a_version_that_some_broker_knows(harness: Harness) -> None:
    async with harness.planner("public/default/plain-partition-2") as planner:
        await planner.plan()
        harness.broker.errors.append(ServiceUnitNotReady("it moves"))
        shape = await planner.shape(["value", "__topic"], "auto")
        assert harness.broker.schemas_of == "persistent://public/default/plain"
        assert [str(kind) for kind in shape.schema.types] == ["int16", "string"]
        with pytest.raises(InvalidConfiguration, match="has no version 2 of its schema: it has versions 3 to 3"):
            await planner.shape(None, 2)
        assert (await planner.shape(None, None)).typed is None


async def test_every_partition_is_planned_and_pinned_until_the_end(harness: Harness) -> None:
    async with harness.planner("flights") as planner:
        plans = await planner.plan()
        assert [(plan.topic, plan.partition) for plan in plans] == [
            (f"{FULL}flights-partition-{index}", index) for index in range(3)
        ]
        assert plans[0].ledgers == (LEDGER,)
        assert (plans[0].first, plans[0].last, plans[0].bounds) == ((7, 0), (7, 9), Bounds())
        assert len(harness.pins) == 3
        assert await planner.link.bookies() == [BookieInfo("bookie-1", "127.0.0.1", 1, True)]
    assert harness.pins == []
    assert {(asked["start"], asked["end"]) for asked in harness.broker.asked} == {("earliest", "latest")}


async def test_a_plain_topic_and_a_single_partition(harness: Harness) -> None:
    async with harness.planner("plain") as planner:
        assert [(plan.topic, plan.partition) for plan in await planner.plan()] == [(FULL + "plain", -1)]
    async with harness.planner("flights-partition-2") as planner:
        assert [plan.partition for plan in await planner.plan(WireMessageId(7, 3, 2))] == [2]
    assert harness.broker.asked[-1]["start"] == [7, 3]


async def test_a_compacted_read_asks_for_the_compacted_ledger_and_a_plain_one_says_nothing(harness: Harness) -> None:
    async with harness.planner("plain") as planner:
        (plain,) = await planner.plan()
    assert plain.compacted is None and "compacted" not in harness.broker.asked[-1]
    async with harness.planner("plain") as planner:
        (plan,) = await planner.plan(compacted=True)
    assert harness.broker.asked[-1]["compacted"] is True and plan.compacted == LEDGER


async def test_ledgers_before_the_start_are_asked_for_when_they_are_wanted(harness: Harness) -> None:
    async with harness.planner("plain") as planner:
        await planner.plan()
    assert "before_bytes" not in harness.broker.asked[-1]
    async with harness.planner("plain") as planner:
        await planner.plan(WireMessageId(7, 3), before_bytes=1_000)
    assert harness.broker.asked[-1]["before_bytes"] == 1_000


async def test_times_are_asked_for_with_room_for_the_clocks_of_producers(harness: Harness) -> None:
    async with harness.planner("plain") as planner:
        await planner.plan(1_000_000, 2_000_000)
    assert (harness.broker.asked[0]["start"], harness.broker.asked[0]["end"]) == (940_000, 2_060_000)


async def test_pins_go_when_the_read_fails(harness: Harness) -> None:
    with pytest.raises(ValueError, match="midway"):
        async with harness.planner("flights") as planner:
            await planner.plan()
            raise ValueError("midway")
    assert harness.pins == []


@pytest.mark.promise("29.8")
async def test_pins_are_prolonged_by_the_owner(harness: Harness) -> None:
    async with harness.planner("plain", pin_ttl_s=0.06) as planner:
        await planner.plan()
        await eventually(lambda: harness.broker.prolonged >= 2)


async def test_pins_are_prolonged_and_removed_by_the_next_owner(harness: Harness) -> None:
    async with harness.planner("plain", pin_ttl_s=0.06) as planner:
        await planner.plan()
        successor = Broker(harness.env, harness.coordinator, "2")
        successor.pins = dict(harness.broker.pins)
        await harness.broker.server.close()
        await successor.start()
        await eventually(lambda: successor.prolonged >= 2)
    assert not successor.pins
    await successor.server.close()


async def test_brokers_may_go_after_planning_and_the_pins_then_expire(harness: Harness) -> None:
    async with harness.planner("flights") as planner:
        await planner.plan()
        await harness.broker.server.close()
        assert await planner.link.bookies()
    assert len(harness.pins) == 3


async def test_the_coordinator_may_go_after_planning_and_the_pins_then_expire(harness: Harness) -> None:
    async with harness.planner("plain") as planner:
        await planner.plan()
        known = await planner.link.bookies()
        await harness.coordinator.server.close()
        assert await planner.link.bookies() == known
    assert len(harness.pins) == 1


async def test_a_topic_that_moves_is_asked_of_its_next_owner(harness: Harness) -> None:
    harness.broker.errors = [StaleEpoch("moved"), ServiceUnitNotReady("loading")]
    harness.coordinator.assign_errors = [ServiceUnitNotReady("moving")]
    async with harness.planner("plain") as planner:
        assert len(await planner.plan()) == 1


async def test_a_broker_that_comes_back_as_a_new_incarnation_is_found(harness: Harness) -> None:
    later, harness.coordinator.listed_brokers = harness.coordinator.listed_brokers, []

    async def return_later() -> None:
        await asyncio.sleep(0.2)
        harness.coordinator.listed_brokers = later

    task = asyncio.create_task(return_later())
    async with harness.planner("plain") as planner:
        assert len(await planner.plan()) == 1
    await task


async def test_patience_ends(harness: Harness) -> None:
    harness.coordinator.listed_brokers = []
    with pytest.raises(ServiceUnitNotReady):
        async with harness.planner("plain", timeout_s=0.3) as planner:
            await planner.plan()


async def test_what_does_not_exist_and_impossible_bounds_fail_at_once(harness: Harness) -> None:
    async with harness.planner("missing", timeout_s=60) as planner:
        with pytest.raises(TopicNotFound):
            await planner.plan()
    async with harness.planner("flights", timeout_s=60) as planner:
        with pytest.raises(InvalidConfiguration):
            await planner.plan("somewhere")
        with pytest.raises(InvalidConfiguration):
            await planner.plan(WireMessageId(1, 2))
    assert harness.pins == []


async def test_no_coordinator_at_all(harness: Harness) -> None:
    async def nowhere() -> tuple[str, int]:
        raise CoordinatorUnavailable("restarting")

    access = ClusterAccess("cluster", KEYS, ("127.0.0.1", 1))
    async with Planner(harness.env, access, "plain", timeout_s=0.2, locate=nowhere) as planner:
        with pytest.raises(CoordinatorUnavailable):
            await planner.plan()


async def test_pins_of_a_detached_plan_stay_and_are_prolonged_by_others(harness: Harness) -> None:
    async with harness.planner("plain") as planner:
        await planner.plan()
        pins = planner.detach()
    assert [tuple(pin) for pin in pins] == harness.pins != []
    link = ClusterLink(harness.env, ClusterAccess("cluster", KEYS, ("127.0.0.1", 1)), harness.locate)
    await link.prolong(pins, 60.0)
    assert harness.broker.prolonged == 1
    await link.unpin(pins)
    assert harness.pins == []
    await link.close()


async def test_pins_are_prolonged_beside_other_calls_to_the_same_broker(harness: Harness) -> None:
    async with harness.planner("plain") as planner:
        await planner.plan()
        pins = planner.detach()
    link = ClusterLink(harness.env, ClusterAccess("cluster", KEYS, ("127.0.0.1", 1)), harness.locate)
    owner = await link.owner(pins[0].topic)
    await link.prolong(pins, 60.0)
    await owner.unpin(topic=pins[0].topic, pin=pins[0].id)
    assert harness.pins == []
    await link.close()


async def test_what_a_cluster_in_transition_refuses_is_tried_again_for_a_while(harness: Harness) -> None:
    link = ClusterLink(harness.env, ClusterAccess("cluster", KEYS, ("127.0.0.1", 1)), harness.locate)
    refusals: list[Exception] = [StaleEpoch("it moves"), CoordinatorUnavailable("restarting")]

    async def attempt() -> str:
        if refusals:
            raise refusals.pop()
        return "done"

    assert await link.patiently(attempt, 5.0, "a test") == "done"
    refusals += [CoordinatorUnavailable("restarting")] * 100
    with pytest.raises(CoordinatorUnavailable):
        await link.patiently(attempt, 0.2, "a test")
    refusals[:] = [TopicNotFound("gone")]
    with pytest.raises(TopicNotFound):
        await link.patiently(attempt, 5.0, "a test")


def test_only_persistent_topics_can_be_read(harness_env: Environment) -> None:
    access = ClusterAccess("cluster", KEYS, ("127.0.0.1", 1))
    with pytest.raises(NotAllowedError, match="stores no messages"):
        Planner(harness_env, access, "non-persistent://public/default/x", timeout_s=1)
    with pytest.raises(InvalidTopicName):
        Planner(harness_env, access, "a/b", timeout_s=1)


@pytest.fixture
def harness_env() -> Environment:
    return Environment.real()


async def test_one_partition_that_cannot_be_planned_ends_it_for_all(harness: Harness) -> None:
    harness.broker.errors = [NotAllowedError("no")]
    async with harness.planner("flights") as planner:
        with pytest.raises(NotAllowedError):
            await planner.plan()
