"""What the admin asks the owner of a topic about its messages. Topics are named in full."""

from ...protocol.errors import InvalidConfiguration, NotAllowedError, SubscriptionNotFound
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import RpcConnection
from ...storage.managed.chain import bytes_after
from ..members.contracts_messages import BacklogAnalysis, EntryPosition, StoredEntry
from ..topics.loaded_topics import Topics
from ..topics.persistent import PersistentTopic
from ..topics.subscription import Subscription
from . import backlog
from .read_planning import position_of_point

PEEK_MAX = 100_000
"""Entries in front of the one that is looked at: they are counted one by one on the broker's loop."""


class MessageMethods:
    """See the module."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def rpc_terminate(self, connection: RpcConnection, topic: str) -> EntryPosition:
        """Let a topic take no message from now on, for ever. Returns the place of its last entry."""
        return EntryPosition(*await (await self._persistent(topic)).terminate())

    async def rpc_truncate(self, connection: RpcConnection, topic: str) -> None:
        """Acknowledge the backlog of every subscription, and delete what is no longer needed."""
        await backlog.truncate(await self._persistent(topic))

    async def rpc_trim(self, connection: RpcConnection, topic: str) -> None:
        """Delete the ledgers that no cursor, no reader and no retention needs. Raises what trimming raises."""
        await (await self._persistent(topic)).ledger.trim()

    async def rpc_analyze_backlog(
        self, connection: RpcConnection, topic: str, subscription: str, position: list[int] | None = None
    ) -> BacklogAnalysis:
        """Read the backlog of a subscription, from a place on, and count. Raises SubscriptionNotFound."""
        owner = await self._persistent(topic)
        begin = position_of_point(position) if position is not None else None
        return await backlog.analyze(owner, _find(owner, subscription), begin)

    async def rpc_skip(self, connection: RpcConnection, topic: str, subscription: str, entries: int) -> None:
        """Acknowledge the next entries of a subscription. Raises SubscriptionNotFound."""
        owner = await self._persistent(topic)
        await backlog.skip(owner, _find(owner, subscription), entries)

    async def rpc_peek(self, connection: RpcConnection, topic: str, subscription: str, number: int) -> StoredEntry:
        """An entry of the backlog of a subscription, from 1. Raises SubscriptionNotFound, NoSuchEntry."""
        if not 1 <= number <= PEEK_MAX:
            raise InvalidConfiguration(f"the number of the message must be from 1 to {PEEK_MAX}, not {number}")
        owner = await self._persistent(topic)
        position, data = await backlog.peek(owner, _find(owner, subscription), number)
        return StoredEntry(*position, data)

    async def rpc_examine(
        self, connection: RpcConnection, topic: str, number: int, from_latest: bool = False
    ) -> StoredEntry:
        """An entry of a topic, from 1, counted from its first or its last one. Raises NoSuchEntry."""
        position, data = await backlog.examine(await self._persistent(topic), number, from_latest=from_latest)
        return StoredEntry(*position, data)

    async def rpc_entry_at(self, connection: RpcConnection, topic: str, ledger: int, entry: int) -> StoredEntry:
        """An entry of a topic. Raises NoSuchEntry."""
        if ledger < 0 or entry < 0:
            raise InvalidConfiguration(f"{ledger}:{entry} is no message id")
        position, data = await backlog.entry_at(await self._persistent(topic), (ledger, entry))
        return StoredEntry(*position, data)

    async def rpc_bytes_after(self, connection: RpcConnection, topic: str, ledger: int, entry: int) -> int:
        """How many bytes a topic stores behind an entry."""
        return bytes_after((await self._persistent(topic)).ledger.ledger_infos, (ledger, entry))

    async def rpc_find_entry(self, connection: RpcConnection, topic: str, publish_time_ms: int) -> EntryPosition:
        """Where the first entry is that was published then or later, else where the next one will be."""
        return EntryPosition(*await (await self._persistent(topic)).ledger.find_by_publish_time(publish_time_ms))

    async def _persistent(self, topic: str) -> PersistentTopic:
        found = await self._topics.get(TopicName.parse(topic))
        if not isinstance(found, PersistentTopic):
            raise NotAllowedError(f"{topic} is not persistent, so it stores no messages")
        return found


def _find(topic: PersistentTopic, name: str) -> Subscription:
    found = topic.subscriptions.get((name, True))
    if found is None:
        raise SubscriptionNotFound(f"Subscription {name} of {topic.name.full} does not exist")
    return found
