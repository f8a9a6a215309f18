"""What clients, producers, consumers and readers show of themselves."""

import pickle
import re
from typing import Any

import pytest

import magnetar
from support.clients.sides import connect
from support.servers.embedded_cluster import EmbeddedCluster

TOPIC = "persistent://public/default/shown"


@pytest.mark.parametrize(("face", "prefix"), [("ours", ""), ("asyncio", "Async")])
def test_topic_subscription_and_state(cluster: EmbeddedCluster, face: str, prefix: str) -> None:
    with connect(cluster.service_url, face) as side:
        text: Any = (lambda it: repr(it._called)) if face == "asyncio" else repr
        assert text(side.client) == f"<{prefix}Client of {cluster.service_url}, open>"
        producer = side.client.create_producer("shown", "p")
        consumer = side.client.subscribe("shown", "s", magnetar.ConsumerType.Shared)
        reader = side.client.create_reader("shown", magnetar.MessageId.earliest, subscription_name="r")
        assert text(producer) == f"<{prefix}Producer 'p' on {TOPIC}, connected>"
        assert text(consumer) == f"<{prefix}Consumer of Shared subscription 's' on {TOPIC}, connected>"
        assert text(reader) == f"<{prefix}Reader 'r' on {TOPIC}, connected>"
        for made in (producer, consumer, reader):
            made.close()
            assert text(made).endswith(f"on {TOPIC}, closed>")
        side.client.close()
        assert text(side.client) == f"<{prefix}Client of {cluster.service_url}, closed>"


def test_kinds_of_producers_and_consumers_show_the_same(cluster: EmbeddedCluster) -> None:
    class Watching(magnetar.ProducerInterceptor):
        pass

    with magnetar.Client(cluster.service_url) as client:
        assert re.fullmatch(
            r"<\w+ 'q' on .*/shown, connected>", repr(client.create_producer("shown", "q", interceptors=[Watching()]))
        )
        consumer = client.subscribe(["shown", "more"], "t", ack_receipt_enabled=True)
        assert f"'t' on {TOPIC},persistent://public/default/more, connected>" in repr(consumer)


def test_a_copy_from_a_pickle_is_not_opened_by_showing_it(cluster: EmbeddedCluster) -> None:
    with magnetar.Client(cluster.service_url) as client:
        made = [
            client.create_producer("copied"),
            client.subscribe("copied", "s"),
            client.create_reader("copied", magnetar.MessageId.earliest),
        ]
        for one in made:
            copy = pickle.loads(pickle.dumps(one))
            assert repr(copy) == f"<{type(one).__name__}, not opened yet>" and copy.is_unopened


def test_a_client_without_a_url_says_where_it_looks() -> None:
    client = magnetar.Client()
    assert repr(client) == "<Client of the cluster on this Ray, open>"
    client.close()
