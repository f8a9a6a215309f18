"""I8: what the coordinator knows of topics, namespaces, tenants and the desired state ends as it is stored.

Values and versions are compared. A version that differs means that the next change of the record fails, or that no
broker can open the topic.
"""

from collections.abc import Iterator
from typing import cast

from magnetar.actors.coordinator.office import Office
from magnetar.actors.coordinator.topic_registry import TopicFields
from magnetar.actors.desired.record import DesiredState
from magnetar.actors.policies.record import NamespaceRecord
from magnetar.protocol.topics import TopicName, topic_of_path
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned, unpack

from ..world.cluster import SimCluster


def copies_agree(cluster: SimCluster) -> bool:
    """Whether they do at this moment."""
    return cluster.coordinator.ready and not list(differences(cluster.coordinator.service.office, cluster))


def differences(office: Office, cluster: SimCluster) -> Iterator[str]:
    """The records of which the coordinator knows something else than what is stored."""
    records = cluster.records.by_key
    topics: dict[str, object] = {**office.registry.known()}
    yield from _compare("topics", topics, _stored_topics(records))
    wide: dict[str, object] = {**office.namespaces.known()}
    yield from _compare("namespaces", wide, _stored_policies(records, metadata_keys.NAMESPACES_PREFIX))
    own: dict[str, object] = {
        TopicName.parse(name).path: found for name, found in office.topic_policies.known().items()
    }
    yield from _compare("policies", own, _stored_policies(records, metadata_keys.TOPIC_POLICIES_PREFIX))
    tenants: dict[str, object] = {**office.namespaces.tenants.versions()}
    prefix = metadata_keys.TENANTS_PREFIX
    stored = {
        metadata_keys.decode_part(key.removeprefix(prefix)): record.version
        for key, record in records.items()
        if key.startswith(prefix)
    }
    yield from _compare("tenants", tenants, stored)
    if (desired := records.get(metadata_keys.DESIRED_STATE)) is not None:
        known = (office.desired.state, office.desired.version)
        yield from _compare("desired", {"": known}, {"": (DesiredState.unpack(desired.value), desired.version)})


def _compare(what: str, known: dict[str, object], stored: dict[str, object]) -> Iterator[str]:
    for name in {**known, **stored}:
        if known.get(name) != stored.get(name):
            yield f"of the {what} {name} is known {known.get(name)}, and stored {stored.get(name)}"


def _stored_topics(records: dict[str, Versioned]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, record in records.items():
        if key.startswith(metadata_keys.TOPICS_PREFIX):
            name = topic_of_path(key.removeprefix(metadata_keys.TOPICS_PREFIX)).full
            value = cast("TopicFields", unpack(record.value))
            marked = bool(value.get("deleting"))
            found[name] = (value["partitions"], value.get("growing"), marked, record.version)
    return found


def _stored_policies(records: dict[str, Versioned], prefix: str) -> dict[str, object]:
    return {
        key.removeprefix(prefix): (NamespaceRecord.read(key, record.value), record.version)
        for key, record in records.items()
        if key.startswith(prefix)
    }
