"""The admin's paths of retention, time to live and backlog quotas: what is stored, shown and refused, as in Pulsar."""

import pytest

from support.servers.admin_http import Http

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/kept"


async def test_impossible_retention_is_refused_at_both_levels(http: Http) -> None:
    assert (await http("PUT", TOPIC))[0] == 204
    for level in (NAMESPACE, TOPIC):
        path = f"{level}/retention"
        for minutes, size in ((0, 0), (-1, -1), (10, -1), (-1, 10), (10, 10)):
            value = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size}
            assert await http("POST", path, value) == (204, "")
            assert await http("GET", path) == (200, value)
        for minutes, size in ((0, -1), (-1, 0), (0, 10), (10, 0), (-2, 10), (10, -2)):
            value = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size}
            status, answer = await http("POST", path, value)
            assert status == 400 and answer["reason"].startswith("Invalid retention policy"), value
        assert await http("POST", path) == (204, "")
        assert await http("GET", path) == (200, "")


@pytest.mark.promise("26.4")
async def test_time_to_live_stands_in_the_body_or_for_a_topic_in_the_query(http: Http) -> None:
    assert (await http("PUT", TOPIC))[0] == 204
    assert await http("POST", f"{NAMESPACE}/messageTTL", 10) == (204, "")
    assert (await http("POST", f"{NAMESPACE}/messageTTL", -1))[0] == 412
    assert (await http("POST", f"{NAMESPACE}/messageTTL"))[0] == 400
    assert await http("GET", f"{NAMESPACE}/messageTTL") == (200, 10)
    assert await http("GET", f"{TOPIC}/messageTTL") == (200, "")
    assert await http("GET", f"{TOPIC}/messageTTL?applied=true") == (200, 10)
    assert await http("POST", f"{TOPIC}/messageTTL?messageTTL=7") == (204, "")
    assert await http("GET", f"{TOPIC}/messageTTL") == (200, 7)
    assert (await http("POST", f"{TOPIC}/messageTTL?messageTTL=-1"))[0] == 412
    assert (await http("POST", f"{TOPIC}/messageTTL?messageTTL=x"))[0] == 400
    assert await http("DELETE", f"{TOPIC}/messageTTL?messageTTL=0") == (204, "")
    assert await http("GET", f"{TOPIC}/messageTTL") == (200, "")


async def test_quotas_are_set_one_type_at_a_time_and_shown_together(http: Http) -> None:
    assert (await http("PUT", TOPIC))[0] == 204
    size = {"limitSize": 77, "limitTime": 0, "policy": "producer_request_hold"}
    age = {"limitSize": 0, "limitTime": 10, "policy": "consumer_backlog_eviction"}
    for level in (NAMESPACE, TOPIC):
        path, shown = f"{level}/backlogQuota", f"{level}/backlogQuotaMap"
        assert await http("GET", shown) == (200, {})
        assert await http("POST", path, {"limit": 77, "policy": "producer_request_hold"}) == (204, "")
        body = {"limitTime": 10, "policy": "consumer_backlog_eviction"}
        assert await http("POST", f"{path}?backlogQuotaType=message_age", body) == (204, "")
        assert await http("GET", shown) == (200, {"destination_storage": size, "message_age": age})
        assert (await http("POST", f"{path}?backlogQuotaType=bad", body))[0] == 404
        for wrong in ({"limitSize": 5}, {"limit": 5, "policy": "bad"}, [], {"limitSize": "x", "policy": age["policy"]}):
            assert (await http("POST", path, wrong))[0] == 400
        assert (await http("POST", shown, {}))[0] in (405, 501)
        assert await http("DELETE", path) == (204, "")
        assert await http("GET", shown) == (200, {"message_age": age})
        assert await http("DELETE", f"{path}?backlogQuotaType=message_age") == (204, "")
        assert await http("GET", shown) == (200, {})


async def test_a_quota_that_is_not_smaller_than_the_retention_is_refused(http: Http) -> None:
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}
    assert (await http("POST", f"{NAMESPACE}/retention", retention))[0] == 204
    for size, status in ((1 << 20, 412), ((1 << 20) - 1, 204)):
        body = {"limitSize": size, "policy": "producer_exception"}
        assert (await http("POST", f"{NAMESPACE}/backlogQuota", body))[0] == status
    status, answer = await http("POST", f"{NAMESPACE}/retention", {**retention, "retentionTimeInMinutes": 5})
    assert status == 204, answer
