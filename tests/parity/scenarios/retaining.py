"""What a topic keeps and gives up: retention, time to live, expiry and backlog quotas."""

import time
from typing import Any

import pulsar

from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandProducer

from ..registry import KEEPING, scenario
from ..stage import Stage

NAMESPACE = "/admin/v2/namespaces/{ns}"
TOPIC = "/admin/v2/persistent/{ns}/topic"
BACKLOG = [".subscriptions.s.msgBacklog"]
EARLIEST = pulsar.InitialPosition.Earliest
KEEP_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def _backlog(stage: Stage) -> Any:
    return stage.stats()["subscriptions"]["s"]["msgBacklog"]


@scenario()
def retention_is_a_policy_at_two_levels(stage: Stage) -> None:
    """Paths, statuses, and pairs of time and size that cannot be."""
    stage.admin("PUT", TOPIC)
    pairs = ((0, 0), (-1, -1), (10, -1), (-1, 10), (10, 10), (0, -1), (-1, 0), (0, 10), (10, 0), (-2, 10), (10, -2))
    for level, path in (("namespace", f"{NAMESPACE}/retention"), ("topic", f"{TOPIC}/retention")):
        stage.http(f"{level}: not set", "GET", path)
        for minutes, size in pairs:
            body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size}
            stage.http(f"{level}: {minutes} minutes and {size} MB", "POST", path, body)
        stage.http(f"{level}: shown", "GET", path)
        stage.http(f"{level}: without a size", "POST", path, {"retentionTimeInMinutes": 5})
        stage.http(f"{level}: a text", "POST", path, {"retentionTimeInMinutes": "long", "retentionSizeInMB": 1})
        stage.http(f"{level}: removed", "DELETE", path)
        stage.http(f"{level}: shown at the end", "GET", path)
    stage.http("of a missing namespace", "POST", "/admin/v2/namespaces/parity/none-such/retention", KEEP_ALL)


@scenario()
def time_to_live_is_a_policy_at_two_levels(stage: Stage) -> None:
    """In the body for a namespace, in the query for a topic."""
    stage.admin("PUT", TOPIC)
    path = f"{NAMESPACE}/messageTTL"
    stage.http("namespace: not set", "GET", path)
    stage.http("namespace: set", "POST", path, 10)
    stage.http("namespace: shown", "GET", path)
    stage.http("namespace: below zero", "POST", path, -1)
    stage.http("namespace: a text", "POST", path, "long")
    topic = f"{TOPIC}/messageTTL"
    stage.http("topic: not set", "GET", topic)
    stage.http("topic: applied", "GET", topic + "?applied=true")
    stage.http("topic: set", "POST", topic + "?messageTTL=7")
    stage.http("topic: shown", "GET", topic)
    stage.http("topic: below zero", "POST", topic + "?messageTTL=-1")
    stage.http("topic: removed", "DELETE", topic + "?messageTTL=0")
    stage.http("topic: shown at the end", "GET", topic)
    stage.http("namespace: removed", "DELETE", path)
    stage.http("namespace: shown at the end", "GET", path)


@scenario()
def quotas_of_backlogs_are_policies(stage: Stage) -> None:
    """Two types at two levels, one that is not smaller than the retention, and bodies that are none."""
    stage.admin("PUT", TOPIC)
    size = {"limitSize": 1_000_000, "policy": "producer_request_hold"}
    age = {"limitTime": 10, "policy": "consumer_backlog_eviction"}
    for level, at in (("namespace", NAMESPACE), ("topic", TOPIC)):
        path, shown = f"{at}/backlogQuota", f"{at}/backlogQuotaMap"
        stage.http(f"{level}: not set", "GET", shown)
        stage.http(f"{level}: by size", "POST", path, size)
        stage.http(f"{level}: by age", "POST", path + "?backlogQuotaType=message_age", age)
        stage.http(f"{level}: both", "GET", shown)
        stage.http(f"{level}: another type", "POST", path + "?backlogQuotaType=bad", size)
        stage.http(f"{level}: another policy", "POST", path, {**size, "policy": "bad"})
        stage.http(f"{level}: the size removed", "DELETE", path)
        stage.http(f"{level}: the age removed", "DELETE", path + "?backlogQuotaType=message_age")
        stage.http(f"{level}: none", "GET", shown)
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    stage.http("a retention", "POST", f"{NAMESPACE}/retention", retention)
    stage.http("a quota that is as large", "POST", f"{NAMESPACE}/backlogQuota", {**size, "limitSize": 10 << 20})
    stage.http("a smaller one", "POST", f"{NAMESPACE}/backlogQuota", size)
    smaller = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0}
    stage.http("a retention that is smaller than the quota", "POST", f"{NAMESPACE}/retention", smaller)


