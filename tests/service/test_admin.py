"""The admin HTTP over real sockets, with brokers that only take notes."""

import asyncio
from collections.abc import Callable
from urllib.parse import quote

import pytest
from aiohttp import web

from magnetar.actors.admin import requests as admin_requests
from magnetar.actors.admin.requests import position_of
from magnetar.protocol.cluster_status import ClusterView, ScrubReport
from magnetar.protocol.errors import InvalidConfiguration, NotEnoughBookies
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import pack
from support.servers.admin_http import AdminBrokerRpc, Http, admin_of
from support.servers.coordination import coordination, eventually

PERSISTENT = "/admin/v2/persistent/public/default"
JSON = "Content-Type: application/json"


def calls_of(http: Http) -> list[tuple[str, ...]]:
    return [call for member in http.cluster.members for call in member.rpc.calls]  # type: ignore[attr-defined]


@pytest.mark.promise("23.3")
async def test_partitioned_topics_are_created_grown_listed_and_deleted(http: Http) -> None:
    topic = f"{PERSISTENT}/flights"
    assert (await http("GET", f"{topic}/partitions"))[0] == 404
    assert (await http("PUT", f"{topic}/partitions", 4))[0] == 204
    assert (await http("PUT", f"{topic}/partitions", 4))[0] == 409
    assert await http("GET", f"{topic}/partitions") == (200, {"partitions": 4, "deleted": False})
    for wrong in ("zero", "0", "-1", "1.5", "[", "true", "100000000", "9" * 400):
        assert (await http("PUT", f"{PERSISTENT}/other/partitions", text=wrong))[0] in (400, 406, 412), wrong
    assert (await http("PUT", f"{PERSISTENT}/other/partitions", 0))[0] == 406
    assert (await http("PUT", f"{PERSISTENT}/other/partitions"))[0] == 400
    assert (await http("POST", f"{topic}/partitions", 3))[0] == 422
    assert (await http("POST", f"{topic}/partitions", 5))[0] == 204
    assert (await http("POST", f"{PERSISTENT}/none/partitions", 5))[0] == 409
    names = [f"persistent://public/default/flights-partition-{index}" for index in range(5)]
    assert await http("GET", PERSISTENT) == (200, names)
    assert await http("GET", "/admin/v2/namespaces/public/default/topics?mode=ALL") == (200, names)
    assert await http("GET", "/admin/v2/non-persistent/public/default") == (200, [])
    assert (await http("GET", "/admin/v2/non-persistent/public/none"))[0] == 404
    assert (await http("GET", "/admin/v2/persistent/public/none"))[0] == 404
    assert await http("GET", f"{PERSISTENT}/partitioned") == (200, ["persistent://public/default/flights"])
    assert (await http("DELETE", topic))[0] == 409
    assert (await http("DELETE", f"{topic}/partitions"))[0] == 204
    assert (await http("DELETE", f"{topic}/partitions"))[0] == 404
    assert await http("GET", PERSISTENT) == (200, [])


async def test_a_path_that_is_not_encoded_is_refused_and_a_slash_at_its_end_means_nothing(http: Http) -> None:
    for name in ("100%", "%zz", "%ff"):
        status, body = await http("PUT", f"{PERSISTENT}/{name}")
        assert (status, "cannot be decoded" in body["reason"]) == (400, True), name
    assert (await http("PUT", f"{PERSISTENT}/t/subscription/100%25"))[0] == 400
    assert await http("GET", PERSISTENT) == (200, [])
    assert await http("GET", f"{PERSISTENT}/") == (200, [])
    assert (await http("GET", "/admin/v2/clusters/")) == await http("GET", "/admin/v2/clusters")


