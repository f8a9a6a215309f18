"""A cluster on Ray that asks for credentials. Clients that find it through Ray get theirs by that, unstored."""

import base64
import json
import os
import pickle
from pathlib import Path

import pytest
import ray

import magnetar
from magnetar.client.core.ray_credentials import RayAuthentication
from magnetar.cluster.ray_cluster import RayCluster
from support.servers.ray_nodes import wait_until

from .conftest import SMALLEST, StartCluster


@pytest.fixture
def secure(start_cluster: StartCluster, tmp_path: Path) -> RayCluster:
    (tmp_path / "key").write_bytes(b"0123456789abcdef0123456789abcdef")
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{tmp_path / 'key'}",
        "authorizationEnabled": "true",
        "superUserRoles": "ray",
        "auditLogEnabled": "true",
    }
    return start_cluster(tmp_path / "data", settings=settings, **SMALLEST)


@pytest.mark.promise("30.32")
def test_a_client_that_finds_the_cluster_through_ray_gets_a_credential(secure: RayCluster) -> None:
    with magnetar.Client() as client:
        consumer = client.subscribe("secure", "s")
        client.create_producer("secure").send(b"from the driver")
        assert consumer.receive(20_000).data() == b"from the driver"

        @ray.remote(num_cpus=1)
        def publish(given: magnetar.Client) -> tuple[bytes, dict[str, str]]:
            given.create_producer("secure").send(b"from a task")
            return RayAuthentication().auth_data(), dict(os.environ)

        token, environment = ray.get(publish.remote(client))
        assert consumer.receive(20_000).data() == b"from a task"
        assert token.decode() not in pickle.dumps(client).decode(errors="replace")
        assert not [name for name, value in environment.items() if "eyJ" in value]
    claims = token.split(b".")[1]
    assert b'"sub":"ray"' in base64.urlsafe_b64decode(claims + b"==")
    logs = Path(secure.status().get("log_directory", ""))
    lines = [json.loads(line) for file in logs.glob("*.audit.jsonl") for line in file.read_text().splitlines()]
    assert {(line["role"], line["action"], line["outcome"]) for line in lines} >= {
        ("ray", "connect", "permitted"),
        ("ray", "producer", "permitted"),
        ("ray", "subscribe", "permitted"),
    }
    assert not [file for file in logs.iterdir() if b"eyJ" in file.read_bytes()], "no log has a token"
    with magnetar.Client(secure.service_url) as stranger, pytest.raises(magnetar.AuthenticationError):
        stranger.create_producer("secure")


@pytest.mark.filterwarnings("ignore:::ray", "ignore::ResourceWarning")  # Ray warns of settings that it makes itself
def test_what_asks_the_admin_of_a_secure_cluster_works_inside_ray(secure: RayCluster) -> None:
    queue = magnetar.Queue(name="jobs")
    queue.put("one", timeout=60)
    assert (queue.qsize(), queue.get(timeout=60)) == (1, "one")
    with magnetar.Client() as client:
        client.create_producer("rows").send(b"a row")
    assert magnetar.to_arrow("rows")["value"].to_pylist() == [b"a row"]
    assert [row["value"] for row in magnetar.data.read_topic("rows").take_all()] == [b"a row"]
    taken = {"concurrency": (0, 1), "initial_position": magnetar.InitialPosition.Earliest, "num_cpus": 0}
    with magnetar.consume("rows", "readers", lambda message: None, **taken) as consuming:
        wait_until(lambda: consuming.stats().done == 1, "the message is handled", 60)
        wait_until(lambda: consuming.stats().backlog == 0, "the admin says that nothing is left", 60)
