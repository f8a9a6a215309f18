"""The eight strategies of schema compatibility at broker, namespace and topic: clients meet the verdicts of Pulsar.

The recording has Pulsar's verdicts at the namespace, for what is posted to the admin. Here producers bring the schemas.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pulsar.schema as official
import pytest

import magnetar

from .registry import RECORDINGS
from .scenarios.schemas import PAIRS, STRATEGIES
from .servers import magnetar_server
from .stage import Server
from .transcript import Transcript

RECORDING = RECORDINGS / "schemas" / "schemas_follow_each_other_by_the_strategy_of_the_namespace.txt"
CASES = {
    "a field without a default comes",
    "a field without a default goes",
    "a field with a default comes",
    "a default comes after two versions",
    "only the documentation changes",
}
"""Together each strategy takes something of them, and each but ALWAYS_COMPATIBLE refuses something."""


def verdicts() -> dict[tuple[str, str], list[bool]]:
    """By case and strategy: which of the later schemas Pulsar took."""
    found: dict[tuple[str, str], list[bool]] = {}
    for step in Transcript.parse(RECORDING.read_text()).steps:
        if step.label in CASES:
            for one in json.loads(step.lines[0]):
                strategy, _, words = one.partition(": ")
                found[step.label, strategy] = [word == "version" for word in words.split() if word[0] in "vr"]
    return found


VERDICTS = verdicts()


def test_the_cases_show_each_strategy_at_work() -> None:
    for strategy in STRATEGIES:
        seen = {taken for case in CASES for taken in VERDICTS[case, strategy]}
        assert seen == ({True} if strategy == "ALWAYS_COMPATIBLE" else {True, False}), strategy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with magnetar_server(tmp_path_factory.mktemp("strategies"), {}) as running:
        yield running


def taken(client: Any, topic: str, case: str) -> list[bool]:
    """Whether producers may bring the later schemas of a case, one after the other."""
    module = magnetar if isinstance(client, magnetar.Client) else pulsar
    found: list[bool] = []
    for payload in PAIRS[case]:
        try:
            client.create_producer(topic, schema=official.AvroSchema(None, json.loads(str(payload["schema"])))).close()
            found.append(True)
        except module.IncompatibleSchema:
            found.append(False)
    assert found[0]
    return found[1:]


def put(server: Server, path: str, body: object = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.admin_url}/admin/v2/{path}", data, headers, method="PUT")
    urllib.request.urlopen(request, timeout=20).close()


def clients(url: str) -> list[Any]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return [magnetar.Client(url), pulsar.Client(url, logger=logger)]


def check(url: str, namespace: str, strategy: str, prepare: Any = lambda topic: None) -> None:
    """Both clients, all cases, on topics of their own."""
    for number, client in enumerate(clients(url)):
        for index, case in enumerate(sorted(CASES)):
            name = f"{strategy.lower()}-{number}-{index}"
            prepare(name)
            assert taken(client, f"persistent://{namespace}/{name}", case) == VERDICTS[case, strategy], (strategy, case)
        client.close()


@pytest.mark.promise("33.2")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_of_a_namespace(server: Server, strategy: str) -> None:
    namespace = f"public/{strategy.lower()}"
    put(server, f"namespaces/{namespace}")
    put(server, f"namespaces/{namespace}/schemaCompatibilityStrategy", strategy)
    check(server.broker_url, namespace, strategy)


@pytest.mark.promise("33.2")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_of_a_topic_comes_before_that_of_its_namespace(server: Server, strategy: str) -> None:
    def prepare(name: str) -> None:
        put(server, f"persistent/public/default/{name}")
        put(server, f"persistent/public/default/{name}/schemaCompatibilityStrategy", strategy)

    other = "ALWAYS_INCOMPATIBLE" if strategy == "ALWAYS_COMPATIBLE" else "ALWAYS_COMPATIBLE"
    put(server, "namespaces/public/default/schemaCompatibilityStrategy", other)
    check(server.broker_url, "public/default", strategy, prepare)


@pytest.mark.promise("33.2")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_of_the_broker(tmp_path: Path, strategy: str) -> None:
    with magnetar_server(tmp_path, {"schemaCompatibilityStrategy": strategy}) as server:
        check(server.broker_url, "public/default", strategy)