@pytest.mark.promise("15.4")
async def test_plain_topics_and_unusual_names(http: Http) -> None:
    name = quote("ünusual näme %2F?&", safe="")
    topic = f"{PERSISTENT}/{name}"
    assert (await http("PUT", topic))[0] == 204
    assert (await http("PUT", topic))[0] == 409
    assert await http("GET", PERSISTENT) == (200, ["persistent://public/default/ünusual näme %2F?&"])
    assert (await http("GET", f"{topic}/stats"))[0] == 200
    assert (await http("DELETE", f"{topic}/partitions"))[0] == 409
    assert (await http("POST", f"{topic}/partitions", 2))[0] == 409
    assert (await http("DELETE", topic))[0] == 204
    assert (await http("PUT", f"{PERSISTENT}/p-partition-0"))[0] == 412
    assert (await http("PUT", "/admin/v2/persistent/no/where/x"))[0] == 404
    assert (await http("PUT", "/admin/v2/persistent/no%20good/where/x"))[0] == 412
    assert (await http("GET", f"{PERSISTENT}/x/partitions?checkAllowAutoCreation=true")) == (
        200,
        {"partitions": 0, "deleted": False},
    )
    assert (await http("GET", f"{PERSISTENT}/x/partitions?checkAllowAutoCreation=perhaps"))[0] == 400


async def test_no_get_creates_a_topic(http: Http) -> None:
    for path in (
        "/lookup/v2/topic/persistent/public/default/new",
        "/admin/v2/persistent/public/default/new/partitions?checkAllowAutoCreation=true",
        "/admin/v2/persistent/public/default/new/stats",
        "/admin/v2/persistent/public/default/new/internalStats",
        "/admin/v2/persistent/public/default/new/subscriptions",
    ):
        assert (await http("GET", path))[0] in (200, 404)
    assert await http("GET", PERSISTENT) == (200, [])
    assert (await http("GET", f"{PERSISTENT}/new/partitions"))[0] == 404
    assert (await http("GET", "/admin/v2/persistent/no/where/x/partitions?checkAllowAutoCreation=true"))[0] == 404


async def test_figures_are_asked_of_the_owners_and_added_up(http: Http) -> None:
    await http("PUT", f"{PERSISTENT}/t/partitions", 3)
    status, total = await http("GET", f"{PERSISTENT}/t/partitioned-stats")
    assert status == 200
    assert (total["msgInCounter"], total["msgRateIn"], total["averageMsgSize"]) == (6, 1.5, 5.0)
    assert len(total["publishers"]) == 3
    assert total["subscriptions"]["s"]["msgBacklog"] == 3
    assert total["subscriptions"]["s"]["type"] == "Shared"
    assert "topicEpoch" not in total and total["partitions"][_name("t", 0)]["ownerEpoch"] == 7
    assert len(total["partitions"]) == 3 and total["partitions"][_name("t", 0)]["msgInCounter"] == 2
    assert (await http("GET", f"{PERSISTENT}/t/partitioned-stats?perPartition=false"))[1]["partitions"] == {}
    assert (await http("GET", f"{PERSISTENT}/t/stats"))[0] == 404
    for member in http.cluster.members:
        member.rpc.not_ready = 2  # type: ignore[attr-defined]
    assert (await http("GET", f"{PERSISTENT}/t-partition-1/stats"))[0] == 200
    status, internal = await http("GET", f"{PERSISTENT}/t-partition-1/internalStats")
    assert (status, internal["numberOfEntries"], internal["lastConfirmedEntry"]) == (200, 3, "1:2")
    assert (await http("GET", f"{PERSISTENT}/t-partition-1/lastMessageId"))[1]["entryId"] == 2
    assert (await http("GET", f"{PERSISTENT}/t-partition-3/stats"))[0] == 404
    assert await http("GET", f"{PERSISTENT}/t/subscriptions") == (200, ["s"])


