"""The commands of the manifests in `k8s`, run outside Kubernetes on hosts that stand for the pods of the overlays."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import magnetar
from magnetar.actors.processes.survey import zone_of
from magnetar.protocol.names import ROLE_ADMIN
from support.manifests.kustomize import Manifest, render
from support.manifests.layout import HEAD, Layout
from support.nodes.database import PORT, Database
from support.nodes.namespaces import reason_to_skip
from support.nodes.network import Network
from support.servers import postgresql_server
from support.servers.ray_nodes import wait_until

K8S = Path(__file__).resolve().parents[3] / "k8s"
BOOKIES = ("bookie-1", "bookie-2", "bookie-3")
FORWARDING_PORT = 6600
FLIGHTS = 40_000  # of 336,776: the job's way is tried here, and `make demo` moves all
PASSWORD = "a password, with a comma"
ZONES = {"bookie-1": "zone-a", "bookie-2": "zone-b", "bookie-3": "zone-c", "brokers-1": "zone-a"}
LABELS_OF_NODES = (
    "import json, ray; ray.init('auto', log_to_driver=False); "
    "print(json.dumps({one['NodeManagerAddress']: one['Labels'] for one in ray.nodes()}))"
)
PASSWORDS = {("magnetar-postgresql", "password"): PASSWORD, ("magnetar-redis", "password"): "not used here"}


def job(name: str) -> Manifest:
    (found,) = render(K8S / "jobs" / name)
    return found


def places(layout: Layout) -> dict[str, str]:
    """By live broker, bookie and the admin: the pod where it runs."""
    pods = {host.address: name for name, host in layout.hosts.items()}
    status = layout.status()
    found = {member["id"]: pods[member["host"]] for member in status["members"] if member["role"] != ROLE_ADMIN}
    return found | {"admin": pods[urlsplit(status["admin_url"]).hostname]}


def places_if_known(layout: Layout) -> dict[str, str]:
    """The same; nothing while Ray starts the coordinator again, which may have been on a lost pod."""
    try:
        return places(layout)
    except RuntimeError as error:
        assert "does not answer" in str(error)
        return {}


@pytest.fixture
def network() -> Iterator[Network]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with Network() as found:
        yield found


@pytest.fixture
def make_layout(network: Network) -> Iterator[Callable[..., Layout]]:
    """`Layout` on this test's network."""
    with ExitStack() as stack:
        yield lambda objects, *further: stack.enter_context(Layout(objects, network, *further))


def forwarding(layout: Layout, pod: str) -> str:
    """The service URL of a broker pod's forwarding listener, to which the Service `magnetar` leads."""
    return f"pulsar://{layout.hosts[pod].address}:{FORWARDING_PORT}"


def with_a_new_bookie(objects: list[Manifest]) -> list[Manifest]:
    """The same objects with a group for bookie-4, as the guide says to add one."""
    found = copy.deepcopy(objects)
    (cluster,) = (one for one in found if one["kind"] == "RayCluster")
    groups: list[Manifest] = cluster["spec"]["workerGroupSpecs"]
    groups.append(json.loads(json.dumps(groups[-1]).replace("bookie-3", "bookie-4")))
    return found


def with_broker_pods(objects: list[Manifest], number: int) -> list[Manifest]:
    """The same objects with so many pods of the group `brokers`."""
    found = copy.deepcopy(objects)
    (cluster,) = (one for one in found if one["kind"] == "RayCluster")
    cluster["spec"]["workerGroupSpecs"][0] |= {"replicas": number, "minReplicas": number}
    return found


def brokers_on(layout: Layout, pod: str) -> set[str]:
    return {
        member for member, place in places_if_known(layout).items() if member.startswith("broker-") and place == pod
    }


