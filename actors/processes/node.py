"""One member service and its end: what the Ray shell and the embedded cluster have in common.

A bookie whose disk failed or whose session ended stops by itself and says so through `on_fatal`. Brokers and the admin
end only when they are closed. `ended` carries the reason, once, and a supervisor waits for it.
"""

import asyncio

from ...runtime.environment import Environment
from ...runtime.rpc.connection import Locate
from .assembly import MemberService, build_member
from .plan import MemberPlan


class Member:
    """A bookie, broker or admin; made on the loop that it runs on."""

    def __init__(self, env: Environment, plan: MemberPlan, locate: Locate) -> None:
        self.node = plan.node
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._started: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.service: MemberService = build_member(env, plan, locate, self._failed)

    async def start(self) -> None:
        """Start the service; a second call waits for the first. Raises what the service raised."""
        if self._started is None:
            self._started = asyncio.create_task(self.service.start(), name=f"start-{self.node.node_id}")
        await asyncio.shield(self._started)

    async def close(self) -> None:
        """Close the service in good order, also one that is still starting or failed to.

        A second call waits for the first. A caller that is cancelled does not stop the service half-way: it would keep
        its sockets.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close-{self.node.node_id}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._started is not None and not self._started.done():
            self._started.cancel()
            await asyncio.wait([self._started])
        await self.service.close()
        self._end("closed")

    def _failed(self, error: BaseException) -> None:
        self._end(f"{type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
