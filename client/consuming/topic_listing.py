"""The topics that a pattern takes, as a broker lists them.

A broker that has topic list watchers tells what changes. Otherwise, and for non-persistent topics, the list is asked
for again. In both cases the question carries the hash of the names, so an answer about an unchanged list is short.

States: *unwatched* (no connection) → *watched* (WATCH_TOPIC_LIST was answered) → *unwatched* (the connection ended; the
next `ask` watches again, at any broker that answers) → … → *closed*.

A broker may refuse the pattern, because it is too long or because it cannot read it. Then everything is watched. If it
refuses that, too, the list is only asked for.

Invariants:

- While it is watched, `topics` is what the broker has said so far: lists and updates are applied in the order in which
  they came. An update whose hash is not that of the names makes the list `due`: the next round asks.
- A topic that changes is in `changed` until a round takes it. Rounds that look at everything make good for failures.
"""

import logging
from collections.abc import Callable, Iterable

from ...protocol.commands import encode
from ...protocol.errors import InvalidTopicName, MagnetarError, NotAllowedError, ProtocolError
from ...protocol.pulsar_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)
from ...protocol.topic_lists import topics_hash
from ...protocol.topics import TopicName
from ..core.configuration import RegexSubscriptionMode
from ..core.connection import ClientConnection
from ..core.context import Core
from .topic_pattern import EVERYTHING, TopicPattern

logger = logging.getLogger(__name__)

EMPTY_HASH = topics_hash(())


class TopicListing:
    """See the module. `on_change` is called when there is something for a round to do."""

    def __init__(self, core: Core, pattern: TopicPattern, on_change: Callable[[], None]) -> None:
        self.topics: dict[TopicName, int] = {}
        """Topics that the pattern takes, and how many names each has: its partitions, or 1."""
        self.changed: dict[TopicName, None] = {}
        """Topics that came, went or grew since a round looked."""
        self.due = True
        """Whether the list has to be asked for."""
        self._core = core
        self._pattern = pattern
        self._on_change = on_change
        self._names: dict[str, None] = {}
        self._known = False
        self._id = core.next_id()
        self._connection: ClientConnection | None = None
        self._watches = pattern.mode is RegexSubscriptionMode.PersistentOnly
        self._asks_for = pattern.for_brokers
        self._closed = False

    @property
    def watched(self) -> bool:
        """Whether a broker tells what changes."""
        return self._connection is not None

    async def ask(self) -> None:
        """Have the list as it is now. Raises what the broker says, or Timeout."""
        what = f"listing the topics of {self._pattern.namespace}"
        self.due = False  # first: the connection may end between the broker's answer and the next step here
        try:
            await self._core.lookup.at_any_broker(what, self._ask_at)
        except BaseException:
            self.due = True
            raise

    def close(self) -> None:
        """Watch no longer."""
        self._closed = True
        self._unwatch()

    # -- what a broker says --------------------------------------------------------------------------------------

    def listed(self, answer: CommandWatchTopicListSuccess) -> None:
        """The answer to WATCH_TOPIC_LIST: all names, or none if they are what the hash said."""
        self._take(answer.topic, answer.topics_hash)

    def updated(self, update: CommandWatchTopicUpdate) -> None:
        """Names are gone or new. Deletions come first: a topic in both was deleted and created again."""
        for name in update.deleted_topics:
            self._remove(name)
        for name in update.new_topics:
            self._add(name)
        if update.topics_hash != topics_hash(self._names):
            self.due = True
        self._on_change()

    def connection_lost(self, connection: ClientConnection, reason: MagnetarError) -> None:
        """What changes from now on is not told."""
        if connection is self._connection:
            self._connection = None
            self.due = True
            self._on_change()

    # -- inside --------------------------------------------------------------------------------------------------

    async def _ask_at(self, connection: ClientConnection) -> None:
        connection = self._connection or connection
        while self._watches and connection.features.supports_topic_watchers:
            try:
                await self._watch(connection)
                return
            except (NotAllowedError, InvalidTopicName) as error:
                logger.info("the broker watches no topics by the pattern %s: %s", self._asks_for, error)
                self._watches = self._asks_for != EVERYTHING
                self._asks_for = EVERYTHING
            except (MagnetarError, TimeoutError) as error:
                logger.info("the topics of %s are not watched yet: %s", self._pattern.namespace, error)
                break  # a broker that cannot watch may be able to list
        await self._list(connection)

    async def _watch(self, connection: ClientConnection) -> None:
        request_id = connection.next_request_id()
        command = CommandWatchTopicList(
            request_id=request_id,
            watcher_id=self._id,
            namespace=self._pattern.namespace,
            topics_pattern=self._asks_for,
        )
        if self._known:
            command.topics_hash = topics_hash(self._names)
        self._connection = connection
        connection.watchers[self._id] = self
        try:
            await self._core.lookup.ask(connection, command, request_id, CommandWatchTopicListSuccess)
            if not self._known:
                raise ProtocolError("the broker answered WATCH_TOPIC_LIST with a hash that is not that of its list")
        except BaseException:
            self._unwatch()
            raise
        if self._closed:
            self._unwatch()

    async def _list(self, connection: ClientConnection) -> None:
        request_id = connection.next_request_id()
        command = CommandGetTopicsOfNamespace(
            request_id=request_id,
            namespace=self._pattern.namespace,
            mode=self._pattern.mode.value,  # pyright: ignore[reportArgumentType]
            topics_pattern=self._pattern.for_brokers,
        )
        if self._known:
            command.topics_hash = topics_hash(self._names)
        answer = await self._core.lookup.ask(connection, command, request_id, CommandGetTopicsOfNamespaceResponse)
        if answer.changed:
            self._replace(answer.topics)

    def _unwatch(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.watchers.pop(self._id, None) is not None:
            request_id = connection.next_request_id()  # the answer is of no consequence
            connection.write(encode(CommandWatchTopicListClose(request_id=request_id, watcher_id=self._id)))

    def _take(self, names: Iterable[str], expected: str) -> None:
        """A whole list, unless its hash is that of the names: then it may have been left out."""
        if self._known and expected == topics_hash(self._names):
            return
        self._replace(names)
        self._known = bool(self._names) or expected == EMPTY_HASH

    def _replace(self, names: Iterable[str]) -> None:
        wanted = dict.fromkeys(names)
        for name in [name for name in self._names if name not in wanted]:
            self._remove(name)
        for name in wanted:
            self._add(name)
        self._known = True

    def _add(self, name: str) -> None:
        topic = self._pattern.topic_of(name)
        if topic is not None:
            self.changed[topic] = None
            if name not in self._names:
                self.topics[topic] = self.topics.get(topic, 0) + 1
        self._names[name] = None

    def _remove(self, name: str) -> None:
        topic = self._pattern.topic_of(name)
        if topic is not None and name in self._names:
            self.changed[topic] = None
            self.topics[topic] -= 1
            if not self.topics[topic]:
                del self.topics[topic]
        self._names.pop(name, None)
