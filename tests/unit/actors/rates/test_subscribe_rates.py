"""How often the same consumer may subscribe: who counts as the same, and what the broker remembers."""

import pytest

from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.policies.rates import SubscribeRate
from magnetar.actors.rates.subscribe import SubscribeRates, SubscribingConsumer
from magnetar.protocol.errors import NotAllowedError
from magnetar.protocol.pulsar_pb2 import CommandCloseConsumer, CommandError, CommandSubscribe, ServerError
from magnetar.runtime.settings.declarations import Settings
from support.servers.broker_bench import TOPIC, broker_front, filled

ONE = SubscribingConsumer("t", "/1.2.3.4", "one", 1)
RATE = SubscribeRate(2, 10)


def passes(rates: SubscribeRates, consumer: SubscribingConsumer, now_s: float, rate: SubscribeRate = RATE) -> bool:
    try:
        rates.check(rate, consumer, now_s)
    except NotAllowedError:
        return False
    return True


def test_a_consumer_may_subscribe_as_often_as_the_rate_says() -> None:
    rates = SubscribeRates()
    assert [passes(rates, ONE, 0.0) for _ in range(4)] == [True, True, False, False]
    assert not passes(rates, ONE, 4.9) and passes(rates, ONE, 5.1) and not passes(rates, ONE, 5.2)


@pytest.mark.parametrize("field", ["topic", "host", "name", "consumer_id"])
def test_another_consumer_counts_by_itself(field: str) -> None:
    rates = SubscribeRates()
    assert [passes(rates, ONE, 0.0) for _ in range(3)] == [True, True, False]
    other = ONE._replace(**{field: 7 if field == "consumer_id" else "other"})
    assert passes(rates, other, 0.0) and not passes(rates, ONE, 0.0)


def test_another_rate_begins_anew() -> None:
    rates = SubscribeRates()
    assert [passes(rates, ONE, 0.0) for _ in range(3)] == [True, True, False]
    assert passes(rates, ONE, 0.0, SubscribeRate(1, 10)) and not passes(rates, ONE, 0.0, SubscribeRate(1, 10))


def test_the_consumer_that_was_away_longest_is_forgotten_beyond_the_bound() -> None:
    rates = SubscribeRates(consumers_max=2)
    rate = SubscribeRate(1, 1000)
    two, three = ONE._replace(consumer_id=2), ONE._replace(consumer_id=3)
    assert all(passes(rates, one, 0.0, rate) for one in (ONE, two))
    assert not passes(rates, ONE, 0.0, rate)
    assert passes(rates, three, 0.0, rate) and passes(rates, two, 0.0, rate) and not passes(rates, three, 0.0, rate)


@pytest.mark.promise("15.7")
async def test_a_broker_refuses_a_consumer_that_subscribes_too_often_until_the_policy_goes() -> None:
    async with broker_front() as front:
        peer = await filled(front, 0)
        value = {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 3600}
        front.topic.use_policies(EffectivePolicies.resolve(Settings(), {"subscribe_rate": value}))

        async def subscribe(name: str) -> ServerError.ValueType | None:
            answer = await peer.subscribe(TOPIC, "s", consumer_name=name, subType=CommandSubscribe.Shared)
            if isinstance(answer, CommandError):
                return answer.error
            await peer.request(CommandCloseConsumer(consumer_id=1))
            return None

        assert [await subscribe(name) for name in ("a", "a", "b")] == [None, ServerError.NotAllowedError, None]
        front.topic.use_policies(EffectivePolicies.resolve(Settings()))
        assert await subscribe("a") is None
        await peer.close()