@pytest.mark.promise("29.3")
def test_the_small_overlay_starts_is_measured_and_comes_back(make_layout: Callable[..., Layout]) -> None:
    objects = render(K8S / "overlays" / "small")
    layout = make_layout(objects)
    assert "broker-2" in layout.run_job(job("start"))
    expected = {name: name for name in BOOKIES} | {"broker-1": "brokers", "broker-2": "brokers", "admin": HEAD}
    assert places(layout) == expected
    shown_status = json.loads(layout.run(HEAD, "magnetar status --json"))
    assert {one["id"]: one["host"] for one in shown_status["members"]} == {
        one["id"]: one["host"] for one in layout.status()["members"]
    }
    assert "200000 records sent" in layout.run_job(job("benchmark"))
    shown = layout.run_job(job("demo"), f"--flights {FLIGHTS}")
    assert "broker killed half-way" in shown and "every flight arrived" in shown
    wait_until(lambda: places_if_known(layout) == expected, "the broker that the demo killed runs again", 60)
    assert "flights" not in layout.run(HEAD, "magnetar admin topics list public/default")

    url = forwarding(layout, "brokers")
    with layout.client.network():
        with magnetar.Client(url) as client:
            client.subscribe("kept", "keeper").close()
            sent = [client.create_producer("kept").send(b"forwarded")]
        with magnetar.Client(url, listener_name="internal") as client:
            sent.append(client.create_producer("kept").send(b"direct"))

    layout.kill("bookie-2")
    wait_until(lambda: "bookie-2" not in places(layout), "the bookie of the lost pod is gone", 60)
    layout.start("bookie-2")
    wait_until(lambda: places(layout) == expected, "the bookie runs again where its volume is", 60)

    layout.kill(*layout.pods)  # as when the head is lost, and Ray ends with it
    layout.start(*layout.pods)
    layout.run_job(job("start"))
    assert places(layout) == expected

    assert layout.add_new(with_a_new_bookie(objects)) == ["bookie-4"]
    layout.start("bookie-4")
    layout.run(HEAD, "magnetar scale --bookies 4")
    wait_until(lambda: places(layout).get("bookie-4") == "bookie-4", "the new bookie runs in its group", 60)
    layout.run(HEAD, "magnetar drain bookie-2")
    del expected["bookie-2"]
    assert places(layout) == expected | {"bookie-4": "bookie-4"}

    layout.run(HEAD, "magnetar restart broker-1")
    layout.run(HEAD, "magnetar restart admin coordinator")
    layout.run(HEAD, "magnetar restart")
    assert places(layout) == expected | {"bookie-4": "bookie-4"}
    with layout.client.network(), magnetar.Client(url) as client:
        reader = client.create_reader("kept", magnetar.MessageId.earliest)
        assert [reader.read_next(10_000).message_id() for _ in sent] == sent


def make_database(network: Network) -> Database:
    """A PostgreSQL with the user and the database of the manifests, which asks for the password."""
    import psycopg
    from psycopg import sql

    found = Database(network)
    with found.host.network(), psycopg.connect(found.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE magnetar")
        connection.execute(sql.SQL("ALTER ROLE magnetar PASSWORD {}").format(sql.Literal(PASSWORD)))
        rules = found.host.directory / "data" / "pg_hba.conf"
        rules.write_text("host all all 0.0.0.0/0 scram-sha-256\n")
        connection.execute("SELECT pg_reload_conf()")
    return found


def test_the_production_overlay_keeps_its_metadata_in_postgresql(
    network: Network, make_layout: Callable[..., Layout]
) -> None:
    reason = postgresql_server.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    database = make_database(network)
    assert f":{PORT}/" in job("start-postgresql")["spec"]["entrypoint"]
    objects = render(K8S / "overlays" / "production")
    layout = make_layout(objects, PASSWORDS, {"magnetar-postgresql": database.host}, ZONES)
    labels = json.loads(layout.run(HEAD, f'python -P -c "{LABELS_OF_NODES}"'))
    assert {name: zone_of(labels[host.address]) for name, host in layout.hosts.items()} == {
        name: ZONES.get(name, "") for name in layout.pods
    }, "each node of Ray has the zone of its Kubernetes node, where that has one"

    pods = ("brokers-1", "brokers-2", "brokers-3")
    layout.run_job(job("start-postgresql"))
    used = {pod for pod in pods if brokers_on(layout, pod)}
    assert len(used) == 2
    wait_until(lambda: {pod for pod in pods if layout.is_ready(pod)} == used, "Services lead to brokers alone", 60)
    layout.run(HEAD, "magnetar scale --brokers 3")
    wait_until(lambda: all(map(layout.is_ready, pods)), "the Services lead to the third broker, too", 60)
    expected = {name: name for name in BOOKIES} | {"admin": HEAD}
    found = places(layout)
    assert expected.items() <= found.items()
    assert {found[f"broker-{number}"] for number in (1, 2, 3)} == {"brokers-1", "brokers-2", "brokers-3"}
    assert PASSWORD not in "".join(file.read_text() for file in (layout.head.directory / "data").glob("*.json"))

    lost = found["broker-1"]
    with layout.client.network(), magnetar.Client(forwarding(layout, found["broker-2"])) as client:
        producer = client.create_producer("kept")
        producer.send(b"before")
        layout.kill(lost)
        wait_until(lambda: places_if_known(layout).get("broker-1", lost) != lost, "the broker runs elsewhere", 60)
        assert places(layout)["broker-1"].startswith("brokers-"), "and not in another group"
        producer.send(b"after")

    assert layout.add_new(with_broker_pods(objects, 4)) == ["brokers-4"]
    layout.start_in_foreground("brokers-4")
    layout.run(HEAD, "magnetar scale --brokers 4")
    wait_until(lambda: len(places_if_known(layout)) == len(expected) + 4, "all four brokers run", 60)
    wait_until(lambda: brokers_on(layout, "brokers-4"), "the new pod has a broker", 90)
    moved = brokers_on(layout, "brokers-4")
    layout.end("brokers-4")
    wait_until(
        lambda: all(places_if_known(layout).get(member) in pods for member in moved), "its brokers run elsewhere", 60
    )
    layout.run(HEAD, "magnetar stop")
