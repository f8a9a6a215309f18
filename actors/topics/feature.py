"""The seam of topic features: what a feature declares, and when its topic calls it.

A topic feature is what a policy or a setting adds to topics, such as deduplication. It is one class derived from
`TopicFeature`, in a package of its own. The class declares names. Its hooks do the rest. `actors/features/table.py`
lists all features. Topics walk that table, and name no feature.

A topic has one object of each feature as long as it is loaded. It calls the hooks in this order, and for each of them
the features in the order of the table:

| when | hook |
| --- | --- |
| the ledger is recovered, and nobody uses it yet | `opening` |
| the topic is made, and no client is there | `log_view`, then `opened` |
| a policy that the feature declares has changed, and the topic's rates and limits have not yet | `policies_changed` |
| after each of these two, and when the feature asks for it with `renew_stages` | `stage` |
| a producer or a consumer wants to attach | `check_producer`, `check_consumer` |
| a Shared or Key_Shared subscription gets a dispatcher | `gate` |
| every `check_interval_s` | `check` |
| statistics of a persistent topic are asked for | `figures`, `storage_figures`, `subscriptions` |
| nobody uses the topic, which may be about to rest | `has_duties` |
| the topic closes: clients are gone, cursors are written next | `closing` |
| the topic is closed | `let_go` |

No hook is called for a message. What looks at messages is a publish stage or an entry gate. The topic, or the
dispatcher, gets these objects once.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from ...protocol.errors import ServiceUnitNotReady
from ...protocol.topic_figures import StorageFigures, SubscriptionFigures, TopicFigures
from ...runtime.settings.declarations import Settings
from ...storage.managed.cursor import Cursor
from ...storage.managed.cursor_storage import CursorKind
from ...storage.managed.managed_ledger import ManagedLedger
from ..dispatch.consumer import AttachedConsumer
from ..dispatch.entry_gate import EntryGate
from ..dispatch.shared import SharedDispatcher
from ..policies.effective import EffectivePolicies

if TYPE_CHECKING:
    from .loaded_topics import Topic
    from .log_view import LogView
    from .producer import AttachedProducer
    from .publishing import PublishStage
    from .subscription import Subscription
    from .subscription_members import SubscriptionMembers

_F = TypeVar("_F", bound="TopicFeature")


@dataclass(frozen=True)
class FeatureCursor:
    """A durable cursor that a feature keeps. No subscription may have its name."""

    name: str
    kind: CursorKind
    counts_as_subscription: bool = False
    """Whether it keeps the topic from being deleted for inactivity, as in Pulsar."""


class TopicFeature:
    """See the module. A derived class takes the topic in its constructor. Hooks that it does not override do nothing.

    A feature that is `persistent_only` is for topics that store messages.
    """

    __slots__ = ("__weakref__",)

    name: ClassVar[str]
    """In lower case, as documents write it."""
    settings: ClassVar[type | None] = None
    """Its group in `runtime/settings`, None for a feature without settings of its own."""
    policies: ClassVar[tuple[str, ...]] = ()
    """Fields of `EffectivePolicies`."""
    duties: ClassVar[tuple[str, ...]] = ()
    """Those of its policies under which a topic does something by itself. A topic that rests is loaded when one of them
    changes."""
    cursors: ClassVar[tuple[FeatureCursor, ...]] = ()
    persistent_only: ClassVar[bool] = False

    def __init__(self, topic: "Topic") -> None:
        """Nothing may be started here: the topic is not whole yet."""

    # -- the life of a topic ---------------------------------------------------------------------------------------

    @classmethod
    async def opening(cls, ledger: ManagedLedger, policies: EffectivePolicies) -> None:
        """A persistent topic is about to be there. What this raises ends the load."""

    def opened(self) -> None:
        """The topic was loaded with its policies."""

    def policies_changed(self, before: EffectivePolicies) -> None:
        """At least one of `policies` has changed. The topic has the new ones."""

    @classmethod
    def check_interval_s(cls, settings: Settings) -> float:
        """How often `check` is called, 0 for never."""
        return 0.0

    def check(self) -> None:
        """Called now and then. May not wait."""

    @property
    def has_duties(self) -> bool:
        """Whether the topic has something to do by itself because of this, now or later. Then it does not rest."""
        return False

    def closing(self) -> None:
        """The topic closes. Its tasks end next, then its cursors are written."""

    def let_go(self) -> None:
        """The topic is closed: refer to nothing of it any longer (see `runtime.gone`)."""

    # -- clients and messages --------------------------------------------------------------------------------------

    def stage(self) -> "PublishStage | None":
        """What entries pass from now on, None for nothing.

        One that has state, or `renews_producers`, is the same object until something has changed."""

    def check_producer(self, producer: "AttachedProducer") -> None:
        """A producer wants to attach. Raises the MagnetarError that PRODUCER is answered with. The topic may ask again
        about one that had to wait."""

    def check_consumer(self, subscription: "SubscriptionMembers", consumer: AttachedConsumer) -> None:
        """A consumer wants to attach. Raises the MagnetarError that SUBSCRIBE is answered with."""

    def gate(self, subscription: "Subscription", dispatcher: SharedDispatcher) -> EntryGate | None:
        """What holds entries back from a dispatcher that was just made, None for nothing."""

    def log_view(self) -> "LogView | None":
        """How consumers see the topic that read the compacted one, None for no view of this feature."""

    # -- figures and cursors ---------------------------------------------------------------------------------------

    def figures(self, topic: TopicFigures) -> TopicFigures:
        """The figures of the topic, with those of this feature."""
        return topic

    def storage_figures(self, topic: StorageFigures) -> StorageFigures:
        """The same for what the topic stores."""
        return topic

    def subscriptions(self) -> Sequence[SubscriptionFigures]:
        """What statistics show among the subscriptions of the topic."""
        return ()

    async def delete_cursor(self, name: str) -> bool:
        """An operator deletes a subscription that may be a cursor of this feature. Returns whether it was one."""
        return False


FeatureKinds = Sequence[type[TopicFeature]]


class TopicFeatures:
    """The features of one topic, in the order of the table."""

    def __init__(self, kinds: FeatureKinds, topic: "Topic") -> None:
        persistent = topic.name.persistent
        self._all = tuple([kind(topic) for kind in kinds if persistent or not kind.persistent_only])
        self._kinds = kinds

    def __iter__(self) -> Iterator[TopicFeature]:
        return iter(self._all)

    def of(self, kind: type[_F]) -> _F:
        """The feature of that class. Raises ServiceUnitNotReady when the topic is closed."""
        for one in self._all:
            if isinstance(one, kind):
                return one
        raise ServiceUnitNotReady(f"the topic was closed meanwhile, or has no {kind.name}")

    def policies_changed(self, before: EffectivePolicies, now: EffectivePolicies) -> None:
        """Tell the features whose policies are others now."""
        for one in self._all:
            if any(getattr(before, name) != getattr(now, name) for name in one.policies):
                one.policies_changed(before)

    def stages(self) -> "tuple[PublishStage, ...]":
        """What entries pass now."""
        return tuple([stage for one in self._all if (stage := one.stage()) is not None])

    def check_producer(self, producer: "AttachedProducer") -> None:
        """Raise what a feature has against a producer."""
        for one in self._all:
            one.check_producer(producer)

    def gate(self, subscription: "Subscription", dispatcher: SharedDispatcher) -> EntryGate | None:
        """The gate of a new dispatcher: the first that a feature has."""
        for one in self._all:
            if (gate := one.gate(subscription, dispatcher)) is not None:
                return gate
        return None

    def log_view(self) -> "LogView | None":
        """The view for readers of the compacted topic: the first that a feature has."""
        return next((view for one in self._all if (view := one.log_view()) is not None), None)

    async def delete_cursor(self, name: str) -> bool:
        """Whether a feature had a cursor of that name, which an operator deletes."""
        for one in self._all:
            if await one.delete_cursor(name):
                return True
        return False

    def subscriptions(self) -> list[SubscriptionFigures]:
        """What statistics show beside the subscriptions of clients."""
        return [shown for one in self._all for shown in one.subscriptions()]

    def storage_figures(self, topic: StorageFigures) -> StorageFigures:
        """The figures of what the topic stores, with those of its features."""
        for one in self._all:
            topic = one.storage_figures(topic)
        return topic

    def figures(self, topic: TopicFigures) -> TopicFigures:
        """The figures of the topic, with those of its features."""
        for one in self._all:
            topic = one.figures(topic)
        return topic

    def owns_cursor(self, name: str) -> bool:
        """Whether a feature keeps a cursor of that name, so that no subscription may have it."""
        return any(name == cursor.name for kind in self._kinds for cursor in kind.cursors)

    def counted(self, cursors: Mapping[str, Cursor]) -> list[Cursor]:
        """Those of a topic's cursors that are of features, and count as subscriptions."""
        counted = [one.name for kind in self._kinds for one in kind.cursors if one.counts_as_subscription]
        return [cursors[name] for name in counted if name in cursors]

    def let_go(self) -> None:
        """The topic is closed."""
        for one in self._all:
            one.let_go()
        self._all = ()


