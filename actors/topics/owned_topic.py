"""One topic as its broker has it: the grant, what is done about it, and its instance. One record says all of it.

States of a topic at a broker:

| state | what it means | what ends it |
| --- | --- | --- |
| granted | the broker may open it, and nobody needs it | somebody asks, or the broker is to load it: *queued* |
| queued | its load waits; `queue` says for what | its turn: *loading*; its last owner left it at rest: *resting* |
| loading | its load is under way | *loaded*; a failure: *queued* for the next try, or *granted* |
| loaded | `instance` serves it | it goes to rest: *resting*; its end, or a higher epoch: *granted* or *queued* |
| resting | nobody needs it, and it has nothing to do by itself (`kept`) | it is needed: *queued* |
| closing | it is not granted any longer, and an instance or a load of it ends | that end: *released*; a grant |
| released | it is not granted, and nothing of it is here | a grant: *granted* |

Each state up to *resting* also ends when the topic is given up: with *closing*, or with *released* if there is nothing
to end. A grant that comes while a load is still under way leads from *closing* back to *loading*.

An instance that was closed for another reason than the end of the grant closes beside all states: `closing` is its
task. A load waits for it. So a topic has up to one open instance in this process.

Invariants, which `OwnedTopic.flaws` names:

- There is an instance exactly while the topic is *loaded*, a queue exactly while it is *queued*. A load is under way
  while it is *loading*, perhaps while it is *closing*, and never else.
- A grant, or an epoch, is there exactly while the topic is neither *closing* nor *released*.
- Those who asked wait for `result`. It is there while somebody has asked, and while a load is under way.
- A *released* topic is kept for its `released` number or `to_ask` only.

`TopicTable` holds the records. What it has beside them are views: each follows from the records, and is changed in the
same step.
"""

import asyncio
import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from ...protocol.slots import TopicGrant
from ...protocol.topics import TopicName
from ...runtime.backoff import Backoff
from ...runtime.transitions import check_transition
from ..policies.effective import EffectivePolicies
from .non_persistent import NonPersistentTopic
from .persistent import PersistentTopic

Topic = PersistentTopic | NonPersistentTopic
"""One topic, or one partition, on its owner broker, whichever way it keeps its messages."""


class OwnedState(enum.Enum):
    """See the module."""

    GRANTED = "granted"
    QUEUED = "queued"
    LOADING = "loading"
    LOADED = "loaded"
    RESTING = "resting"
    CLOSING = "closing"
    RELEASED = "released"


TRANSITIONS = {
    OwnedState.GRANTED: frozenset({OwnedState.QUEUED, OwnedState.CLOSING, OwnedState.RELEASED}),
    OwnedState.QUEUED: frozenset({OwnedState.LOADING, OwnedState.RESTING, OwnedState.CLOSING, OwnedState.RELEASED}),
    OwnedState.LOADING: frozenset({OwnedState.LOADED, OwnedState.QUEUED, OwnedState.GRANTED, OwnedState.CLOSING}),
    OwnedState.LOADED: frozenset({OwnedState.RESTING, OwnedState.GRANTED, OwnedState.CLOSING}),
    OwnedState.RESTING: frozenset({OwnedState.QUEUED, OwnedState.CLOSING, OwnedState.RELEASED}),
    OwnedState.CLOSING: frozenset({OwnedState.RELEASED, OwnedState.GRANTED, OwnedState.LOADING}),
    OwnedState.RELEASED: frozenset({OwnedState.GRANTED}),
}
NOT_GRANTED = frozenset({OwnedState.CLOSING, OwnedState.RELEASED})


class LoadQueue(enum.Enum):
    """What the load of a *queued* topic waits for."""

    UNREAD = "it is not known yet how its last owner left it"
    ASKED = "somebody asked for it: it goes before all others"
    RECENT = "its last ledger was open"
    OTHER = "all other reasons"
    FAILED = "a load failed: the next try comes later each time"


class Kept(NamedTuple):
    """What is left of a topic that rests: the policies under which it rests, and the figures of its last instance."""

    policies: EffectivePolicies
    figures: bytes


