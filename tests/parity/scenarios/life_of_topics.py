"""Policies of what clients create, which subscriptions they may use, and how long topics and subscriptions live."""

from magnetar.protocol.pulsar_pb2 import CommandSubscribe

from ..registry import scenario
from ..stage import Stage

NAMESPACE = "/admin/v2/namespaces/{ns}"
SHOWN_ALWAYS = [
    "auth_policies",
    "replication_clusters",
    "allowed_clusters",
    "backlog_quota_map",
    "clusterDispatchRate",
    "topicDispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "clusterSubscribeRate",
    "publishMaxMessageRate",
    "latency_stats_sample_rate",
    "deleted",
    "encryption_required",
    "subscription_auth_mode",
    "offload_threshold",
    "offload_threshold_in_seconds",
    "schema_compatibility_strategy",
    "is_allow_auto_update_schema",
    "schema_validation_enforced",
    "subscription_types_enabled",
    "properties",
    "migrated",
]
SET_HERE = [
    "autoTopicCreationOverride",
    "autoSubscriptionCreationOverride",
    "inactive_topic_policies",
    "subscription_expiration_time_minutes",
]


def _round(stage: Stage, what: str, path: str, bodies: dict[str, object]) -> None:
    """Set each value and read it, then take it away."""
    stage.http(f"{what}: not set", "GET", path)
    for label, body in bodies.items():
        stage.http(f"{what}: {label}", "POST", path, body)
        stage.http(f"{what}: get after {label}", "GET", path)
    stage.http(f"{what}: remove", "DELETE", path)
    stage.http(f"{what}: get then", "GET", path)


def _created_topic(stage: Stage) -> str:
    """The admin's path of a topic that exists."""
    path = "/admin/v2/persistent/{ns}/topic"
    stage.admin("PUT", path)
    return path


@scenario()
def all_policies_of_a_namespace_are_shown(stage: Stage) -> None:
    """Those that are always there, and some that are set."""
    wanted = [f".{name}" for name in (*SHOWN_ALWAYS, *SET_HERE)]
    stage.http("fresh", "GET", NAMESPACE, only=wanted)
    for name, body in (
        ("autoTopicCreation", {"allowAutoTopicCreation": False}),
        ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True}),
        ("subscriptionExpirationTime", 5),
        ("subscriptionTypesEnabled", ["Shared"]),
        ("dispatchRate", {"dispatchThrottlingRateInMsg": 7}),
        ("inactiveTopicPolicies", {"inactiveTopicDeleteMode": "delete_when_no_subscriptions"}),
    ):
        stage.admin("POST", f"{NAMESPACE}/{name}", body)
    stage.http("with policies", "GET", NAMESPACE, only=wanted)


@scenario()
def policies_of_automatic_creation_are_set_read_and_removed(stage: Stage) -> None:
    """What may stand in them, and what is refused."""
    allowed = {"allowAutoTopicCreation": True}
    _round(
        stage,
        "topics",
        f"{NAMESPACE}/autoTopicCreation",
        {
            "no fields": {},
            "partitioned": {**allowed, "topicType": "partitioned", "defaultNumPartitions": 3},
            "no type": allowed,
            "an unknown type": {**allowed, "topicType": "x"},
            "no number": {**allowed, "topicType": "partitioned"},
            "a number below one": {**allowed, "topicType": "partitioned", "defaultNumPartitions": 0},
            "a number for a plain one": {**allowed, "topicType": "non-partitioned", "defaultNumPartitions": 3},
            "a list": [],
            "plain": {**allowed, "topicType": "non-partitioned"},
        },
    )
    topic = _created_topic(stage)
    for what, level in (("namespace", NAMESPACE), ("topic", topic)):
        path = f"{level}/autoSubscriptionCreation"
        bodies = {"no fields": {}, "allowed": {"allowAutoSubscriptionCreation": True}, "a list": []}
        _round(stage, f"subscriptions of a {what}", path, bodies)


