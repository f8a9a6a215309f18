"""Producers, consumers and readers that nobody holds any longer, also on the loop that a Ray process shares."""

import gc
import time
from collections.abc import Callable, Iterator

import pytest

from magnetar.client.blocking import loop as blocking_loop
from magnetar.client.blocking.client import Client
from magnetar.client.core.message_id import MessageId
from magnetar.client.core.results import Result
from support.clients.calls import TOPIC
from support.fakes.broker import FakeBroker, FakeBrokerThread


@pytest.fixture
def broker(broker_thread: FakeBrokerThread) -> FakeBroker:
    return broker_thread.broker


@pytest.fixture(params=["alone", "shared"])
def client(broker: FakeBroker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(blocking_loop, "in_ray_worker", lambda: request.param == "shared")
    made = Client(broker.url, operation_timeout_seconds=3)
    yield made
    made.close()
    made.running.stop()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.002)


def test_what_is_forgotten_is_closed(broker: FakeBroker, client: Client) -> None:
    made = [client.create_producer("t"), client.subscribe("t", "s"), client.create_reader("t", MessageId.earliest)]
    assert len(client.running.core.opened) == 3
    made.clear()
    gc.collect()
    until(lambda: broker.count("CLOSE_PRODUCER") == 1 and broker.count("CLOSE_CONSUMER") == 2)
    assert not client.running.core.opened


def test_a_forgotten_producer_sends_what_is_pending(broker: FakeBroker, client: Client) -> None:
    broker.receipt_delay_s = 0.1
    results: list[Result] = []
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"x", lambda result, _: results.append(result))
    del producer
    gc.collect()
    client.close()
    if not blocking_loop.in_ray_worker():  # a shared loop goes on, and sends it soon
        assert results == [Result.Ok]
    until(lambda: results == [Result.Ok])
    assert len(broker.topic(TOPIC).entries) == 1


def test_what_was_closed_is_not_closed_again(broker: FakeBroker, client: Client) -> None:
    client.create_producer("t").close()
    gc.collect()
    client.create_producer("t").close()
    assert broker.count("CLOSE_PRODUCER") == 2