@pytest.mark.promise("16.8")
async def test_subscriptions(http: Http) -> None:
    await http("PUT", f"{PERSISTENT}/t/partitions", 2)
    path = f"{PERSISTENT}/t/subscription/my%2Fsub"
    assert (await http("PUT", path))[0] == 204
    assert (await http("PUT", path))[0] == 409
    assert ("create", _name("t", 1), "my/sub") in calls_of(http)
    assert ('"latest"',) in calls_of(http)
    early = {"ledgerId": -1, "entryId": -1}
    assert (await http("PUT", f"{PERSISTENT}/t/subscription/early", early))[0] == 204
    assert ('"earliest"',) in calls_of(http)
    assert (await http("PUT", f"{PERSISTENT}/new/subscription/s"))[0] == 204  # creates the topic
    assert (await http("POST", f"{path}/resetcursor/1700000000000"))[0] == 204
    assert ("reset", _name("t", 0), "my/sub", "1700000000000") in calls_of(http)
    assert (await http("POST", f"{path}/resetcursor", {"ledgerId": 5, "entryId": 6}))[0] == 204
    assert ("reset", _name("t", 0), "my/sub", "[5, 6]") in calls_of(http)
    assert (await http("POST", f"{path}/resetcursor"))[0] == 412
    assert (await http("POST", f"{path}/resetcursor/-5"))[0] == 400
    assert (await http("POST", f"{path}/skip_all"))[0] == 204
    assert (await http("DELETE", f"{path}?force=true"))[0] == 204
    assert ("delete", _name("t", 0), "my/sub", "True") in calls_of(http)
    assert (await http("DELETE", f"{PERSISTENT}/t/subscription/missing"))[0] == 404


async def test_lookup_names_the_owner(http: Http) -> None:
    await http("PUT", f"{PERSISTENT}/t/partitions", 2)
    urls = []
    for index in range(2):
        status, answer = await http("GET", f"/lookup/v2/topic/persistent/public/default/t-partition-{index}")
        assert status == 200 and answer["httpUrl"].startswith("http://")
        urls.append(answer["brokerUrl"])
    assert sorted(urls) == ["pulsar://broker-1:6650", "pulsar://broker-2:6650"]
    assert (await http("GET", "/lookup/v2/topic/persistent/no/where/t"))[0] == 404
    assert (await http("GET", "/lookup/v2/topic/non-persistent/public/default/t"))[0] == 200
    assert (await http("PUT", f"{PERSISTENT}/t/unload"))[0] == 204
    assert sorted(name for member in http.cluster.members for name in member.rpc.released) == [
        _name("t", 0),
        _name("t", 1),
    ]


async def test_a_lookup_answers_the_address_of_a_listener_by_query_or_header() -> None:
    listeners = {"outside": "pulsar://b1.example.com:31001", "web": "pulsar+proxy://example.com:80"}
    async with coordination() as cluster:
        await cluster.join("broker", "broker-1", rpc_service=AdminBrokerRpc(), listeners=listeners)
        async with admin_of(cluster) as http:
            await http("PUT", f"{PERSISTENT}/t")
            path = "/lookup/v2/topic/persistent/public/default/t"
            assert (await http("GET", path))[1]["brokerUrl"] == "pulsar://broker-1:6650"
            for query, headers in [
                ("?listenerName=outside", {}),
                ("", {"X-Pulsar-ListenerName": "outside"}),
                ("?listenerName=", {"X-Pulsar-ListenerName": "outside"}),
                ("?listenerName=outside", {"X-Pulsar-ListenerName": "inside"}),
            ]:
                status, answer = await http("GET", path + query, headers=headers)
                assert status == 200 and answer["httpUrl"].startswith("http://"), (query, headers)
                assert answer["brokerUrl"] == answer["nativeUrl"] == listeners["outside"]
            for name, reason in [
                ("inside", "do not have inside listener"),
                ("web", "forward the connections of the listener web"),
                ("%F0%9F%90%B0" * 200, "do not have"),
                ("%00", "do not have"),
            ]:
                status, answer = await http("GET", f"{path}?listenerName={name}")
                assert status == 412 and reason in answer["reason"] and len(answer["reason"]) < 300


