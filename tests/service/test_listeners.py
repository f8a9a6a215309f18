"""Addresses that brokers advertise: listeners by name, sockets of their own, and what clients of each are told."""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import magnetar
from magnetar.cluster.command_line import app
from magnetar.cluster.load import consuming, publishing
from magnetar.cluster.terminal import receiving, sending
from magnetar.protocol.errors import SettingError
from magnetar.protocol.pulsar_pb2 import CommandLookupTopic
from support.clients.sides import FACES, connect
from support.clients.wire_peer import WirePeer
from support.servers.embedded_cluster import EmbeddedCluster

INSIDE, OUTSIDE = "127.0.0.1", "127.0.0.2"
SETTINGS = {
    "advertised_listeners": f"internal:pulsar://{{host}}:{{port}},outside:pulsar://{OUTSIDE}:{{port}}",
    "bind_addresses": f"outside:pulsar://{OUTSIDE}:{{port}}",
}
TOPIC = "persistent://public/default/t"
TOPICS = [f"{TOPIC}-partition-{number}" for number in range(4)]

pytestmark = pytest.mark.cluster_settings(brokers=2, **SETTINGS)


def connections(cluster: EmbeddedCluster) -> Counter[str]:
    """The clients' connections by the address of the broker that they came to."""

    async def count() -> Counter[str]:
        ends = [one._transport for broker in cluster.brokers.values() for one in broker.connections]
        return Counter(end.get_extra_info("sockname")[0] for end in ends if end is not None)

    return cluster.run(count())


@pytest.fixture(scope="module", autouse=True)
def topics(cluster: EmbeddedCluster) -> None:
    """Partitions, so that each broker has some."""
    cluster.run(cluster.coordinator_call("create_topic", topic=TOPIC, partitions=len(TOPICS)))


def exchange(side: Any, subscription: str) -> None:
    """Send to each topic, and receive."""
    for topic in TOPICS:
        consumer = side.client.subscribe(topic, subscription)
        side.client.create_producer(topic).send(topic.encode())
        assert side.values(consumer, 1) == [topic.encode()]


@pytest.mark.promise("30.18", "31.13")
@pytest.mark.parametrize("face", FACES)
def test_clients_of_a_listener_connect_to_its_addresses(cluster: EmbeddedCluster, face: str) -> None:
    with connect(cluster.service_url, face, listener_name="outside") as side:
        exchange(side, f"outside-{face}")
        found = connections(cluster)
        assert found[OUTSIDE] == 2 and found[INSIDE] >= 1, "the brokers' addresses, and the service URL"
    with connect(cluster.service_url, face, listener_name="internal") as side:
        exchange(side, f"inside-{face}")
        assert set(connections(cluster)) == {INSIDE}


@pytest.mark.promise("30.18")
@pytest.mark.parametrize("face", FACES)
def test_a_socket_of_a_listener_answers_its_addresses(cluster: EmbeddedCluster, face: str) -> None:
    with connect(cluster.service_url.replace(INSIDE, OUTSIDE), face) as side:
        exchange(side, f"socket-{face}")
        assert set(connections(cluster)) == {OUTSIDE}


@pytest.mark.promise("31.13")
@pytest.mark.parametrize("face", FACES)
def test_an_unknown_listener_is_not_ready_until_the_time_out(cluster: EmbeddedCluster, face: str) -> None:
    with connect(cluster.service_url, face, listener_name="nobody", operation_timeout_seconds=1) as side:
        with pytest.raises((side.module.Timeout, side.module.ServiceUnitNotReady)):
            side.client.create_producer(TOPICS[0])
    with connect(cluster.service_url, face) as side:
        exchange(side, f"after-{face}")


def test_the_official_client_knows_pulsars_words_and_does_not_try_again(cluster: EmbeddedCluster) -> None:
    """The C++ client, which is below it, takes one text for final, and that text names a listener `test`."""
    with connect(cluster.service_url, "official", listener_name="test", operation_timeout_seconds=30) as side:
        begun = time.monotonic()
        with pytest.raises(side.module.ConnectError):
            side.client.create_producer(TOPICS[0])
        assert time.monotonic() - begun < 15, "half of its time-out"


async def test_a_named_listener_goes_before_that_of_the_socket(cluster: EmbeddedCluster) -> None:
    port = cluster.brokers[1].address[1]
    peer = await WirePeer.open(port, host=OUTSIDE)
    for name, host in [("", OUTSIDE), ("internal", INSIDE), ("outside", OUTSIDE)]:
        found = await peer.request(CommandLookupTopic(topic=TOPICS[0], request_id=0, advertised_listener_name=name))
        assert found.brokerServiceUrl.startswith(f"pulsar://{host}:"), name
    await peer.close()


@contextlib.contextmanager
def taken_port(host: str) -> Iterator[int]:
    with contextlib.closing(socket.socket()) as other:
        other.bind((host, 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_broker_whose_address_is_taken_or_unknown_does_not_start(tmp_path: Path) -> None:
    with taken_port(OUTSIDE) as port:
        taken = {**SETTINGS, "bind_addresses": f"outside:pulsar://{OUTSIDE}:{port}"}
        with pytest.raises(OSError, match="in use"), EmbeddedCluster(tmp_path / "1", **taken):
            pass
    unknown = {"advertised_address": "{env:NO_SUCH_VARIABLE_HERE}"}
    with (
        pytest.raises(SettingError, match=r"broker-1 .* no variable NO_SUCH_VARIABLE_HERE"),
        EmbeddedCluster(tmp_path / "2", **unknown),
    ):
        pass


@pytest.mark.promise("30.18")
def test_a_start_refuses_brokers_that_would_advertise_one_address(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"broker-1 and broker-2 would both advertise pulsar://a\.example\.com:6650"):
        magnetar.start(
            embedded=True,
            brokers=2,
            port=0,
            admin_port=0,
            data_dir=tmp_path,
            settings={"advertisedListeners": "outside:pulsar://a.example.com:6650"},
        )


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (sending, ["produce", TOPIC, "-m", "a,b"]),
        (receiving, ["consume", TOPIC, "-s", "commands", "-n", "2"]),
        (publishing, ["perf", "produce", TOPIC, "-m", "10"]),
        (consuming, ["perf", "consume", TOPIC, "-sp", "Earliest", "-m", "10"]),
    ],
    ids=["produce", "consume", "perf produce", "perf consume"],
)
def test_commands_use_the_listener_that_they_are_told(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, module: ModuleType, words: list[str]
) -> None:
    given: list[object] = []

    class Recording(magnetar.AsyncClient):
        def __init__(self, service_url: str, **options: Any) -> None:
            given.append(options["listener_name"])
            super().__init__(service_url, **options)

    with connect(cluster.service_url, "ours") as side:
        side.client.subscribe(TOPIC, "commands").close()
        with side.client.create_producer(TOPIC) as producer:
            producer.send_many([b"x"] * 10)
    monkeypatch.setattr(module, "AsyncClient", Recording)
    arguments = [*words, "--listener-name", "outside", "--url", cluster.service_url]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    assert given == ["outside"]
