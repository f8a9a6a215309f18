"""The admin's paths of topics and their statistics."""

import pulsar

from ..registry import scenario
from ..stage import Stage

TOPIC = "/admin/v2/persistent/{ns}/topic"


@scenario(promises=("20.8",))
def statistics_of_a_topic_with_a_producer_and_a_consumer(stage: Stage) -> None:
    """Every field of a topic's statistics."""
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s", consumer_name="c", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    stage.receive("three messages", consumer, 3)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgOutCounter"] == 3)
    stage.http("statistics", "GET", TOPIC + "/stats")


@scenario()
def a_topic_is_created_used_and_deleted(stage: Stage) -> None:
    """Statuses of the paths of one topic, while it is missing, idle and in use."""
    for path in ("/stats", "/internalStats", "/lastMessageId", "/subscriptions"):
        stage.http(f"missing: GET {path}", "GET", TOPIC + path)
    stage.http("missing: delete", "DELETE", TOPIC)
    stage.http("missing: unload", "PUT", TOPIC + "/unload")
    stage.http("create", "PUT", TOPIC)
    stage.http("create again", "PUT", TOPIC)
    stage.http(
        "its last message id", "GET", TOPIC + "/lastMessageId", only=[".ledgerId", ".entryId", ".partitionIndex"]
    )
    client = stage.client()
    client.subscribe(stage.topic(), "s")
    stage.http("delete in use", "DELETE", TOPIC)
    stage.http("delete in use by force", "DELETE", TOPIC + "?force=true")
    client.close()
    stage.admin("DELETE", TOPIC + "?force=true")
    stage.http("create once more", "PUT", TOPIC)
    stage.http("unload", "PUT", TOPIC + "/unload")
    stage.http("delete", "DELETE", TOPIC)
    stage.http("delete again", "DELETE", TOPIC)
    stage.http("topics", "GET", "/admin/v2/persistent/{ns}")


@scenario(promises=("16.8",))
def subscriptions_are_managed_by_the_admin(stage: Stage) -> None:
    """Create, list, reset, skip and delete, also what cannot be."""
    client = stage.client()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    one = TOPIC + "/subscription/one"
    stage.http("create at the end", "PUT", one)
    stage.http("create again", "PUT", one)
    stage.http("create at the beginning", "PUT", TOPIC + "/subscription/first", "earliest")
    place = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()}
    stage.http("create at a message", "PUT", TOPIC + "/subscription/middle", place)
    stage.http("create with a strange body", "PUT", TOPIC + "/subscription/strange", {"a": 1})
    stage.http("list", "GET", TOPIC + "/subscriptions")
    backlogs = [f".subscriptions.{name}.msgBacklog" for name in ("one", "first", "middle")]
    stage.http("statistics of all three", "GET", TOPIC + "/stats", only=backlogs)
    stage.http("reset to a message", "POST", one + "/resetcursor", place)
    stage.http("reset without a place", "POST", one + "/resetcursor")
    stage.http("reset to a time before all", "POST", TOPIC + "/subscription/middle/resetcursor/1")
    stage.http("skip all", "POST", TOPIC + "/subscription/first/skip_all")
    stage.http("statistics then", "GET", TOPIC + "/stats", only=backlogs)
    missing = TOPIC + "/subscription/missing"
    stage.http("missing: reset", "POST", missing + "/resetcursor/1")
    stage.http("missing: skip all", "POST", missing + "/skip_all")
    stage.http("missing: delete", "DELETE", missing)
    stage.http("of a missing topic", "DELETE", "/admin/v2/persistent/{ns}/none-such/subscription/s")
    consumer = client.subscribe(stage.topic(), "one")
    stage.http("delete in use", "DELETE", one)
    consumer.close()
    stage.http("delete", "DELETE", one)
    stage.http("list at the end", "GET", TOPIC + "/subscriptions")