@pytest.mark.promise("15.5", "15.6")
async def test_tenants_namespaces_clusters(http: Http) -> None:
    assert (await http("PUT", "/admin/v2/tenants/acme", {"adminRoles": ["a"], "allowedClusters": ["standalone"]}))[
        0
    ] == 204
    assert (await http("PUT", "/admin/v2/tenants/acme", {}))[0] == 409
    assert (await http("POST", "/admin/v2/tenants/acme", {"adminRoles": ["b"]}))[0] == 204
    assert (await http("GET", "/admin/v2/tenants/acme"))[1] == {"adminRoles": ["b"], "allowedClusters": ["standalone"]}
    assert (await http("PUT", "/admin/v2/tenants/bad", {"adminRoles": 5}))[0] == 400
    assert (await http("PUT", "/admin/v2/tenants/bad", []))[0] == 400
    for clusters in ([], ["none"], ["standalone", "none"]):
        assert (await http("PUT", "/admin/v2/tenants/bad", {"allowedClusters": clusters}))[0] == 412
    assert (await http("POST", "/admin/v2/tenants/none", {}))[0] == 404
    assert (await http("PUT", "/admin/v2/namespaces/acme/orders"))[0] == 204
    assert (await http("PUT", "/admin/v2/namespaces/acme/orders"))[0] == 409
    assert (await http("PUT", "/admin/v2/namespaces/nobody/orders"))[0] == 404
    assert (await http("PUT", "/admin/v2/namespaces/acme/o2", {"no_such_policies": {"a": 1}}))[0] == 412
    assert await http("GET", "/admin/v2/namespaces/acme") == (200, ["acme/orders"])
    shown = (await http("GET", "/admin/v2/namespaces/public/default"))[1]
    assert await http("GET", "/admin/v2/namespaces/acme/orders") == (200, shown)
    assert (await http("DELETE", "/admin/v2/tenants/acme"))[0] == 409
    assert (await http("DELETE", "/admin/v2/namespaces/acme/orders"))[0] == 204
    assert (await http("DELETE", "/admin/v2/tenants/acme"))[0] == 204
    assert await http("GET", "/admin/v2/tenants") == (200, ["public"])
    assert await http("GET", "/admin/v2/clusters") == (200, ["standalone"])
    assert await http("GET", "/admin/v2/brokers/standalone") == (200, ["broker-1:6650", "broker-2:6650"])
    assert (await http("GET", "/admin/v2/brokers/other"))[0] == 404
    assert (await http("GET", "/admin/v2/clusters/standalone"))[0] == 200


@pytest.mark.promise("32.7")
async def test_what_is_not_supported_can_be_told_from_what_does_not_exist(http: Http) -> None:
    for method, path in (
        ("GET", f"{PERSISTENT}/t/offloadPolicies"),
        ("POST", f"{PERSISTENT}/t/offload"),
        ("GET", "/admin/v2/worker/cluster"),
        ("GET", "/lookup/v2/destination/persistent/public/default/t"),
    ):
        status, answer = await http(method, path)
        assert status == 501 and f"{method} {path}" in answer["reason"] and "not supported" in answer["reason"]
    status, answer = await http("GET", f"{PERSISTENT}/t/stats")
    assert status == 404 and "t does not exist" in answer["reason"]
    status, answer = await http("PATCH", "/admin/v2/clusters")
    assert status == 405 and "takes GET, HEAD" in answer["reason"]
    assert (await http("GET", "/nonsense"))[0] == 404


