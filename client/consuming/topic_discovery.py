"""How a consumer finds its topics: at first, and those that are created, deleted or get more partitions later.

What is wanted is compared with what is there, in rounds, by one task. So each round can fail, and the next one makes
good for it:

- *Names.* A topic of a list that does not exist is missing, and each round tries to join it.
- *Pattern.* Each round joins topics that match, and leaves those that are gone (`TopicListing`). If a broker tells
  what changes, a round begins at once and looks at that only.
- *Partitions.* Each round asks for the number of partitions of each partitioned topic.
- *Other shapes.* A topic that refuses its consumers may have been created again with other partitions (`reshape`).

Rounds begin every `pattern_auto_discovery_period` and `partitions_update_interval_s` seconds, or at once after `poke`.
A consumer of one topic without partitions has no task until the topic refuses it.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence

from ...protocol.commands import encode
from ...protocol.errors import (
    AlreadyClosed,
    InvalidConfiguration,
    InvalidTopicName,
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    TopicNotFound,
)
from ...protocol.pulsar_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)
from ...protocol.topic_lists import topics_hash
from ...protocol.topics import DEFAULT_NAMESPACE, DEFAULT_TENANT, NON_PERSISTENT, PERSISTENT, TopicName, parse_namespace
from ...runtime.tasks import together
from ..core.configuration import ConsumerConfiguration, RegexSubscriptionMode
from ..core.connection import ClientConnection
from ..core.context import Core
from .topic_set import TopicSet

logger = logging.getLogger(__name__)

EVERYTHING = ".*"
_COMMON = re.compile(r"(?:[A-Za-z0-9_.*+?|()\[\]^-]|\\[.-])+")
"""What means the same to Python and to RE2, which brokers use."""


class TopicPattern:
    """Which topics a pattern takes: those of one namespace whose last part matches.

    The text is a topic name whose last part is a regular expression. Tenant and namespace are literal: a pattern that
    leaves one namespace is refused. The client matches whole names. A partitioned topic counts once, by its own name.

    Brokers are asked with `for_brokers`. They match with another engine, so an expression that may mean something else
    there, or nothing, is not sent: the broker then lists everything. The client matches what a broker lists in any
    case.
    """

    def __init__(self, pattern: re.Pattern[str], mode: RegexSubscriptionMode) -> None:
        """Raises InvalidTopicName, InvalidConfiguration for what is no pattern within one namespace."""
        text = pattern.pattern
        domain, scheme, rest = text.partition("://")
        if not scheme:
            domain, rest = "", text
        elif domain not in (PERSISTENT, NON_PERSISTENT):
            raise InvalidTopicName(
                f"the pattern {text!r} has an unknown domain: write persistent:// or non-persistent://, "
                "and choose among both with regex_subscription_mode"
            )
        parts = rest.split("/", 2)
        if len(parts) == 1 and not scheme:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, rest]
        if len(parts) != 3 or not parts[2]:
            raise InvalidTopicName(
                f"the pattern {text!r} is not <tenant>/<namespace>/<regular expression of topics>: name one namespace"
            )
        local = parts[2]
        if "://" in local:
            raise InvalidTopicName(
                f"the pattern {text!r} names more than one namespace: subscribe once for each namespace"
            )
        self.text = text
        self.namespace = "/".join(parse_namespace("/".join(parts[:2])))
        self.mode = mode
        domains = {
            RegexSubscriptionMode.PersistentOnly: (PERSISTENT,),
            RegexSubscriptionMode.NonPersistentOnly: (NON_PERSISTENT,),
            RegexSubscriptionMode.AllTopics: (PERSISTENT, NON_PERSISTENT),
        }
        self._domains = domains[mode]
        if domain and domain not in self._domains:
            raise InvalidConfiguration(
                f"the pattern {text!r} asks for {domain} topics, but regex_subscription_mode is {mode.name}"
            )
        try:
            self._local = re.compile(local, pattern.flags)
        except re.error as error:
            raise InvalidConfiguration(
                f"the part of {text!r} behind the namespace is not a regular expression: {error}"
            ) from None

    def topic_of(self, name: str) -> TopicName | None:
        """The topic that a full name is, or is a partition of, if the pattern takes it."""
        topic = TopicName.parse(name).without_partition()
        if topic.namespace != self.namespace or topic.domain not in self._domains:
            return None
        return topic if self._local.fullmatch(topic.local_name) else None

    @property
    def for_brokers(self) -> str:
        """A pattern by which a broker lists all that this one takes, and perhaps more."""
        local = self._local.pattern
        if self._local.flags != re.compile("").flags or "(?" in local or not _COMMON.fullmatch(local):
            return EVERYTHING
        return f"{self.namespace}/({local})" if "|" in local else f"{self.namespace}/{local}"


EMPTY_HASH = topics_hash(())


class TopicListing:
    """The topics that a pattern takes, as a broker lists them.

    A broker that has topic list watchers tells what changes. Otherwise, and for non-persistent topics, the list is
    asked for again. In both cases the question carries the hash of the names, so an answer about an unchanged list is
    short.

    States: *unwatched* (no connection) → *watched* (WATCH_TOPIC_LIST was answered) → *unwatched* (the connection ended;
    the next `ask` watches again, at any broker that answers) → … → *closed*.

    A broker may refuse the pattern, because it is too long or because it cannot read it. Then everything is watched. If
    it refuses that, too, the list is only asked for.

    Invariants:

    - While it is watched, `topics` is what the broker has said so far: lists and updates are applied in the order in
      which they came. An update whose hash is not that of the names makes the list `due`: the next round asks.
    - A topic that changes is in `changed` until a round takes it. Rounds that look at everything make good for
      failures.

    `on_change` is called when there is something for a round to do.
    """

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


JOINED_AT_ONCE_MAX = 100
"""Topics that one consumer subscribes to at the same time."""


class TopicDiscovery:
    def __init__(
        self, core: Core, configuration: ConsumerConfiguration, topics: TopicSet, also: Sequence[str] = ()
    ) -> None:
        """`also` names topics beside those of the configuration. Raises InvalidTopicName, InvalidConfiguration."""
        self.names: list[TopicName] = []
        """The topics that are named; none for a pattern."""
        self.listing: TopicListing | None = None
        self._pattern_text = ""
        wanted = self._wanted = configuration.topic
        if isinstance(wanted, re.Pattern):
            pattern = TopicPattern(wanted, configuration.regex_subscription_mode)
            self.listing = TopicListing(core, pattern, self._told)
            self._pattern_text = pattern.text
        else:
            named = (wanted,) if isinstance(wanted, str) else wanted
            self.names = list(dict.fromkeys(TopicName.parse(name) for name in named))
        self._configured = list(self.names)
        self.names += [name for name in map(TopicName.parse, also) if name not in self.names]
        self._core = core
        self._topics = topics
        self._several = configuration.takes_several_topics
        self._period_s = float(configuration.pattern_auto_discovery_period)
        self._partitions_period_s = float(core.configuration.partitions_update_interval_s)
        self._awake = asyncio.Event()
        self._poked = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._refusing: dict[TopicName, None] = {}
        topics.on_lost = self.poke
        topics.on_refused = self._refused

    @property
    def text(self) -> str:
        """The topic, the topics or the pattern, for people."""
        return self._pattern_text or ",".join(name.full for name in self._configured)

    async def open(self) -> None:
        """Subscribe to what there is. Raises the first refusal; the caller closes then what was opened."""
        if isinstance(self._wanted, str):
            await self._topics.join(self.names[0])
        if self._several:
            if self.listing is None:
                await self._join(self._missing(), first=True)
            else:
                await self._follow(self.listing, ask=True, whole=True, first=True)
        if self._several or any(self._topics.partitions.values()):
            self._start()

    def _start(self) -> None:
        self._task = self._core.tasks.spawn(self._serve(), f"discover topics of {self.text}"[:200])

    async def close(self) -> None:
        """Begin no more rounds."""
        if self.listing is not None:
            self.listing.close()
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def poke(self) -> None:
        """Topics have changed: begin a round now, and look at everything."""
        self._poked = True
        self._awake.set()

    # ---- Inside ----

    def _refused(self, topic: TopicName) -> None:
        whole = topic.without_partition()
        self._refusing[whole if whole in self._topics.partitions else topic] = None
        self._awake.set()
        if self._task is None and not self._closed:
            self._start()

    def _told(self) -> None:
        self._awake.set()

    async def _serve(self) -> None:
        loop = self._core.loop
        discover_at, grow_at = loop.time() + self._period_s, loop.time() + self._partitions_period_s
        if not self._several:
            discover_at = float("inf")
        if not self._partitions_period_s:
            grow_at = float("inf")
        while not self._topics.closed:
            try:
                async with asyncio.timeout_at(
                    None if min(discover_at, grow_at) == float("inf") else min(discover_at, grow_at)
                ):
                    await self._awake.wait()
            except TimeoutError:
                pass  # a period has passed
            poked, self._poked = self._poked, False
            awake = self._awake.is_set()
            self._awake.clear()
            refusing, self._refusing = self._refusing, {}
            for topic in refusing:
                await self._round(self._reshape(topic))
            period_over = loop.time() >= discover_at
            if self._several and (awake or period_over):
                await self._round(self._look(ask=period_over, whole=poked or period_over))
            if period_over:
                discover_at = loop.time() + self._period_s
            if poked or loop.time() >= grow_at:
                await self._round(self._grow())
                if self._partitions_period_s:
                    grow_at = loop.time() + self._partitions_period_s

    async def _round(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except (MagnetarError, TimeoutError) as error:
            if not self._topics.closed:
                logger.warning("a round of discovery for %s failed, the next one tries again: %s", self.text, error)

    async def _look(self, *, ask: bool, whole: bool) -> None:
        if self.listing is None:
            await self._join(self._missing(), first=False)
        else:
            await self._follow(self.listing, ask=ask, whole=whole)

    def _missing(self) -> list[TopicName]:
        """Topics that are named, and to be joined."""
        return [name for name in self.names if name not in self._topics.partitions]

    async def _follow(self, listing: TopicListing, *, ask: bool, whole: bool, first: bool = False) -> None:
        """Leave topics that are gone from the list, join those that are new, and partitions that were added.

        Looks at what has changed only, unless it is told to look at the `whole`.
        """
        if ask or listing.due:
            await listing.ask()
        looked_at = {**listing.changed, **(dict.fromkeys((*listing.topics, *self._topics.partitions)) if whole else {})}
        listing.changed.clear()
        for name in looked_at:
            if name in self._topics.partitions and name not in listing.topics:
                await self._topics.leave(name)
        joined = self._topics.partitions
        await self._join(
            sorted(name for name in looked_at if name in listing.topics and name not in joined), first=first
        )
        for name in looked_at:
            if listing.topics.get(name, 0) > joined.get(name, 0) > 0:
                await self._grow_one(name)

    async def _join(self, names: list[TopicName], *, first: bool) -> None:
        for start in range(0, len(names), JOINED_AT_ONCE_MAX):
            await together([self._join_one(name, first) for name in names[start : start + JOINED_AT_ONCE_MAX]])

    async def _join_one(self, name: TopicName, first: bool) -> None:
        try:
            await self._topics.join(name)
        except TopicNotFound:
            # It is created later, or was deleted since the list was made.
            logger.info("%s does not exist: a consumer of several topics joins it when it is created", name.full)
        except AlreadyClosed:
            if not self._topics.closed:
                raise
        except MagnetarError as error:
            if first:
                raise
            logger.warning("a consumer could not join %s, and tries again in the next round: %s", name.full, error)

    async def _grow(self) -> None:
        for name, count in list(self._topics.partitions.items()):
            if count:
                await self._grow_one(name)

    async def _reshape(self, topic: TopicName) -> None:
        try:
            await self._topics.reshape(topic)
        except TopicNotFound:
            return  # not created again yet: its consumers go on trying

    async def _grow_one(self, name: TopicName) -> None:
        try:
            await self._topics.grow(name)
        except TopicNotFound:
            return  # deleted: its consumers hear of it themselves
