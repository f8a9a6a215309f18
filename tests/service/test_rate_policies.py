"""Publish rates and dispatch rates: Pulsar's paths and answers, and what clients see."""

import time
from typing import Any

import pulsar
import pytest

from support.servers.admin_http import Http
from support.servers.embedded_cluster import EmbeddedCluster

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"
PUBLISH: dict[str, Any] = {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1}
DISPATCH: dict[str, Any] = {
    "dispatchThrottlingRateInMsg": 0,
    "dispatchThrottlingRateInByte": 0,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 0,
}
SUBSCRIBE: dict[str, Any] = {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30}
RATES = [
    ("publishRate", "publishMaxMessageRate", PUBLISH),
    ("dispatchRate", "topicDispatchRate", DISPATCH),
    ("subscriptionDispatchRate", "subscriptionDispatchRate", DISPATCH),
]


@pytest.mark.parametrize(("path", "key", "empty"), [*RATES, ("subscribeRate", "clusterSubscribeRate", SUBSCRIBE)])
async def test_a_rate_of_a_namespace_has_pulsars_answers(
    http: Http, path: str, key: str, empty: dict[str, Any]
) -> None:
    path = f"{NAMESPACE}/{path}"
    first = next(iter(empty))
    fresh = (await http("GET", NAMESPACE))[1]
    assert fresh[key] == {}
    assert await http("GET", path) == (200, "")
    assert await http("POST", path, {}) == (204, "")
    assert await http("GET", path) == (200, empty)
    assert await http("POST", path, {first: 20, "ratePeriodInSecond": -2, "further": 1}) == (204, "")
    wanted = {**empty, first: 20, **({"ratePeriodInSecond": -2} if "ratePeriodInSecond" in empty else {})}
    assert await http("GET", path) == (200, wanted)
    keys = [key, "clusterDispatchRate"] if key == "topicDispatchRate" else [key]  # Pulsar shows this one twice
    assert await http("GET", NAMESPACE) == (200, {**fresh, **{one: {"standalone": wanted} for one in keys}})
    for wrong in ([], 3, {first: "x"}, {first: 5_000_000_000}):
        assert (await http("POST", path, wrong))[0] == 400, wrong
    assert await http("POST", path, text="null") == (204, "")
    assert await http("GET", path) == (200, "")
    assert await http("POST", path, {}) == await http("DELETE", path) == (204, "")
    assert await http("GET", path) == (200, "")


@pytest.mark.parametrize(("path", "key", "empty"), RATES)
async def test_a_rate_of_a_topic_has_pulsars_answers(http: Http, path: str, key: str, empty: dict[str, Any]) -> None:
    assert (await http("PUT", TOPIC))[0] == 204
    unset, first = (204 if path == "publishRate" else 200), next(iter(empty))
    own = f"{TOPIC}/{path}"
    assert await http("GET", own) == (unset, "")
    if unset == 200:
        assert await http("GET", f"{own}?applied=true") == (200, {**empty, "ratePeriodInSecond": 1})
        assert await http("POST", f"{NAMESPACE}/{path}", {first: 5}) == (204, "")
        assert await http("GET", f"{own}?applied=true") == (200, {**empty, first: 5})
    assert await http("POST", own, {first: 10}) == (204, "")
    assert await http("GET", own) == await http("GET", f"{own}?applied=true") == (200, {**empty, first: 10})
    assert (await http("POST", own, text=""))[0] == 400
    assert await http("DELETE", own) == (204, "")
    assert await http("GET", own) == (unset, "")


async def set_own(cluster: EmbeddedCluster, name: str, policy: str, value: object) -> None:
    await cluster.coordinator_call("set_topic_policy", topic=name, policy=policy, value=value)


@pytest.mark.promise("30.21")
def test_a_burst_of_the_official_client_takes_as_long_as_the_rate_says(
    cluster: EmbeddedCluster, official_client: pulsar.Client
) -> None:
    """On Pulsar 4.2.4 the last of 200 receipts comes after 3.01 s: 50 messages pass at once, and 50 each second."""
    name = "persistent://public/default/rated-burst"
    producer = official_client.create_producer(name, batching_enabled=False)
    cluster.run(set_own(cluster, name, "publish_rate", {"publishThrottlingRateInMsg": 50}))
    receipts: list[tuple[float, pulsar.Result]] = []
    started = time.monotonic()
    for number in range(200):
        producer.send_async(b"%d" % number, lambda result, _: receipts.append((time.monotonic() - started, result)))
    producer.flush()
    assert [result for _, result in receipts] == [pulsar.Result.Ok] * 200
    assert receipts[-1][0] > 2.9
    assert all(at > (index - 51) / 50 for index, (at, _) in enumerate(receipts)), "no more than the rate at any time"
    reader = official_client.create_reader(name, pulsar.MessageId.earliest)
    assert [reader.read_next(20_000).data() for _ in range(200)] == [b"%d" % number for number in range(200)]


def test_the_official_client_feels_the_rates_of_a_topic(
    cluster: EmbeddedCluster, official_client: pulsar.Client
) -> None:
    name = "persistent://public/default/rated"
    producer = official_client.create_producer(name, batching_enabled=False)
    consumer = official_client.subscribe(name, "s")
    cluster.run(set_own(cluster, name, "publish_rate", {"publishThrottlingRateInMsg": 30}))
    cluster.run(set_own(cluster, name, "subscription_dispatch_rate", {"dispatchThrottlingRateInMsg": 40}))
    started = time.monotonic()
    for number in range(60):
        producer.send(b"%d" % number)  # each waits for its receipt
    assert time.monotonic() - started > 0.7
    cluster.run(set_own(cluster, name, "publish_rate", None))
    started = time.monotonic()
    for number in range(60, 160):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    assert [consumer.receive(20_000).data() for _ in range(160)] == [b"%d" % number for number in range(160)]
    assert time.monotonic() - started > 1, "at most 40 pass at once, and the other 60 take 1.5 s"
