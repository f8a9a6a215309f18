"""I8: every broker ends with the coordinator's slots, serves what is its own and exists, and nothing else.

Every slot, and every topic that moved alone, ends with an owner that is alive. None is about to move.

`owners_agree` asks for less: no broker serves what it has lost. A broker that the coordinator does not reach serves the
topics that it had. What it says of their end was true when it lost them. The next owner may have stored more since.
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


def owners_agree(cluster: SimCluster) -> bool:
    """Whether no broker has a topic open that is another's, or was another's in between, at this moment."""
    if not cluster.coordinator.ready:
        return False
    table = cluster.coordinator.service.office.placement.table
    for broker in [node.service for node in cluster.brokers if node.ready]:
        for name in map(TopicName.parse, broker.topics.loaded):
            entry = broker.ownership.entry_of(name)
            if entry is None or entry != table.entry_of(name):
                return False
    return True


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