@scenario()
def internal_statistics_show_ledgers_and_cursors(stage: Stage) -> None:
    """Positions and counts of a topic with a backlog and a hole in what is acknowledged."""
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(5):
        producer.send(b"%d" % number)
    got = stage.receive("all", consumer, 5)
    consumer.acknowledge(got[0])
    consumer.acknowledge(got[2])
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 3)
    cursor = [".markDeletePosition", ".readPosition", ".individuallyDeletedMessages"]
    cursor += [".numberOfEntriesSinceFirstNotAckedMessage", ".totalNonContiguousDeletedMessagesRange"]
    cursor += [".messagesConsumedCounter", ".properties."]
    names = [".numberOfEntries", ".totalSize", ".currentLedgerEntries", ".currentLedgerSize", ".lastConfirmedEntry"]
    names += [".state", ".entriesAddedCounter", ".ledgers.ledgerId", ".ledgers.entries", ".ledgers.size"]
    names += [".pendingAddEntriesCount", ".lastLedgerCreatedTimestamp"]
    path = TOPIC + "/internalStats"
    stage.http("internal", "GET", path, only=[*names, *(f".cursors.s{name}" for name in cursor)])


@scenario()
def positions_of_a_subscription_follow_what_is_read(stage: Stage) -> None:
    """Where a subscription reads while a consumer takes two of five messages, and when that consumer has gone."""
    client = stage.client()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(5):
        producer.send(b"%d" % number)
    options = {"initial_position": pulsar.InitialPosition.Earliest, "receiver_queue_size": 2}
    consumer = client.subscribe(stage.topic(), "s", **options)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgOutCounter"] == 2)
    names = [
        "markDeletePosition",
        "readPosition",
        "numberOfEntriesSinceFirstNotAckedMessage",
        "messagesConsumedCounter",
    ]
    only = [f".cursors.s.{name}" for name in names]
    stage.http("internal while it reads", "GET", TOPIC + "/internalStats", only=only)
    consumer.close()
    stage.http("internal without a consumer", "GET", TOPIC + "/internalStats", only=only)
    stage.http("skip all", "POST", TOPIC + "/subscription/s/skip_all")
    stage.http("internal at the end", "GET", TOPIC + "/internalStats", only=only)


@scenario()
def the_times_of_a_topic_survive_an_unload(stage: Stage) -> None:
    """When it was created, and when it got its last message; both are those of before."""
    stage.http("create", "PUT", TOPIC)
    only = [".topicCreationTimeStamp", ".lastPublishTimeStamp"]
    stage.http("statistics without messages", "GET", TOPIC + "/stats", only=only)
    stage.client().create_producer(stage.topic(), producer_name="p").send(b"a")
    stage.http("statistics with one", "GET", TOPIC + "/stats", only=only)
    before = stage.stats()
    stage.admin("PUT", TOPIC + "/unload")
    stage.http("statistics after an unload", "GET", TOPIC + "/stats", only=only)
    after = stage.stats()
    stage.note("created then", after["topicCreationTimeStamp"] == before["topicCreationTimeStamp"])
    published_s = (after["lastPublishTimeStamp"] - before["lastPublishTimeStamp"]) / 1000
    stage.note("published then, to the second", abs(published_s) < 1)


@scenario()
def bad_names_and_bodies_are_refused_by_the_admin(stage: Stage) -> None:
    """Paths with names that cannot be, missing namespaces, and bodies that are no JSON."""
    stage.http("create in a missing namespace", "PUT", "/admin/v2/persistent/parity/none-such/t")
    stage.http("create in a missing tenant", "PUT", "/admin/v2/persistent/none-such/none/t")
    stage.http("partitions in a missing namespace", "PUT", "/admin/v2/persistent/parity/none-such/t/partitions", 2)
    stage.http("topics of a missing namespace", "GET", "/admin/v2/persistent/parity/none-such")
    stage.http("partitioned of a missing namespace", "GET", "/admin/v2/persistent/parity/none-such/partitioned")
    stage.http("statistics in a missing namespace", "GET", "/admin/v2/persistent/parity/none-such/t/stats")
    stage.http("a bad namespace", "PUT", "/admin/v2/persistent/parity/no good/t")
    stage.http("a body that is no JSON", "PUT", TOPIC + "/partitions", b"[")
    stage.http("no body", "PUT", TOPIC + "/partitions")
    stage.http("a flag that is none", "DELETE", TOPIC + "?force=perhaps")
    stage.http("a path that does not exist", "GET", TOPIC + "/no-such-thing")
