"""The topics that one broker serves: owned ones, loaded ones, and the way from one to the other.

A topic is *owned* while this broker has the coordinator's grant to open it, with an epoch. A topic has no single state
here: it may have an instance and a load at the same time. Each is where the dictionaries have it.

- The instance is in `loaded`, then in `_closing`; `topic.TRANSITIONS` has its states. It is closed when the epoch is
  raised, when it ended by itself (its ledger was taken over), and when the topic is released or no longer owned.
- The load is in `_loads`, which has the order of loads, and ends with an instance or an error. It begins with the
  grant, or when a caller needs the topic. It waits until the old instance is closed.

A topic with something to do by itself is loaded without being asked for. A topic without is *at rest* (`idle_topics`),
here or where it was before: what its last owner stored tells. All others are loaded when the broker gains them, and
again when an instance ended by itself.

Guarantees: a topic has up to one instance in this process, and the old one is fully closed before the next is opened.
A load whose ownership changed meanwhile is discarded. Safety does not rest on any of this: the ledger's fencing keeps
out a broker that wrongly believes it is the owner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

from ...protocol.errors import NotAllowedError, ServiceUnitNotReady, StaleEpoch, TopicNotFound
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...storage.managed.managed_ledger import ManagedLedger
from ...storage.managed.record import LeftBehind
from ..compaction.topic_compaction import open_compaction_cursor
from ..keeping.rounds import KeepingRounds, Retire
from ..loading.loads import AT_REST, TopicLoads
from ..policies.effective import EffectivePolicies
from ..policies.watch import PolicyWatch
from .idle_topics import IdleTopics, duties_of
from .non_persistent import NonPersistentTopic
from .persistent import PersistentTopic
from .topic import CommonState, PrepareSubscription, TopicState

logger = logging.getLogger(__name__)

Topic = PersistentTopic | NonPersistentTopic
"""One topic, or one partition, on its owner broker, whichever way it keeps its messages."""

Claim = Callable[[TopicName, bool], Awaitable[bool]]
"""Asks for a topic, which is created if need be and allowed; answers whether this broker has a grant for it now."""

OpenLedger = Callable[[TopicName, int], Coroutine[object, object, ManagedLedger]]
DeleteLedger = Callable[[TopicName, int], Coroutine[object, object, None]]

ReadLeft = Callable[[Sequence[TopicName]], Awaitable[Sequence[LeftBehind]]]
"""How the last owners left persistent topics. Raises MagnetarError."""


class Topics:
    """See the module. `open_ledger(name, epoch)` opens and recovers the managed ledger of a topic.
    `delete_ledger(name, epoch)` deletes it with all that belongs to it. `read_left(names)` reads how it was left.

    `claim(name, create)` asks the coordinator for a topic that somebody came for and this broker does not own.
    `retire(name)` has the coordinator delete a topic that nobody uses. `prepare` is that of `CommonState`.
    """

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        open_ledger: OpenLedger,
        delete_ledger: DeleteLedger,
        read_left: ReadLeft,
        claim: Claim,
        retire: Retire,
        prepare: PrepareSubscription | None = None,
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
        self._read_left = read_left
        self._claim = claim
        self._idle = IdleTopics(settings, self.loaded, self._close)
        self.common = CommonState(left=self._idle.client_left, prepare=prepare)
        self._tasks = Tasks()
        self._loads: TopicLoads[Topic] = TopicLoads(
            env, settings.topic_load_concurrency_max, self._load, self._look_at, self._found_at_rest
        )
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._rounds = KeepingRounds(settings, lambda: [topic.keeping for topic in self.loaded.values()], retire)
        self._compaction_timer: asyncio.TimerHandle | None = None

    # -- ownership -----------------------------------------------------------------------------------------------

    def assign(self, full_name: str, epoch: int, *, load: bool) -> None:
        """The topic is this broker's under `epoch`. With `load` it is loaded before anybody asks, unless it rests."""
        known = self.owned.get(full_name, -1)
        if self._closed or known > epoch:
            return
        self.owned[full_name] = epoch
        loaded = self.loaded.get(full_name)
        if loaded is not None and loaded.epoch != epoch:
            self._close(loaded)
        if load and full_name not in self.loaded and not self._idle.rests(full_name):
            self._loads.gained(full_name)

    def revoke(self, full_name: str) -> None:
        """The topic is no longer this broker's."""
        self._give_up(full_name)
        self._idle.forget(TopicName.parse(full_name))
        loaded = self.loaded.get(full_name)
        if loaded is not None:
            self._close(loaded)

    def owns(self, full_name: str) -> bool:
        """Whether this broker takes clients for the topic: it owns it, as far as it knows."""
        return full_name in self.owned and not self._closed

    def _give_up(self, full_name: str) -> None:
        self.owned.pop(full_name, None)
        self._loads.forget(full_name, _not_ours(full_name))
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
        return await asyncio.shield(self._loads.ask(full_name))

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
        for load in self._loads.under_way:
            load.cancel()
        # `wait`, because a cancelled `gather` would cancel what is being closed.
        while under_way := [*self._loads.under_way, *self._closing.values()]:
            await asyncio.wait(under_way)

    async def close(self) -> None:
        """Close all topics; none is loaded from then on."""
        self._closed = True
        if self._compaction_timer is not None:
            self._compaction_timer.cancel()
        await self._rounds.close()
        await self._idle.close()
        await self.close_all()
        await self._loads.close()
        await self._tasks.close()

    # -- loading -------------------------------------------------------------------------------------------------

    async def _look_at(self, full_names: Sequence[str]) -> list[int]:
        """See `TopicLoads`. A topic that stores nothing is loaded like one that is not at rest."""
        await self.policies.known()
        names = [TopicName.parse(one) for one in full_names]
        stored = [name for name in names if name.persistent]
        left = dict(zip(stored, await self._read_left(stored), strict=True)) if stored else {}
        found: list[int] = []
        for name in names:
            one = left.get(name, LeftBehind())
            found.append(AT_REST if one.rests and one.rests == duties_of(self.policies.of(name)) else one.begun_ms)
        return found

    def _found_at_rest(self, full_name: str) -> None:
        name = TopicName.parse(full_name)
        self._idle.is_at_rest(name, self.policies.of(name))

    async def _load(self, full_name: str) -> Topic:
        try:
            async with asyncio.timeout(self._settings.topic_load_timeout_s):
                topic = await self._open(full_name)
        except TimeoutError:
            raise ServiceUnitNotReady(f"{full_name} could not be loaded in time") from None
        self._watch_compactions()
        self._rounds.start()
        self.loaded[full_name] = topic  # in the step in which its policies were read; see `PolicyWatch`
        self._idle.is_loaded(topic)
        return topic

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
        except (StaleEpoch, TopicNotFound) as error:
            if self.owned.get(full_name) == epoch:
                self._give_up(full_name)  # another owner has it, or it was deleted: who comes next asks the coordinator
            if isinstance(error, StaleEpoch):
                raise
            raise ServiceUnitNotReady(f"{full_name} was deleted while this broker had it: try again") from None
        if self.policies.of(name).compaction_threshold:
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
            self._loads.load_later(full_name)

    # -- closing -------------------------------------------------------------------------------------------------

    def _terminated(self, topic: Topic, error: BaseException) -> None:
        logger.warning("this broker closes %s: %s", topic.name.full, error)
        full_name = topic.name.full
        # Nobody may ask for it, and it may have something to do. Where another broker owns it, the load finds that.
        if self._close(topic) is not None and self.owned.get(full_name) == topic.epoch and not self._closed:
            self._loads.load_later(full_name)

    def _close(self, topic: Topic, at_rest: bytes = b"") -> asyncio.Task[None] | None:
        full_name = topic.name.full
        self._idle.closes(topic)
        if self.loaded.get(full_name) is not topic:
            return None
        del self.loaded[full_name]
        topic.begin_to_close()  # in this step: its task begins in a later one, and a client may be about to attach
        closing = self._closing[full_name] = self._tasks.spawn(self._close_topic(topic, at_rest), f"close {full_name}")
        return closing

    async def _close_topic(self, topic: Topic, at_rest: bytes) -> None:
        try:
            if at_rest and isinstance(topic, PersistentTopic):
                await topic.close(at_rest=at_rest)
            else:
                await topic.close()
        finally:
            del self._closing[topic.name.full]


def _not_ours(full_name: str) -> ServiceUnitNotReady:
    return ServiceUnitNotReady(f"this broker does not own {full_name}")
