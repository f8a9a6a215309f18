"""Who may publish to a topic: Pulsar's producer access modes and the topic epoch. Pure.

`TRANSITIONS` has the states of a topic's access:

- *free*: nobody has exclusive access. Shared producers come and go.
- *granting*: one producer is chosen, and the epoch of its grant is being stored. It may not publish yet.
- *held*: its epoch is stored. That producer, the holder, is the only writer.

Producers that asked with WaitForExclusive wait in a queue, in the order in which they came. The first gets its grant
when nobody else is left. The queue has a bound, `WAITING_MAX`.

Invariants:

- While a producer is chosen or holds access, no Shared producer is admitted.
- Producers wait only while somebody is chosen, holds access, or publishes as Shared.
- A grant to a producer that does not return has an epoch above that of every grant before. This is also so when the
  outcome of storing an earlier epoch is unknown, or when the store failed.
- `epoch`, the highest epoch known to be stored, never falls.
- A producer that returns with an epoch below the stored one, or below the one being granted, is refused. It was
  deposed, and nothing else changes. Pulsar does that for the modes Exclusive and ExclusiveWithFencing only, and sends
  the others away first.

Left to others: storing the epoch before the grant counts (`admission`), and ending the sessions of those that lose
their access, in the same step in which the decision is made here.
"""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.errors import NotAllowedError, ProducerBusy, ProducerFenced
from ...runtime.transitions import check_transition

if TYPE_CHECKING:
    from .producer import AttachedProducer

WAITING_MAX = 10_000
"""Producers that wait for access to one topic. One more is refused with ProducerBusy."""

EPOCH_MAX = 1 << 62
"""A client that returns with a higher epoch makes it up. Without the bound it could exhaust the numbers."""

NO_EPOCH = -1
"""No producer has had exclusive access yet. The first grant has epoch 0, as in Pulsar."""


class AccessMode(enum.IntEnum):
    """The numbers are those of the protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3

    @property
    def text(self) -> str:
        """As Pulsar's statistics show it."""
        return _TEXTS[self]


_TEXTS = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


class AccessState(enum.Enum):
    """See the module."""

    FREE = "free"
    GRANTING = "granting"
    HELD = "held"


TRANSITIONS = {
    AccessState.FREE: frozenset({AccessState.GRANTING}),  # a request, or the turn of a waiting producer
    AccessState.GRANTING: frozenset(
        {
            AccessState.HELD,  # the epoch is stored
            AccessState.FREE,  # storing failed, the producer left, or another one fences it out
        }
    ),
    AccessState.HELD: frozenset({AccessState.FREE}),  # the holder left, or another one fences it out
}


@dataclass(frozen=True)
class AccessRequest:
    """What a producer asks for. `topic_epoch` is that of the grant that it had before; None if it had none.

    `producer_epoch` counts the connections of one producer: the higher one is the later one.
    """

    mode: AccessMode = AccessMode.SHARED
    producer_epoch: int = 0
    topic_epoch: int | None = None


SHARED_REQUEST = AccessRequest()


@dataclass(eq=False)
class Grant:
    """Exclusive access of one session, under one epoch."""

    session: "AttachedProducer"
    epoch: int
    fenced: bool = False
    """Whether another producer fenced it out before its epoch was stored."""


@dataclass(frozen=True)
class Decision:
    """What a request, or the end of a session, changed.

    The epoch of `grant` has to be stored next. `evicted` lose their access at once. `refused` waited, and do not any
    longer. `queued`: the producer that asked waits now.
    """

    grant: Grant | None = None
    evicted: "tuple[AttachedProducer, ...]" = ()
    refused: "tuple[AttachedProducer, ...]" = ()
    queued: bool = False


