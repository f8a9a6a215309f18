"""Commands of `pulsar-admin` for properties of namespaces and topics, for trimming, and for the size of a backlog."""

import pulsar

from ..registry import scenario
from ..stage import Stage


@scenario(promises=("32.1", "32.5"))
def the_tool_manages_properties_of_namespaces(stage: Stage) -> None:
    """One by one and all together; what is missing is empty."""
    stage.pulsar_admin("namespaces get-properties {ns}")
    stage.pulsar_admin("namespaces set-properties {ns} -p a=b,c=d")
    stage.pulsar_admin("namespaces get-properties {ns}")
    stage.pulsar_admin("namespaces set-property {ns} -k e -v f")
    stage.pulsar_admin("namespaces get-property {ns} -k e")
    stage.pulsar_admin("namespaces get-property {ns} -k missing")
    stage.pulsar_admin("namespaces remove-property {ns} -k e")
    stage.pulsar_admin("namespaces remove-property {ns} -k e")
    stage.pulsar_admin("namespaces set-properties {ns} -p a=z")
    stage.pulsar_admin("namespaces get-properties {ns}")
    stage.pulsar_admin("namespaces clear-properties {ns}")
    stage.pulsar_admin("namespaces get-properties {ns}")
    stage.pulsar_admin("namespaces get-properties parity/none-such")
    stage.pulsar_admin("namespaces set-property parity/none-such -k e -v f")


@scenario(promises=("32.1", "32.5"))
def the_tool_manages_properties_of_topics(stage: Stage) -> None:
    """Of a topic with and without partitions: given with its creation, added and removed."""
    topic, parts = "persistent://{ns}/topic", "persistent://{ns}/parts"
    stage.pulsar_admin(f"topics create {topic} -m a=b")
    stage.pulsar_admin(f"topics get-properties {topic}")
    stage.pulsar_admin(f"topics update-properties {topic} -p c=d -p e=f")
    stage.pulsar_admin(f"topics remove-properties {topic} -k a")
    stage.pulsar_admin(f"topics remove-properties {topic} -k missing")
    stage.pulsar_admin(f"topics get-properties {topic}")
    stage.pulsar_admin(f"topics create-partitioned-topic {parts} -p 2 -m k=v")
    stage.pulsar_admin(f"topics update-properties {parts} -p c=d")
    stage.pulsar_admin(f"topics get-properties {parts}")
    stage.pulsar_admin(f"topics update-partitioned-topic {parts} -p 3")
    stage.pulsar_admin(f"topics get-partitioned-topic-metadata {parts}")
    stage.pulsar_admin(f"topics unload {topic}")
    stage.pulsar_admin(f"topics get-properties {topic}")
    stage.pulsar_admin(f"topics get-properties {topic}-missing")
    stage.pulsar_admin(f"topics update-properties {topic}-missing -p a=b")
    stage.pulsar_admin("topics get-properties non-persistent://{ns}/topic")


@scenario(promises=("32.1", "32.5"))
def the_tool_trims_topics_and_analyzes_backlogs(stage: Stage) -> None:
    """A backlog with a hole and a batch, from its beginning and from a message on."""
    topic = "persistent://{ns}/topic"
    stage.pulsar_admin(f"topics create {topic}")
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s", consumer_type=pulsar.ConsumerType.Shared)
    stage.pulsar_admin(f"topics analyze-backlog {topic} -s s")
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    for message in [consumer.receive(10_000) for _ in ids][0::2]:
        consumer.acknowledge(message)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 2)
    batches = client.create_producer(stage.topic(), producer_name="b", batching_max_publish_delay_ms=60_000)
    for _ in range(3):
        batches.send_async(b"b", lambda result, message_id: None)
    batches.flush()
    place = {"ledger": str(ids[1].ledger_id()), "entry": str(ids[1].entry_id())}
    stage.pulsar_admin(f"topics analyze-backlog {topic} -s s")
    stage.pulsar_admin(f"topics analyze-backlog {topic} -s s -p {{ledger}}:{{entry}}", **place)
    stage.pulsar_admin(f"topics analyze-backlog {topic} -s none")
    stage.pulsar_admin(f"topics create-partitioned-topic {topic}s -p 2")
    stage.pulsar_admin(f"topics analyze-backlog {topic}s -s s")
    stage.pulsar_admin(f"topics trim-topic {topic}")
    stage.pulsar_admin(f"topics trim-topic {topic}s")
    stage.pulsar_admin(f"topics trim-topic {topic}-missing")
    stage.http("ready", "GET", "/admin/v2/brokers/ready")