@pytest.mark.promise("25.3")
async def test_health_needs_brokers_and_bookies(http: Http) -> None:
    assert (await http("GET", "/admin/v2/brokers/health"))[0] == 503
    for number in (1, 2):
        await http.cluster.store.put(metadata_keys.bookie(f"bookie-{number}"), pack({"instance": "a"}), None)
        await http.cluster.join("bookie", f"bookie-{number}", instance="a")
    brokers = [member.rpc for member in http.cluster.members if isinstance(member.rpc, AdminBrokerRpc)]
    assert await http("GET", "/admin/v2/brokers/health") == (200, "ok")
    assert sum(broker.health_checks for broker in brokers) == 1
    for broker in brokers:
        broker.health_error = NotEnoughBookies("the entry could not be stored")
    assert (await http("GET", "/admin/v2/brokers/health"))[0] == 503
    brokers[0].health_error = None
    assert await http("GET", "/admin/v2/brokers/health?brokerId=broker-1:6650") == (200, "ok")
    assert (await http("GET", "/admin/v2/brokers/health?brokerId=broker-2:6650"))[0] == 503
    assert (await http("GET", "/admin/v2/brokers/health?brokerId=broker-9:6650"))[0] == 404
    metrics = (await http("GET", "/metrics"))[1]
    assert 'magnetar_bookies{node="admin",service="admin"} 2.0' in (await http("GET", "/metrics/"))[1]
    assert 'magnetar_bookies{node="admin",service="admin"} 2.0' in metrics
    assert 'magnetar_coordinator_up{node="admin",service="admin"} 1.0' in metrics


def change_status(http: Http, monkeypatch: pytest.MonkeyPatch, change: Callable[[ClusterView], None]) -> None:
    """Have the coordinator answer another status than its own."""
    coordinator = http.cluster.coordinator
    handler = coordinator.handler

    async def changed() -> ClusterView:
        found = await coordinator.status()
        change(found)
        return found

    monkeypatch.setattr(coordinator, "handler", lambda method: changed if method == "status" else handler(method))