@dataclass(slots=True, eq=False)
class OwnedTopic:
    """See the module. `slot` is where the topic lies."""

    full_name: str
    slot: int
    state: OwnedState = OwnedState.RELEASED
    epoch: int = -1
    grant: TopicGrant | None = None
    """None for a topic that is assigned without a coordinator."""
    released: int = 0
    """The number of its last release, as long as no later grant or entry came."""
    to_ask: bool = False
    """It became this broker's alone, and its grant is to be asked for."""

    queue: LoadQueue | None = None
    next_try: asyncio.TimerHandle | None = None
    backoff: Backoff | None = None
    """There while the broker is to load the topic by itself."""
    result: "asyncio.Future[Topic] | None" = None
    load: asyncio.Task[None] | None = None
    by_itself: bool = False
    """Nobody had asked for it when the load under way began."""

    instance: Topic | None = None
    closing: asyncio.Task[None] | None = None
    kept: Kept | None = None
    """From the moment when it goes to rest until it is loaded."""
    idle_since_s: float = 0.0
    going: PersistentTopic | None = None
    """The instance that is about to rest."""
    asked_for: bool = False
    """Somebody asked for the topic since it began to go to rest."""

    def __str__(self) -> str:
        return self.full_name

    @property
    def granted(self) -> bool:
        """Whether this broker may open the topic."""
        return self.state not in NOT_GRANTED

    def flaws(self) -> list[str]:
        """The invariants of the module that do not hold."""
        state, found = self.state, list[str]()
        if (self.instance is not None) != (state is OwnedState.LOADED):
            found.append("an instance is there exactly while the topic is loaded")
        if (self.queue is not None) != (state is OwnedState.QUEUED):
            found.append("a queue has the topic exactly while it is queued")
        if self.load is None and state is OwnedState.LOADING:
            found.append("a topic that is loading has a load")
        if self.load is not None and state not in (OwnedState.LOADING, OwnedState.CLOSING):
            found.append("a load is under way while the topic is loading or closing")
        if (self.epoch >= 0) != self.granted or (self.grant is not None and not self.granted):
            found.append("an epoch and a grant are there exactly while the topic is granted")
        if self.result is None and self.load is not None:
            found.append("a load has a result")
        if self.result is not None and state not in (OwnedState.QUEUED, OwnedState.LOADING, OwnedState.CLOSING):
            found.append("nobody waits for a topic that is not to be loaded")
        if state is OwnedState.CLOSING and self.load is None and self.closing is None:
            found.append("a topic is closing while something of it ends")
        if state is OwnedState.RELEASED and not (self.released or self.to_ask):
            found.append("a released topic is kept for its release or its question only")
        return found


@dataclass(eq=False)
class TopicTable:
    """The records of one broker's topics, and views of them."""

    records: dict[str, OwnedTopic] = field(default_factory=dict[str, OwnedTopic])
    loaded: dict[str, Topic] = field(default_factory=dict[str, Topic])
    """View: the instances."""
    by_slot: dict[int, dict[str, OwnedTopic]] = field(default_factory=dict[int, dict[str, OwnedTopic]])
    """View: all records."""
    kept: dict[str, dict[str, OwnedTopic]] = field(default_factory=dict[str, dict[str, OwnedTopic]])
    """View: by namespace, the topics of which something is kept."""

    def find(self, full_name: str) -> OwnedTopic | None:
        """The record, if the topic has one."""
        return self.records.get(full_name)

    def granted(self, full_name: str) -> OwnedTopic | None:
        """The record of a topic that this broker may open."""
        topic = self.records.get(full_name)
        return topic if topic is not None and topic.granted else None

    def all_granted(self) -> list[OwnedTopic]:
        """The records of all topics that this broker may open."""
        return [topic for topic in self.records.values() if topic.granted]

    def of_slot(self, slot: int) -> list[OwnedTopic]:
        """The records of topics in a slot."""
        return list(self.by_slot.get(slot, {}).values())

    def flaws(self) -> list[str]:
        """The invariants of the module that do not hold for the broker's topics and for the views of them."""
        found = [f"{topic} is {topic.state.value}: {flaw}" for topic in self.records.values() for flaw in topic.flaws()]
        of_slots = [topic for slot, topics in self.by_slot.items() for topic in topics.values() if topic.slot == slot]
        if {*of_slots} != {*self.records.values()} or len(of_slots) != len(self.records):
            found.append("the view by slot has other topics than there are")
        if self.loaded != {name: topic.instance for name, topic in self.records.items() if topic.instance is not None}:
            found.append("the view of loaded topics has other instances than there are")
        kept = [topic for topics in self.kept.values() for topic in topics.values()]
        if {*kept} != {topic for topic in self.records.values() if topic.kept is not None}:
            found.append("the view of what is kept has other topics than there are")
        return found

    def record(self, full_name: str, slot: int) -> OwnedTopic:
        """The record, a new one if there is none. A new one has to change in the same step; see `tidy`."""
        topic = self.records.get(full_name)
        if topic is None:
            topic = self.records[full_name] = OwnedTopic(full_name, slot)
            self.by_slot.setdefault(slot, {})[full_name] = topic
        return topic

    def become(self, topic: OwnedTopic, state: OwnedState) -> None:
        """Change the state of a topic. `instance` is set before it becomes *loaded*."""
        check_transition(TRANSITIONS, topic, topic.state, state)
        if topic.state is OwnedState.LOADED:
            topic.instance = None
            del self.loaded[topic.full_name]
        topic.state = state
        if topic.instance is not None:
            self.loaded[topic.full_name] = topic.instance

    def keep(self, topic: OwnedTopic, kept: Kept | None) -> None:
        """What is left of the topic from now on."""
        namespace = TopicName.parse(topic.full_name).namespace
        topic.kept = kept
        if kept is not None:
            self.kept.setdefault(namespace, {})[topic.full_name] = topic
        elif (found := self.kept.get(namespace)) is not None:
            found.pop(topic.full_name, None)
            if not found:
                del self.kept[namespace]

    def tidy(self, topic: OwnedTopic) -> None:
        """Something of the topic has ended: what was *closing* may be *released*, and its record may go."""
        if topic.state is OwnedState.CLOSING and topic.load is None and topic.closing is None:
            self.become(topic, OwnedState.RELEASED)
        if topic.state is OwnedState.RELEASED and not topic.released and not topic.to_ask:
            if self.records.pop(topic.full_name, None) is not None:
                of_slot = self.by_slot[topic.slot]
                del of_slot[topic.full_name]
                if not of_slot:
                    del self.by_slot[topic.slot]
