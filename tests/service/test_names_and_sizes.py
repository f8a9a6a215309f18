"""Odd names of topics, and the largest message: with our client and the official one."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

import magnetar
from support.servers.embedded_cluster import EmbeddedCluster

WAIT_MS = 10_000
LARGEST = 5_242_880
METADATA_BYTES = 200
"""Room for what travels with a message; it counts."""


@pytest.fixture
def sides(cluster: EmbeddedCluster) -> Iterator[list[Any]]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    clients = [magnetar.Client(cluster.service_url), pulsar.Client(cluster.service_url, logger=logger)]
    yield [
        SimpleNamespace(client=client, module=module)
        for client, module in zip(clients, (magnetar, pulsar), strict=True)
    ]
    for client in clients:
        client.close()


@pytest.mark.promise("15.4")
@pytest.mark.parametrize("last", ["größe %2F", "a=b:c.d-e_f", "?x=1&y#z", "orders-partition-", "__", "null"])
def test_the_last_part_of_a_name_has_no_meaning(sides: list[Any], last: str) -> None:
    """Bare, and as a full name. Each client finds what the other wrote."""
    for name in (last, f"persistent://public/default/{last}"):
        consumers = [one.client.subscribe(name, one.module.__name__) for one in sides]
        for one in sides:
            producer = one.client.create_producer(name)
            producer.send(last.encode())
            producer.close()
        for consumer in consumers:
            messages = [consumer.receive(WAIT_MS) for _ in sides]
            for message in messages:
                consumer.acknowledge(message)
            assert [message.data() for message in messages] == [last.encode()] * 2
            assert {message.topic_name() for message in messages} == {f"persistent://public/default/{last}"}
            consumer.close()


@pytest.mark.promise("2.13")
def test_a_message_of_5_mb_passes_by_default_and_a_larger_one_is_refused(sides: list[Any], topic: str) -> None:
    consumers = [one.client.subscribe(topic, one.module.__name__) for one in sides]
    for one in sides:
        producer = one.client.create_producer(topic)
        producer.send(bytes(LARGEST - METADATA_BYTES))
        with pytest.raises(one.module.MessageTooBig):
            producer.send(bytes(LARGEST + 1))
    for consumer in consumers:
        assert [len(consumer.receive(WAIT_MS).data()) for _ in sides] == [LARGEST - METADATA_BYTES] * 2
