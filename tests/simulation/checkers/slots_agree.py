"""I8: every broker ends with the coordinator's slots, serves what is its own and exists, and nothing else.

Every slot, and every topic that moved alone, ends with an owner that is alive. None is about to move.
"""

from magnetar.actors.broker.service import BrokerService
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.protocol.topics import TopicName

from ..world.cluster import SimCluster


def slots_agree(cluster: SimCluster) -> bool:
    """Whether they do at this moment."""
    brokers = [node.service for node in cluster.brokers if node.ready]
    if not cluster.coordinator.ready or cluster.coordinator.service.office.placement.waits():
        return False
    return all(_agrees(broker, cluster.coordinator.service) for broker in brokers)


def _agrees(broker: BrokerService, coordinator: CoordinatorService) -> bool:
    table, link = coordinator.office.placement.table, broker.ownership.link
    if link is None or link.slots.slots != table.slots or dict(link.slots.exceptions) != table.rows().exceptions:
        return False
    own = broker.broker_id, link.identity.incarnation
    served = [TopicName.parse(topic.full_name) for topic in broker.topics.table.all_granted()]
    return (
        all(link.slots.get(slot) == table.get(slot) for slot in range(table.slots))
        and all(table.entry_of(name).owner == own for name in served)
        and all(coordinator.office.registry.facts(name) is not None for name in served)
    )
