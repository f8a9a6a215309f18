"""The gate of delayed delivery, by a clock that the test moves."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.delays import delay_gate
from magnetar.actors.delays.delay_gate import Delays
from magnetar.actors.dispatch.message_counts import MessageCounts
from magnetar.actors.policies.delayed_delivery import DelayedDelivery
from magnetar.protocol.entries import build_entry
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import MessageMetadata

START_MS = 1_700_000_000_000


class Gate:
    """A gate with what it needs around it."""

    def __init__(self, *, strict: bool, tick_ms: int = 1000) -> None:
        self.now_ms = START_MS
        self.acknowledged: set[Position] = set()
        self.host: Any = SimpleNamespace(
            env=SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: self.now_ms)),
            settings=SimpleNamespace(delayed_delivery_strict=strict),
            policies=SimpleNamespace(delayed_delivery=DelayedDelivery(True, tick_ms, 0)),
            counts=MessageCounts(),
        )
        cursor: Any = SimpleNamespace(is_acknowledged=self.acknowledged.__contains__)
        self.delays = Delays(self.host, cursor, lambda: None)

    def passes(self, ms: int) -> None:
        """Time goes on, and the timer fires if its time comes."""
        self.now_ms += ms
        timer = self.delays._timer
        if timer is not None and timer.when() - asyncio.get_running_loop().time() <= (self.now_ms - START_MS) / 1000:
            timer.cancel()
            self.delays._look()

    def read(self, *delays_ms: int) -> list[Position]:
        """Let entries with these delays come, 0 for none. Returns those that are visible."""
        entries = [((1, number), entry(delay_ms)) for number, delay_ms in enumerate(delays_ms)]
        hidden = self.delays.hidden(entries)
        for position, at_ms in hidden.items():
            self.delays.hold(position, at_ms, 7)
        return [position for position, _ in entries if position not in hidden]


def entry(delay_ms: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=START_MS)
    if delay_ms:
        metadata.deliver_at_time = START_MS + delay_ms
    return build_entry(metadata, b"x")


@pytest.mark.promise("28.6")
async def test_a_strict_gate_gives_nothing_early_and_all_within_a_tick() -> None:
    gate = Gate(strict=True)
    assert gate.read(0, 1, 500, 1001) == [(1, 0)]
    assert (gate.delays.held, gate.delays.due(10)) == (3, [])
    gate.passes(500)
    assert gate.delays.due(10) == [((1, 1), 7), ((1, 2), 7)]
    gate.now_ms += 501
    assert gate.delays.due(10) == [], "the timer fires once in a tick"
    gate.delays._look()
    assert gate.delays.due(10) == [((1, 3), 7)]
    assert not gate.delays.holds


@pytest.mark.promise("28.6")
async def test_a_gate_that_is_not_strict_gives_entries_up_to_one_tick_early() -> None:
    gate = Gate(strict=False)
    assert gate.read(0, 1000, 1001, 2000, 3000) == [(1, 0), (1, 1)]
    gate.now_ms += 1000
    assert gate.delays.due(10) == [], "a wake before the timer finds nothing, though a tick is not left"
    gate.passes(1)
    assert gate.delays.due(10) == [((1, 2), 7), ((1, 3), 7)]
    gate.now_ms += 1998
    assert gate.delays.due(10) == []
    gate.passes(1)
    assert gate.delays.due(10) == [((1, 4), 7)]


async def test_with_a_shorter_tick_what_was_due_early_waits_for_the_timer() -> None:
    gate = Gate(strict=False)
    gate.read(1500, 2200, 4000)
    gate.passes(1500)
    assert gate.delays.due(1) == [((1, 0), 7)]
    gate.host.policies.delayed_delivery = DelayedDelivery(True, 50, 0)
    assert gate.delays.due(10) == []
    timer = gate.delays._timer
    assert timer is not None and 0 < timer.when() - asyncio.get_running_loop().time() <= 0.7, "for the next entry"
    gate.now_ms += 660
    assert gate.delays.due(10) == [], "a wake before the timer finds nothing"
    gate.now_ms += 40
    gate.delays._look()
    assert gate.delays.due(10) == [((1, 1), 7)]


async def test_an_entry_that_waits_is_timed_again_when_the_policy_is_on_again() -> None:
    gate = Gate(strict=False)
    gate.read(10_000, 20_000)
    active = gate.host.policies.delayed_delivery
    gate.host.policies.delayed_delivery = DelayedDelivery(False, 1000, 0)
    assert gate.delays.due(1) == [((1, 0), 7)]
    gate.host.policies.delayed_delivery = active
    assert gate.delays.due(1) == []
    assert gate.delays._timer is not None


@pytest.mark.parametrize("strict", [False, True])
async def test_one_timer_wakes_dispatch_at_the_first_time(strict: bool) -> None:
    gate = Gate(strict=strict, tick_ms=5)
    loop = asyncio.get_running_loop()
    began_s, woken = loop.time(), asyncio.Event()
    gate.host.env.clock.now_ms = lambda: START_MS + int((loop.time() - began_s) * 1000)
    gate.delays._wake = woken.set
    gate.read(60_000, 100, 120)
    await asyncio.wait_for(woken.wait(), 10)
    assert loop.time() - began_s >= 0.095
    assert gate.delays.held == 3
    gate.delays.clear()
    assert (gate.delays.held, gate.delays.size_bytes, gate.delays._timer) == (0, 0, None)


async def test_acknowledged_entries_are_dropped_when_their_time_comes() -> None:
    gate = Gate(strict=True)
    gate.read(*[10] * 20)
    gate.acknowledged.update((1, number) for number in range(19))
    gate.passes(10)
    assert gate.delays.due(3) == [((1, 19), 7)]
    assert gate.delays.held == 0


async def test_a_look_that_drops_many_leaves_the_rest_to_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it finds an entry, for that one may have to wait for its consumer."""
    monkeypatch.setattr(delay_gate, "DROPPED_MAX", 3)
    gate = Gate(strict=True)
    gate.read(*[10] * 20)
    gate.acknowledged.update((1, number) for number in range(1, 10))
    gate.passes(10)
    assert gate.delays.due(3) == [((1, 0), 7)]
    assert gate.delays._timer is not None


async def test_buckets_are_read_on_when_memory_has_given_all_that_is_due() -> None:
    """Its dispatcher may not ask again: what it got may have to wait for its consumer."""
    gate = Gate(strict=True)
    gate.read(10, 10, 5000)
    fetches: list[bool] = []
    spill: Any = SimpleNamespace(
        count=1, next_ms=None, drop_acknowledged=lambda: None, fetch=lambda due_ms, behind: fetches.append(behind)
    )
    gate.delays._spill = spill
    gate.passes(10)
    fetches.clear()
    assert gate.delays.due(1) == [((1, 0), 7)]
    assert gate.delays.due(3) == [((1, 1), 7)]
    assert fetches == [True, False]


async def test_without_the_policy_everything_is_visible_and_due() -> None:
    gate = Gate(strict=True)
    gate.read(10_000)
    gate.host.policies.delayed_delivery = DelayedDelivery(False, 1000, 0)
    assert gate.delays.due(3) == [((1, 0), 7)]
    assert gate.read(10_000) == [(1, 0)]
