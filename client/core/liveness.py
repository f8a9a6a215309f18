"""Whether the broker at the other end of a connection is there, and still owns the topics that are used on it.

A broker may be cut off the network, in both directions or in one, or stand still. The connection shows nothing of that:
bytes just do not come. So a connection is watched while something is awaited on it, by one timer, at most one look each
second. `TRANSITIONS` has the states.

- *Resting*: nothing is awaited, or only what may take for ever (messages for consumers). A write wakes it.
- *Watching*: the next look is at most `silence` away.
- *Asked*: nothing came for too long, and a PING was sent. Too long is `silence` while a receipt or an answer is due.
  For consumers it is twice that, and twice as long after each PONG, up to the keep-alive interval. If nothing is
  awaited, it is the keep-alive interval.
- *Doubted*: the PING had no answer for half of `silence`. Questions that any broker can answer fail, to be asked
  elsewhere. If no producer or consumer is on the connection, it ends. Else another broker is asked who owns one of the
  topics, again and again, with pauses that grow.
- *Ended*.

What ends the connection, so that its producers and consumers look for their topics again:

1. Another broker says that somebody else owns the topic.
2. No other broker is known, and this one answers a question on a new connection: the old one is dead.
3. The other kernel acknowledged nothing for `PATH_DEAD_S` (see `runtime.sockets`), or answers no TCP keep-alive.
4. Nothing came for two keep-alive intervals, as in Pulsar's clients.

On a slow link a large entry takes longer than all this, and the PING lies behind it. While the other kernel
acknowledges more and more bytes, the connection is not dead. Then reason 2 does not hold: on a new connection the entry
would begin again.

A broker that is only slow answers PINGs. It keeps its connections, and hears nothing but one PING each second. It may
be cut off the rest of the cluster, though, and not know that it lost its topics. So if the oldest entry of a producer
stays without a receipt from one look to another, others are asked about its topic, too. If the owner is another one,
this broker gets another PING, and time to say CLOSE_PRODUCER first, as a broker does that moved a topic. The same is
asked about a topic of a consumer that has heard nothing but PONGs for a keep-alive interval.

Invariants:

- At most one question is under way for each connection. Pauses lie between two, however many producers wait.
- An answer that comes while the connection has been heard again does not end it.
- Sends are not doubled more than by any lost connection: unanswered entries are sent again, in their order, with their
  sequence ids. What comes on the old connection afterwards is not read: `ClientConnection.close` drops it.
- A process that stood still, and looks too late, blames no broker: it gives it the whole time again. One that is late
  each time does so for two keep-alive intervals at most.
- Whether something came after a PING is counted, never read from a clock. A loop's clock stands still within a turn,
  and uvloop's counts milliseconds: a PING and its PONG often have the same time.
- Entries and messages cost nothing here. A chunk of received bytes costs one look at the clock and one addition, and a
  write one truth test.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from math import inf
from typing import TYPE_CHECKING

from ...protocol.commands import ping
from ...protocol.errors import ConnectionClosed
from ...runtime.transitions import check_transition

if TYPE_CHECKING:
    from .connection import ClientConnection, ConsumerEndpoint, ProducerEndpoint

logger = logging.getLogger(__name__)

LATE_S = 0.3
"""A look that comes so late shows that this process stood still."""
PATH_DEAD_S = 10.0
STUCK_PAUSE_MAX_S = 30.0
ROUNDING_S = 0.001
ASKING_PAUSE_S = 0.5
ASKING_PAUSE_MAX_S = 5.0
EAGER_QUESTIONS = 10
"""So many questions follow each other without longer pauses. A topic of a lost broker moves meanwhile."""


class LivenessState(enum.Enum):
    RESTING = enum.auto()
    WATCHING = enum.auto()
    ASKED = enum.auto()
    DOUBTED = enum.auto()
    ENDED = enum.auto()


TRANSITIONS: Mapping[LivenessState, Collection[LivenessState]] = {
    LivenessState.RESTING: (
        LivenessState.WATCHING,  # something was written
        LivenessState.ASKED,  # nothing came for as long as there is patience
        LivenessState.ENDED,  # the connection has ended
    ),
    LivenessState.WATCHING: (
        LivenessState.RESTING,  # nothing is due within a second
        LivenessState.ASKED,  # nothing came although it was due
        LivenessState.ENDED,
    ),
    LivenessState.ASKED: (
        LivenessState.WATCHING,  # something came, or this process stood still, or something was written
        LivenessState.RESTING,  # something came, and nothing is due
        LivenessState.DOUBTED,  # no PONG, and something is awaited
        LivenessState.ENDED,  # as above, or for two keep-alive intervals nothing came
    ),
    LivenessState.DOUBTED: (
        LivenessState.WATCHING,  # as above
        LivenessState.RESTING,
        LivenessState.ENDED,  # see the module for the reasons
    ),
    LivenessState.ENDED: (),
}

_RESTING, _WATCHING, _ASKED = LivenessState.RESTING, LivenessState.WATCHING, LivenessState.ASKED
_DOUBTED, _ENDED = LivenessState.DOUBTED, LivenessState.ENDED


Elsewhere = Callable[[str, bool], Awaitable[str]]
"""From a topic, and whether the connection may be dead: what another broker says against staying; empty if nothing."""
Start = Callable[[Coroutine[object, object, None], str], object]
"""Starts a task with that name."""


class Questions:
    """How the questions to other brokers follow each other while the broker of one connection is silent."""

    def __init__(self) -> None:
        self.elsewhere: Elsewhere | None = None
        self.start: Start | None = None
        self.under_way = False
        self.next_at = 0.0
        self.stuck_pause_s = 0.0
        self._pause_s = ASKING_PAUSE_S
        self._asked = 0
        self._turn = 0

    def begin(self, now: float) -> None:
        """The broker has just fallen silent."""
        self.next_at = now
        self._pause_s = ASKING_PAUSE_S
        self._asked = 0

    def pause_s(self) -> float:
        """The pause after the question that is asked now."""
        self._asked += 1
        if self._asked > EAGER_QUESTIONS:
            self._pause_s = min(2 * self._pause_s, ASKING_PAUSE_MAX_S)
        return self._pause_s

    def choose(
        self, connection: "ClientConnection", producer_id: int | None
    ) -> "tuple[int, ProducerEndpoint | ConsumerEndpoint] | None":
        """What to ask about: that producer, or the next one of those that wait, or else of all that are there."""
        if producer_id is not None:
            return producer_id, connection.producers[producer_id]
        waiting = [(number, one) for number, one in connection.producers.items() if one.awaited_sequence_id is not None]
        found = waiting or [*connection.consumers.items(), *connection.producers.items()]
        self._turn += 1
        return found[self._turn % len(found)] if found else None


class Liveness:
    """See the module. `expect` is called before a write while `resting`, `ponged` for each PONG.

    A broker answers PINGs in their order, so the n-th PONG belongs to the n-th PING.
    """

    def __init__(
        self, connection: "ClientConnection", loop: asyncio.AbstractEventLoop, keep_alive_s: float, silence_s: float
    ) -> None:
        """Without `silence_s` only the keep-alive rule holds."""
        self.state = LivenessState.RESTING
        self.resting = False
        """Whether the next look is too far away for something that is due."""
        self._connection = connection
        self._loop = loop
        self._keep_alive_s = keep_alive_s
        self._watches = silence_s > 0
        self._silence_s = min(silence_s, keep_alive_s) if silence_s > 0 else keep_alive_s
        self._patience_s = 2 * self._silence_s
        self._since = loop.time()
        """Nothing was awaited before."""
        self._asked_at = 0.0
        self._chunks_before = 0
        """Chunks that had come when the last PING of `_ask` was sent."""
        self._pongs_before = 0
        self._acknowledged: int | None = None
        """Bytes that the other kernel had acknowledged at the last look, while more were on their way."""
        self._moved_at = -inf
        """When these were seen to grow, while no PONG came."""
        self._pings = 0
        self.pongs = 0
        """How many PONGs have come."""
        self._awaited_pong = 0
        self._pong: asyncio.Event | None = None
        """Set by the PONG with the number `_awaited_pong`."""
        self._look_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._late_since = -inf
        """The first late look since something came,"""
        self._chunks_when_late = -1
        """and how many chunks had come then."""
        self._heads: dict[int, int] = {}
        """By producer, the sequence id of its oldest entry without a receipt, at the last look."""
        self._heads_at = 0.0
        self._questions = Questions()

    # -- for the connection ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Watch from now on. Others are asked once `ask_by` was called."""
        self.expect()

    def ask_by(self, elsewhere: Elsewhere, start: Start) -> None:
        """How other brokers are asked."""
        self._questions.elsewhere, self._questions.start = elsewhere, start

    def expect(self) -> None:
        """Something is written while it rests: an answer may be due from now on."""
        self.resting = False
        self._since = self._loop.time()
        self._patience_s = 2 * self._silence_s
        self._become(_WATCHING)
        self._look_at(self._since + self._silence_s)

    def ponged(self) -> None:
        self.pongs += 1
        if self._pong is not None and self.pongs >= self._awaited_pong:
            self._pong.set()

    @property
    def doubted(self) -> bool:
        """Whether another broker is the better one to ask."""
        return self.state is _DOUBTED

    def end(self) -> None:
        if self.state is not _ENDED:
            self._become(_ENDED)
        self.resting = False
        if self._timer is not None:
            self._timer.cancel()
        if self._pong is not None:
            self._pong.set()

    # -- looks -------------------------------------------------------------------------------------------------------

    def _become(self, state: LivenessState) -> None:
        if state is not self.state:
            check_transition(TRANSITIONS, self, self.state, state)
            self.state = state

    def __str__(self) -> str:
        return f"the watch of {self._connection.url}"

    def _look_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._look_due = moment
        self._timer = self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if now - self._look_due > LATE_S:
            self._look_late(now)
        elif self.state in (_ASKED, _DOUBTED) and self._connection.chunks == self._chunks_before:
            self._unanswered(now)
        else:
            if self.state in (_ASKED, _DOUBTED):
                self._answered()
            self._wait(now)

    def _look_late(self, now: float) -> None:
        """This process stood still. If it always does, the keep-alive rule holds all the same."""
        connection = self._connection
        if self._chunks_when_late != connection.chunks:
            self._late_since, self._chunks_when_late = now, connection.chunks
        elif now - self._late_since >= 2 * self._keep_alive_s:
            connection.close(ConnectionClosed(f"the broker at {connection.url} does not answer"))
            return
        self._since = now
        self._become(_WATCHING)
        self.resting = False
        self._look_at(now + self._silence_s)

    def _awaited(self) -> tuple[bool, bool]:
        """Whether something is due, and whether something is awaited at all."""
        if not self._watches:
            return False, False
        connection = self._connection
        due = connection.requests.due or any(
            one.awaited_sequence_id is not None for one in connection.producers.values()
        )
        return due, due or bool(connection.consumers or connection.watchers or len(connection.requests))

    def _wait(self, now: float) -> None:
        """The broker was heard, or not for so long that it matters."""
        due, awaited = self._awaited()
        limit_s = self._keep_alive_s
        if due:
            limit_s = self._silence_s
            self._look_for_stuck(now)
        elif awaited:
            limit_s = min(self._patience_s, limit_s)
        left_s = max(self._connection.heard_at, self._since) + limit_s - now
        if left_s <= ROUNDING_S:
            self._ask(now)
            return
        rests = not awaited or left_s > self._silence_s
        self._become(_RESTING if rests else _WATCHING)
        self.resting = rests and self._watches
        self._look_at(now + left_s)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        self._chunks_before, self._pongs_before = self._connection.chunks, self.pongs
        self._become(_ASKED)
        self.resting = False
        self._acknowledged, self._moved_at = self._connection.acknowledged_bytes(), -inf
        self._ping()
        self._look_at(now + self._silence_s / 2)

    def _ping(self) -> None:
        self._pings += 1
        self._connection.write(ping())

    def _unanswered(self, now: float) -> None:
        """The PING has no answer yet."""
        connection = self._connection
        quiet_since = max(connection.heard_at, self._since)
        end = max(quiet_since + 2 * self._keep_alive_s, self._asked_at + self._silence_s / 2)
        if now + ROUNDING_S >= end:
            connection.close(ConnectionClosed(f"the broker at {connection.url} does not answer"))
            return
        if not self._awaited()[1]:
            self.resting = self._watches
            self._look_at(end)
            return
        before, self._acknowledged = self._acknowledged, connection.acknowledged_bytes()
        if before is not None and self._acknowledged is not None and self._acknowledged > before:
            self._moved_at = now
        if self.state is _ASKED:
            self._doubt(now)
            if connection.closed:
                return
        unacknowledged_s = min(connection.unacknowledged_s(), now - self._asked_at)
        if unacknowledged_s >= PATH_DEAD_S:
            connection.close(
                ConnectionClosed(f"the machine at {connection.url} acknowledges nothing for {unacknowledged_s:.0f} s")
            )
            return
        if now + ROUNDING_S >= self._questions.next_at:
            self._question(now, self._questions.pause_s())
        self._look_at(min(end, now + self._silence_s / 2))

    def _doubt(self, now: float) -> None:
        connection = self._connection
        where = connection.url
        logger.info("the broker at %s has been silent for %.1f s", where, now - connection.heard_at)
        self._become(_DOUBTED)
        self._questions.begin(now)
        reason = ConnectionClosed(f"the broker at {where} does not answer")
        if not connection.producers and not connection.consumers:
            connection.close(reason)
        else:
            connection.requests.fail_anywhere(reason)

    def _answered(self) -> None:
        """Something came after the PING."""
        self._become(_WATCHING)
        if self._connection.chunks - self._chunks_before > self.pongs - self._pongs_before:  # there is traffic
            self._patience_s = 2 * self._silence_s
            return
        if self._patience_s >= self._keep_alive_s and self._connection.consumers:
            self._question(self._loop.time(), self._keep_alive_s)
        self._patience_s = min(2 * self._patience_s, self._keep_alive_s)

    def _look_for_stuck(self, now: float) -> None:
        """Whether a producer waits for the same receipt as at the look before, though the broker is heard."""
        if now - self._heads_at < self._silence_s - ROUNDING_S:
            return
        producers, before = self._connection.producers, self._heads
        awaited = {number: one.awaited_sequence_id for number, one in producers.items()}
        heads = {number: head for number, head in awaited.items() if head is not None}
        fresh = now - self._heads_at < 2 * self._silence_s + LATE_S
        self._heads, self._heads_at = heads, now
        stuck = [number for number, head in heads.items() if before.get(number) == head]
        if not stuck or not fresh:
            self._questions.stuck_pause_s = self._silence_s
        elif now + ROUNDING_S >= self._questions.next_at:
            pause_s = self._questions.stuck_pause_s
            self._questions.stuck_pause_s = min(2 * pause_s, STUCK_PAUSE_MAX_S)
            self._question(now, pause_s, stuck[0])

    # -- questions ---------------------------------------------------------------------------------------------------

    def _question(self, now: float, pause_s: float, producer_id: int | None = None) -> None:
        """Ask another broker about one of the topics, unless such a question is under way."""
        questions, connection = self._questions, self._connection
        questions.next_at = now + pause_s
        if questions.under_way or questions.elsewhere is None or questions.start is None:
            return
        chosen = questions.choose(connection, producer_id)
        if chosen is None:
            return
        questions.under_way = True
        questions.start(self._find_out(*chosen), f"ask who owns {chosen[1].topic.full}")

    async def _find_out(self, number: int, endpoint: "ProducerEndpoint | ConsumerEndpoint") -> None:
        connection, questions = self._connection, self._questions
        assert questions.elsewhere is not None
        moves = self._loop.time() - self._moved_at < 2 * self._silence_s
        silent = self.state is _DOUBTED and not moves
        try:
            against = await questions.elsewhere(endpoint.topic.full, silent)
            if not against or connection.closed:
                return
            if self.state is not _DOUBTED or connection.chunks != self._chunks_before:
                if silent or not await self._confirmed(number, endpoint):
                    return
            logger.info("%s, so the connection to %s is left", against, connection.url)
            connection.close(ConnectionClosed(against))
        finally:
            questions.under_way = False

    async def _confirmed(self, number: int, endpoint: "ProducerEndpoint | ConsumerEndpoint") -> bool:
        """Whether a broker that answers still takes a topic for its own that belongs to another one."""
        connection = self._connection
        self._pong = asyncio.Event()
        self._awaited_pong = self._pings + 1
        self._ping()
        try:
            async with asyncio.timeout(self._silence_s):
                await self._pong.wait()
        except TimeoutError:
            return False  # it is silent now, and the next look sees that
        finally:
            self._pong = None
        here = connection.producers.get(number) is endpoint or connection.consumers.get(number) is endpoint
        return here and not connection.closed
