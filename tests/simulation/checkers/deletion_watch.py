"""I16: a topic is deleted only after its owner has closed it. Stands beside the coordinators and the metadata.

The owner is the broker's incarnation that the stored slots name, whether or not a coordinator takes it for alive. A
process that runs under that incarnation and has the topic open would never hear that it is gone. Looked at are

- the moment in which the owners were asked: then no client uses the topic (`asked`). A deletion by force asks nobody;
- the moment in which the topic's record goes (`metadata_changed`).
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.broker.service import BrokerService
from magnetar.actors.coordinator.topic_deletions import TopicDeletions
from magnetar.protocol.slots import page_of, slot_of
from magnetar.protocol.topics import TopicName, topic_of_path
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.slot_rows import SlotOwner, decode_page
from magnetar.storage.metadata.store import Versioned, unpack
from support.stores.memory_store import MemoryRecords

from .history import History
from .store_watch import is_dead, who

FindBroker = Callable[[SlotOwner], BrokerService | None]


class DeletionWatch:
    """See the module. `find` returns the service of a broker's incarnation, if it runs."""

    def __init__(self, history: History, records: MemoryRecords, slots: int, find: FindBroker) -> None:
        self._history = history
        self._records = records
        self._slots = slots
        self._find = find

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        ask = TopicDeletions._ask_owners

        async def asking(deletions: TopicDeletions, deletion: Any, *, inactive: bool) -> None:
            await ask(deletions, deletion, inactive=inactive)
            if not is_dead():
                members = deletions._registry.members_of_any(deletion.name)
                self.asked(map(TopicName.parse, members), deletions._placement.epoch)

        stack.enter_context(patch.object(TopicDeletions, "_ask_owners", asking))

    def asked(self, topics: Iterable[TopicName], epoch: int) -> None:
        """A coordinator with this epoch has asked the owners, and none has a client. What a superseded coordinator had
        them close may be open again."""
        for name in topics:
            service = self._owner_of(name)
            if service is not None and service.ownership.coordinator_epoch <= epoch:
                self._judge(name, service, f"{who()} may mark")

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A write has landed."""
        if after is not None or before is None or not key.startswith(metadata_keys.TOPICS_PREFIX):
            return
        self._history.counts["deletions judged"] += 1
        whole, count = topic_of_path(key.removeprefix(metadata_keys.TOPICS_PREFIX)), unpack(before.value)["partitions"]
        for name in [whole.partition_topic(index) for index in range(count)] or [whole]:
            if (service := self._owner_of(name)) is not None:
                self._judge(name, service, "the metadata deletes")

    def _judge(self, name: TopicName, service: BrokerService, does: str) -> None:
        if name.full in service.topics.loaded:
            self._history.violated(f"I16: {does} {name.full}, which its owner {service.broker_id} has open")

    def _owner_of(self, name: TopicName) -> BrokerService | None:
        slot = slot_of(name, self._slots)
        record = self._records.by_key.get(metadata_keys.slot_page(page_of(slot, self._slots)))
        if record is None:
            return None
        rows = decode_page(record.value)
        entry = max((rows.exceptions.get(name.full, rows.entries[slot]), rows.entries[slot]), key=lambda one: one.epoch)
        return self._find(entry.owner) if entry.owner is not None else None
