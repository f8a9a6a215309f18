"""The topics that one broker serves: owned ones, loaded ones, and the way from one to the other.

A topic is *owned* while this broker has the coordinator's grant to open it, with an epoch. A topic has no single state
here: it may have an instance and a load at the same time. Each is where the dictionaries have it.

- The instance is in `loaded`, then in `_closing`; `topic.TRANSITIONS` has its states. It is closed when the epoch is
  raised, when it ended by itself (its ledger was taken over), and when the topic is released or no longer owned.
- The load is in `_queue`, then in `_loading`, and ends with an instance or an error. It begins with the grant, or
  when a caller needs the topic. It waits until the old instance is closed.

Guarantees: a topic has up to one instance in this process, and the old one is fully closed before the next is opened.
Up to `topic_load_concurrency_max` loads run at a time; loads that a client waits for go first. A load whose ownership
changed meanwhile is discarded. Safety does not rest on any of this: the ledger's fencing keeps out a broker that
wrongly believes it is the owner.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping

from ...protocol.errors import MagnetarError, NotAllowedError, ServiceUnitNotReady, StaleEpoch
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...storage.managed.managed_ledger import ManagedLedger
from ..compaction.topic_compaction import open_compaction_cursor
from ..keeping.rounds import KeepingRounds, Retire
from ..policies.effective import EffectivePolicies
from ..policies.watch import PolicyWatch
from .idle_topics import IdleTopics
from .non_persistent import NonPersistentTopic
from .persistent import PersistentTopic
from .topic import CommonState, Topic, TopicState

logger = logging.getLogger(__name__)

Claim = Callable[[TopicName, bool], Awaitable[bool]]
"""Asks for a topic, which is created if need be and allowed; answers whether this broker has a grant for it now."""

OpenLedger = Callable[[TopicName, int], Coroutine[object, object, ManagedLedger]]
DeleteLedger = Callable[[TopicName, int], Coroutine[object, object, None]]


class Topics:
    """See the module. `open_ledger(name, epoch)` opens and recovers the managed ledger of a topic,
    `delete_ledger(name, epoch)` deletes it with all that belongs to it.

    `claim(name, create)` asks the coordinator for a topic that somebody came for and this broker does not own.
    `retire(name)` has the coordinator delete a topic that nobody uses.
    """

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        open_ledger: OpenLedger,
        delete_ledger: DeleteLedger,
        claim: Claim,
        retire: Retire,
    ) -> None:
        self.owned: dict[str, int] = {}
        self.on_revoked: Callable[[str], None] = lambda full_name: None
        """Told of each topic that is not owned any longer, or not as it was."""
        self.loaded: dict[str, Topic] = {}
        self.policies = PolicyWatch(settings, self._policies_changed)
        """The policies of all namespaces and topics; the broker's session feeds it."""
        self._env = env
        self._settings = settings
        self._open_ledger = open_ledger
        self._delete_ledger = delete_ledger
        self._claim = claim
        self._idle = IdleTopics(settings, self.loaded, self._close)
        self.common = CommonState(left=self._idle.client_left)
        self._tasks = Tasks()
        self._queue: OrderedDict[str, asyncio.Future[Topic]] = OrderedDict()
        self._loading: dict[str, asyncio.Future[Topic]] = {}
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._rounds = KeepingRounds(settings, lambda: list(self.loaded.values()), retire)
        self._compaction_timer: asyncio.TimerHandle | None = None

    # -- ownership -----------------------------------------------------------------------------------------------

    def assign(self, full_name: str, epoch: int, *, load: bool) -> None:
        """The topic is this broker's under `epoch`. With `load` it is loaded before anybody asks."""
        if self._closed or self.owned.get(full_name, -1) >= epoch:
            return
        self.owned[full_name] = epoch
        loaded = self.loaded.get(full_name)
        if loaded is not None and loaded.epoch != epoch:
            self._close(loaded)
        if load:
            self._request(full_name, urgent=False)

    def revoke(self, full_name: str) -> None:
        """The topic is no longer this broker's."""
        self._give_up(full_name)
        self._idle.forget(TopicName.parse(full_name))
        waiting = self._queue.pop(full_name, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(_not_ours(full_name))
            waiting.exception()  # perhaps nobody waits
        loaded = self.loaded.get(full_name)
        if loaded is not None:
            self._close(loaded)

    def owns(self, full_name: str) -> bool:
        """Whether this broker takes clients for the topic: it owns it, as far as it knows."""
        return full_name in self.owned and not self._closed

    def _give_up(self, full_name: str) -> None:
        self.owned.pop(full_name, None)
        self.on_revoked(full_name)

    # -- use -----------------------------------------------------------------------------------------------------

    async def get(self, name: TopicName, *, create: bool = False) -> Topic:
        """The open topic, loaded if need be.

        A topic that this broker does not own is asked for: with `create` it may be created, else it must exist.

        Raises ServiceUnitNotReady when this broker does not own it, and what `claim` and opening its ledger raise.
        """
        full_name = name.full
        if full_name not in self.owned and not self._closed:
            if not await self._claim(name, create):
                raise _not_ours(full_name)
        if not self.owns(full_name):
            raise _not_ours(full_name)
        epoch = self.owned[full_name]
        topic = self.loaded.get(full_name)
        if topic is not None and topic.epoch == epoch and topic.state not in (TopicState.CLOSING, TopicState.CLOSED):
            self._idle.asked_for(topic)
            return topic
        return await asyncio.shield(self._request(full_name, urgent=True))

    def find(self, full_name: str) -> Topic | None:
        """The topic if it is loaded."""
        return self.loaded.get(full_name)

    def check_unused(self, full_name: str, *, inactive: bool = False) -> None:
        """Raise NotAllowedError while a client is connected to a topic.

        With `inactive` also while it is not loaded here, or not inactive (see `keeping.inactivity`). One that is not
        persistent, and not loaded, is inactive.
        """
        topic = self.loaded.get(full_name)
        if inactive and topic is None and TopicName.parse(full_name).persistent:
            raise NotAllowedError(f"{full_name} may be in use, or was until a moment ago")
        if inactive and topic is not None and not topic.keeping.inactivity.check():
            raise NotAllowedError(f"{full_name} is in use, or was until a moment ago")
        if topic is not None and topic.in_use:
            raise NotAllowedError(f"{full_name} has connected producers or consumers: close them first, or force it")

    async def release(self, full_name: str) -> None:
        """Give a topic up before it moves or is deleted; returns when it is closed. It needs another grant then."""
        self.revoke(full_name)
        closing = self._closing.get(full_name)
        if closing is not None:
            await asyncio.shield(closing)

    async def delete(self, name: TopicName, epoch: int) -> None:
        """Delete all that a topic stores, under an epoch greater than that of every owner. Nobody is assigned it now.

        What this broker still has of it is closed first. Raises StaleEpoch, RecoveryFailed, MetadataUnavailable, …
        """
        if self.owned.get(name.full, epoch) < epoch:
            self.revoke(name.full)
        closing = self._closing.get(name.full)
        if closing is not None:
            await asyncio.shield(closing)
        if name.persistent:
            await self._delete_ledger(name, epoch)

    def check(self) -> None:
        """Called now and then: looks for stalled dispatch."""
        for topic in list(self.loaded.values()):
            topic.check()

    def _watch_compactions(self) -> None:
        """Look for topics to compact, now and then while any are loaded."""
        if self._compaction_timer is None and not self._closed:
            interval_s = self._settings.compaction_monitor_interval_s
            self._compaction_timer = asyncio.get_running_loop().call_later(interval_s, self._check_compactions)

    def _check_compactions(self) -> None:
        self._compaction_timer = None
        for topic in list(self.loaded.values()):
            if isinstance(topic, PersistentTopic):
                topic.compaction.check()
        if self.loaded:
            self._watch_compactions()

    async def close_all(self) -> None:
        """Give up every topic (the session was lost, or the broker stops) and wait until all are closed."""
        for full_name in list(self.owned):
            self.revoke(full_name)
        # A load that waits for an answer which no longer matters would keep the broker from coming back.
        for load in list(self._loads.values()):
            load.cancel()
        # `wait`, because a cancelled `gather` would cancel what is being closed.
        while under_way := [*self._loads.values(), *self._closing.values()]:
            await asyncio.wait(under_way)

    async def close(self) -> None:
        """Close all topics; none is loaded from then on."""
        self._closed = True
        if self._compaction_timer is not None:
            self._compaction_timer.cancel()
        await self._rounds.close()
        await self._idle.close()
        await self.close_all()
        await self._tasks.close()

    # -- loading -------------------------------------------------------------------------------------------------

    def _request(self, full_name: str, *, urgent: bool) -> "asyncio.Future[Topic]":
        under_way = self._loading.get(full_name)
        if under_way is not None:
            return under_way
        waiting = self._queue.get(full_name)
        if waiting is None:
            waiting = asyncio.get_running_loop().create_future()
            self._queue[full_name] = waiting
        if urgent:
            self._queue.move_to_end(full_name, last=False)
        self._start_loads()
        return waiting

    def _start_loads(self) -> None:
        while self._queue and len(self._loading) < self._settings.topic_load_concurrency_max:
            full_name, future = self._queue.popitem(last=False)
            self._loading[full_name] = future
            load = self._loads[full_name] = self._tasks.spawn(self._load(full_name, future), f"load {full_name}")
            load.add_done_callback(lambda _, name=full_name: self._load_ended(name))

    async def _load(self, full_name: str, future: "asyncio.Future[Topic]") -> None:
        try:
            try:
                async with asyncio.timeout(self._settings.topic_load_timeout_s):
                    topic = await self._open(full_name)
            except TimeoutError:
                raise ServiceUnitNotReady(f"{full_name} could not be loaded in time") from None
            self._watch_compactions()
            self._rounds.start()
            self.loaded[full_name] = topic  # in the step in which its policies were read; see `PolicyWatch`
            self._idle.is_loaded(topic)
            if not future.done():
                future.set_result(topic)
        except Exception as error:
            if not isinstance(error, MagnetarError):
                logger.exception("loading %s failed", full_name)
                error = ServiceUnitNotReady(f"{full_name} could not be loaded: {error!r}")
            else:
                logger.warning("%s could not be loaded: %s", full_name, error)
            if not future.done():
                future.set_exception(error)
                future.exception()  # perhaps nobody waits

    def _load_ended(self, full_name: str) -> None:
        """Also when it was cancelled before it began."""
        del self._loads[full_name]
        future = self._loading.pop(full_name)
        if not future.done():
            future.set_exception(_not_ours(full_name))
            future.exception()  # perhaps nobody waits
        self._start_loads()

    async def _open(self, full_name: str) -> Topic:
        topic = self.loaded.get(full_name)
        if topic is not None:  # an instance that ended, or one of an older epoch
            self._close(topic)
        closing = self._closing.get(full_name)
        if closing is not None:
            await asyncio.shield(closing)
        epoch = self.owned.get(full_name)
        if epoch is None:
            raise _not_ours(full_name)
        await self.policies.known()
        name = TopicName.parse(full_name)
        if not name.persistent:
            policies = self.policies.of(name)
            return NonPersistentTopic(self._env, self._settings, policies, name, epoch, self.common)
        try:
            ledger = await self._open_ledger(name, epoch)
        except StaleEpoch:
            if self.owned.get(full_name) == epoch:
                self._give_up(full_name)  # it has another owner: the next one who comes asks the coordinator
            raise
        if self.policies.effective(name.namespace).compaction_threshold:
            try:
                await open_compaction_cursor(ledger)  # what is published from now on is kept for a compaction
            except BaseException:
                await ledger.close()
                raise
        if self.owned.get(full_name) != epoch:
            await ledger.close()
            raise _not_ours(full_name)
        policies = self.policies.of(name)
        return PersistentTopic(self._env, self._settings, policies, name, epoch, ledger, self.common, self._terminated)

    def _policies_changed(self, changed: Mapping[str, EffectivePolicies]) -> None:
        topics_too = any("://" in scope for scope in changed)
        for topic in list(self.loaded.values()):
            name = topic.name
            if name.namespace in changed or (topics_too and name.partitioned_name in changed):
                topic.use_policies(self.policies.of(name))
        for full_name in self._idle.with_new_duties(changed, self.policies.of):
            self._request(full_name, urgent=False)

    # -- closing -------------------------------------------------------------------------------------------------

    def _terminated(self, topic: Topic, error: BaseException) -> None:
        logger.warning("this broker closes %s: %s", topic.name.full, error)
        self._close(topic)

    def _close(self, topic: Topic, *, trim: bool = False) -> asyncio.Task[None] | None:
        full_name = topic.name.full
        self._idle.closes(topic)
        if self.loaded.get(full_name) is not topic:
            return None
        del self.loaded[full_name]
        closing = self._closing[full_name] = self._tasks.spawn(
            self._close_topic(topic, trim=trim), f"close {full_name}"
        )
        return closing

    async def _close_topic(self, topic: Topic, *, trim: bool) -> None:
        try:
            if trim and isinstance(topic, PersistentTopic):
                await topic.close(trim=True)
            else:
                await topic.close()
        finally:
            del self._closing[topic.name.full]


def _not_ours(full_name: str) -> ServiceUnitNotReady:
    return ServiceUnitNotReady(f"this broker does not own {full_name}")