@scenario()
def a_namespace_says_what_clients_create(stage: Stage) -> None:
    """No topics, then partitioned ones, then no subscriptions."""
    client = stage.client()
    stage.admin("POST", f"{NAMESPACE}/autoTopicCreation", {"allowAutoTopicCreation": False})
    stage.step("produce to a missing topic", client.create_producer, stage.topic("missing"))
    stage.step("subscribe to it", client.subscribe, stage.topic("missing"), "s")
    stage.http("its partitions", "GET", f"/admin/v2/{stage.topic('missing').replace('://', '/')}/partitions")
    partitioned = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    stage.admin("POST", f"{NAMESPACE}/autoTopicCreation", partitioned)
    client.create_producer(stage.topic("parted"), producer_name="p").close()
    path = f"/admin/v2/{stage.topic('parted').replace('://', '/')}/partitions"
    stage.http("partitions of a new topic", "GET", path, only=[".partitions"])
    stage.admin("POST", f"{NAMESPACE}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    peer = stage.peer()
    topic = stage.topic("parted") + "-partition-0"
    stage.ask("subscribe anew", peer, CommandSubscribe(topic=topic, consumer_id=1, subscription="s", subType=0))


@scenario()
def types_of_subscriptions_are_enabled_by_namespace_and_topic(stage: Stage) -> None:
    """Values, and what a consumer of another type is told."""
    for what, level in (("namespace", NAMESPACE), ("topic", _created_topic(stage))):
        bodies = {"two": ["Exclusive", "Failover"], "none": [], "an object": {}}
        _round(stage, f"types of a {what}", f"{level}/subscriptionTypesEnabled", bodies)
    stage.admin("POST", f"{NAMESPACE}/subscriptionTypesEnabled", ["Shared"])
    topic, peer = stage.found_topic("other"), stage.peer()
    for number, name in enumerate(("Exclusive", "Shared", "Failover", "Key_Shared")):
        command = CommandSubscribe(
            topic=topic,
            consumer_id=number,
            consumer_name=name,
            subscription=name,
            subType=CommandSubscribe.SubType.Value(name),
        )
        stage.ask(f"subscribe as {name}", peer, command)


@scenario()
def policies_of_inactive_topics_and_subscriptions_are_set_read_and_removed(stage: Stage) -> None:
    """Objects with some fields, numbers in the body or the query."""
    topic = _created_topic(stage)
    for what, level in (("namespace", NAMESPACE), ("topic", topic)):
        _round(
            stage,
            f"inactive topics of a {what}",
            f"{level}/inactiveTopicPolicies",
            {
                "no fields": {},
                "all fields": {
                    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
                    "maxInactiveDurationSeconds": 5,
                    "deleteWhileInactive": True,
                },
                "a time below zero": {"maxInactiveDurationSeconds": -5},
                "a text for the time": {"maxInactiveDurationSeconds": "x"},
            },
        )
    bodies = {"five": 5, "zero": 0, "below zero": -1, "a text": "x"}
    _round(stage, "expiry in a namespace", f"{NAMESPACE}/subscriptionExpirationTime", bodies)
    path = f"{topic}/subscriptionExpirationTime"
    stage.http("expiry in a topic: not set", "GET", path)
    stage.http("expiry in a topic: applied", "GET", f"{path}?applied=true")
    stage.http("expiry in a topic: set", "POST", f"{path}?subscriptionExpirationTime=7")
    stage.http("expiry in a topic: get", "GET", path)
    stage.http("expiry in a topic: no value", "POST", path)
    stage.http("expiry in a topic: get then", "GET", path)


@scenario()
def system_topics_are_not_created_and_force_needs_a_setting(stage: Stage) -> None:
    """A name that is reserved everywhere, lists, and the forced deletion of a namespace."""
    name = "/admin/v2/persistent/{ns}/t-s__transaction_pending_ack"
    stage.http("create a reserved name", "PUT", name)
    stage.http("create it partitioned", "PUT", f"{name}/partitions", 2)
    stage.http("the list", "GET", "/admin/v2/persistent/{ns}?includeSystemTopic=false")
    stage.http("delete a namespace by force", "DELETE", f"{NAMESPACE}?force=true")


@scenario()
def subscribe_rates_of_namespaces_and_topics(stage: Stage) -> None:
    """Set, read and removed on both levels, with parts that are missing or below zero."""
    bodies: dict[str, object] = {
        "a rate": {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10},
        "nothing said": {},
        "below zero": {"subscribeThrottlingRatePerConsumer": -7, "ratePeriodInSecond": -4},
    }
    _round(stage, "of a namespace", f"{NAMESPACE}/subscribeRate", bodies)
    path = _created_topic(stage) + "/subscribeRate"
    stage.http("of a topic: not set", "GET", path)
    stage.http("of a topic: applied", "GET", f"{path}?applied=true")
    for label, body in bodies.items():
        stage.http(f"of a topic: {label}", "POST", path, body)
        stage.until(lambda body=body: _holds(stage.admin("GET", path).body, body))
        stage.http(f"of a topic: get after {label}", "GET", path)
        stage.http(f"of a topic: applied after {label}", "GET", f"{path}?applied=true")
    stage.http("of a topic: remove", "DELETE", path)
    stage.until(lambda: not stage.admin("GET", path).body)
    stage.http("of a topic: get then", "GET", path)


def _holds(found: object, body: object) -> bool:
    """Whether all that was sent is there, and the rest has its default."""
    default = {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30}
    return isinstance(body, dict) and found == {**default, **body}
