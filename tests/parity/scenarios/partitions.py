"""Partitioned topics: their metadata, the admin's paths, and which partition a message goes to."""

import pulsar

from ..registry import PARTITIONED_CREATION, scenario
from ..stage import Stage

TOPIC = "/admin/v2/persistent/{ns}/topic"


@scenario(promises=("23.3",))
def partitioned_topics_are_created_grown_and_deleted(stage: Stage) -> None:
    """Statuses and bodies of the admin's paths, the impossible ones, too."""
    stage.http("of a missing topic", "GET", TOPIC + "/partitions")
    for label, count in [("none", 0), ("fewer than none", -1), ("a text", "many"), ("a fraction", 1.5)]:
        stage.http(f"create with {label}", "PUT", "/admin/v2/persistent/{ns}/strange/partitions", count)
    stage.admin("DELETE", "/admin/v2/persistent/{ns}/strange/partitions")
    stage.http("create with 2", "PUT", TOPIC + "/partitions", 2)
    stage.http("create again", "PUT", TOPIC + "/partitions", 2)
    stage.http("create it without partitions", "PUT", TOPIC)
    stage.http("metadata", "GET", TOPIC + "/partitions", only=[".partitions"])
    stage.http("partitioned topics", "GET", "/admin/v2/persistent/{ns}/partitioned")
    stage.http("topics", "GET", "/admin/v2/persistent/{ns}")
    stage.http("shrink", "POST", TOPIC + "/partitions", 1)
    stage.http("the same number", "POST", TOPIC + "/partitions", 2)
    stage.http("grow", "POST", TOPIC + "/partitions", 4)
    stage.http("metadata then", "GET", TOPIC + "/partitions", only=[".partitions"])
    stage.http("topics then", "GET", "/admin/v2/persistent/{ns}")
    stage.http("delete as if it had no partitions", "DELETE", TOPIC)
    stage.http("delete", "DELETE", TOPIC + "/partitions")
    stage.http("delete again", "DELETE", TOPIC + "/partitions")
    stage.http("topics at the end", "GET", "/admin/v2/persistent/{ns}")


@scenario()
def topics_without_partitions_are_not_partitioned(stage: Stage) -> None:
    """What the paths of partitioned topics say of a plain one, and of a partition."""
    plain = "/admin/v2/persistent/{ns}/plain"
    stage.http("create", "PUT", plain)
    stage.http("create again", "PUT", plain)
    stage.http("metadata", "GET", plain + "/partitions", only=[".partitions"])
    stage.http("create as partitioned", "PUT", plain + "/partitions", 2)
    stage.http("grow", "POST", plain + "/partitions", 2)
    stage.http("delete as partitioned", "DELETE", plain + "/partitions")
    stage.http("partitioned statistics", "GET", plain + "/partitioned-stats")
    stage.http("create with the name of a partition", "PUT", "/admin/v2/persistent/{ns}/other-partition-0")
    stage.http("partitions of a partition", "PUT", "/admin/v2/persistent/{ns}/a-partition-1/partitions", 2)
    stage.http("grow a missing one", "POST", "/admin/v2/persistent/{ns}/missing/partitions", 2)
    stage.http("topics", "GET", "/admin/v2/persistent/{ns}")


@scenario(promises=("23.5", "23.6", "23.7"))
def keys_choose_partitions_and_others_take_turns(stage: Stage) -> None:
    """With the usual hash, by turns, and one for all."""
    stage.admin("PUT", TOPIC + "/partitions", 4)
    client = stage.client()
    keyed = client.create_producer(stage.topic(), batching_enabled=False)
    stage.note("partitions by key", [keyed.send(b"", partition_key=f"key-{one}").partition() for one in range(8)])
    turns = client.create_producer(
        stage.topic(),
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )
    where = [turns.send(b"").partition() for _ in range(8)]
    stage.note("each in turn", sorted(where[:4]) == [0, 1, 2, 3] and where[:4] == where[4:])
    single = client.create_producer(
        stage.topic(), message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition, batching_enabled=False
    )
    stage.note("one for all", len({single.send(b"").partition() for _ in range(4)}))
    stage.step("partitions", client.get_topic_partitions, stage.topic())


@scenario()
def a_consumer_of_a_partitioned_topic_receives_from_all(stage: Stage) -> None:
    """Exclusive on all partitions, and one partition by its own name."""
    stage.admin("PUT", TOPIC + "/partitions", 2)
    client = stage.client()
    whole = stage.step("the whole topic", client.subscribe, stage.topic(), "s")
    stage.step("one partition, exclusively", client.subscribe, stage.topic("topic-partition-1"), "s")
    part = stage.step("one partition, apart", client.subscribe, stage.topic("topic-partition-1"), "t")
    stage.step("a partition that is not there", client.subscribe, stage.topic("topic-partition-2"), "s")
    producer = stage.step("a producer", client.create_producer, stage.topic(), producer_name="p")
    for number in range(4):
        producer.send(b"%d" % number, partition_key=f"key-{number}")
    got = [whole.receive(15_000) for _ in range(4)]
    stage.note("from all partitions", sorted((one.data(), one.message_id().partition()) for one in got))
    expected = [one.data() for one in got if one.message_id().partition() == 1]
    stage.receive("from the one partition", part, len(expected))
    stage.http("subscriptions", "GET", TOPIC + "/subscriptions")


@scenario()
def statistics_of_a_partitioned_topic_add_up(stage: Stage) -> None:
    """The sums, and each partition."""
    stage.admin("PUT", TOPIC + "/partitions", 2)
    client = stage.client()
    client.subscribe(stage.topic(), "s", consumer_name="c")
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(6):
        producer.send(b"%d" % number, partition_key=f"key-{number}")

    def delivered() -> bool:
        return stage.admin("GET", TOPIC + "/partitioned-stats").body["subscriptions"]["s"]["msgOutCounter"] == 6

    stage.until(delivered)
    sums = [".msgInCounter", ".bytesInCounter", ".msgOutCounter", ".bytesOutCounter", ".storageSize", ".backlogSize"]
    sums += [".metadata.partitions", ".subscriptions.s.msgBacklog", ".subscriptions.s.type"]
    topics = [f".partitions.{stage.topic('topic')}-partition-{number}.msgInCounter" for number in range(2)]
    path = TOPIC + "/partitioned-stats"
    stage.http("statistics of all", "GET", path + "?perPartition=true", only=[*sums, *topics])
    stage.http("statistics without each", "GET", path + "?perPartition=false", only=[*sums, ".partitions"])
    stage.http("of one that is missing", "GET", "/admin/v2/persistent/{ns}/missing/partitioned-stats")


@scenario(PARTITIONED_CREATION)
def automatic_creation_makes_partitioned_topics(stage: Stage) -> None:
    """With `allowAutoTopicCreationType=partitioned`."""
    client = stage.client()
    stage.step("partitions of a missing topic", client.get_topic_partitions, stage.topic())
    stage.step("a producer", client.create_producer, stage.topic("made"), producer_name="p")
    stage.http("metadata", "GET", "/admin/v2/persistent/{ns}/made/partitions", only=[".partitions"])
    stage.step("a consumer", client.subscribe, stage.topic("read"), "s")
    stage.http("partitioned topics", "GET", "/admin/v2/persistent/{ns}/partitioned")
