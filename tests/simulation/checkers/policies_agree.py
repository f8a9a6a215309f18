"""I8: the coordinator, every broker, and every topic that a broker has loaded, end with the stored policies."""

from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.policies.policy import PolicyValues
from magnetar.actors.policies.record import NamespaceRecord
from magnetar.protocol.topics import TopicName, topic_of_path
from magnetar.storage.metadata import keys as metadata_keys

from ..world.cluster import SimCluster

NAMESPACE = "public/default"


def policies_agree(cluster: SimCluster) -> bool:
    """Whether they do at this moment."""
    if not cluster.coordinator.ready:
        return False
    wide, own = _stored(cluster)
    office = cluster.coordinator.service.office
    known = {row.namespace: row.policies for row in office.topic_policies.with_policies("")}
    whole = {row.namespace: row.policies for row in office.namespaces.with_policies("")}
    if whole.get(NAMESPACE, {}) != wide or known != own:
        return False
    brokers = [node.service.topics for node in cluster.brokers if node.ready]

    def of(topic: TopicName) -> EffectivePolicies:
        return EffectivePolicies.resolve(cluster.settings, wide, own.get(topic.partitioned_name, {}))

    return bool(brokers) and all(
        topics.policies.of_namespace(NAMESPACE) == EffectivePolicies.resolve(cluster.settings, wide)
        and all(topics.policies.of(name) == of(name) for name in map(TopicName.parse, own))
        and all(topic.policies == of(topic.name) for topic in topics.loaded.values())
        for topics in brokers
    )


def _stored(cluster: SimCluster) -> tuple[PolicyValues, dict[str, PolicyValues]]:
    """What is stored: of the namespace, and of topics that have policies."""
    records = cluster.records.by_key
    prefix = metadata_keys.TOPIC_POLICIES_PREFIX
    topics = {
        topic_of_path(key.removeprefix(prefix)).full: NamespaceRecord.unpack(record.value).policies
        for key, record in records.items()
        if key.startswith(prefix)
    }
    wide = NamespaceRecord.unpack(records[metadata_keys.namespace(NAMESPACE)].value).policies
    return wide, {topic: policies for topic, policies in topics.items() if policies}
