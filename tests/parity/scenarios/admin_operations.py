"""What the admin does with the messages of a topic: terminate, truncate, skip, look at single messages."""

import pulsar

from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandFlow, CommandProducer, CommandSubscribe

from ..registry import scenario
from ..stage import Stage

TOPIC = "/admin/v2/persistent/{ns}/topic"
MISSING = "/admin/v2/persistent/{ns}/none-such"
PARTITIONED = "/admin/v2/persistent/{ns}/parts"
VOLATILE = "/admin/v2/non-persistent/{ns}/topic"
BACKLOG = [".subscriptions.s.msgBacklog"]


@scenario()
def a_topic_is_terminated(stage: Stage) -> None:
    """Statuses, and what producers and consumers of both kinds are told."""
    stage.http("missing", "POST", MISSING + "/terminate")
    client = stage.client()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(3)]
    stage.note("ids", ids)
    consumer = client.subscribe(stage.topic(), "s", initial_position=pulsar.InitialPosition.Earliest)
    topic, peer = stage.found_topic(), stage.peer()
    wanted = {"topic": topic, "subType": CommandSubscribe.Shared}
    stage.ask("a consumer at the end", peer, CommandSubscribe(**wanted, consumer_id=1, subscription="end"))
    peer.send(CommandFlow(consumer_id=1, messagePermits=10))
    stage.http("terminate", "POST", TOPIC + "/terminate")
    stage.next_frame("the consumer at the end", peer)
    stage.http("terminate again", "POST", TOPIC + "/terminate")
    stage.http("last message id", "GET", TOPIC + "/lastMessageId", only=[".ledgerId", ".entryId"])
    stage.step("send then", producer.send, b"4")
    stage.ask("a producer then", peer, CommandProducer(topic=topic, producer_id=1, producer_name="q"))
    late = stage.peer()
    stage.ask("a consumer then", late, CommandSubscribe(**wanted, consumer_id=2, subscription="later"))
    late.send(CommandFlow(consumer_id=2, messagePermits=10))
    stage.next_frame("its news", late, BaseCommand.REACHED_END_OF_TOPIC)
    for message in stage.receive("the rest", consumer, 3):
        consumer.acknowledge(message)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 0)
    stage.http("internal", "GET", TOPIC + "/internalStats", only=[".state"])
    stage.admin("PUT", TOPIC + "/unload")
    stage.until(lambda: stage.admin("GET", TOPIC + "/stats").status == 200)
    stage.http("internal after an unload", "GET", TOPIC + "/internalStats", only=[".state"])
    stage.http("terminate after an unload", "POST", TOPIC + "/terminate")


@scenario()
def other_topics_are_terminated(stage: Stage) -> None:
    """An empty, a partitioned and a non-persistent topic."""
    stage.admin("PUT", TOPIC)
    stage.http("empty", "POST", TOPIC + "/terminate")
    stage.admin("PUT", PARTITIONED + "/partitions", 2)
    stage.http("partitioned as a plain one", "POST", PARTITIONED + "/terminate")
    stage.http("partitioned", "POST", PARTITIONED + "/terminate/partitions")
    stage.http("plain as a partitioned one", "POST", TOPIC + "/terminate/partitions")
    stage.http("missing as a partitioned one", "POST", MISSING + "/terminate/partitions")
    stage.http("one partition", "POST", PARTITIONED + "-partition-0/terminate")
    stage.http("non-persistent", "POST", VOLATILE + "/terminate")


@scenario()
def a_topic_is_truncated(stage: Stage) -> None:
    """The backlog of every subscription is gone."""
    stage.http("missing", "DELETE", MISSING + "/truncate")
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s")
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    consumer.close()
    stage.http("backlog", "GET", TOPIC + "/stats", only=BACKLOG)
    stage.http("truncate", "DELETE", TOPIC + "/truncate")
    stage.http("backlog then", "GET", TOPIC + "/stats", only=BACKLOG)
    stage.http("with POST", "POST", TOPIC + "/truncate")
    stage.admin("PUT", PARTITIONED + "/partitions", 2)
    stage.http("partitioned", "DELETE", PARTITIONED + "/truncate")
    stage.http("non-persistent", "DELETE", VOLATILE + "/truncate")


@scenario()
def messages_are_skipped(stage: Stage) -> None:
    """A number of them, more than there are, and none."""
    client = stage.client()
    client.subscribe(stage.topic(), "s").close()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(5):
        producer.send(b"%d" % number)
    one = TOPIC + "/subscription/s/skip"
    stage.http("two", "POST", one + "/2")
    stage.http("backlog", "GET", TOPIC + "/stats", only=BACKLOG)
    stage.http("none", "POST", one + "/0")
    stage.http("backlog still", "GET", TOPIC + "/stats", only=BACKLOG)
    consumer = client.subscribe(stage.topic(), "s")
    stage.receive("the next one", consumer, 1)
    stage.http("one more with a consumer", "POST", one + "/1")
    stage.http("backlog with a consumer", "GET", TOPIC + "/stats", only=BACKLOG)
    consumer.close()
    stage.http("more than there are", "POST", one + "/100")
    stage.http("backlog at the end", "GET", TOPIC + "/stats", only=BACKLOG)
    stage.http("of a missing subscription", "POST", TOPIC + "/subscription/none/skip/1")
    stage.http("of a missing topic", "POST", MISSING + "/subscription/s/skip/1")
    stage.http("all of a missing topic", "POST", MISSING + "/subscription/s/skip_all")
    stage.admin("PUT", PARTITIONED + "/partitions", 2)
    stage.admin("PUT", PARTITIONED + "/subscription/s", "earliest")
    stage.http("partitioned", "POST", PARTITIONED + "/subscription/s/skip/1")
    stage.http("all of a partitioned one", "POST", PARTITIONED + "/subscription/s/skip_all")