def _quota(stage: Stage, policy: str) -> Any:
    """A topic whose backlog is larger than its quota. Returns its first producer's name."""
    assert stage.admin("POST", f"{NAMESPACE}/backlogQuota", {"limitSize": 1000, "policy": policy}).status == 204
    client = stage.client()
    client.subscribe(stage.topic(), "s").close()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for _ in range(6):
        producer.send(bytes(500))
    return producer


@scenario(KEEPING)
def a_full_quota_refuses_producers(stage: Stage) -> None:
    """Policy `producer_exception`: what new producers are told, and the one that is there."""
    _quota(stage, "producer_exception")
    stage.until(lambda: not stage.stats()["publishers"])
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("a new producer", peer, CommandProducer(topic=topic, producer_id=1, producer_name="q"))
    client = stage.client()
    stage.step("of the official client", client.create_producer, stage.topic(), producer_name="r")
    stage.http("skip all", "POST", f"{TOPIC}/subscription/s/skip_all")
    stage.until(lambda: _backlog(stage) == 0)
    stage.ask("then", peer, CommandProducer(topic=topic, producer_id=2, producer_name="t"))


@scenario(KEEPING)
def a_full_quota_holds_producers_back(stage: Stage) -> None:
    """Policy `producer_request_hold`: what new producers are told by raw frames."""
    _quota(stage, "producer_request_hold")
    stage.until(lambda: not stage.stats()["publishers"])
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("a new producer", peer, CommandProducer(topic=topic, producer_id=1, producer_name="q"))
    figures = [".backlogQuotaLimitSize", ".backlogQuotaLimitTime"]
    stage.http("statistics", "GET", f"{TOPIC}/stats", only=figures)


@scenario(KEEPING)
def a_full_quota_evicts_the_oldest_messages(stage: Stage) -> None:
    """Policy `consumer_backlog_eviction`: producers stay, and a backlog is cut."""
    producer = _quota(stage, "consumer_backlog_eviction")
    stage.until(lambda: _backlog(stage) < 6)
    stage.note("the backlog is within the quota", _backlog(stage) * 500 <= 1000)
    stage.note("its producer goes on", producer.send(b"more").entry_id() >= 0)


@scenario(KEEPING)
def messages_without_subscriptions_go_unless_retained(stage: Stage) -> None:
    """Three ledgers of messages that are acknowledged, with and without retention."""
    client = stage.client()
    for label, retention in (("retained", KEEP_ALL), ("not retained", None)):
        name = label.replace(" ", "-")
        stage.admin("PUT", f"/admin/v2/persistent/{{ns}}/{name}")
        if retention:
            assert stage.admin("POST", f"{NAMESPACE}/retention", retention).status == 204
        else:
            assert stage.admin("DELETE", f"{NAMESPACE}/retention").status == 204
        consumer = client.subscribe(stage.topic(name), "s")
        producer = client.create_producer(stage.topic(name), producer_name="p", batching_enabled=False)
        for number in range(10):
            producer.send(b"%d" % number)
        for _ in range(10):
            consumer.acknowledge(consumer.receive(15_000))
        if retention:
            reader = client.create_reader(stage.topic(name), pulsar.MessageId.earliest)
            stage.note(label, [reader.read_next(15_000).data() for _ in range(10)])
        else:
            stage.note(label, stage.until(lambda name=name: _ledgers(stage, name) == 1))