class TopicAccess:
    """See the module."""

    def __init__(self, epoch: int = NO_EPOCH, topic: str = "the topic") -> None:
        """`epoch` is the stored one. Errors name `topic`."""
        self._topic = topic
        self.state = AccessState.FREE
        self.epoch = epoch
        self._highest = epoch
        self._grant: Grant | None = None
        self._shared: dict[AttachedProducer, None] = {}
        self._waiting: dict[AttachedProducer, int | None] = {}

    @property
    def holder(self) -> "AttachedProducer | None":
        """Who has exclusive access, or is about to get it."""
        return self._grant.session if self._grant is not None else None

    @property
    def holder_epoch(self) -> int | None:
        """The epoch of the holder, once it is stored."""
        return self._grant.epoch if self._grant is not None and self.state is AccessState.HELD else None

    @property
    def waiting(self) -> "tuple[AttachedProducer, ...]":
        """Those that wait, in the order of their turns."""
        return tuple(self._waiting)

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, session: "AttachedProducer", request: AccessRequest) -> Decision:
        """A producer wants to publish. Raises ProducerBusy, ProducerFenced or NotAllowedError, and changes nothing."""
        mode = request.mode
        if mode is AccessMode.SHARED:
            if self._grant is not None or self._waiting:
                raise ProducerBusy(self._taken())
            self._shared[session] = None
            return Decision()
        self.check_epoch(request)
        returning = request.topic_epoch
        if mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            return self._fence(session, returning)
        if mode is AccessMode.EXCLUSIVE:
            if self._grant is not None or self._waiting:
                raise ProducerFenced(self._taken())
            if self._shared:
                raise ProducerFenced(f"{self._topic} has producers that share it: close them before one gets it alone")
            return Decision(self._choose(session, returning))
        if self._grant is None and not self._shared:
            return Decision(self._choose(session, returning))
        if len(self._waiting) >= WAITING_MAX:
            raise ProducerBusy(f"{WAITING_MAX} producers wait for exclusive access already: try again later")
        self._waiting[session] = returning
        return Decision(queued=True)

    def _taken(self) -> str:
        first = self._grant.session if self._grant is not None else next(iter(self._waiting))
        return f"producer {first.name} holds {self._topic} alone, or waits for that: close it first"

    def check_epoch(self, request: AccessRequest) -> None:
        """Raise ProducerFenced for a producer that was deposed while it was away."""
        epoch = request.topic_epoch
        if request.mode is AccessMode.SHARED or epoch is None:
            return
        if epoch > EPOCH_MAX:
            raise NotAllowedError(f"the topic epoch {epoch} of the producer is too high: create a new producer")
        current = self._grant.epoch if self._grant is not None else self.epoch
        if epoch < current:
            raise ProducerFenced(stale_text(self._topic, current, epoch))

    def _fence(self, session: "AttachedProducer", returning: int | None) -> Decision:
        grant = self._grant
        evicted = tuple(self._shared)
        if grant is not None and self.state is AccessState.HELD:
            evicted += (grant.session,)
        refused = tuple(self._waiting)
        if grant is not None:
            grant.fenced = True
        self._shared.clear()
        self._waiting.clear()
        self._release()
        return Decision(self._choose(session, returning), evicted, refused)

    def _choose(self, session: "AttachedProducer", returning: int | None) -> Grant:
        epoch = max(self._highest, self.epoch) + 1 if returning is None else returning
        self._highest = max(self._highest, epoch)
        self._become(AccessState.GRANTING)
        self._grant = Grant(session, epoch)
        return self._grant

    # -- the epoch ---------------------------------------------------------------------------------------------------

    def stored(self, grant: Grant) -> bool:
        """The epoch of a grant is stored. False if its producer has left or was fenced out: it must not publish."""
        self.epoch = max(self.epoch, grant.epoch)
        if grant is not self._grant:
            return False
        self._become(AccessState.HELD)
        return True

    def failed(self, grant: Grant) -> Decision:
        """The epoch of a grant was not stored, or nobody knows: the producer does not get access."""
        if grant is not self._grant:
            return Decision()
        self._release()
        return self._next()

    # -- coming back and leaving -------------------------------------------------------------------------------------

    def replace(self, old: "AttachedProducer", new: "AttachedProducer") -> bool:
        """The producer of one session has come back in another one: it keeps what it had. False if that was nothing,
        or a grant that is not stored yet."""
        if old in self._shared:
            del self._shared[old]
            self._shared[new] = None
        elif old in self._waiting:
            self._waiting = {new if one is old else one: epoch for one, epoch in self._waiting.items()}
        elif self._grant is not None and self._grant.session is old and self.state is AccessState.HELD:
            self._grant = Grant(new, self._grant.epoch)
        else:
            return False
        return True

    def left(self, session: "AttachedProducer") -> Decision:
        """A session has ended. Those that it kept waiting may get their turn."""
        self._waiting.pop(session, None)
        self._shared.pop(session, None)
        if self._grant is not None and self._grant.session is session:
            self._release()
        return self._next()

    def clear(self) -> None:
        """All sessions have ended, and nobody gets a turn. A grant whose epoch is being stored counts no more."""
        self._waiting.clear()
        self._shared.clear()
        self._release()

    def _next(self) -> Decision:
        refused: list[AttachedProducer] = []
        while self._waiting and self._grant is None and not self._shared:
            session, returning = next(iter(self._waiting.items()))
            del self._waiting[session]
            if returning is None or returning >= self.epoch:
                return Decision(self._choose(session, returning), refused=tuple(refused))
            refused.append(session)
        return Decision(refused=tuple(refused))

    def _release(self) -> None:
        if self._grant is not None:
            self._grant = None
            self._become(AccessState.FREE)

    def _become(self, state: AccessState) -> None:
        check_transition(TRANSITIONS, "the access to a topic", self.state, state)
        self.state = state


def stale_text(topic: str, current: int, epoch: int) -> str:
    """Why a producer that returns is refused."""
    return (
        f"the topic epoch of {topic} is {current}, and the producer had access in epoch {epoch}: create a new producer"
    )
