"""What a client without a service URL says where Ray has no cluster."""

import asyncio
import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.client.core import discovery
from magnetar.client.core.configuration import ClientConfiguration
from magnetar.protocol.errors import ClusterError, ConnectError, TlsError
from magnetar.runtime.environment import Environment


class Ray:
    """Ray as a client sees it: joined or not, and with a coordinator or without one."""

    def __init__(self) -> None:
        self.joined = True
        self.inits = 0
        self.coordinator: Any = None
        self.answer: object = {"service_urls": ["pulsar://10.0.0.1:6650"]}

    def is_initialized(self) -> bool:
        return self.joined

    def init(self, **options: object) -> None:
        self.inits += 1
        raise ConnectionError("Could not find any running Ray instance")

    def get_actor(self, name: str, namespace: str) -> Any:
        if self.coordinator is None:
            raise ValueError(f"Failed to look up actor with name '{name}'")
        return self.coordinator

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="10.0.0.9:6379")

    def get(self, reference: object, timeout: float) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def start_cluster(self) -> None:
        self.coordinator = SimpleNamespace(client_information=SimpleNamespace(remote=lambda: "reference"))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ray:
    found = Ray()
    monkeypatch.setitem(sys.modules, "ray", found)  # type: ignore[arg-type]
    monkeypatch.setenv("MAGNETAR_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return found


def test_an_empty_ray_is_refused_with_the_call_that_was_meant(ray: Ray) -> None:
    with pytest.raises(ClusterError) as refused:
        discovery.find_service_url()
    message = str(refused.value)
    assert "no Magnetar cluster runs on the Ray at 10.0.0.9:6379" in message
    assert "Start one with `magnetar start --detach`" in message
    assert "`magnetar.connect()` in place of `ray.init()`" in message
    assert not refused.value.retriable, "a client that tried again would be silent for half a minute"
    assert refused.value.__suppress_context__, "no traceback of Ray before ours"


def test_an_address_where_no_ray_listens_is_refused_before_ray_waits_for_it(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    ray.joined = False
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(ClusterError, match=rf"no Ray answers at RAY_ADDRESS=127.0.0.1:{port} .*: set it to the Ray of"):
        discovery.find_service_url()
    assert ray.inits == 0


@pytest.mark.parametrize("kind", ["open", "auto", "ray://127.0.0.1:1"])
def test_ray_is_joined_at_an_address_that_may_be_right(ray: Ray, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    ray.joined = False
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}" if kind == "open" else kind)
        with pytest.raises(ClusterError, match="this process has joined no Ray, and none was found"):
            discovery.find_service_url()
    assert ray.inits == 1


@pytest.mark.parametrize("joined", [True, False], ids=["ray.init() started one", "no Ray at all"])
def test_it_says_where_this_users_cluster_runs(ray: Ray, tmp_path: Path, joined: bool) -> None:
    ray.joined = joined
    (tmp_path / "run.json").write_text(json.dumps({"cluster_id": "c", "ray": {"address": "10.0.0.1:6379"}}))
    with pytest.raises(ClusterError, match=rf"The cluster of {tmp_path} runs on the Ray at 10\.0\.0\.1:6379\. Call"):
        discovery.find_service_url()


def test_a_damaged_record_is_no_reason_to_fail_otherwise(ray: Ray, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"ray": []}')
    with pytest.raises(ClusterError, match="Start one with"):
        discovery.find_service_url()


def test_a_client_that_has_found_its_cluster_waits_for_it(ray: Ray) -> None:
    """The cluster may be stopped and started again on the same Ray, with the same actors' names."""

    async def scenario() -> None:
        environment = Environment.real(threads_max=1)
        try:
            discover = discovery.service_url_source(environment, ClientConfiguration())
            with pytest.raises(ClusterError):
                await discover()
            ray.start_cluster()
            assert await discover() == "pulsar://10.0.0.1:6650"
            ray.coordinator = None
            with pytest.raises(ConnectError) as away:
                await discover()
            assert away.value.retriable
            ray.joined = False
            with pytest.raises(ConnectError, match="has left the Ray") as away:
                await discover()
            assert away.value.retriable and not ray.inits
            ray.joined = True
            ray.start_cluster()
            assert await discover() == "pulsar://10.0.0.1:6650"
        finally:
            environment.close()

    asyncio.run(scenario())


def test_a_coordinator_that_does_not_answer_is_asked_again(ray: Ray) -> None:
    ray.start_cluster()
    ray.answer = TimeoutError("no answer")
    with pytest.raises(ConnectError, match="does not answer") as away:
        discovery.find_service_url()
    assert away.value.retriable


def test_a_client_that_wants_tls_gets_the_ports_for_it(ray: Ray) -> None:
    ray.start_cluster()
    with pytest.raises(TlsError, match="the cluster has no TLS: set brokerServicePortTls"):
        discovery.find_service_url(tls=True)  # nor does an older coordinator tell any
    ray.answer = {
        "service_urls": ["pulsar://10.0.0.1:6650", "pulsar://10.0.0.2:6652"],
        "service_urls_tls": ["pulsar+ssl://10.0.0.1:6651", "pulsar+ssl://10.0.0.2:7652"],
    }
    assert discovery.find_service_url() == "pulsar://10.0.0.1:6650,10.0.0.2:6652"
    assert discovery.find_service_url(tls=True) == "pulsar+ssl://10.0.0.1:6651,10.0.0.2:7652"
    ray.answer = {"service_urls": ["pulsar+ssl://10.0.0.1:6650"], "service_urls_tls": ["pulsar+ssl://10.0.0.1:6650"]}
    assert discovery.find_service_url() == "pulsar+ssl://10.0.0.1:6650"
