"""The mark of a subscription, and what stands on the wire because of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.dispatch.first_deliveries import FirstDeliveries
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import CommandMessage
from support.clients.wire_peer import entry

POSITIONS = st.tuples(st.integers(1, 3), st.integers(0, 9))
RUNS = st.lists(POSITIONS, min_size=1, max_size=4, unique=True).map(sorted)


class Wire:
    """A connection that keeps what it is given."""

    writable = True
    closed = False
    remote_address = "/test:1"
    client_version = "test"

    def __init__(self) -> None:
        self.written = b""

    def write_all(self, parts: list[bytes], size: int) -> None:
        self.written += b"".join(parts)


def delivery(*positions: Position, to: Any = None, redeliveries: int = 0) -> Delivery:
    return Delivery(to, [(position, entry(), 1, redeliveries) for position in positions], len(positions))


def sent(consumer: AttachedConsumer, wire: Wire) -> list[CommandMessage]:
    return [frame.command.message for frame in FrameDecoder(1 << 20).feed(wire.written)]


@given(POSITIONS, st.lists(st.lists(RUNS, max_size=3), max_size=8))
def test_what_is_behind_the_mark_was_never_sent(confirmed: Position, rounds: list[list[list[Position]]]) -> None:
    firsts, before = FirstDeliveries(confirmed), {(1, number) for number in range(10)} | {confirmed}
    before = {one for one in before if one <= confirmed}
    highest = confirmed
    for deliveries in rounds:
        mark = firsts.move([delivery(*run) for run in deliveries])
        assert mark == highest == max(before)
        before.update(position for run in deliveries for position in run)
        highest = max(before)


def test_a_redelivery_does_not_move_the_mark_back() -> None:
    firsts = FirstDeliveries((3, 5))
    assert firsts.move([delivery((4, 0), (4, 7))]) == (3, 5)
    assert firsts.move([delivery((4, 0), redeliveries=1)]) == (4, 7)
    assert firsts.move([]) == (4, 7)


@pytest.mark.parametrize("asks", [False, True])
def test_only_a_consumer_that_asks_is_told(asks: bool) -> None:
    wire, plain_wire = Wire(), Wire()
    told, plain = (AttachedConsumer(one, 1, "c") for one in (wire, plain_wire))  # type: ignore[arg-type]
    told.marks_first_deliveries = asks
    told.deliver(delivery((1, 4), (1, 5), (2, 0), to=told), 0, None, (1, 4))
    assert [one.first_delivery for one in sent(told, wire)] == [False, asks, asks]
    plain.deliver(delivery((1, 4), (1, 5), (2, 0), to=plain), 0)
    assert (wire.written == plain_wire.written) == (not asks)


def test_nothing_is_called_first_where_nobody_knows() -> None:
    wire = Wire()
    told = AttachedConsumer(wire, 1, "c")  # type: ignore[arg-type]
    told.marks_first_deliveries = True
    told.deliver(delivery((1, 4), to=told), 0)
    assert [one.HasField("first_delivery") for one in sent(told, wire)] == [False]
