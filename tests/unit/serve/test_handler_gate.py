"""Many handlers run at once, or one alone."""

import asyncio

from magnetar.serve.handler_gate import HandlerGate


class Visitors:
    """Who is inside, in the order in which they went in."""

    def __init__(self) -> None:
        self.gate = HandlerGate()
        self.inside: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._may_leave: dict[str, asyncio.Event] = {}

    async def comes(self, *names: str) -> None:
        """Each goes in when it may. One with a name in capitals goes in alone."""
        for name in names:
            self._may_leave[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._visit(name))
            await settled()

    async def _visit(self, name: str) -> None:
        await self.gate.enter(alone=name.isupper())
        self.inside.append(name)
        await self._may_leave[name].wait()
        self.inside.remove(name)
        self.gate.leave()

    async def leaves(self, name: str) -> None:
        self._may_leave[name].set()
        await settled()

    async def gives_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await settled()


async def settled() -> None:
    """All tasks have gone as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_that_goes_in_alone_waits_for_the_others_and_they_for_it() -> None:
    visitors = Visitors()
    await visitors.comes("a", "b", "C", "d", "e", "F")
    assert visitors.inside == ["a", "b"]
    await visitors.leaves("a")
    assert visitors.inside == ["b"]
    await visitors.leaves("b")
    assert visitors.inside == ["C"]
    await visitors.leaves("C")
    assert visitors.inside == ["d", "e"]
    await visitors.leaves("d")
    await visitors.leaves("e")
    assert visitors.inside == ["F"]


async def test_one_that_gives_up_lets_those_behind_it_in() -> None:
    visitors = Visitors()
    await visitors.comes("a", "B", "c")
    assert visitors.inside == ["a"]
    await visitors.gives_up("B")
    assert visitors.inside == ["a", "c"]


async def test_one_that_is_cancelled_when_it_is_let_in_leaves_again() -> None:
    gate = HandlerGate()
    assert not await gate.enter(alone=True)
    waiting = asyncio.create_task(gate.enter(alone=True))
    await settled()
    gate.leave()
    waiting.cancel()
    await settled()
    assert waiting.cancelled()
    async with asyncio.timeout(5):
        assert not await gate.enter(alone=True)
