"""Ray's own places: names of actors, environments of programs, and programs that come through Ray Client."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray._private import state

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from support.servers.ray_nodes import wait_until

OURS = ("MemberActor", "CoordinatorActor", "DeputyActor", "ConsumeWorker")
PROGRAM_TIMEOUT_S = 180

WITH_AN_ENVIRONMENT = """
import os, sys
import ray
import magnetar

directory = sys.argv[1]
ray.init(
    log_to_driver=False,
    runtime_env={
        "env_vars": {"DISCOUNT": "3"},
        "working_dir": f"{directory}/work",
        "py_modules": [f"{directory}/modules/prices"],
    },
)

@ray.remote(num_cpus=0)
def publish():
    import goods, prices

    text = f"{goods.NAME} {prices.PRICE - int(os.environ['DISCOUNT'])}"
    magnetar.Client().create_producer("offers").send(text.encode())

def handle(message):
    import goods, prices

    receipts.put(f"{message.data().decode()} of {goods.NAME} {prices.PRICE}")

receipts = magnetar.Queue()
earliest = magnetar.InitialPosition.Earliest
with magnetar.consume("offers", "shop", handle, num_cpus=0, initial_position=earliest):
    ray.get(publish.remote())
    print(receipts.get(timeout=60))
receipts.shutdown()
"""
THROUGH_RAY_CLIENT = """
import sys
import ray
import magnetar

ray.init(f"ray://{sys.argv[1]}", log_to_driver=False)
print(magnetar.connect().cluster_id)
queue = magnetar.Queue()
queue.put("an item")
print(queue.get(timeout=60))

def handle(message):
    queue.put(message.data())

with magnetar.Client() as client, magnetar.consume("remote", "s", handle, num_cpus=0):
    client.create_producer("remote").send(b"a message")
    print(queue.get(timeout=60))
queue.shutdown()
"""


def gcs_address() -> str:
    return ray.get_runtime_context().gcs_address


def printed_by(program: str, *arguments: str, **environment: str) -> list[str]:
    """Run a program in a process of its own; returns the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_each_actor_has_a_name_that_says_what_it_is(cluster: RayCluster) -> None:
    with magnetar.consume("named", "billing", print, num_cpus=0) as consuming:
        wait_until(lambda: consuming.stats().workers == 1, "the worker runs")
        alive = [one for one in state.actors().values() if one["State"] == "ALIVE"]
        names = sorted(one["Name"] for one in alive if one["ActorClassName"] in OURS)
    worker, *others = names
    assert worker.startswith("consume:public/default/named:billing:") and worker.endswith(":1")
    members = ["admin", "bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "coordinator"]
    assert others == [f"magnetar-{one}" for one in members]


def test_a_program_with_an_environment_of_its_own_publishes_and_consumes(cluster: RayCluster, tmp_path: Path) -> None:
    for place, text in (("work/goods.py", "NAME = 'lamp'"), ("modules/prices/__init__.py", "PRICE = 10")):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(text)
    assert printed_by(WITH_AN_ENVIRONMENT, str(tmp_path), RAY_ADDRESS=gcs_address())[-1] == "lamp 7 of lamp 10"


@pytest.fixture
def ray_client_server(cluster: RayCluster, unused_tcp_port: int) -> Iterator[str]:
    """The address of a server of Ray Client, on the Ray of the cluster."""
    address = f"127.0.0.1:{unused_tcp_port}"
    command = [
        sys.executable,
        "-P",
        "-m",
        "ray.util.client.server",
        "--host",
        "127.0.0.1",
        "--port",
        str(unused_tcp_port),
    ]
    with subprocess.Popen(
        [*command, "--address", gcs_address(), "--mode", "specific-server"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        yield address
        server.terminate()


def test_a_program_that_joined_by_ray_client_uses_the_cluster(cluster: RayCluster, ray_client_server: str) -> None:
    printed = printed_by(THROUGH_RAY_CLIENT, ray_client_server)
    assert printed == [cluster.cluster_id, "an item", "b'a message'"]
