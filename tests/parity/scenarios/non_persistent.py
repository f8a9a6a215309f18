"""Non-persistent topics: what is delivered and dropped, what commands and the admin say."""

import pulsar

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseProducer,
    CommandConsumerStats,
    CommandFlow,
    CommandGetLastMessageId,
    CommandGetTopicsOfNamespace,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    MessageIdData,
)

from ..registry import NO_CREATION, PERSISTENT_ONLY, scenario
from ..stage import Stage

DOMAIN = "non-persistent"
TOPICS = "/admin/v2/non-persistent/{ns}"
TOPIC = TOPICS + "/topic"
STATS = TOPIC + "/stats"


def _connected(stage: Stage, *names: str) -> bool:
    """Whether all these subscriptions have a consumer with permits."""
    found = stage.admin("GET", STATS).body["subscriptions"]
    return all(found.get(name, {}).get("consumers", [{}])[0].get("availablePermits", 0) > 0 for name in names)


@scenario(promises=("24.1",))
def a_message_goes_to_those_who_are_connected(stage: Stage) -> None:
    """Before, while and after a consumer is connected."""
    client, topic = stage.client(), stage.topic(domain=DOMAIN)
    producer = stage.step("a producer", client.create_producer, topic, producer_name="p", batching_enabled=False)
    stage.step("nobody is there", producer.send, b"lost")
    consumer = stage.step("a consumer", client.subscribe, topic, "s")
    other = client.subscribe(topic, "t", initial_position=pulsar.InitialPosition.Earliest)
    stage.until(lambda: _connected(stage, "s", "t"))
    for number in range(3):
        stage.step(f"send {number}", producer.send, b"%d" % number)
    stage.receive("s has all", consumer, 3, acknowledge=True)
    stage.receive("t has all", other, 3)
    consumer.close()
    stage.step("s has left", producer.send, b"late")
    again = client.subscribe(topic, "s")
    stage.nothing("s gets nothing of what it missed", again)


@scenario(promises=("24.5",))
def each_subscription_type_delivers(stage: Stage) -> None:
    """Shared in turns, Failover to the active one, Key_Shared by key, Exclusive to one."""
    client, topic = stage.client(), stage.topic(domain=DOMAIN)
    kinds = pulsar.ConsumerType
    consumers = {}
    for name, kind in (("shared", kinds.Shared), ("failover", kinds.Failover), ("keys", kinds.KeyShared)):
        for which in "ab":
            consumers[name, which] = client.subscribe(topic, name, consumer_type=kind, consumer_name=which)
    only = client.subscribe(topic, "exclusive")
    stage.step("a second exclusive one", client.subscribe, topic, "exclusive")
    stage.step("another type", client.subscribe, topic, "shared", consumer_type=kinds.Failover)

    def ready() -> bool:
        found = stage.admin("GET", STATS).body["subscriptions"]
        rows = [one for name in ("shared", "failover", "keys", "exclusive") for one in found[name]["consumers"]]
        return len(rows) == 7 and all(one["availablePermits"] > 0 for one in rows)

    stage.until(ready)
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    for number in range(8):
        producer.send(b"%d" % number, partition_key=f"key-{number % 4}")

    def drain(consumer: pulsar.Consumer, wait_ms: int) -> list[str]:
        out = []
        while True:
            try:
                message = consumer.receive(wait_ms)
            except pulsar.Timeout:
                return out
            out.append(f"{message.partition_key()}={message.data().decode()}")

    stage.receive("exclusive", only, 8)
    got = {key: drain(consumer, 300) for key, consumer in consumers.items()}
    stage.note("shared: how many each", sorted(len(got["shared", which]) for which in "ab"))
    stage.note("failover: how many each", sorted(len(got["failover", which]) for which in "ab"))
    stage.note("failover: all in order", sorted(got["failover", "a"] or got["failover", "b"]))
    stage.note("key_shared: all", sorted(got["keys", "a"] + got["keys", "b"]))
    keys = [{one.partition("=")[0] for one in got["keys", which]} for which in "ab"]
    stage.note("key_shared: keys of both", sorted(keys[0] & keys[1]))
    stage.http(
        "statistics", "GET", STATS, only=[f".subscriptions.{one}.type" for one in ("shared", "failover", "keys")]
    )