async def test_metrics_show_the_longest_silence_of_a_live_member(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(seconds: float) -> str:
        return f'magnetar_members_silent_seconds{{node="admin",service="admin"}} {seconds}'

    silences = {"broker-1": 0.25, "broker-2": 0.75}

    def silent(found: ClusterView) -> None:
        for member in found["members"]:
            member["silent_s"] = silences.get(member["id"], 0.0)

    change_status(http, monkeypatch, silent)
    await http.cluster.broker(1)
    await http.cluster.broker(2)
    assert line(0.75) in (await http("GET", "/metrics"))[1]


async def test_what_only_grows_is_a_counter(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(found: ClusterView) -> None:
        found["load_moves"], found["auditor"]["copied_bytes_total"] = 4, 5000
        for member in found["members"]:
            if member["role"] == "bookie":
                member["report"] = {"scrub": scrub_of(member["id"])}

    change_status(http, monkeypatch, busy)
    for number in (1, 2):
        await http.cluster.store.put(metadata_keys.bookie(f"bookie-{number}"), pack({"instance": "a"}), None)
        await http.cluster.join("bookie", f"bookie-{number}", instance="a")
    metrics = (await http("GET", "/metrics"))[1]
    where = 'node="admin",service="admin"'
    assert f"magnetar_load_balancer_moves_total{{{where}}} 4.0" in metrics
    assert f"magnetar_auditor_copied_bytes_total{{{where}}} 5000.0" in metrics
    for bookie, repaired in (("bookie-1", 1.0), ("bookie-2", 2.0)):
        labels = f'bookie="{bookie}",{where}'
        assert f"magnetar_bookies_repaired_entries_total{{{labels}}} {repaired}" in metrics
        assert f"magnetar_bookies_scrubbed_bytes_total{{{labels}}} 700.0" in metrics
    growing = [
        line for line in metrics.splitlines() if "since the coordinator started" in line or "over the life" in line
    ]
    assert len(growing) == 4
    assert all(f"# TYPE {line.split()[2]} counter" in metrics for line in growing)


def scrub_of(bookie: str) -> ScrubReport:
    """What a bookie reports of its scrubs."""
    repaired = int(bookie.removeprefix("bookie-"))
    return {
        "damaged": 0,
        "found": repaired,
        "repaired": repaired,
        "passes": 1,
        "pass_share": 1.0,
        "scrubbed_bytes": 700,
    }


async def test_all_bookies_are_listed_whether_or_not_they_live(http: Http) -> None:
    assert await http("GET", "/admin/v2/bookies/all") == (200, {"bookies": []})
    for number in (1, 2):
        await http.cluster.store.put(metadata_keys.bookie(f"bookie-{number}"), pack({"instance": "a"}), None)
    await http.cluster.join("bookie", "bookie-2", instance="a")
    found = await http("GET", "/admin/v2/bookies/all")
    assert found == (200, {"bookies": [{"bookieId": "bookie-1"}, {"bookieId": "bookie-2"}]})


async def test_without_a_coordinator_it_answers_at_once_and_recovers(http: Http) -> None:
    await http.cluster.coordinator.close()
    await eventually(lambda: not http.admin._coordinator.connected)
    status, answer = await http("PUT", f"{PERSISTENT}/t/partitions", 2)
    assert status == 503 and "coordinator" in answer["reason"]
    assert 'magnetar_coordinator_up{node="admin",service="admin"} 0.0' in (await http("GET", "/metrics"))[1]
    await http.cluster.start_coordinator()
    await eventually(lambda: http.admin._coordinator.connected)
    assert (await http("PUT", f"{PERSISTENT}/t/partitions", 2))[0] == 204


async def test_a_body_that_is_too_long_is_refused(http: Http) -> None:
    assert (await http("PUT", f"{PERSISTENT}/t/partitions", text="1" * 100_000))[0] == 413


async def _raw(http: Http, headers: str, body: bytes) -> bytes:
    """The answer to a PUT whose body is not what its headers say; the connection stays open at our end."""
    reader, writer = await asyncio.open_connection(*http.admin.address)
    head = f"PUT {PERSISTENT}/t/partitions HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return answer


async def test_a_body_that_does_not_come_gives_its_place_up(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred such requests would otherwise shut everybody else out. Found by `tests/fuzz` (target admin)."""
    monkeypatch.setattr(admin_requests, "BODY_TIMEOUT_S", 0.1)
    assert (await _raw(http, f"Content-Length: 5\r\n{JSON}", b"1")).startswith(b"HTTP/1.1 408 ")
    assert http.admin._under_way == 0


@pytest.mark.parametrize(
    "headers, body",
    [
        (f"Content-Length: 5\r\n{JSON}\r\nContent-Encoding: gzip", b"12345"),
        (f"Content-Length: 1\r\n{JSON}; charset=x", b"1"),
        (f"Content-Length: 2\r\n{JSON}; charset=utf-8", b"\xff\xfe"),
    ],
)
async def test_a_body_that_cannot_be_read_is_the_clients_fault(http: Http, headers: str, body: bytes) -> None:
    """Found by `tests/fuzz` (target admin): it was answered with 500."""
    assert (await _raw(http, headers, body)).startswith(b"HTTP/1.1 400 ")


async def test_many_requests_at_once_are_bounded(http: Http) -> None:
    http.admin._under_way = 256
    assert (await http("GET", "/admin/v2/clusters"))[0] == 429
    http.admin._under_way = 0
    answers = await asyncio.gather(*(http("GET", "/admin/v2/tenants") for _ in range(50)))
    assert {status for status, _ in answers} == {200}


def test_places_in_a_topic() -> None:
    assert position_of(None, "latest") == "latest"
    assert position_of("earliest", "latest") == "earliest"
    assert position_of({"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}, "earliest") == "latest"
    assert position_of({"ledgerId": 3, "entryId": 4, "partitionIndex": 1}, "latest") == [3, 4]
    for wrong in ([], 5, {"ledgerId": 1}, "sometime"):
        with pytest.raises(InvalidConfiguration):
            position_of(wrong, "latest")
    with pytest.raises(web.HTTPBadRequest):
        position_of({"ledgerId": True, "entryId": 1}, "latest")


def _name(topic: str, partition: int) -> str:
    return f"persistent://public/default/{topic}-partition-{partition}"
