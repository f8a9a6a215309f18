"""Names that a URL has to encode, through `pulsar-admin`, which encodes a subscription's name twice."""

import pulsar

from ..registry import scenario
from ..stage import Stage

NAMES = (
    "a b",
    "a+b",
    "100%",
    "a%2Fb",
    "a%25b",
    "{x}",
    "ü",
    "日本",
    "a?b",
    "a#b",
    "a&b=c",
    "a;b",
    "~a",
    "a'b",
    'a"b',
    "a:b",
)
TOPICS = (*NAMES, "a|b")
"""No topic's name has a slash."""
SUBSCRIPTIONS = (*NAMES, "a/b")
SENT = 3


def quoted(name: str, before: str = "") -> str:
    """A name as the shell of `pulsar-admin` reads it, and as `Stage.pulsar_admin` takes words."""
    mark = "'" if '"' in name else '"'
    return mark + before + name.replace("{", "{{").replace("}", "}}") + mark


@scenario()
def topics_have_odd_names(stage: Stage) -> None:
    """Each is created, found, changed and deleted, and so is one with a partition."""
    for name in TOPICS:
        topic, parts = quoted(name, "persistent://{ns}/"), quoted(f"{name}-p", "persistent://{ns}/")
        value = quoted(f"k={name}")
        stage.pulsar_admin(f"topics create {topic}")
        stage.pulsar_admin(f"topics stats {topic}", only=[".msgInCounter"])
        stage.pulsar_admin(f"topics lookup {topic}", only=[".nativeUrl"])
        stage.pulsar_admin(f"topics update-properties {topic} -p {value}")
        stage.pulsar_admin(f"topics get-properties {topic}")
        stage.pulsar_admin(f"topics remove-properties {topic} -k k")
        stage.pulsar_admin(f"topics unload {topic}")
        stage.pulsar_admin(f"topics create-partitioned-topic {parts} -p 1")
        stage.pulsar_admin(f"topics get-partitioned-topic-metadata {parts}")
        stage.pulsar_admin(f"topicPolicies set-message-ttl {topic} -t 10")
        stage.pulsar_admin(f"schemas get {topic}")
        stage.pulsar_admin("topics list {ns}")
        stage.pulsar_admin(f"topics delete-partitioned-topic {parts}")
        stage.pulsar_admin(f"topics delete {topic}")
    stage.pulsar_admin("topics list {ns}")
    stage.pulsar_admin("topics list-partitioned-topics {ns}")


@scenario()
def subscriptions_have_odd_names(stage: Stage) -> None:
    """Each is created, moved, looked at and deleted."""
    topic = "persistent://{ns}/topic"
    producer = stage.client().create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(SENT):
        producer.send(b"%d" % number)
    for name in SUBSCRIPTIONS:
        one, value = f"{topic} -s {quoted(name)}", quoted(f"k={name}")
        stage.pulsar_admin(f"topics create-subscription {one} -m earliest")
        stage.pulsar_admin(f"topics subscriptions {topic}")
        stage.pulsar_admin(f"topics skip {one} -n 1")
        stage.pulsar_admin(f"topics peek-messages {one} -n 1")
        stage.pulsar_admin(f"topics analyze-backlog {one}", only=[".messages"])
        stage.pulsar_admin(f"topics clear-backlog {one}")
        stage.pulsar_admin(f"topics reset-cursor {one} -t 1h")
        stage.pulsar_admin(f"topics update-subscription-properties {one} -p {value}")
        stage.pulsar_admin(f"topics get-subscription-properties {one}")
        stage.pulsar_admin(f"topics unsubscribe {one}")
        stage.pulsar_admin(f"topics unsubscribe {one}")
    stage.pulsar_admin(f"topics subscriptions {topic}")


@scenario()
def subscriptions_of_a_namespace_have_odd_names(stage: Stage) -> None:
    """They are cleared and deleted on all topics of the namespace."""
    consumers = stage.client()
    for name in SUBSCRIPTIONS:
        consumers.subscribe(stage.topic(), name, consumer_type=pulsar.ConsumerType.Shared).close()
    # The tool sends "a b" as "a+b", which the broker takes for that name: so it comes last.
    for name in (*SUBSCRIPTIONS[1:], SUBSCRIPTIONS[0]):
        stage.pulsar_admin(f"namespaces clear-backlog {{ns}} --force -s {quoted(name)}")
        stage.pulsar_admin(f"namespaces unsubscribe {{ns}} -s {quoted(name)}")
    stage.pulsar_admin("topics subscriptions persistent://{ns}/topic")


@scenario()
def properties_of_a_namespace_have_odd_names(stage: Stage) -> None:
    """One by one."""
    for name in SUBSCRIPTIONS:
        stage.pulsar_admin(f"namespaces set-property {{ns}} -k {quoted(name)} -v {quoted(name)}")
        stage.pulsar_admin("namespaces get-properties {ns}")
        stage.pulsar_admin(f"namespaces get-property {{ns}} -k {quoted(name)}")
        stage.pulsar_admin(f"namespaces remove-property {{ns}} -k {quoted(name)}")
    stage.pulsar_admin("namespaces get-properties {ns}")
