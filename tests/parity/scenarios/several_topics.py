"""Consumers of several topics, by list and by pattern, and table views."""

import re
import threading

import pulsar

from magnetar.protocol.pulsar_pb2 import CommandGetTopicsOfNamespace

from ..registry import NO_CREATION, scenario
from ..stage import Stage

SHARED = {"consumer_type": pulsar.ConsumerType.Shared}


def _send(client: pulsar.Client, topic: str, *contents: bytes) -> None:
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    for content in contents:
        producer.send(content)
    producer.close()


@scenario(promises=("22.1",))
def a_list_of_topics_is_one_consumer(stage: Stage) -> None:
    """Two topics, one of them in partitions, and the order of each."""
    client = stage.client()
    stage.admin("PUT", "/admin/v2/persistent/{ns}/parts/partitions", 2)
    topics = [stage.topic("one"), stage.topic("parts")]
    consumer = client.subscribe(topics, "s", **SHARED)
    _send(client, topics[0], b"1", b"2", b"3")
    stage.receive("of the plain topic", consumer, 3, acknowledge=True)
    _send(client, f"{topics[1]}-partition-1", b"4", b"5")
    stage.receive("of a partition", consumer, 2, acknowledge=True)
    stage.step("unsubscribe", consumer.unsubscribe)
    stage.http("subscriptions of the plain one", "GET", "/admin/v2/persistent/{ns}/one/subscriptions")
    stage.http("subscriptions of the other", "GET", "/admin/v2/persistent/{ns}/parts/subscriptions")


@scenario(promises=("22.1",))
def a_pattern_takes_the_topics_that_match(stage: Stage) -> None:
    """Plain topics, partitions, and topics that do not match."""
    client = stage.client()
    _send(client, stage.topic("in-1"), b"before")
    _send(client, stage.topic("out-1"), b"before")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/in-parts/partitions", 2)
    pattern = re.compile(stage.topic("in-.*"))
    consumer = stage.step("subscribe", client.subscribe, pattern, "s", **SHARED)
    _send(client, stage.topic("in-1"), b"1")
    stage.receive("of the first", consumer, acknowledge=True)
    _send(client, stage.topic("in-parts-partition-0"), b"2")
    stage.receive("of a partition", consumer, acknowledge=True)
    stage.http("nobody subscribed to the rest", "GET", "/admin/v2/persistent/{ns}/out-1/subscriptions")


@scenario(promises=("31.5",))
def a_seek_of_several_topics_moves_them_all(stage: Stage) -> None:
    """To a time and to the earliest; the last message id of several topics is refused."""
    client = stage.client()
    topics = [stage.topic("one"), stage.topic("two")]
    consumer = client.subscribe(topics, "s", **SHARED)
    for number, topic in enumerate(topics):
        _send(client, topic, b"%d" % number)
        stage.receive(f"message {number}", consumer, acknowledge=True)
    stage.step("to the beginning", consumer.seek, pulsar.MessageId.earliest)
    contents = sorted(message.data() for message in (consumer.receive(15_000), consumer.receive(15_000)))
    stage.note("again", contents)
    stage.step("to a time", consumer.seek, 1)
    contents = sorted(message.data() for message in (consumer.receive(15_000), consumer.receive(15_000)))
    stage.note("and again", contents)
    stage.nothing("no more", consumer)


@scenario(NO_CREATION)
def a_list_with_a_missing_topic_is_refused(stage: Stage) -> None:
    """By the official client, where topics are not created by themselves."""
    client = stage.client()
    stage.admin("PUT", "/admin/v2/persistent/{ns}/there")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/there/subscription/s")
    stage.step("one missing", client.subscribe, [stage.topic("there"), stage.topic("missing")], "s")
    consumer = client.subscribe([stage.topic("there")], "s")
    stage.step("all there", consumer.unsubscribe)


