"""Properties of namespaces and topics over HTTP: bodies that are refused, and what survives the coordinator."""

import pytest

from support.servers.admin_http import Http, admin_of
from support.servers.coordination import FAST, coordination

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"


@pytest.mark.promise("32.5")
async def test_bodies_that_are_no_texts_are_refused_and_change_nothing(http: Http) -> None:
    assert (await http("PUT", TOPIC, {"a": "b"}))[0] == 204
    assert (await http("PUT", f"{NAMESPACE}/properties", {"a": "b"}))[0] == 204
    for path in (TOPIC, NAMESPACE):
        for wrong in ([], 3, {"a": [1]}, {"a": {}}):
            assert (await http("PUT", f"{path}/properties", wrong))[0] == 400, wrong
        assert await http("GET", f"{path}/properties") == (200, {"a": "b"})
        assert (await http("PUT", f"{path}/properties", {"x": "y" * 64_000, "z": "y" * 2_000}))[0] in (412, 413)
        assert (await http("PUT", f"{path}/properties", {"x": "y" * 40_000}))[0] == 204
        assert (await http("PUT", f"{path}/properties", {"z": "y" * 40_000}))[0] == 412
        assert sorted((await http("GET", f"{path}/properties"))[1]) == ["a", "x"]
    assert (await http("PUT", f"{NAMESPACE}/properties"))[0] == 400
    assert (await http("DELETE", f"{TOPIC}/properties"))[0] == 400
    assert (await http("PUT", "/admin/v2/non-persistent/public/default/t", {"a": "b"}))[0] == 406


async def test_properties_are_given_with_a_creation_shown_and_gone_with_their_resource() -> None:
    async with coordination() as cluster:
        await cluster.broker(1)
        async with admin_of(cluster, FAST) as http:
            path = "/admin/v2/namespaces/public/noted"
            assert (await http("PUT", path, {"properties": {"team": "x"}}))[0] == 204
            assert (await http("GET", path))[1]["properties"] == {"team": "x"}
            topic = "/admin/v2/persistent/public/noted/t"
            assert (await http("PUT", f"{topic}/partitions", {"partitions": 2, "properties": {"k": "v"}}))[0] == 204
            shown = {"partitions": 2, "deleted": False, "properties": {"k": "v"}}
            assert await http("GET", f"{topic}/partitions") == (200, shown)
            assert await http("GET", f"{topic}-partition-0/properties") == (200, {})
            assert (await http("PUT", f"{topic}-partition-0/properties", {"a": "b"}))[0] == 412
        await cluster.coordinator.close()
        await cluster.start_coordinator()
        await cluster.broker(1)  # partitions are deleted when their owner is back
        async with admin_of(cluster, FAST) as http:
            assert (await http("GET", path))[1]["properties"] == {"team": "x"}
            assert await http("GET", f"{topic}/properties") == (200, {"k": "v"})
            assert (await http("DELETE", f"{topic}/partitions"))[0] == 204
            assert (await http("PUT", f"{topic}/partitions", 2))[0] == 204
            assert await http("GET", f"{topic}/properties") == (200, {})
