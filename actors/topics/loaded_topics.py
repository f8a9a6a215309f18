"""The topics that one broker serves: which it may open, which are loaded, and the way from one to the other.

`owned_topic` has the record of a topic and its states; every change of a state is made here or in `loads`. A topic is
granted by the coordinator, under an epoch (`broker.ownership`). Its instance closes when the epoch is raised, when it
ended by itself (its ledger was taken over), when it goes to rest, and when the topic is released or no longer granted.

A topic with something to do by itself is loaded without being asked for. A topic without is *at rest* (`idle_topics`),
here or where it was before: what its last owner stored tells. All others are loaded when the broker gains them, and
again when an instance ended by itself.

Guarantees: a topic has up to one instance in this process, and the old one is fully closed before the next is opened.
A load whose epoch changed meanwhile is discarded. Safety does not rest on any of this: the ledger's fencing keeps out a
broker that wrongly believes it is the owner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

from ...protocol.errors import NotAllowedError, ServiceUnitNotReady, StaleEpoch, TopicNotFound
from ...protocol.slots import TopicGrant
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...storage.managed.managed_ledger import ManagedLedger
from ...storage.managed.record import LeftBehind
from ..keeping.rounds import KeepingRounds, Retire
from ..policies.effective import EffectivePolicies
from ..policies.watch import PolicyWatch
from .feature import FeatureChecks, FeatureKinds
from .idle_topics import IdleTopics, duties_of
from .loads import AT_REST, TopicLoads
from .non_persistent import NonPersistentTopic
from .owned_topic import Kept, OwnedState, OwnedTopic, Topic, TopicTable
from .persistent import PersistentTopic
from .topic import CommonState, PrepareSubscription, TopicState

logger = logging.getLogger(__name__)

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
    `features` is the table of features.
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
        *,
        features: FeatureKinds,
    ) -> None:
        self.table = TopicTable()
        self.policies = PolicyWatch(settings, self._policies_changed)
        """The policies of all namespaces and topics; the broker's session feeds it."""
        self._env = env
        self._settings = settings
        self._open_ledger = open_ledger
        self._delete_ledger = delete_ledger
        self._read_left = read_left
        self._claim = claim
        self._idle = IdleTopics(settings, self.table, self._go_to_rest, features)
        self.common = CommonState(left=self._idle.client_left, prepare=prepare, features=features)
        self._features = features
        self._tasks = Tasks()
        self._loads = TopicLoads(
            env, settings.topic_load_concurrency_max, self.table, self._load, self._look_at, self._found_at_rest
        )
        self._closed = False
        self._rounds = KeepingRounds(settings, lambda: [topic.keeping for topic in self.loaded.values()], retire)
        self._feature_checks = FeatureChecks(settings, features, lambda: self.loaded.values())

    @property
    def loaded(self) -> Mapping[str, Topic]:
        """The open topics, by full name."""
        return self.table.loaded

    # -- ownership -----------------------------------------------------------------------------------------------

    def assign(
        self, full_name: str, epoch: int, *, load: bool, slot: int = 0, grant: TopicGrant | None = None
    ) -> OwnedTopic | None:
        """The topic is granted under `epoch`. With `load` it is loaded before anybody asks, unless it rests.

        `slot` is where it lies. Returns None when the broker stops, or the topic was granted under a greater epoch.
        """
        found = self.table.granted(full_name)
        if self._closed or (found is not None and found.epoch > epoch):
            return None
        topic = self.table.record(full_name, slot)
        topic.epoch, topic.grant, topic.released, topic.to_ask = epoch, grant, 0, False
        if not topic.granted:
            self.table.become(topic, OwnedState.GRANTED if topic.load is None else OwnedState.LOADING)
        elif topic.instance is not None and topic.instance.epoch != epoch:
            self._close(topic, OwnedState.GRANTED)
        if load and topic.instance is None and topic.kept is None:
            self._loads.gained(topic)
        return topic

    def revoke(self, full_name: str) -> None:
        """The topic is no longer this broker's."""
        topic = self.table.granted(full_name)
        if topic is not None:
            self._give_up(topic)

    def owns(self, full_name: str) -> bool:
        """Whether this broker takes clients for the topic: it is granted, as far as the broker knows."""
        return self.table.granted(full_name) is not None and not self._closed

    def _give_up(self, topic: OwnedTopic) -> None:
        topic.epoch, topic.grant = -1, None
        self.table.keep(topic, None)
        self._loads.forget(topic, _not_ours(topic.full_name))
        if topic.instance is not None:
            self._close(topic, OwnedState.CLOSING)
        else:
            ends = topic.load is not None or topic.closing is not None
            self.table.become(topic, OwnedState.CLOSING if ends else OwnedState.RELEASED)
            self.table.tidy(topic)

    # -- use -----------------------------------------------------------------------------------------------------

    async def get(self, name: TopicName, *, create: bool = False) -> Topic:
        """The open topic, loaded if need be.

        A topic that this broker does not own is asked for: with `create` it may be created, else it must exist.

        Raises ServiceUnitNotReady when this broker does not own it, and what `claim` and opening its ledger raise.
        """
        topic = self.table.granted(name.full)
        if topic is None and not self._closed:
            if not await self._claim(name, create):
                raise _not_ours(name.full)
            topic = self.table.granted(name.full)
        if topic is None or self._closed:
            raise _not_ours(name.full)
        if topic.instance is not None:
            if topic.instance.state not in (TopicState.CLOSING, TopicState.CLOSED):
                self._idle.asked_for(topic)
                return topic.instance
            self._close(topic, OwnedState.GRANTED)
        return await asyncio.shield(self._loads.ask(topic))

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

    async def release(self, *full_names: str) -> None:
        """Give topics up before they move or are deleted; returns when they are closed. They need other grants then."""
        found = [self.table.find(full_name) for full_name in full_names]
        for full_name in full_names:  # all in this step: in a later one they may have other grants already
            self.revoke(full_name)
        closings = [topic.closing for topic in found if topic is not None and topic.closing is not None]
        await asyncio.gather(*map(asyncio.shield, closings))

    async def delete(self, name: TopicName, epoch: int) -> None:
        """Delete all that a topic stores, under an epoch greater than that of every owner. Nobody is assigned it now.

        What this broker still has of it is closed first. Raises StaleEpoch, RecoveryFailed, MetadataUnavailable, …
        """
        topic = self.table.find(name.full)
        if topic is not None and topic.granted and topic.epoch < epoch:
            self._give_up(topic)
        if topic is not None and topic.closing is not None:
            await asyncio.shield(topic.closing)
        if name.persistent:
            await self._delete_ledger(name, epoch)

    def check(self) -> None:
        """Called now and then: looks for stalled dispatch."""
        for topic in list(self.loaded.values()):
            topic.check()

    async def close_all(self) -> None:
        """Give up every topic (the session was lost, or the broker stops) and wait until all are closed."""
        for topic in self.table.all_granted():
            self._give_up(topic)
        for topic in list(self.table.records.values()):
            # A load that waits for an answer which no longer matters would keep the broker from coming back.
            if topic.load is not None:
                topic.load.cancel()
        # `wait`, because a cancelled `gather` would cancel what is being closed.
        while under_way := [
            task for topic in self.table.records.values() for task in (topic.load, topic.closing) if task is not None
        ]:
            await asyncio.wait(under_way)

    def flaws(self) -> list[str]:
        """What cannot be true of the topics, and of the order in which they are loaded."""
        return [*self.table.flaws(), *self._loads.flaws()]

    async def close(self) -> None:
        """Close all topics; none is loaded from then on."""
        self._closed = True
        self._feature_checks.close()
        await self._rounds.close()
        await self._idle.close()
        await self.close_all()
        await self._loads.close()
        await self._tasks.close()

    # -- loading -------------------------------------------------------------------------------------------------

    async def _look_at(self, topics: Sequence[OwnedTopic]) -> list[int]:
        """See `TopicLoads`. A topic that stores nothing is loaded like one that is not at rest."""
        await self.policies.known()
        names = [TopicName.parse(one.full_name) for one in topics]
        stored = [name for name in names if name.persistent]
        left = dict(zip(stored, await self._read_left(stored), strict=True)) if stored else {}
        found: list[int] = []
        for name in names:
            one = left.get(name, LeftBehind())
            rests = bool(one.rests) and one.rests == duties_of(self.policies.of(name), self._features)
            found.append(AT_REST if rests else one.begun_ms)
        return found

    def _found_at_rest(self, topic: OwnedTopic) -> None:
        self.table.keep(topic, Kept(self.policies.of(TopicName.parse(topic.full_name)), b""))
        self.table.become(topic, OwnedState.RESTING)

    async def _load(self, topic: OwnedTopic) -> Topic:
        try:
            async with asyncio.timeout(self._settings.topic_load_timeout_s):
                instance = await self._open(topic)
        except TimeoutError:
            raise ServiceUnitNotReady(f"{topic} could not be loaded in time") from None
        self._feature_checks.start()
        self._rounds.start()
        topic.instance = instance
        self.table.become(topic, OwnedState.LOADED)  # in the step in which its policies were read; see `PolicyWatch`
        self._idle.is_loaded(topic)
        return instance

    async def _open(self, topic: OwnedTopic) -> Topic:
        if topic.closing is not None:  # an instance that ended, or one of an older epoch
            await asyncio.shield(topic.closing)
        epoch, name = topic.epoch, TopicName.parse(topic.full_name)
        if not topic.granted:
            raise _not_ours(topic.full_name)
        await self.policies.known()
        if not name.persistent:
            if topic.epoch != epoch:
                raise _not_ours(topic.full_name)
            policies = self.policies.of(name)
            return NonPersistentTopic(self._env, self._settings, policies, name, epoch, self.common)
        try:
            ledger = await self._open_ledger(name, epoch)
        except (StaleEpoch, TopicNotFound) as error:
            if topic.epoch == epoch:
                self._give_up(topic)  # another owner has it, or it was deleted: who comes next asks the coordinator
            if isinstance(error, StaleEpoch):
                raise
            raise ServiceUnitNotReady(f"{name} was deleted while this broker had it: try again") from None
        try:
            for feature in self._features:
                await feature.opening(ledger, self.policies.of(name))
        except BaseException:
            await ledger.close()
            raise
        if topic.epoch != epoch:
            await ledger.close()
            raise _not_ours(topic.full_name)
        policies = self.policies.of(name)
        return PersistentTopic(self._env, self._settings, policies, name, epoch, ledger, self.common, self._terminated)

    def _policies_changed(self, changed: Mapping[str, EffectivePolicies]) -> None:
        topics_too = any("://" in scope for scope in changed)
        for topic in list(self.loaded.values()):
            name = topic.name
            if name.namespace in changed or (topics_too and name.partitioned_name in changed):
                topic.use_policies(self.policies.of(name))
        for found in self._idle.with_new_duties(changed, self.policies.of):
            self._loads.load_later(found)

    # -- closing -------------------------------------------------------------------------------------------------

    def _terminated(self, instance: Topic, error: BaseException) -> None:
        logger.warning("this broker closes %s: %s", instance.name.full, error)
        topic = self.table.granted(instance.name.full)
        if topic is None or topic.instance is not instance:
            return
        self._close(topic, OwnedState.GRANTED)
        # Nobody may ask for it, and it may have something to do. Where another broker owns it, the load finds that.
        if not self._closed:
            self._loads.load_later(topic)

    def _go_to_rest(self, topic: OwnedTopic, duties: bytes) -> asyncio.Task[None]:
        return self._close(topic, OwnedState.RESTING, duties)

    def _close(self, topic: OwnedTopic, then: OwnedState, duties: bytes = b"") -> asyncio.Task[None]:
        """Close the instance of a topic, whose state is `then` from this step on."""
        instance = topic.instance
        assert instance is not None
        self._idle.closes(topic)
        closing = topic.closing = self._tasks.spawn(self._close_instance(topic, instance, duties), f"close {topic}")
        self.table.become(topic, then)
        instance.begin_to_close()  # in this step: its task begins in a later one, and a client may be about to attach
        return closing

    async def _close_instance(self, topic: OwnedTopic, instance: Topic, duties: bytes) -> None:
        try:
            if duties and isinstance(instance, PersistentTopic):
                await instance.close(at_rest=duties)
            else:
                await instance.close()
        finally:
            topic.closing = None
            self.table.tidy(topic)


def _not_ours(full_name: str) -> ServiceUnitNotReady:
    return ServiceUnitNotReady(f"this broker does not own {full_name}")