@scenario()
def topics_of_a_namespace_are_listed_to_clients(stage: Stage) -> None:
    """By raw frames: plain topics, partitions, a namespace that is not there, one that cannot be."""
    client, peer = stage.client(), stage.peer()
    _send(client, stage.topic("plain"), b"x")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/parts/partitions", 2)
    answer = peer.request(CommandGetTopicsOfNamespace(namespace=stage.namespace))
    found = answer.command.getTopicsOfNamespaceResponse
    stage.note("names", sorted(name.rpartition("/")[2] for name in found.topics))
    stage.note("filtered, changed", [found.filtered, found.changed])
    none = peer.request(CommandGetTopicsOfNamespace(namespace=stage.namespace, mode=1))
    stage.note("without persistent ones", sorted(none.command.getTopicsOfNamespaceResponse.topics))
    missing = peer.request(CommandGetTopicsOfNamespace(namespace="public/not-there"))
    stage.note("of a missing namespace", sorted(missing.command.getTopicsOfNamespaceResponse.topics))


@scenario(promises=("31.1",))
def a_table_view_has_the_last_value_of_each_key(stage: Stage) -> None:
    """Values, deleted keys, messages without a key, changes."""
    client = stage.client()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for key, value in [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4")]:
        producer.send(value, partition_key=key)
    producer.send(b"no key")
    producer.send(b"", partition_key="c")
    table = stage.step("create", client.create_table_view, stage.topic())
    stage.note("size and values", [len(table), table.get("a"), table.get("b"), table.get("c")])
    changed = threading.Event()
    seen: list[str] = []

    def change(key: str, value: bytes) -> None:
        seen.append(f"{key}={value!r}")
        if key == "d":
            changed.set()

    table.for_each_and_listen(change)
    producer.send(b"5", partition_key="d")
    stage.note("it hears of a change", changed.wait(15))
    stage.note("what it heard", sorted(seen))


@scenario(promises=("31.3",))
def a_null_value_is_told_from_an_empty_one(stage: Stage) -> None:
    """By the official client, alone and in a batch."""
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s")
    for batching in (False, True):
        producer = client.create_producer(stage.topic(), batching_enabled=batching)
        for content in (b"x", None, b""):
            producer.send(content, partition_key="k")
        got = [consumer.receive(15_000) for _ in range(3)]
        stage.note(f"batching {batching}", [(one.data(), one.has_null_value()) for one in got])


@scenario(promises=("31.2",))
def a_batch_receive_ends_at_its_limits(stage: Stage) -> None:
    """By number of messages, by bytes and by time."""
    client = stage.client()
    _send(client, stage.topic(), *[b"%d" % number for number in range(6)])
    for label, policy in [
        ("two messages", pulsar.ConsumerBatchReceivePolicy(2, -1, 1_000)),
        ("four bytes", pulsar.ConsumerBatchReceivePolicy(-1, 4, 1_000)),
        ("a time", pulsar.ConsumerBatchReceivePolicy(100, -1, 300)),
    ]:
        consumer = client.subscribe(
            stage.topic(), label, batch_receive_policy=policy, initial_position=pulsar.InitialPosition.Earliest
        )
        stage.until(lambda label=label: stage.stats()["subscriptions"][label]["msgOutCounter"] == 6)
        stage.note(label, [message.data() for message in consumer.batch_receive()])
        consumer.close()


@scenario(promises=("14.5",))
def a_listener_pauses_and_resumes(stage: Stage) -> None:
    """Messages wait while it is paused; receive is refused."""
    client = stage.client()
    heard: list[bytes] = []
    arrived = threading.Semaphore(0)

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)
        arrived.release()

    consumer = client.subscribe(stage.topic(), "s", message_listener=listen)
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    producer.send(b"1")
    stage.note("it hears", arrived.acquire(timeout=15))
    stage.step("receive beside a listener", consumer.receive, 100)
    stage.step("pause", consumer.pause_message_listener)
    producer.send(b"2")
    stage.note("it hears nothing", arrived.acquire(timeout=0.3))
    stage.step("resume", consumer.resume_message_listener)
    stage.note("it hears again", arrived.acquire(timeout=15))
    stage.note("all that it heard", heard)
