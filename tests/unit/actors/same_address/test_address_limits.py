"""Bounds on the clients of a topic that come from one address."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.same_address.address_limits import SameAddressLimits
from magnetar.actors.topics.access_modes import AccessMode
from magnetar.protocol.errors import ConsumerBusy, ProducerBusy
from magnetar.protocol.pulsar_pb2 import CommandCloseConsumer, CommandSuccess, ServerError
from magnetar.protocol.topics import TopicName
from magnetar.runtime.settings.declarations import Settings
from support.servers.broker_bench import TOPIC, broker_front

_numbers = itertools.count()


def client(address: str, name: str = "", mode: AccessMode = AccessMode.SHARED) -> Any:
    """A producer or a consumer from an address, with a name of its own."""
    connection, asks = SimpleNamespace(remote_address=address), SimpleNamespace(mode=mode)
    return SimpleNamespace(connection=connection, asks=asks, name=name or str(next(_numbers)))


def limits(producers: list[Any], consumers: list[list[Any]], **settings: int) -> SameAddressLimits:
    """Those of a topic with such producers, and a subscription for each list of consumers."""
    topic: Any = SimpleNamespace(
        name=TopicName.parse(TOPIC),
        settings=Settings(**settings),
        publishing=SimpleNamespace(producers=dict(enumerate(producers))),
        subscriptions={number: SimpleNamespace(consumers=members) for number, members in enumerate(consumers)},
    )
    return SameAddressLimits(topic)


@pytest.mark.parametrize(("busy", "free"), [("/10.0.0.1:9", "/10.0.0.2:9"), ("/::1:9", "/::2:9")])
def test_clients_of_one_address_are_counted_whatever_their_ports_are(busy: str, free: str) -> None:
    present = [client(busy.removesuffix("9") + "7"), client(busy.removesuffix("9") + "8")]
    bounds = {"producers_max_of_same_address": 2, "consumers_max_of_same_address": 2}
    subject = limits(present, [present[:1], present[1:]], **bounds)
    subject.check_producer(client(free))
    subject.check_consumer(None, client(free))  # type: ignore[arg-type]
    with pytest.raises(ProducerBusy, match=r"has 2 producers from \S+, .* raise maxSameAddressProducersPerTopic"):
        subject.check_producer(client(busy))
    with pytest.raises(ConsumerBusy, match=r"has 2 consumers from \S+, .* raise maxSameAddressConsumersPerTopic"):
        subject.check_consumer(None, client(busy))  # type: ignore[arg-type]


def test_by_default_nothing_is_bounded() -> None:
    present = [client("/10.0.0.1:7")] * 100
    subject = limits(present, [present])
    subject.check_producer(client("/10.0.0.1:8"))
    subject.check_consumer(None, client("/10.0.0.1:8"))  # type: ignore[arg-type]


def test_a_producer_is_not_counted_beside_one_of_its_name() -> None:
    subject = limits([client("/10.0.0.1:7", "mine")], [], producers_max_of_same_address=1)
    subject.check_producer(client("/10.0.0.1:8", "mine"))
    subject = limits([client("/10.0.0.1:7", "mine"), client("/10.0.0.1:8")], [], producers_max_of_same_address=1)
    with pytest.raises(ProducerBusy, match="has 1 producers"):
        subject.check_producer(client("/10.0.0.1:9", "mine"))


@pytest.mark.parametrize("mode", [mode for mode in AccessMode if mode is not AccessMode.SHARED])
def test_a_producer_that_wants_a_topic_for_itself_is_not_counted(mode: AccessMode) -> None:
    subject = limits([client("/10.0.0.1:7")], [], producers_max_of_same_address=1)
    subject.check_producer(client("/10.0.0.1:8", mode=mode))


async def test_a_producer_takes_the_place_of_its_connection_that_ended_unnoticed() -> None:
    async with broker_front(producers_max_of_same_address=1, connection_liveness_timeout_ms=50) as front:
        front.topics.assign(TOPIC, 1, load=False)
        gone, back = await front.peer(answer_pings=False), await front.peer()
        assert (await gone.producer(TOPIC, 1, producer_name="mine", user_provided_producer_name=True)).producer_ready
        assert (await back.producer(TOPIC, 2, producer_name="mine", user_provided_producer_name=True)).producer_ready
        await gone.close()
        await back.close()


@pytest.mark.parametrize("topic", [TOPIC, TOPIC.replace("persistent", "non-persistent")])
async def test_clients_beyond_the_bound_are_busy_and_a_place_becomes_free(topic: str) -> None:
    async with broker_front(producers_max_of_same_address=1, consumers_max_of_same_address=2) as front:
        front.topics.assign(topic, 1, load=False)
        peer, other = await front.peer(), await front.peer()
        assert (await peer.producer(topic, 1)).producer_ready
        refused = await other.producer(topic, 2)
        assert refused.error == ServerError.ProducerBusy and "from 127.0.0.1, as many as" in refused.message
        assert type(await peer.subscribe(topic, "s", 1)) is CommandSuccess
        assert type(await peer.subscribe(topic, "t", 2)) is CommandSuccess
        refused = await other.subscribe(topic, "u", 3)
        assert refused.error == ServerError.ConsumerBusy and "from 127.0.0.1, as many as" in refused.message
        await peer.request(CommandCloseConsumer(consumer_id=1))
        assert type(await other.subscribe(topic, "u", 4)) is CommandSuccess
        await peer.close()
        await other.close()
