"""Which names belong to the cluster's own topics."""

import pytest

from magnetar.protocol.system_topics import heartbeat_topic, is_system_topic

SYSTEM = [
    "persistent://public/default/__change_events",
    "persistent://public/default/__change_events-partition-3",
    "persistent://acme/orders/__transaction_buffer_snapshot",
    "persistent://acme/orders/t-partition-1-s__transaction_pending_ack",
    "persistent://acme/orders/t__transaction_pending_ack-partition-0",
    "persistent://pulsar/system/transaction_coordinator_assign",
    "persistent://pulsar/system/transaction_coordinator_assign_5",
    "persistent://pulsar/system/transaction_coordinator_assign-partition-15",
    "persistent://pulsar/system/__transaction_log_3",
    "non-persistent://pulsar/system/resource-usage",
    "non-persistent://pulsar/system/resource-usage-partition-1",
    "persistent://pulsar/10.0.0.7:6650/heartbeat",
]
ORDINARY = [
    "persistent://public/default/change_events",
    "persistent://public/default/__change_events2",
    "persistent://public/default/__transaction_log_3",
    "persistent://public/default/heartbeat",
    "persistent://public/default/resource-usage",
    "persistent://public/default/__transaction_pending_ack-partition-x",
    "persistent://pulsar/system/resource-usage",
    "persistent://pulsar/system/heartbeat",
    "persistent://pulsar/default/heartbeat",
    "persistent://pulsar/10.0.0.7:6650/heartbeats",
]


@pytest.mark.promise("25.1", "25.2", "25.5")
@pytest.mark.parametrize("name", SYSTEM)
def test_a_name_of_the_page_is_a_system_topic_also_as_a_partition(name: str) -> None:
    assert is_system_topic(name)


@pytest.mark.parametrize("name", ORDINARY)
def test_a_name_elsewhere_or_almost_alike_is_an_ordinary_one(name: str) -> None:
    assert not is_system_topic(name)


def test_each_broker_has_a_heartbeat_topic_by_its_address() -> None:
    topic = heartbeat_topic("127.0.0.1:6650")
    assert topic.full == "persistent://pulsar/127.0.0.1:6650/heartbeat" and is_system_topic(topic.full)
