"""Bounds on the clients of a topic that come from one address, as both clients meet them."""

import pulsar
import pytest

import magnetar
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(producers_max_of_same_address=1, consumers_max_of_same_address=1)

TOPIC = "persistent://public/default/of-one-address"


def test_a_second_client_of_the_same_address_is_busy_until_the_first_leaves(
    cluster: EmbeddedCluster, official_client: pulsar.Client
) -> None:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=3) as client:
        producer, consumer = official_client.create_producer(TOPIC), official_client.subscribe(TOPIC, "s")
        with pytest.raises(magnetar.ProducerBusy, match="raise maxSameAddressProducersPerTopic"):
            client.create_producer(TOPIC)
        with pytest.raises(magnetar.ConsumerBusy, match="raise maxSameAddressConsumersPerTopic"):
            client.subscribe(TOPIC, "t")
        producer.close()
        consumer.close()
        ours = client.create_producer(TOPIC), client.subscribe(TOPIC, "t")
        with pytest.raises(pulsar.ProducerBusy):
            official_client.create_producer(TOPIC)
        with pytest.raises(pulsar.ConsumerBusy):
            official_client.subscribe(TOPIC, "u")
        for one in ours:
            one.close()
