"""Commands of `pulsar-admin` for the policies of single topics, and for schemas."""

from ..registry import scenario
from ..stage import Stage

PATHS = {
    "retention": ("retention", "-s 100M -t 2h"),
    "message-ttl": ("messageTTL", "-t 60"),
    "backlog-quota": ("backlogQuotaMap", "-l 10M -p producer_exception"),
    "persistence": ("persistence", "-e 1 -w 1 -a 1 -r 1.5"),
    "max-producers": ("maxProducers", "-p 3"),
    "max-consumers": ("maxConsumers", "-c 3"),
    "max-consumers-per-subscription": ("maxConsumersPerSubscription", "-c 3"),
    "max-subscriptions-per-topic": ("maxSubscriptionsPerTopic", "-s 3"),
    "max-unacked-messages-per-consumer": ("maxUnackedMessagesOnConsumer", "-m 30"),
    "max-unacked-messages-per-subscription": ("maxUnackedMessagesOnSubscription", "-m 30"),
    "max-message-size": ("maxMessageSize", "-m 1000"),
    "publish-rate": ("publishRate", "-m 100 -b 1000"),
    "dispatch-rate": ("dispatchRate", "-md 100 -bd 1000"),
    "subscription-dispatch-rate": ("subscriptionDispatchRate", "-md 100 -bd 1000"),
    "delayed-delivery": ("delayedDelivery", "--enable --time 2s"),
    "deduplication": ("deduplicationEnabled", "--enable"),
    "deduplication-snapshot-interval": ("deduplicationSnapshotInterval", "-i 10"),
    "compaction-threshold": ("compactionThreshold", "-t 100M"),
    "subscription-types-enabled": ("subscriptionTypesEnabled", "-t Shared"),
    "inactive-topic-policies": ("inactiveTopicPolicies", "-e -t 2h -m delete_when_no_subscriptions"),
    "auto-subscription-creation": ("autoSubscriptionCreation", "-e"),
    "schema-compatibility-strategy": ("schemaCompatibilityStrategy", "-s FORWARD"),
}
"""By policy: the path of the admin, to wait for a change, and the options of the command that sets it."""


@scenario(promises=("32.1",))
def the_tool_sets_policies_of_a_topic(stage: Stage) -> None:
    """Each policy is set, read, removed and read again."""
    topic = "persistent://{ns}/topic"
    stage.pulsar_admin(f"topics create {topic}")
    for name, (path, options) in PATHS.items():
        stage.pulsar_admin(f"topicPolicies set-{name} {topic} {options}")
        stage.until(lambda path=path: _is_set(stage, path))
        stage.pulsar_admin(f"topicPolicies get-{name} {topic}")
        stage.pulsar_admin(f"topicPolicies remove-{name} {topic}")
        stage.until(lambda path=path: not _is_set(stage, path))
        stage.pulsar_admin(f"topicPolicies get-{name} {topic}")


@scenario(promises=("32.1",))
def the_tool_manages_schemas(stage: Stage) -> None:
    """A schema is uploaded, read by version, and deleted."""
    topic = "persistent://{ns}/topic"
    stage.pulsar_admin(f"schemas get {topic}")
    with stage.file('{"type": "STRING", "schema": "", "properties": {"a": "b"}}') as file:
        stage.pulsar_admin(f"schemas upload {topic} -f {{file}}", file=file)
        stage.pulsar_admin(f"schemas compatibility {topic} -f {{file}}", file=file)
    stage.pulsar_admin(f"schemas get {topic}")
    stage.pulsar_admin(f"schemas get {topic} -v 0")
    stage.pulsar_admin(f"schemas get {topic} -v 7")
    stage.pulsar_admin(f"schemas get {topic} -a")
    stage.pulsar_admin(f"schemas delete {topic}")
    stage.pulsar_admin(f"schemas get {topic}")


def _is_set(stage: Stage, path: str) -> bool:
    return stage.admin("GET", f"/admin/v2/persistent/{{ns}}/topic/{path}").body not in ("", {}, [], None)
