"""Commands of `pulsar-admin` for topics, their messages and subscriptions."""

import pulsar

from ..registry import scenario
from ..stage import Stage

SENT = 5
INFO = [".ledgers.ledgerId", ".ledgers.isOffloaded", ".cursors.one.markDelete.ledgerId"]


@scenario(promises=("32.1",))
def the_tool_creates_and_deletes_topics(stage: Stage) -> None:
    """Topics with and without partitions: created, listed, looked up, grown, unloaded, deleted."""
    topic = "persistent://{ns}/topic"
    parts = "persistent://{ns}/parts"
    stage.pulsar_admin("topics list {ns}")
    stage.pulsar_admin(f"topics create {topic}")
    stage.pulsar_admin(f"topics create {topic}")
    stage.pulsar_admin(f"topics create-partitioned-topic {parts} -p 2")
    stage.pulsar_admin(f"topics create-partitioned-topic {parts} -p 2")
    stage.pulsar_admin(f"topics get-partitioned-topic-metadata {parts}")
    stage.pulsar_admin(f"topics update-partitioned-topic {parts} -p 3")
    stage.pulsar_admin(f"topics get-partitioned-topic-metadata {parts}")
    stage.pulsar_admin(f"topics get-partitioned-topic-metadata {topic}")
    stage.pulsar_admin(f"topics create-missed-partitions {parts}")
    stage.pulsar_admin("topics list {ns}")
    stage.pulsar_admin("topics list-partitioned-topics {ns}")
    stage.pulsar_admin("namespaces topics {ns}")
    stage.pulsar_admin(f"topics lookup {topic}")
    stage.pulsar_admin(f"topics partitioned-lookup {parts}")
    stage.pulsar_admin(f"topics bundle-range {topic}")
    stage.pulsar_admin(f"topics unload {topic}")
    stage.pulsar_admin(f"topics unload {parts}")
    stage.pulsar_admin(f"topics delete {topic}")
    stage.pulsar_admin(f"topics delete {topic}")
    stage.pulsar_admin(f"topics delete {parts}")
    stage.pulsar_admin(f"topics delete-partitioned-topic {parts}")
    stage.pulsar_admin("topics list {ns}")


@scenario(promises=("16.8", "32.1"))
def the_tool_manages_subscriptions(stage: Stage) -> None:
    """Subscriptions are created, moved, cleared and deleted."""
    topic = "persistent://{ns}/topic"
    _send(stage)
    stage.pulsar_admin(f"topics create-subscription {topic} -s one -m earliest")
    stage.pulsar_admin(f"topics create-subscription {topic} -s two -m latest")
    stage.pulsar_admin(f"topics create-subscription {topic} -s two")
    stage.pulsar_admin(f"topics subscriptions {topic}")
    stage.pulsar_admin(f"topics get-subscription-properties {topic} -s one")
    stage.pulsar_admin(f"topics update-subscription-properties {topic} -s one -p a=b -p c=d")
    stage.pulsar_admin(f"topics unload {topic}")
    stage.pulsar_admin(f"topics get-subscription-properties {topic} -s one")
    stage.pulsar_admin(f"topics update-subscription-properties {topic} -s one -c")
    stage.pulsar_admin(f"topics get-subscription-properties {topic} -s one")
    stage.pulsar_admin(f"topics get-subscription-properties {topic} -s none")
    stage.pulsar_admin(f"topics skip {topic} -s one -n 2")
    stage.pulsar_admin(f"topics skip {topic} -s none -n 2")
    _backlog(stage, "one", SENT - 2)
    stage.pulsar_admin(f"topics reset-cursor {topic} -s one -t 1h")
    _backlog(stage, "one", SENT)
    stage.pulsar_admin(f"topics clear-backlog {topic} -s one")
    _backlog(stage, "one", 0)
    stage.pulsar_admin(f"topics reset-cursor {topic} -s none -t 1h")
    stage.pulsar_admin(f"topics expire-messages {topic} -s one -t 3600")
    stage.pulsar_admin(f"topics expire-messages-all-subscriptions {topic} -t 3600")
    stage.pulsar_admin(f"topics unsubscribe {topic} -s two")
    stage.pulsar_admin(f"topics unsubscribe {topic} -s two")
    stage.pulsar_admin(f"topics subscriptions {topic}")
    stage.pulsar_admin(f"topics subscriptions {topic}-missing")