@scenario(promises=("24.2",))
def what_has_no_permits_is_dropped_and_counted(stage: Stage) -> None:
    """By raw frames: two permits for four messages, then more permits."""
    topic, peer = stage.found_topic(domain=DOMAIN), stage.peer()
    consumer = CommandSubscribe(topic=topic, subscription="s", consumer_id=1, subType=CommandSubscribe.Exclusive)
    stage.ask("a consumer", peer, consumer)
    stage.ask("a producer", peer, CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    peer.send(CommandFlow(consumer_id=1, messagePermits=2))
    peer.settle()
    for number in range(4):
        peer.send_message(b"%d" % number, number)
        stage.next_frame(f"receipt {number}", peer, BaseCommand.SEND_RECEIPT)
    stage.next_frame("the first", peer, BaseCommand.MESSAGE)
    stage.next_frame("the second", peer, BaseCommand.MESSAGE)
    peer.send(CommandFlow(consumer_id=1, messagePermits=10))
    stage.settle("no more", peer)
    peer.send_message(b"c", 4, messages=3, num_messages_in_batch=3)
    stage.next_frame("a batch", peer, BaseCommand.MESSAGE)
    fields = [".msgInCounter", ".msgOutCounter", ".subscriptions.s.msgOutCounter", ".subscriptions.s.msgBacklog"]
    fields += [".subscriptions.s.type", ".subscriptions.s.consumers.availablePermits", ".storageSize", ".backlogSize"]
    stage.http("statistics of messages", "GET", STATS, only=fields)
    stage.ask("the producer closes", peer, CommandCloseProducer(producer_id=1))


@scenario()
def commands_on_a_non_persistent_topic(stage: Stage) -> None:
    """Acknowledgement, redelivery, seeking, the last id, statistics and leaving, by raw frames."""
    topic, peer = stage.found_topic(domain=DOMAIN), stage.peer()
    shared = CommandSubscribe(topic=topic, subscription="s", consumer_id=1, subType=CommandSubscribe.Shared)
    shared.consumer_name = "c"
    stage.ask("a consumer", peer, shared)
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    peer.send(CommandFlow(consumer_id=1, messagePermits=10))
    peer.settle()
    peer.send_message(b"a", 0)
    got = stage.next_frame("a message", peer, BaseCommand.MESSAGE).message_id
    peer.next_frame(BaseCommand.SEND_RECEIPT)
    one, all_ = CommandAck.Individual, CommandAck.Cumulative
    stage.ask("acknowledge", peer, CommandAck(consumer_id=1, ack_type=one, message_id=[got]))
    stage.ask("acknowledge cumulatively", peer, CommandAck(consumer_id=1, ack_type=all_, message_id=[got]))
    peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    stage.settle("redeliver", peer)
    stage.ask("last message id", peer, CommandGetLastMessageId(consumer_id=1))
    stage.ask("statistics of the consumer", peer, CommandConsumerStats(consumer_id=1))
    stage.ask("seek to an id", peer, CommandSeek(consumer_id=1, message_id=MessageIdData(ledgerId=0, entryId=0)))
    stage.ask("seek to a time", peer, CommandSeek(consumer_id=1, message_publish_time=1))
    stage.ask("unsubscribe", peer, CommandUnsubscribe(consumer_id=1))
    stage.http("subscriptions", "GET", TOPIC + "/subscriptions")


@scenario(promises=("24.8",))
def subscriptions_of_a_non_persistent_topic_live_as_long_as_it(stage: Stage) -> None:
    """Durable ones and readers, when their consumers have left; and the admin's paths of them."""
    client, topic = stage.client(), stage.topic(domain=DOMAIN)
    consumer = client.subscribe(topic, "s")
    reader = stage.step("a reader", client.create_reader, topic, pulsar.MessageId.earliest)
    stage.note("subscriptions", len(stage.admin("GET", STATS).body["subscriptions"]))
    reader.close()
    stage.until(lambda: len(stage.admin("GET", STATS).body["subscriptions"]) == 1)
    consumer.close()
    stage.http("subscriptions when all have left", "GET", TOPIC + "/subscriptions")
    fields = [".subscriptions.s.isDurable", ".subscriptions.s.type", ".subscriptions.s.msgBacklog"]
    stage.http("statistics then", "GET", STATS, only=fields)
    stage.http("create by the admin", "PUT", TOPIC + "/subscription/made")
    stage.http("reset", "POST", TOPIC + "/subscription/s/resetcursor/1")
    stage.http("skip all", "POST", TOPIC + "/subscription/s/skip_all")
    stage.http("delete", "DELETE", TOPIC + "/subscription/s")
    stage.http("delete again", "DELETE", TOPIC + "/subscription/s")


@scenario(promises=("24.8",))
def non_persistent_topics_in_the_admin(stage: Stage) -> None:
    """Paths of topics without partitions."""
    for path in ("/stats", "/internalStats", "/partitions", "/subscriptions"):
        stage.http(f"missing: GET {path}", "GET", TOPIC + path, only=[".partitions"])
    stage.http("topics", "GET", TOPICS)
    client = stage.client()
    stage.step("a producer", client.create_producer, stage.topic(domain=DOMAIN), producer_name="p")
    stage.http("topics with one", "GET", TOPICS)
    stage.http("persistent topics", "GET", "/admin/v2/persistent/{ns}")
    for mode in ("NON_PERSISTENT", "PERSISTENT", "ALL"):
        stage.http(f"topics of the namespace: {mode}", "GET", f"/admin/v2/namespaces/{{ns}}/topics?mode={mode}")
    stage.http("partitions", "GET", TOPIC + "/partitions", only=[".partitions"])
    stage.http("last message id", "GET", TOPIC + "/lastMessageId")
    stage.http("create", "PUT", TOPICS + "/made")
    stage.http("create again", "PUT", TOPICS + "/made")
    stage.http("delete in use", "DELETE", TOPIC)
    stage.http("delete", "DELETE", TOPICS + "/made")
    stage.http("delete again", "DELETE", TOPICS + "/made")
    peer, command = stage.peer(), CommandGetTopicsOfNamespace
    stage.ask("by frames", peer, command(namespace=stage.namespace, mode=command.NON_PERSISTENT))
    stage.ask("by frames, persistent", peer, command(namespace=stage.namespace))
    stage.http("unload", "PUT", TOPIC + "/unload")


@scenario(promises=("24.8",))
def partitioned_non_persistent_topics(stage: Stage) -> None:
    """Created, listed, used, grown and deleted."""
    stage.http("create", "PUT", TOPIC + "/partitions", 2)
    stage.http("create again", "PUT", TOPIC + "/partitions", 2)
    stage.http("metadata", "GET", TOPIC + "/partitions", only=[".partitions"])
    stage.http("partitioned", "GET", TOPICS + "/partitioned")
    stage.http("partitioned, persistent", "GET", "/admin/v2/persistent/{ns}/partitioned")
    client, topic = stage.client(), stage.topic(domain=DOMAIN)
    consumer = stage.step("a consumer", client.subscribe, topic, "s")
    producer = stage.step("a producer", client.create_producer, topic, producer_name="p", batching_enabled=False)
    path = TOPIC + "/partitioned-stats"

    def connected() -> bool:
        parts = stage.admin("GET", path + "?perPartition=true").body.get("partitions", {}).values()
        rows = [one["subscriptions"].get("s", {}).get("consumers", []) for one in parts]
        return len(rows) == 2 and all(found and found[0]["availablePermits"] > 0 for found in rows)

    stage.until(connected)
    for number in range(4):
        producer.send(b"%d" % number, partition_key=f"key-{number}")
    got = [consumer.receive(15_000) for _ in range(4)]
    stage.note("received", sorted((one.data(), one.message_id().partition()) for one in got))
    sums = [".msgInCounter", ".metadata.partitions", ".subscriptions.s.type"]
    stage.http("statistics of all", "GET", path, only=sums)
    stage.http("grow", "POST", TOPIC + "/partitions", 3)
    stage.http("metadata then", "GET", TOPIC + "/partitions", only=[".partitions"])
    client.close()
    stage.http("delete", "DELETE", TOPIC + "/partitions?force=true")
    stage.http("metadata at the end", "GET", TOPIC + "/partitions")


@scenario()
def statistics_of_a_non_persistent_topic(stage: Stage) -> None:
    """Every field."""
    client, topic = stage.client(), stage.topic(domain=DOMAIN)
    consumer = client.subscribe(topic, "s", consumer_name="c")
    stage.until(lambda: _connected(stage, "s"))
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    stage.receive("three messages", consumer, 3)
    stage.http("statistics", "GET", STATS)


@scenario(NO_CREATION)
def without_automatic_creation_no_non_persistent_topic(stage: Stage) -> None:
    """A producer and a consumer of one that is missing."""
    topic, peer = stage.found_topic(domain=DOMAIN), stage.peer()
    stage.ask("a producer", peer, CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    stage.ask("a consumer", peer, CommandSubscribe(topic=topic, subscription="s", subType=0, consumer_id=1))


@scenario(PERSISTENT_ONLY, promises=("24.7",))
def non_persistent_topics_can_be_switched_off(stage: Stage) -> None:
    """With `enableNonPersistentTopics=false`."""
    topic, peer = stage.found_topic(domain=DOMAIN), stage.peer()
    stage.ask("a producer", peer, CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    stage.ask("a consumer", peer, CommandSubscribe(topic=topic, subscription="s", subType=0, consumer_id=1))
    stage.http("create", "PUT", TOPIC)
    stage.http("partitions", "PUT", TOPIC + "/partitions", 2)
    stage.http("topics", "GET", TOPICS)
