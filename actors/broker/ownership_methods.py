"""What the coordinator asks of the owner of topics: to release them, to take them back, to delete what they store."""

import asyncio

from ...protocol.topics import TopicName
from ...runtime.rpc.connection import RpcConnection
from ..members.contracts_coordinator import TopicGrant
from ..topics.loaded_topics import Topics
from .ownership import Ownership

DELETIONS_AT_A_TIME = 8


class OwnershipMethods:
    """See the module. Topics are named in full."""

    def __init__(self, topics: Topics, ownership: Ownership) -> None:
        self._topics = topics
        self._ownership = ownership

    async def rpc_release(self, connection: RpcConnection, number: int, slots: list[int], topics: list[str]) -> None:
        """Close these topics and all in these slots; see `Ownership`."""
        await self._ownership.release(number, slots, topics)

    async def rpc_unload(self, connection: RpcConnection, topic: str, number: int, inactive: bool = False) -> None:
        """Close a topic that is about to be deleted.

        Raises NotAllowedError, and closes nothing, while a client is connected. With `inactive` also while the topic
        is not inactive.
        """
        await self._ownership.unload(topic, number, inactive=inactive)

    async def rpc_take_topics(self, connection: RpcConnection, grants: list[TopicGrant]) -> None:
        """Load these topics: they were released, and are not deleted after all."""
        self._ownership.take_back(grants)

    async def rpc_is_inactive(self, connection: RpcConnection, topic: str) -> bool:
        """Whether a topic is loaded here and inactive. One that is not persistent, and not loaded, is inactive."""
        found = self._topics.find(topic)
        if found is None:
            return not TopicName.parse(topic).persistent
        return await found.keeping.is_inactive()

    async def rpc_delete_topics(self, connection: RpcConnection, topics: list[tuple[str, int]]) -> None:
        """Delete all that these topics store, each under the epoch beside its name; no broker can open them.

        Every one of them is tried. Raises the first error.
        """
        permits = asyncio.Semaphore(DELETIONS_AT_A_TIME)

        async def delete(topic: str, epoch: int) -> None:
            async with permits:
                await self._topics.delete(TopicName.parse(topic), epoch)

        outcomes = await asyncio.gather(*(delete(topic, epoch) for topic, epoch in topics), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
