"""Lists of a namespace's topics: GET_TOPICS_OF_NAMESPACE, and watchers of such lists (WATCH_TOPIC_LIST, …_CLOSE).

A list has full names of topics, partitions one by one. If a client sends a pattern, the broker answers with the topics
that match. If it sends the hash of its own list, and nothing differs, the answer has no names.

States of a watcher, which a client names by a number:

- *opening*: WATCH_TOPIC_LIST waits for the list.
- *watching*: the answer is written. The client is sent WATCH_TOPIC_UPDATE for what changes.
- *closed*: by WATCH_TOPIC_LIST_CLOSE, by the end of the connection, or because the list does not come.

A second WATCH_TOPIC_LIST with the same number reconciles: it gets the list as it is. Namespace and pattern stay those
of the first one.

Invariants:

- A client that applies the updates to the answer, deletions before creations, has the list of the broker.
- A topic that was deleted and created between two updates is in both lists of the update: its consumers are new ones.
- What is kept for a client that does not read is bounded by the names that it was told and those that there are.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...protocol.commands import encode
from ...protocol.errors import (
    BrokerMetadataError,
    InvalidTopicName,
    MagnetarError,
    NotAllowedError,
)
from ...protocol.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandSuccess,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)
from ...protocol.topic_lists import topics_hash
from ...protocol.topics import NON_PERSISTENT, PERSISTENT, parse_namespace
from ..members.matched_topics import MatchedTopics
from ..members.topic_filter import EVERYTHING, TopicFilter, without_domain
from ..members.topic_lookup import NAME_FRAME_BYTES
from ..security.authorization import NAMESPACE_USER, Scope
from . import limits
from .limits import check_number
from .link import CommandFamily, Guarded, of_namespace, of_own

if TYPE_CHECKING:
    from .connection import ServerConnection

DOMAIN_OF_MODE: dict[int, str] = {
    CommandGetTopicsOfNamespace.PERSISTENT: PERSISTENT,
    CommandGetTopicsOfNamespace.NON_PERSISTENT: NON_PERSISTENT,
}
"""ALL has both."""


class TopicListWatcher:
    """A watcher of one client; see the module. What is due waits while the client does not read."""

    def __init__(self, link: "ServerConnection", watcher_id: int, namespace: str, taken: TopicFilter) -> None:
        self.namespace = namespace
        self.taken = taken
        self.list: MatchedTopics = link.host.lookups.lists.hold(namespace, taken)
        self.closed = False
        self._link = link
        self._id = watcher_id
        self._due: dict[str, tuple[bool, bool]] = {}
        """Names that changed since the client was told: whether it was told of them, and whether they are there."""

    def answer(self, request_id: int, known_hash: str | None) -> bytes:
        """WATCH_TOPIC_LIST_SUCCESS with the list as it is now, of which the client is kept informed from now on.

        Raises NotAllowedError when the list does not fit into a frame.
        """
        size_max_bytes = self._link.host.settings.max_message_size_bytes
        current = self.list.hash()
        names = [] if current == known_hash else self.list.names
        if sum(map(_size, names)) > size_max_bytes:
            raise NotAllowedError(
                f"the names of the topics in {self.namespace} do not fit into a frame of {size_max_bytes} bytes: "
                "watch fewer topics, or raise maxMessageSize"
            )
        self._due.clear()
        self.list.attach(self)
        return encode(
            CommandWatchTopicListSuccess(request_id=request_id, watcher_id=self._id, topic=names, topics_hash=current)
        )

    def changed(self, gone: Iterable[str], new: Iterable[str]) -> None:
        """Remember what the client is to be told."""
        for name in gone:
            told, _ = self._due.get(name, (True, False))
            if told:
                self._due[name] = (True, False)
            else:
                self._due.pop(name, None)
        for name in new:
            told, _ = self._due.get(name, (False, True))
            self._due[name] = (told, True)

    def tell(self) -> None:
        """Send what is due, unless the client does not read."""
        if self.closed or not self._due or not self._link.writable:
            return
        due, self._due = self._due, {}
        gone = [name for name, (told, _) in due.items() if told]
        new = [name for name, (_, there) in due.items() if there]
        size_max_bytes = self._link.host.settings.max_message_size_bytes
        if sum(map(_size, (*gone, *new))) <= size_max_bytes:
            self._send(gone, new)
            return
        for part in _in_frames(gone, size_max_bytes):
            self._send(part, [])
        for part in _in_frames(new, size_max_bytes):
            self._send([], part)

    def close(self) -> None:
        """Let go of the list."""
        if not self.closed:
            self.closed = True
            self.list.detach(self)
            self._link.host.lookups.lists.release(self.namespace, self.taken)

    def _send(self, gone: list[str], new: list[str]) -> None:
        update = CommandWatchTopicUpdate(
            watcher_id=self._id, new_topics=new, deleted_topics=gone, topics_hash=self.list.hash()
        )
        self._link.write(encode(update))


class TopicListCommands(CommandFamily):
    """See the module."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection
        self._watchers: dict[int, TopicListWatcher] = {}

    def handlers(self) -> dict[int, Guarded]:
        return {
            BaseCommand.GET_TOPICS_OF_NAMESPACE: of_namespace(NAMESPACE_USER, self.topics_of_namespace),
            BaseCommand.WATCH_TOPIC_LIST: of_namespace(NAMESPACE_USER, self.watch),
            BaseCommand.WATCH_TOPIC_LIST_CLOSE: of_own(self.close),
        }

    def permissions_changed(self) -> None:
        connection = self._connection
        for watcher_id, watcher in list(self._watchers.items()):
            if not connection.permits([(NAMESPACE_USER, Scope.of_namespace(watcher.namespace))]):
                del self._watchers[watcher_id]
                watcher.close()

    def wake(self) -> None:
        for watcher in self._watchers.values():
            watcher.tell()

    def connection_closed(self) -> None:
        for watcher in self._watchers.values():
            watcher.close()
        self._watchers.clear()

    # -- one list ------------------------------------------------------------------------------------------------

    def topics_of_namespace(self, command: CommandGetTopicsOfNamespace) -> None:
        connection = self._connection

        async def answer() -> bytes:
            taken = self._filter_of(command)
            topics = await connection.host.lookups.topics(
                command.namespace,
                domain=DOMAIN_OF_MODE.get(command.mode),
                size_max_bytes=connection.host.settings.max_message_size_bytes,
                taken=taken,
            )
            current = topics_hash(topics)
            changed = not command.HasField("topics_hash") or command.topics_hash != current
            return encode(
                CommandGetTopicsOfNamespaceResponse(
                    request_id=command.request_id,
                    topics=topics if changed else (),
                    filtered=taken is not None,
                    topics_hash=current,
                    changed=changed,
                )
            )

        connection.start(answer(), "topics of namespace", lambda error: connection.error(command.request_id, error))

    def _filter_of(self, command: CommandGetTopicsOfNamespace) -> TopicFilter | None:
        """None: the client has to match the names itself. It can always do so, and its syntax may be another."""
        settings = self._connection.host.settings
        pattern = command.topics_pattern
        if not command.HasField("topics_pattern") or not settings.pattern_evaluation_enabled:
            return None
        if len(pattern) > settings.pattern_max_chars:
            return None
        try:
            return TopicFilter(pattern)
        except InvalidTopicName:
            return None

    # -- watchers ------------------------------------------------------------------------------------------------

    def watch(self, command: CommandWatchTopicList) -> None:
        connection = self._connection
        watcher = self._watchers.get(command.watcher_id)
        opened = None
        if watcher is None:
            try:
                watcher = opened = self._open(command)
            except MagnetarError as error:
                connection.error(command.request_id, error)
                return

        def failed(error: MagnetarError) -> None:
            if opened is not None and not opened.closed:
                del self._watchers[command.watcher_id]
                opened.close()
            connection.error(command.request_id, error)

        connection.start(self._answer(watcher, command), "topic list watcher", failed)

    async def _answer(self, watcher: TopicListWatcher, command: CommandWatchTopicList) -> bytes:
        await watcher.list.ready()
        if watcher.closed:
            raise BrokerMetadataError("Closed watcher before creation was complete")
        known_hash = command.topics_hash if command.HasField("topics_hash") else None
        return watcher.answer(command.request_id, known_hash)

    def close(self, command: CommandWatchTopicListClose) -> None:
        watcher = self._watchers.pop(command.watcher_id, None)
        if watcher is not None:
            watcher.close()
        self._connection.write(encode(CommandSuccess(request_id=command.request_id)))

    def _open(self, command: CommandWatchTopicList) -> TopicListWatcher:
        """Raises InvalidTopicName, NotAllowedError, TooManyLookupRequestException."""
        settings = self._connection.host.settings
        parse_namespace(command.namespace)
        pattern = command.topics_pattern or EVERYTHING
        if not settings.pattern_evaluation_enabled:
            raise NotAllowedError(
                "this broker matches no patterns: set enableBrokerSideSubscriptionPatternEvaluation=true"
            )
        if len(without_domain(pattern)) > settings.pattern_max_chars:
            raise NotAllowedError(
                f"the pattern of topics has more than {settings.pattern_max_chars} characters: shorten it"
            )
        taken = TopicFilter(pattern)
        check_number("topic list watchers", len(self._watchers), limits.WATCHERS_MAX)
        watcher = TopicListWatcher(self._connection, command.watcher_id, command.namespace, taken)
        self._watchers[command.watcher_id] = watcher
        return watcher


def _size(name: str) -> int:
    return len(name.encode()) + NAME_FRAME_BYTES


def _in_frames(names: list[str], size_max_bytes: int) -> Iterator[list[str]]:
    """The names in parts of which each fits into a frame."""
    part: list[str] = []
    size = 0
    for name in names:
        if part and size + _size(name) > size_max_bytes:
            yield part
            part, size = [], 0
        part.append(name)
        size += _size(name)
    if part:
        yield part