def _ledgers(stage: Stage, topic: str) -> int:
    return len(stage.admin("GET", f"/admin/v2/persistent/{{ns}}/{topic}/internalStats").body["ledgers"])


def _pass(stage: Stage, seconds: float) -> None:
    """Let time pass: the clock alone decides what is old."""
    begun_s = time.monotonic()
    stage.until(lambda: time.monotonic() - begun_s > seconds)


@scenario()
def an_operator_expires_old_messages(stage: Stage) -> None:
    """Of one subscription and of all; and what cannot be expired."""
    client = stage.client()
    for name in ("s", "t"):
        client.subscribe(stage.topic(), name).close()
    young = client.create_producer(stage.topic(), producer_name="young", batching_enabled=False)
    for _ in range(3):
        young.send(b"old")
    _pass(stage, 9)
    young.send(b"young")
    stage.http("of one subscription", "POST", f"{TOPIC}/subscription/s/expireMessages/8")
    stage.until(lambda: _backlog(stage) == 1)
    both = [*BACKLOG, ".subscriptions.t.msgBacklog"]
    stage.http("backlogs", "GET", f"{TOPIC}/stats", only=both)
    stage.http("of all", "POST", f"{TOPIC}/all_subscription/expireMessages/8")
    stage.until(lambda: stage.stats()["subscriptions"]["t"]["msgBacklog"] == 1)
    stage.http("backlogs then", "GET", f"{TOPIC}/stats", only=both)
    stage.http("of a missing subscription", "POST", f"{TOPIC}/subscription/none/expireMessages/10")
    stage.http("of a missing topic", "POST", "/admin/v2/persistent/{ns}/none-such/subscription/s/expireMessages/10")
    stage.http("a time that is a text", "POST", f"{TOPIC}/subscription/s/expireMessages/long")
    consumer = client.subscribe(stage.topic(), "s")
    stage.receive("what is left", consumer)
    consumer.close()
    stage.http("a time below zero", "POST", f"{TOPIC}/subscription/s/expireMessages/-1")


@scenario()
def the_clock_of_a_producer_and_the_age_of_its_messages(stage: Stage) -> None:
    """Messages that are seconds old, by a producer whose clock is an hour behind, and behind one from next year."""
    now_ms = int(time.time() * 1000)
    year_ms = 365 * 24 * 3_600_000
    times = {
        "an hour behind": (now_ms - 3_600_000, now_ms, now_ms),
        "a year ahead": (now_ms + year_ms, now_ms, now_ms),
        "of 1970": (1, now_ms, now_ms),
    }
    client = stage.client()
    for topic in times:
        client.subscribe(stage.topic(topic.replace(" ", "-")), "s").close()
    for number, (topic, published) in enumerate(times.items(), 1):
        peer = stage.peer()
        name = stage.found_topic(topic.replace(" ", "-"))
        peer.request(CommandProducer(topic=name, producer_id=number, producer_name="p"))
        for sequence_id, publish_time in enumerate(published):
            peer.send_message(b"m", sequence_id, producer_id=number, producer_name="p", publish_time=publish_time)
            peer.next_frame(BaseCommand.SEND_RECEIPT)
    _pass(stage, 4)
    for age_s in (1800, 3):
        for topic in times:
            at = "/admin/v2/persistent/{ns}/" + topic.replace(" ", "-")
            stage.http(f"{topic}: expire what is {age_s} s old", "POST", f"{at}/subscription/s/expireMessages/{age_s}")
            _pass(stage, 1)  # Pulsar expires behind its answer
            stage.http(f"{topic}: backlog behind {age_s} s", "GET", f"{at}/stats", only=BACKLOG)
