"""A member's end, whoever asks for it and however often."""

import asyncio
from typing import Any, cast

import pytest

from magnetar.actors.processes import node as node_module
from magnetar.actors.processes.node import Member
from magnetar.actors.processes.plan import MemberPlan, NodePlan
from magnetar.runtime.environment import Environment


class SlowService:
    """Its `close` takes until it is let go on; a second call does nothing, as with brokers."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.is_closed = False

    async def start(self) -> None: ...

    async def close(self) -> None:
        if not self.begun.is_set():
            self.begun.set()
            await self.go_on.wait()
            self.is_closed = True


async def locate() -> tuple[str, int]:
    return "127.0.0.1", 1


async def test_a_close_that_is_cancelled_goes_on_and_a_second_one_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    service = SlowService()
    monkeypatch.setattr(node_module, "build_member", lambda *_: service)
    plan = MemberPlan("c", cast("Any", None), cast("Any", None), NodePlan("broker", "broker-1", "127.0.0.1"))
    member = Member(Environment.real(), plan, locate)
    await member.start()
    first = asyncio.create_task(member.close())
    await service.begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(member.close())
    await asyncio.sleep(0)
    assert not second.done()
    service.go_on.set()
    await second
    assert service.is_closed
    assert await member.ended == "closed"
