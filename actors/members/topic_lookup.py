"""Who serves a topic, how many partitions it has, which topics there are.

Any broker gives the answers, whether or not it serves the topic. Whose a topic is follows from its name and from the
slots that the coordinator pushed. Whether it exists, and with how many partitions, is asked of the coordinator once,
which then says when that changes. If the owner is no longer there, or knows that it gives the topic up, the coordinator
is asked. It answers once the topic has a new owner. The number of questions under way is bounded.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from ...protocol.errors import (
    NotAllowedError,
    ServiceUnitNotReady,
    TooManyLookupRequestException,
    TopicNotFound,
)
from ...protocol.system_topics import TRANSACTION_COORDINATORS, is_system_topic
from ...protocol.topics import TopicName, parse_namespace
from ...runtime.rpc.connection import CALL_TIMEOUT_S
from .broker_addresses import Reach, reach
from .contracts_coordinator import CoordinatorContract
from .feeds import Owning
from .matched_topics import MatchedLists, names_of
from .topic_filter import MATCHED_AT_ONCE, TopicFilter

if TYPE_CHECKING:
    from .coordinator_link import CoordinatorClient

PAGE = 1000
"""Topics of a namespace that one question to the coordinator brings."""

NAME_FRAME_BYTES = 5
"""What one name in a list needs beside its bytes: its tag, and its length up to 4 KB, generously."""


class Lookups:
    """Answers about topics. `coordinator` gives the present session's client. `lists` are those that clients watch."""

    def __init__(
        self,
        coordinator: "Callable[[], CoordinatorClient]",
        owning: Owning,
        under_way_max: int,
        lists: MatchedLists,
    ) -> None:
        self.coordinator = coordinator
        self.lists = lists
        self.owning = owning
        self._under_way_max = under_way_max
        self._under_way = 0
        self._ask = CoordinatorContract(self._call)

    async def owner_url(self, name: TopicName) -> str:
        """The internal URL of the broker that owns the topic, or that shall create it. Nothing is created here.

        Raises ServiceUnitNotReady when its move takes long, TopicNotFound for a missing namespace, partition or
        (without automatic creation) topic, CoordinatorUnavailable, TooManyLookupRequestException.
        """
        coordinator = self.coordinator()
        if name.full == TRANSACTION_COORDINATORS:
            return self._own_url(coordinator)
        owner = coordinator.slots.entry_of(name).owner
        if owner is not None and self._exists(name):
            broker = coordinator.brokers.get(owner.broker)
            if broker is not None and broker.incarnation == owner.incarnation:
                here = owner.incarnation == coordinator.identity.incarnation
                if not here or self.owning.owns(name):
                    return broker.url
        return await self._ask.lookup(topic=name.full)

    def reach(self, url: str, listener: str) -> Reach:
        """How a client of a listener reaches the broker with this URL. Raises ServiceUnitNotReady."""
        return reach(self.coordinator().brokers.values(), url, listener)

    async def claim(self, name: TopicName, create: bool) -> bool:
        """Ask for a topic, and return whether it is this broker's.

        A missing topic is created if `create` and the settings say so. Raises TopicNotFound, NotAllowedError, and what
        `owner_url` raises.
        """
        return await self.owning.claimed(await self._ask.assign(topic=name.full, create=None if create else False))

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """The number of partitions, 0 for a topic without. With `create` a missing topic that the settings want
        partitioned is created. Raises TopicNotFound and what `owner_url` raises."""
        coordinator = self.coordinator()
        if name.full == TRANSACTION_COORDINATORS:
            return 0
        known = coordinator.known_topics.get(name.partitioned_name)
        if known is not None and name.partition < known:
            return known if name.partition < 0 else 0
        found = await self._ask.partitions(topic=name.full, create=create, tell_missing=True)
        if found >= 0 and name.partition < 0:
            coordinator.known_topics.know(name.full, found)
        return max(found, 0)

    def _own_url(self, coordinator: "CoordinatorClient") -> str:
        """This broker's. A client that begins a transaction hears here, as from any broker, that there are none."""
        incarnation = coordinator.identity.incarnation
        for broker in coordinator.brokers.values():
            if broker.incarnation == incarnation:
                return broker.url
        raise ServiceUnitNotReady("this broker is being registered: try again")

    def _exists(self, name: TopicName) -> bool:
        """Whether a partition or plain topic is known to exist."""
        known = self.coordinator().known_topics.get(name.partitioned_name)
        return known is not None and (name.partition < known if name.partition >= 0 else not known)

    async def topics(
        self, namespace: str, *, domain: str | None, size_max_bytes: int, taken: TopicFilter | None = None
    ) -> list[str]:
        """Full names of the namespace's topics, partitions one by one; none for a missing namespace, as in Pulsar.
        Without a domain those of both; with a filter those that it takes.

        Raises NotAllowedError when the names exceed `size_max_bytes`: clients drop a connection that brings them a
        larger frame. Raises InvalidTopicName for what cannot name a namespace.
        """
        parse_namespace(namespace)
        found: list[str] = []
        size = 0
        try:
            async for names in pages(self._ask, namespace, domain, taken):
                size += sum(len(name.encode()) + NAME_FRAME_BYTES for name in names)
                if size > size_max_bytes:
                    raise NotAllowedError(
                        f"the names of the topics in {namespace} do not fit into a frame of {size_max_bytes} bytes: "
                        "ask the admin HTTP for them, or raise maxMessageSize"
                    )
                found += names
        except TopicNotFound:
            return []
        return found

    async def _call(self, method: str, /, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: object) -> object:
        if self._under_way >= self._under_way_max:
            raise TooManyLookupRequestException("too many lookups are in flight: try again later")
        self._under_way += 1
        try:
            return await self.coordinator().call(method, timeout_s=timeout_s, **arguments)
        finally:
            self._under_way -= 1


async def pages(
    coordinator: CoordinatorContract,
    namespace: str,
    domain: str | None = None,
    taken: TopicFilter | None = None,
    *,
    system: bool = False,
) -> AsyncIterator[list[str]]:
    """Full names of a namespace's topics, partitions one by one, in pages; those of one domain, or those that a filter
    takes, if it is given. System topics are in it only if `system` says so.

    What is created or deleted meanwhile is in it or not. Raises TopicNotFound for a missing namespace.
    """
    after = ""
    while True:
        page = await coordinator.topic_records(namespace=namespace, after=after, limit=PAGE)
        names: list[str] = []
        for looked_at, (name, partitions) in enumerate(page):
            if taken is not None and looked_at % MATCHED_AT_ONCE == MATCHED_AT_ONCE - 1:
                await asyncio.sleep(0)  # a pattern can take long for each name
            if domain is not None and TopicName.parse(name).domain != domain:
                continue
            if (taken is not None and not taken.takes(name)) or (not system and is_system_topic(name)):
                continue
            names += names_of(name, partitions)
            if len(names) >= PAGE:
                yield names
                names = []
                await asyncio.sleep(0)  # thousands of partitions take milliseconds
        if names:
            yield names
        if len(page) < PAGE:
            return
        after = page[-1].topic
