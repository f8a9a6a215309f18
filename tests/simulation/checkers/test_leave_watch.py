"""`LeaveWatch` finds a connection that ends for nothing, and excuses one that a fault or a move hit."""

from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.protocol.slots import slot_of
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotOwner, SlotRows
from magnetar.storage.metadata.store import Versioned
from simulation.checkers.history import History
from simulation.checkers.leave_watch import MOVE_S, LeaveWatch
from simulation.world.cluster import SLOTS
from simulation.world.loop import PROCESS, SimLoop
from simulation.world.network import Network

TOPIC = TopicName.parse("t")
SILENT = "the broker at broker-1 answers on a new connection"
MOVED = "t belongs to the broker at pulsar://broker-2:6650"
KEEP_ALIVE_S = 2.0


class Connection:
    """Number 7, between `client` and `broker-1`, as either side has it."""

    address = broker = ("broker-1", 6650)
    remote_address = "/client:50007"
    host = SimpleNamespace(settings=SimpleNamespace(keep_alive_interval_s=KEEP_ALIVE_S))
    liveness = object()
    _transport = SimpleNamespace(_connection=SimpleNamespace(number=7, ends=()))


class Scene:
    """broker-1 has owned the topic for long. The client sent it a PING a second ago."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.network = Network(self.loop, Random(0))
        self.history = History()
        self.cluster: Any = SimpleNamespace(loop=self.loop, network=self.network, left={})
        self.watch = LeaveWatch(self.history, self.cluster)
        self.connection: Any = Connection()
        self.owns("broker-1")
        self.wait(2 * MOVE_S)
        self.watch._asked_at[self.connection.liveness] = self.loop.now
        self.wait(1.0)

    def wait(self, seconds: float) -> None:
        self.loop._move_to(self.loop.now + seconds)

    def owns(self, broker: str) -> None:
        """The record of the topic's slot says so from now on."""
        rows = SlotRows({slot_of(TOPIC, SLOTS): SlotEntry(SlotOwner(broker, "i"), 1)})
        self.watch.metadata_changed(metadata_keys.slot_page(0), None, Versioned(rows.pack(), 1))

    def leave(self, reason: str, topic: TopicName | None = None) -> list[str]:
        if topic is not None:
            self.watch._questions[self.connection] = topic
        return self._as("client", lambda: self.watch.left(self.connection, reason))

    def end(self) -> list[str]:
        return self._as("broker-1", lambda: self.watch.ended(self.connection))

    def _as(self, process: str, act: Callable[[], None]) -> list[str]:
        owner: Any = SimpleNamespace(name=process)
        token = PROCESS.set(owner)
        act()
        PROCESS.reset(token)
        return self.history.violations


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.loop.close()


def test_a_client_that_leaves_for_nothing_is_found(scene: Scene) -> None:
    (found,) = scene.leave(SILENT)
    assert found.startswith("I19: client leaves broker-1, and nothing hit it")
    assert scene.cluster.left == {scene.connection: SILENT}


def test_a_broker_that_ends_a_connection_for_nothing_is_found(scene: Scene) -> None:
    (found,) = scene.end()
    assert found.startswith("I19: broker-1 ends the connection of client")


HITS: dict[str, Callable[[Network, Any], None]] = {
    "a slow broker": lambda network, _: network.slow_down("broker-1", 0.5),
    "a slow client": lambda network, _: network.slow_down("client", 0.5),
    "a way back that is cut": lambda network, _: network.partition("broker-1", "client"),
    "a way there that is cut": lambda network, _: network.partition("client", "broker-1"),
    "a reset": lambda network, connection: network.reset(connection),
    "a packet that waits": lambda network, connection: network.hold(connection, 3.0),
    "a process that ended": lambda network, _: network.process_ended(SimpleNamespace(name="broker-1")),  # type: ignore
}


@pytest.mark.parametrize("hit", HITS.values(), ids=HITS.keys())
def test_a_connection_that_was_hit_may_end(scene: Scene, hit: Callable[[Network, Any], None]) -> None:
    hit(scene.network, scene.connection._transport._connection)
    assert scene.leave(SILENT) == [] and scene.end() == []


def test_what_hit_another_connection_or_was_over_before_is_no_excuse(scene: Scene) -> None:
    scene.network.slow_down("broker-2", 0.5)
    scene.network.partition("broker-2", "client")
    scene.network.partition("broker-1", "client")
    scene.network.heal("broker-1", "client")
    scene.wait(1.0)
    scene.watch._asked_at[scene.connection.liveness] = scene.loop.now
    assert len(scene.leave(SILENT)) == 1
    assert len(scene.end()) == 1, "the broker heard nothing for two intervals, so that the cut is its excuse"


def test_packets_of_a_slower_time_before_count_while_they_may_come(scene: Scene) -> None:
    scene.network.slow_down("broker-1", 1.5)
    scene.network.slow_down("broker-1", 0.02)
    scene.network.speed_up("broker-1")
    scene.wait(1.0)
    scene.watch._asked_at[scene.connection.liveness] = scene.loop.now
    assert scene.leave(SILENT) == [] and scene.end() == []
    scene.wait(2 * 1.5)
    scene.watch._asked_at[scene.connection.liveness] = scene.loop.now
    assert len(scene.leave(SILENT)) == 1


def test_a_broker_is_left_when_its_topic_has_moved_and_not_before(scene: Scene) -> None:
    assert len(scene.leave(MOVED, TOPIC)) == 1
    scene.owns("broker-2")
    assert len(scene.leave(MOVED, TOPIC)) == 1
    scene.wait(2 * MOVE_S)
    assert len(scene.leave(MOVED, TOPIC)) == 1, "another one owns it"
