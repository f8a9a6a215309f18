"""Keys of the metadata store and the way back."""

import importlib.metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol import names
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata import keys as keys


def test_order_of_ledger_keys_is_the_order_of_ids() -> None:
    ids = [0, 1, 9, 10, 99, 1 << 40, (1 << 63) - 1]
    assert sorted(map(keys.ledger, ids)) == [keys.ledger(ledger_id) for ledger_id in ids]
    assert keys.ledger(7) == "ledgers/00000000000000000007"


@given(st.integers(0, (1 << 63) - 1))
def test_ledger_round_trip(ledger_id: int) -> None:
    assert keys.ledger_id_of(keys.ledger(ledger_id)) == ledger_id


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ledgers/",
        "ledgers/7",
        "ledgers/٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧",
        "cursors/x",
        "ledgers/-0000000000000000007",
        f"ledgers/{1 << 63:020d}",
        "ledgers/99999999999999999999",
    ],
)
def test_what_is_no_ledger_key(key: str) -> None:
    with pytest.raises(ProtocolError):
        keys.ledger_id_of(key)


def test_negative_ledger_id() -> None:
    with pytest.raises(ProtocolError):
        keys.ledger(-1)


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_subscriptions_of_any_name(subscription: str) -> None:
    path = TopicName.parse("a b").path
    key = keys.cursor(path, subscription)
    assert keys.subscription_of(key) == subscription
    assert key.startswith(keys.cursors_prefix(path))
    assert key.count("/") == keys.cursors_prefix(path).count("/")


def test_prefixes_find_only_their_own() -> None:
    topic, other = TopicName.parse("t/n/x").path, TopicName.parse("t/n/x2").path
    assert not keys.cursor(other, "s").startswith(keys.cursors_prefix(topic))
    assert not keys.pin(other, "p").startswith(keys.pins_prefix(topic))
    assert keys.topic(topic).startswith(keys.topics_prefix("t/n"))
    assert not keys.topic(TopicName.parse("t/n2/x").path).startswith(keys.topics_prefix("t/n"))
    assert keys.namespace("t/n").startswith(keys.namespaces_prefix("t"))
    assert keys.managed_ledger(topic) == "managed/persistent/t/n/x"
    assert keys.slot_page(7) == "slots/07"
    assert keys.counter("ledger") == "counters/ledger"
    assert keys.bookie_id_of(keys.bookie("bookie-1")) == "bookie-1"
    assert keys.tenant("t") == "tenants/t"


def test_names() -> None:
    assert names.actor_name(names.COORDINATOR_ID) == names.COORDINATOR_ACTOR
    assert names.actor_name(names.ADMIN_ID) == names.ADMIN_ACTOR
    assert names.actor_name(names.bookie_id(1)) == "magnetar-bookie-1"
    assert names.actor_name(names.broker_id(2)) == "magnetar-broker-2"
    assert importlib.metadata.version("magnetar") == names.VERSION
