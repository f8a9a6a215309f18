"""I18: a topic that its owner leaves unloaded has nothing to do, and what has something to do is loaded by itself.

Seen at three places:

- A topic goes to rest only without clients, and without anything that it would do by itself (`goes_to_rest`).
- A record that says "at rest" has no open ledger. The next owner that opens the topic removes the mark: a mark that is
  carried over would hide from a later owner what was left open (`metadata_changed`).
- When the faults are over, every owner has loaded its topics, but for those that rest under the policies that hold now
  (`topics_are_loaded`). Nobody asks for them meanwhile.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.broker.service import BrokerService
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.actors.features.table import FEATURES
from magnetar.actors.topics.idle_topics import duties_of
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.topics import TopicName, topic_of_path
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned

from ..world.cluster import SimCluster
from .history import History
from .store_watch import is_dead, who


class RestWatch:
    """See the module."""

    def __init__(self, history: History) -> None:
        self._history = history

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        close = PersistentTopic.close

        async def closing(topic: PersistentTopic, *, at_rest: bytes = b"", **named: Any) -> None:
            if at_rest and not is_dead():
                self.goes_to_rest(topic)
            await close(topic, at_rest=at_rest, **named)

        stack.enter_context(patch.object(PersistentTopic, "close", closing))

    def goes_to_rest(self, topic: Any) -> None:
        """A broker closes the topic because nobody uses it."""
        self._history.counts["topics at rest"] += 1
        if work := _work_of(topic):
            self._history.violated(f"I18: {who()} has {topic.name.full} rest, which {work}")

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A write has landed."""
        if not key.startswith(metadata_keys.MANAGED_PREFIX) or after is None:
            return
        record = ManagedLedgerRecord.unpack(after.value)
        if not record.rests:
            return
        path = key.removeprefix(metadata_keys.MANAGED_PREFIX)
        if is_open := [info.ledger_id for info in record.ledgers if not info.closed]:
            self._history.violated(f"I18: {path} is marked as at rest, and its ledgers {is_open} are open")
        if before is not None and (old := ManagedLedgerRecord.unpack(before.value)).rests and old != record:
            self._history.violated(f"I18: epoch {record.epoch} has changed {path} and left the mark that it is at rest")


def _work_of(topic: Any) -> str:
    """What a topic has to do, or is used for. "" for nothing."""
    policies = topic.policies
    subscriptions = topic.subscriptions.values()
    if topic.publishing.in_use or any(one.consumers for one in subscriptions):
        return "has clients"
    if policies.subscription_expiration_time_minutes > 0:
        return "has subscriptions that may expire"
    if policies.compaction_threshold:
        return "may have to be compacted"
    if policies.message_ttl > 0 and any(one.cursor.backlog_entries for one in subscriptions):
        return "has messages that may expire"
    return ""


def topics_are_loaded(cluster: SimCluster) -> bool:
    """Whether, at this moment, the owner of each topic has loaded it, or may leave it at rest."""
    brokers = {node.name: node.service for node in cluster.brokers if node.ready}
    if not cluster.coordinator.ready:
        return False
    coordinator = cluster.coordinator.service
    prefix = metadata_keys.MANAGED_PREFIX
    chains = {
        topic_of_path(key.removeprefix(prefix)): ManagedLedgerRecord.unpack(stored.value)
        for key, stored in cluster.records.by_key.items()
        if key.startswith(prefix)
    }
    return all(_is_loaded(name, record, coordinator, brokers) for name, record in chains.items())


def _is_loaded(
    name: TopicName, record: ManagedLedgerRecord, coordinator: CoordinatorService, brokers: dict[str, BrokerService]
) -> bool:
    if coordinator.office.registry.facts(name) is None:
        return True  # its deletion is under way
    owner = coordinator.office.placement.table.entry_of(name).owner
    broker = brokers.get(owner.broker) if owner is not None else None
    if broker is None or broker.topics.table.granted(name.full) is None:
        return False
    return name.full in broker.topics.loaded or may_stay_unloaded(
        record.rests, _rests_under(broker, name), duties_of(broker.topics.policies.of(name), FEATURES)
    )


def may_stay_unloaded(mark: bytes, rests_under: bytes, duties: bytes) -> bool:
    """Whether an owner may leave a topic at rest.

    A load that a client asked for may have removed the mark, and failed. Then it is the broker's memory that counts.
    """
    return duties == (mark or rests_under)


def _rests_under(broker: BrokerService, name: TopicName) -> bytes:
    """The policies under which a topic rests in the memory of its broker. Empty where it does not."""
    topic = broker.topics.table.find(name.full)
    return b"" if topic is None or topic.kept is None else duties_of(topic.kept.policies, FEATURES)
