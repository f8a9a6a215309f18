"""Delays of redeliveries by how often a message came before."""

import pickle

import pytest

from magnetar.client.core.configuration import ConsumerConfiguration
from magnetar.client.core.redelivery_backoff import MultiplierRedeliveryBackoff
from magnetar.protocol.errors import InvalidConfiguration


def test_the_table_of_the_page() -> None:
    backoff = MultiplierRedeliveryBackoff(min_delay_ms=1_000, max_delay_ms=60_000, multiplier=2)
    found = [backoff.next(count) / 1000 for count in range(8)]
    assert found == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.next(1_000_000) == 60_000 and backoff.next(-1) == 1_000


def test_the_defaults_are_those_of_the_java_client() -> None:
    assert MultiplierRedeliveryBackoff() == MultiplierRedeliveryBackoff(10_000, 600_000, 2.0)
    assert pickle.loads(pickle.dumps(MultiplierRedeliveryBackoff())) == MultiplierRedeliveryBackoff()


@pytest.mark.parametrize("values", [(-1, 5, 2), (10, 5, 2), (10, 50, 1), (10, 50, float("nan"))])
def test_impossible_delays_are_refused(values: tuple[int, int, float]) -> None:
    with pytest.raises(InvalidConfiguration):
        MultiplierRedeliveryBackoff(*values)


@pytest.mark.parametrize("name", ["negative_ack_redelivery_backoff", "ack_timeout_redelivery_backoff"])
def test_only_a_back_off_is_a_back_off(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=name):
        ConsumerConfiguration.of({"topic": "t", "subscription_name": "s", name: 5})


@pytest.mark.parametrize(
    "option",
    [{"unacked_messages_timeout_ms": -1}, {"ack_timeout_tick_time_ms": 0}, {"unacked_messages_timeout_ms": "1"}],
)
def test_impossible_time_outs_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(InvalidConfiguration, match=next(iter(option))):
        ConsumerConfiguration.of({"topic": "t", "subscription_name": "s", **option})
