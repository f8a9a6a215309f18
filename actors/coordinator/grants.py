"""Grants of topics to their owners; see `TopicGrant`, and `owner_methods` for who gets one."""

from ...protocol.slots import TopicGrant
from ...protocol.topics import TopicName
from .placement import SlotPlacement
from .topic_registry import TopicRegistry


class Grants:
    """See the module."""

    def __init__(self, placement: SlotPlacement, registry: TopicRegistry) -> None:
        self._placement = placement
        self._registry = registry

    def make(self, name: TopicName) -> TopicGrant | None:
        """For the present owner of a partition or plain topic. None for a topic that does not exist, or is being
        deleted, or may be about to move."""
        facts = self._registry.facts(name)
        if facts is None or self._placement.holds(name):
            return None
        home_epoch = self._placement.table.entry_of(name).epoch
        number = self._placement.take_epoch()
        return TopicGrant(name.full, max(home_epoch, facts.epoch), home_epoch, facts.version, facts.partitions, number)
