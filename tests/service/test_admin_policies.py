"""The admin's paths of policies: what is stored, shown and refused, with Pulsar's statuses."""

from typing import Any

import pytest

from magnetar.actors.policies.effective import POLICIES
from magnetar.actors.policies.kinds import WholeNumber
from support.servers.admin_http import Http

NAMESPACE = "/admin/v2/namespaces/public/default"
FRESH_IN_PULSAR: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": ["standalone"],
    "allowed_clusters": [],
    "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""What Pulsar 4.2.4 shows of a namespace that was created without policies, and what its tools send. It has as many
bundles as its settings say."""


BOUNDS = [
    name
    for name, policy in POLICIES.items()
    if isinstance(policy.kind, WholeNumber) and not policy.kind.long and name.startswith("max_") and policy.topic
    if policy.namespace
]


@pytest.mark.parametrize("name", BOUNDS)
async def test_a_bound_is_set_shown_and_taken_away_with_pulsars_answers(http: Http, name: str) -> None:
    path = f"{NAMESPACE}/{POLICIES[name].namespace.path}"
    assert await http("GET", path) == (200, "")
    fresh = (await http("GET", NAMESPACE))[1]
    for value in (3, 0):
        assert await http("POST", path, value) == (204, "")
        assert await http("GET", path) == (200, value)
        assert await http("GET", NAMESPACE) == (200, {**fresh, POLICIES[name].key: value})
    assert await http("POST", path, -1) == (412, {"reason": f"{POLICIES[name].namespace.word} must be 0 or more"})
    for wrong in ('"x"', "true", "1.5", "{}", "[]", "null", "", "2147483648", "-2147483649"):
        assert (await http("POST", path, text=wrong))[0] == 400, wrong
    assert await http("GET", path) == (200, 0)
    for _ in range(2):
        assert await http("DELETE", path) == (204, "")
        assert await http("GET", path) == (200, "")
    assert (await http("PUT", path, 3))[0] == 405
    missing = f"/admin/v2/namespaces/public/none/{POLICIES[name].namespace.path}"
    for method, body in (("GET", None), ("POST", 3), ("DELETE", None)):
        assert (await http(method, missing, body))[0] == 404


async def test_encryption_is_required_and_no_longer_required_with_pulsars_answers(http: Http) -> None:
    path = f"{NAMESPACE}/encryptionRequired"
    fresh = (await http("GET", NAMESPACE))[1]
    assert await http("GET", path) == (200, False)
    assert await http("POST", path, True) == (204, "")
    assert await http("GET", path) == (200, True)
    assert await http("GET", NAMESPACE) == (200, {**fresh, "encryption_required": True})
    for wrong in ("1.0", '"yes"', "null", ""):
        assert (await http("POST", path, text=wrong))[0] == 400, wrong
    assert await http("POST", path, False) == (204, "")
    assert await http("GET", path) == (200, False)
    assert (await http("DELETE", path))[0] == 405


async def test_the_copies_of_new_ledgers_are_set_shown_and_taken_away_with_pulsars_answers(http: Http) -> None:
    path = f"{NAMESPACE}/persistence"
    fresh = (await http("GET", NAMESPACE))[1]
    names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum", "managedLedgerMaxMarkDeleteRate")
    assert await http("GET", path) == (200, "")
    assert await http("POST", path, {}) == (204, "")  # as in Pulsar, what is missing has its default
    assert await http("GET", path) == (200, dict(zip(names, (2, 2, 2, -1.0), strict=True)))
    given = dict(zip(names, (4, 3, 2, 2.5), strict=True))
    assert await http("POST", path, {**given, "further": 1}) == (204, "")
    assert await http("GET", path) == (200, given)
    assert await http("GET", NAMESPACE) == (200, {**fresh, "persistence": given})
    for wrong, reason in (
        ((6, 2, 2), "Bookkeeper-Ensemble must be <= 5 and > 0."),
        ((2, 0, 0), "Bookkeeper-WriteQuorum must be <= 5 and > 0."),
        ((2, 2, 0), "Bookkeeper-AckQuorum must be <= 5 and > 0."),
        ((3, 4, 2), "Bookkeeper Ensemble (3) >= WriteQuorum (4) >= AckQuorum (2)"),
    ):
        assert await http("POST", path, dict(zip(names, wrong, strict=False))) == (400, {"reason": reason})
    for text in ("[]", "null", "", "3", '{"bookkeeperEnsemble": "two"}', '{"bookkeeperEnsemble": 2.5}'):
        assert (await http("POST", path, text=text))[0] == 400, text
    status, answer = await http("POST", path, {"bookkeeperAckQuorum": 1})
    assert status == 412 and "allowAckQuorumOfOne" in answer["reason"]
    assert await http("GET", path) == (200, given)
    assert await http("DELETE", path) == (204, "")
    assert await http("GET", path) == (200, "")
    assert await http("PUT", "/admin/v2/namespaces/public/few", {"persistence": given}) == (204, "")
    assert await http("GET", "/admin/v2/namespaces/public/few/persistence") == (200, given)


@pytest.mark.promise("15.7")
async def test_a_namespace_is_created_with_policies(http: Http) -> None:
    def path(name: str) -> str:
        return f"/admin/v2/namespaces/public/{name}"

    fresh = (await http("GET", NAMESPACE))[1]
    assert fresh["encryption_required"] is False
    given = {"max_producers_per_topic": 3, "max_consumers_per_topic": 0, "encryption_required": True}
    assert await http("PUT", path("a"), given) == (204, "")
    assert await http("GET", path("a")) == (200, {**fresh, **given})
    assert await http("PUT", path("b"), {"max_producers_per_topic": -1, "encryption_required": None}) == (204, "")
    assert await http("GET", path("b")) == (200, fresh)
    assert await http("PUT", path("c"), {**FRESH_IN_PULSAR, "max_producers_per_topic": 2}) == (204, "")
    found = (await http("GET", path("c")))[1]
    assert found == {**fresh, "is_allow_auto_update_schema": True, "max_producers_per_topic": 2}
    for wrong in ({"max_producers_per_topic": "x"}, {"encryption_required": 1.5}, [], 5, "x"):
        assert (await http("PUT", path("d"), wrong))[0] == 400, wrong
    for policy, value in (
        ("replication_clusters", ["elsewhere"]),
        ("offload_threshold", -2),
    ):
        status, answer = await http("PUT", path("d"), {policy: value})
        assert status == 412 and answer["reason"].startswith(f"the policy {policy} is not supported"), policy
    assert (await http("GET", path("d")))[0] == 404


async def test_a_namespace_bounds_its_topics_with_pulsars_answers(http: Http) -> None:
    path, topics = f"{NAMESPACE}/maxTopicsPerNamespace", "/admin/v2/persistent/public/default"
    assert await http("GET", path) == (200, 0)
    assert await http("POST", path, 2) == (204, "")
    assert await http("GET", path) == (200, 2)
    assert (await http("GET", NAMESPACE))[1]["max_topics_per_namespace"] == 2
    assert await http("POST", path, -1) == (412, {"reason": "maxTopicsPerNamespace must be 0 or more"})
    assert (await http("POST", path, text=""))[0] == 400
    assert (await http("PUT", f"{topics}/a"))[0] == 204
    assert (await http("PUT", f"{topics}/b/partitions", 2))[0] == 412
    assert (await http("PUT", f"{topics}/b"))[0] == 204
    assert (await http("PUT", f"{topics}/c"))[0] == 412
    assert await http("DELETE", path) == (204, "")
    assert await http("GET", path) == (200, 0)
    assert (await http("PUT", f"{topics}/c"))[0] == 204


async def test_a_topic_says_its_largest_message_with_pulsars_answers(http: Http) -> None:
    topic = "/admin/v2/persistent/public/default/t"
    path = f"{topic}/maxMessageSize"
    assert (await http("PUT", topic))[0] == 204
    assert await http("GET", path) == await http("GET", f"{path}?applied=true") == (204, "")
    for value in (0, 5, 5 << 20):
        assert await http("POST", path, value) == (204, "")
        assert await http("GET", path) == (200, value)
    for wrong in (-1, 999_999_999):
        assert (await http("POST", path, wrong))[0] == 412, wrong
    assert (await http("POST", path, text=""))[0] == 400
    assert await http("DELETE", path) == await http("GET", path) == (204, "")
    assert (await http("GET", f"{NAMESPACE}/maxMessageSize"))[0] in (404, 501)


@pytest.mark.promise("32.11")
async def test_all_policies_of_a_namespace_are_shown_as_by_pulsar_and_can_be_sent_back(http: Http) -> None:
    assert await http("GET", NAMESPACE) == (200, FRESH_IN_PULSAR)
    rate = {
        "dispatchThrottlingRateInMsg": 7,
        "dispatchThrottlingRateInByte": 0,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }
    given = {
        "inactive_topic_policies": {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 5,
            "deleteWhileInactive": True,
        },
        "autoTopicCreationOverride": {"allowAutoTopicCreation": False},
        "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
        "subscription_expiration_time_minutes": 0,
        "subscription_types_enabled": ["Shared", "Key_Shared"],
        "topicDispatchRate": {"standalone": rate},
        "clusterDispatchRate": {"standalone": rate},
        "is_allow_auto_update_schema": False,
        "message_ttl_in_seconds": 9,
    }
    one, other = "/admin/v2/namespaces/public/one", "/admin/v2/namespaces/public/other"
    assert await http("PUT", one, given) == (204, "")
    shown = (await http("GET", one))[1]
    assert shown == {**FRESH_IN_PULSAR, **given}
    assert await http("PUT", other, shown) == (204, "")
    assert await http("GET", other) == (200, shown)
    assert (await http("PUT", one + "2", {"clusterDispatchRate": {"standalone": rate}}))[0] == 412


OVERRIDES: list[tuple[str, Any, Any]] = [
    ("inactiveTopicPolicies", {}, {"maxInactiveDurationSeconds": 0, "deleteWhileInactive": False}),
    ("autoTopicCreation", {}, {"allowAutoTopicCreation": False}),
    ("autoSubscriptionCreation", {}, {"allowAutoSubscriptionCreation": False}),
]


@pytest.mark.parametrize(("name", "given", "shown"), OVERRIDES)
async def test_an_object_is_set_shown_and_taken_away_by_an_empty_body(
    http: Http, name: str, given: Any, shown: Any
) -> None:
    paths = [f"{NAMESPACE}/{name}"]
    if name != "autoTopicCreation":
        await http("PUT", "/admin/v2/persistent/public/default/t")
        paths.append(f"/admin/v2/persistent/public/default/t/{name}")
    for path in paths:
        assert await http("GET", path) == (200, "")
        for taken_away in ("", "null", None):
            assert await http("POST", path, given) == (204, "")
            assert await http("GET", path) == (200, shown)
            if taken_away is None:
                assert await http("DELETE", path) == (204, "")
            else:
                assert await http("POST", path, text=taken_away) == (204, "")
            assert await http("GET", path) == (200, "")
        for wrong in ("[]", "3", '"x"'):
            assert (await http("POST", path, text=wrong))[0] == 400, wrong
        assert (await http("PUT", path, given))[0] == 405


async def test_subscriptions_expire_by_a_number_in_the_body_or_for_a_topic_in_the_query(http: Http) -> None:
    path, topic = f"{NAMESPACE}/subscriptionExpirationTime", "/admin/v2/persistent/public/default/t"
    assert await http("GET", path) == (200, "")
    assert await http("POST", path, 5) == (204, "")
    assert await http("GET", path) == (200, 5)
    assert (await http("POST", path, -1))[0] == 412
    assert (await http("POST", path, text=""))[0] == 400
    assert await http("PUT", topic) == (204, "")
    own = f"{topic}/subscriptionExpirationTime"
    assert await http("GET", own) == (200, "")
    assert await http("GET", own + "?applied=true") == (200, 5)
    assert await http("POST", own + "?subscriptionExpirationTime=7") == (204, "")
    assert await http("GET", own) == (200, 7)
    assert await http("POST", own) == (204, "")
    assert await http("GET", own) == (200, "")


@pytest.mark.promise("32.12")
async def test_types_of_subscriptions_are_a_list_and_an_empty_one_takes_them_away(http: Http) -> None:
    await http("PUT", "/admin/v2/persistent/public/default/t")
    for path in (
        f"{NAMESPACE}/subscriptionTypesEnabled",
        "/admin/v2/persistent/public/default/t/subscriptionTypesEnabled",
    ):
        assert await http("GET", path + "?applied=true") == (200, [])
        assert await http("POST", path, ["Key_Shared", "Shared"]) == (204, "")
        assert await http("GET", path) == (200, ["Shared", "Key_Shared"])
        for wrong in ('["shared"]', "null", "", "{}", '"Shared"'):
            assert (await http("POST", path, text=wrong))[0] == 400, wrong
        assert await http("POST", path, []) == (204, "")
        assert await http("GET", path) == (200, [])
        assert await http("DELETE", path) == (204, "")
