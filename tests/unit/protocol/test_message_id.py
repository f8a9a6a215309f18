"""Message ids: order, text, and bytes equal to the official client's."""

import pickle

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, WireMessageId

INT64 = st.integers(-1, (1 << 63) - 1)
INT32 = st.integers(-1, (1 << 31) - 1)


@given(INT64, INT64, INT32, INT32)
def test_bytes_and_text_equal_the_official_clients(ledger: int, entry: int, partition: int, batch_index: int) -> None:
    ours = WireMessageId(ledger, entry, partition, batch_index)
    theirs = pulsar.MessageId(partition, ledger, entry, batch_index)
    assert ours.serialize() == theirs.serialize()
    assert str(ours) == str(theirs)
    assert WireMessageId.deserialize(theirs.serialize()) == ours
    assert str(pulsar.MessageId.deserialize(ours.serialize())) == str(theirs)


def test_earliest_and_latest() -> None:
    assert WireMessageId.earliest.serialize() == pulsar.MessageId.earliest.serialize()
    assert WireMessageId.latest.serialize() == pulsar.MessageId.latest.serialize()
    assert WireMessageId.earliest.position == EARLIEST_POSITION == (-1, -1)
    assert WireMessageId.latest.position == LATEST_POSITION
    assert WireMessageId.earliest < WireMessageId(0, 0) < WireMessageId.latest
    assert WireMessageId.deserialize(WireMessageId.earliest.serialize()) == WireMessageId.earliest


@given(INT64, INT64, INT32, INT32, st.integers(0, 1000))
def test_round_trips(ledger: int, entry: int, partition: int, batch_index: int, batch_size: int) -> None:
    message_id = WireMessageId(ledger, entry, partition, batch_index, batch_size)
    for other in (WireMessageId.deserialize(message_id.serialize()), pickle.loads(pickle.dumps(message_id))):
        assert other == message_id
        assert hash(other) == hash(message_id)
        assert other.batch_size == batch_size


def test_order() -> None:
    ids = [
        WireMessageId(1, 1),
        WireMessageId(1, 1, 0, 0),
        WireMessageId(1, 1, 0, 1),
        WireMessageId(1, 2),
        WireMessageId(2, 0),
    ]
    assert sorted(reversed(ids)) == ids
    assert WireMessageId(1, 1, 0, 0, 5) == WireMessageId(1, 1, 0, 0)
    assert WireMessageId(1, 1, 0) != WireMessageId(1, 1, 1)
    assert WireMessageId(1, 1) != (1, 1)
    with pytest.raises(TypeError):
        assert WireMessageId(1, 1) < (1, 2)


def test_immutable() -> None:
    message_id = WireMessageId(1, 2)
    with pytest.raises(AttributeError):
        message_id.entry_id = 3
    with pytest.raises(AttributeError):
        del message_id.entry_id


def test_text() -> None:
    assert WireMessageId(1, 2).text == "1:2:-1"
    assert WireMessageId(1, 2, 3, 4).text == "1:2:3:4"
    assert repr(WireMessageId(1, 2)) == "WireMessageId(ledger_id=1, entry_id=2, partition=-1, batch_index=-1)"


@pytest.mark.parametrize("data", [b"", b"\x08\x01", b"\xff", b"\x08\x01\x10", b"\x0a\x00"])
def test_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        WireMessageId.deserialize(data)