@scenario(promises=("32.1", "32.10"))
def the_tool_looks_at_messages(stage: Stage) -> None:
    """Single messages by number, id and time; the last id; what a subscription has in front of it."""
    topic = "persistent://{ns}/topic"
    ids = _send(stage)
    stage.pulsar_admin(f"topics last-message-id {topic}", only=[".ledgerId", ".entryId", ".partitionIndex"])
    stage.pulsar_admin(f"topics create-subscription {topic} -s one -m earliest")
    stage.pulsar_admin(f"topics peek-messages {topic} -s one -n 2")
    stage.pulsar_admin(f"topics examine-messages {topic} -i earliest -m 2")
    place = {"ledger": str(ids[1].ledger_id()), "entry": str(ids[1].entry_id())}
    stage.pulsar_admin(f"topics get-message-by-id {topic} -l {{ledger}} -e {{entry}}", **place)
    stage.pulsar_admin(f"topics get-message-by-id {topic} -l {{ledger}} -e 99", **place)
    stage.pulsar_admin(f"topics reset-cursor {topic} -s one -m {{ledger}}:{{entry}}", **place)
    stage.pulsar_admin(f"topics get-backlog-size {topic} -m {{ledger}}:{{entry}}", **place)


@scenario(promises=("32.1",))
def the_tool_reads_statistics(stage: Stage) -> None:
    """Statistics of a topic and of partitions, outside and inside."""
    topic = "persistent://{ns}/topic"
    _send(stage)
    stage.pulsar_admin(f"topics create-subscription {topic} -s one -m earliest")
    stage.pulsar_admin(f"topics stats {topic}")
    stage.pulsar_admin(f"topics stats-internal {topic}")
    stage.pulsar_admin(f"topics info-internal {topic}", only=INFO)
    stage.pulsar_admin(f"topics create-partitioned-topic {topic}s -p 2")
    producer = stage.client().create_producer(stage.topic("topics"), producer_name="p", batching_enabled=False)
    for number in range(2):
        producer.send(b"%d" % number)
    producer.close()
    stage.pulsar_admin(f"topics create-subscription {topic}s -s one -m earliest")
    stage.pulsar_admin(f"topics partitioned-stats-internal {topic}s")
    stage.pulsar_admin(f"topics partitioned-stats {topic}s")
    stage.pulsar_admin(f"topics partitioned-stats {topic}s --per-partition")
    stage.pulsar_admin(f"topics partitioned-stats {topic}")
    stage.pulsar_admin(f"topics stats {topic}s")
    stage.pulsar_admin(f"topics stats {topic}-missing")


@scenario(promises=("32.1", "32.10"))
def the_tool_ends_topics(stage: Stage) -> None:
    """A topic is terminated, truncated and compacted."""
    topic = "persistent://{ns}/topic"
    _send(stage)
    stage.pulsar_admin(f"topics compaction-status {topic}")
    stage.pulsar_admin(f"topics compact {topic}")
    path = "/admin/v2/persistent/{ns}/topic/compaction"
    stage.until(lambda: stage.admin("GET", path).body["status"] == "SUCCESS")
    stage.pulsar_admin(f"topics compaction-status {topic}")
    stage.pulsar_admin(f"topics terminate {topic}")
    stage.pulsar_admin(f"topics truncate {topic}")
    stage.pulsar_admin(f"topics create-partitioned-topic {topic}s -p 2")
    stage.pulsar_admin(f"topics partitioned-terminate {topic}s")
    stage.pulsar_admin(f"topics terminate {topic}s")


def _send(stage: Stage) -> list[pulsar.MessageId]:
    producer = stage.client().create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    ids = [producer.send(b"%d" % number, properties={"number": str(number)}) for number in range(SENT)]
    producer.close()
    return ids


def _backlog(stage: Stage, subscription: str, expected: int) -> None:
    stage.until(lambda: stage.stats()["subscriptions"][subscription]["msgBacklog"] == expected)
