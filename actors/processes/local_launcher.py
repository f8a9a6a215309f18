"""Members on the supervisor's own event loop: the launcher of the embedded cluster."""

import asyncio

from ...runtime.environment import Environment
from ...runtime.rpc.connection import Locate
from .erasing import remove_directory
from .node import Member
from .plan import ClusterPlan, NodePlan


class LocalLauncher:
    """Builds and starts services in this process; a process and its service are the same here."""

    def __init__(self, env: Environment, plan: ClusterPlan, locate: Locate) -> None:
        self._env = env
        self._plan = plan
        self._locate = locate

    async def adopt(self, node: NodePlan) -> Member | None:
        return None

    async def launch(self, node: NodePlan) -> Member:
        member = Member(self._env, self._plan.member(node), self._locate)
        try:
            await member.start()
        except BaseException:
            await member.close()
            raise
        return member

    async def ended(self, handle: Member) -> str:
        return await asyncio.shield(handle.ended)

    async def close(self, handle: Member) -> None:
        await handle.close()

    async def erase(self, node: NodePlan) -> None:
        """Remove the directory of a retired bookie."""
        await self._env.offload.run(remove_directory, node.directory)

    async def kill(self, handle: Member) -> None:
        await handle.close()