def duties(kinds: FeatureKinds, policies: EffectivePolicies) -> tuple[object, ...]:
    """What the policies say to features under which a topic does something by itself."""
    return tuple([getattr(policies, name) for kind in kinds for name in kind.duties])


class FeatureChecks:
    """Has the features of all loaded topics checked now and then: one timer for each feature that wants it."""

    def __init__(self, settings: Settings, kinds: FeatureKinds, topics: "Callable[[], Iterable[Topic]]") -> None:
        self._intervals_s = {kind: interval_s for kind in kinds if (interval_s := kind.check_interval_s(settings)) > 0}
        self._topics = topics
        self._timers: dict[type[TopicFeature], asyncio.TimerHandle] = {}
        self._closed = False

    def start(self) -> None:
        """Check as long as topics are loaded, if that has not begun."""
        for kind in self._intervals_s:
            self._check_later(kind)

    def close(self) -> None:
        """End."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()

    def _check_later(self, kind: type[TopicFeature]) -> None:
        if kind not in self._timers and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[kind] = loop.call_later(self._intervals_s[kind], self._check, kind)

    def _check(self, kind: type[TopicFeature]) -> None:
        del self._timers[kind]
        topics = list(self._topics())
        for topic in topics:
            for one in topic.features:
                if isinstance(one, kind):
                    one.check()
        if topics:
            self._check_later(kind)
