"""The workers of one `magnetar.consume`, as the process that called it keeps them: on the loop of `shared_loop`.

A member is one worker actor:

| state | what it means | next |
| --- | --- | --- |
| STARTING | Ray was asked for the actor, which may wait for resources | RUNNING, STOPPING, ENDED |
| RUNNING | it has subscribed | STOPPING, ENDED |
| STOPPING | it was told to finish its call | ENDED |
| ENDED | its `run` has returned or failed, or its process is gone | |

The pool is OPEN → STOPPING → ENDED. It becomes STOPPING when `stop` is called, and when `LOSSES_MAX` members in a row
have ended by themselves while no message was handled. The second leaves an error, which `wait` and `stop` raise.

What happens, and when: every `LOOK_INTERVAL_S`, and at once when a member ends, the pool

1. asks the members what they have done,
2. asks the admin HTTP for the backlog, unless the bounds are fixed, at most once in `LOOK_INTERVAL_S`,
3. starts members, or tells the youngest ones to stop, until as many as wanted are STARTING or RUNNING.

A member that ends by itself is replaced behind a back-off, which a handled message or a dead letter resets. With dead
letters, the pool first reads from the member's `handling_note` which messages it was handling, and tells all members.
The pool keeps how often that was for `DEATHS_MAX` messages. It forgets what it was told first.

Invariants:

- STARTING and RUNNING members are at most `bounds.maximum`. Those that are STOPPING finish one call, and take no more.
- A member that holds messages is killed only when the time-out of `stop` has passed. The broker gives the messages to
  another consumer, because nothing of them was acknowledged.
- The actors are not detached. So Ray ends them when this process ends, however it does.
- No actor is asked for when this process has left Ray: the call would start another Ray.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pickle import PicklingError
from typing import Any

from ..bulk.access import ask_of_topic
from ..protocol.errors import ClusterError, ConsumeFailed, InvalidConfiguration, MagnetarError
from ..protocol.topics import TopicName
from ..runtime.backoff import Backoff
from ..runtime.ray_calls import asked_resources, kill_actor, known_resources, put, start_actor, start_task_on
from ..runtime.ray_metrics import Figure, RayMetrics
from ..runtime.tasks import Tasks
from .consume_worker import ERROR_TEXT_MAX, ConsumeWorker, WorkerFigures, WorkOrder
from .handling_note import MessagePlace, take_note
from .open_queue import shared_client, shared_random
from .pool_sizing import LOOK_INTERVAL_S, PoolBounds, PoolSizing

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 2.0
"""For the figures of a worker. One that does not answer is taken to be where it was."""
FIGURES = (
    Figure("magnetar_consume_done", "counter", "Messages whose call returned."),
    Figure("magnetar_consume_failed", "counter", "Messages whose call raised, each time that it did."),
    Figure("magnetar_consume_dead_letters", "counter", "Messages that were stored in the dead letter topic."),
    Figure("magnetar_consume_workers", "gauge", "Workers that have subscribed, and do not stop."),
    Figure("magnetar_consume_backlog", "gauge", "Entries that are not acknowledged, where the backlog sizes the pool."),
)
NOTE_TIMEOUT_S = 10.0
"""For the note of a member that has ended by itself. No member is started meanwhile, so that it knows what is in it."""
BEGIN_WARNING_S = 15.0
"""How long a worker may take to begin before the log says that it has not."""
DEATHS_MAX = 10_000
LOSSES_MAX = 6
"""Beside as many as a message may cause before it is a dead letter."""
LOSS_BACKOFF_INITIAL_S = 0.5
LOSS_BACKOFF_MAX_S = 15.0
"""Between a worker that ended by itself, and the next one."""


class MemberState(Enum):
    """See the module."""

    STARTING = auto()
    RUNNING = auto()
    STOPPING = auto()
    ENDED = auto()


NEXT_STATES: Mapping[MemberState, Sequence[MemberState]] = {
    MemberState.STARTING: (MemberState.RUNNING, MemberState.STOPPING, MemberState.ENDED),
    MemberState.RUNNING: (MemberState.STOPPING, MemberState.ENDED),
    MemberState.STOPPING: (MemberState.ENDED,),
    MemberState.ENDED: (),
}


class _Member:
    """One worker actor."""

    def __init__(self, name: str, actor: ConsumeWorker) -> None:
        self.name = name
        self.actor = actor
        self.state = MemberState.STARTING
        self.figures = WorkerFigures()
        self.asked: asyncio.Task[None] | None = None
        """An answer that is awaited. An actor that waits for resources has one at most."""
        self.has_answered = False
        self.warn_at_s = time.monotonic() + BEGIN_WARNING_S
        """When to say that it has not begun."""

    def becomes(self, state: MemberState) -> None:
        if state is not self.state:
            assert state in NEXT_STATES[self.state], f"{self.name}: {self.state} -> {state}"
            self.state = state

    def knows(self, figures: WorkerFigures) -> None:
        self.figures = figures
        self.has_answered = True
        if figures.is_ready and self.state is MemberState.STARTING:
            self.becomes(MemberState.RUNNING)


class TopicBacklog:
    """What the subscription has to do, in entries, over all partitions. The admin HTTP says it."""

    def __init__(self, topic: TopicName, subscription: str, admin_url: str | None) -> None:
        self._topic = topic
        self._subscription = subscription
        self._admin_url = admin_url
        self._stats: str | None = None

    async def entries(self) -> int:
        """Those that are not acknowledged, without those that are delayed.

        Raises ClusterError, ConnectError, CoordinatorUnavailable.
        """
        if self._stats is None:
            partitions = json.loads(await ask_of_topic(self._admin_url, self._topic.full, "/partitions"))["partitions"]
            self._stats = "/partitioned-stats" if partitions else "/stats"
        stats = json.loads(await ask_of_topic(self._admin_url, self._topic.full, self._stats))
        figures = stats["subscriptions"].get(self._subscription)
        if figures is None:
            raise ClusterError(f"{self._topic.full} has no subscription {self._subscription}: it was removed")
        return int(figures["msgBacklogNoDelayed"])


@dataclass(frozen=True)
class ConsumeStats:
    """What a `consume` has done until now. Calls of a worker that was killed count up to the last look at it.

    - `done`: messages whose call returned. `failed`: messages whose call raised, each time that it did.
    - `dead_lettered`: messages that were stored in the dead letter topic.
    - `workers`: worker actors that have subscribed, and do not stop. `starting`: those that do not yet run.
    - `replaced`: workers that ended by themselves, such as killed ones.
    - `backlog`: entries that were not acknowledged at the last look; None where the number of workers is fixed.
    - `last_error`: a late error of a call, or why a worker ended by itself; empty without one.
    """

    done: int
    failed: int
    dead_lettered: int
    workers: int
    starting: int
    replaced: int
    backlog: int | None
    last_error: str


class ConsumePool:
    """See the module. For the loop's thread."""

    def __init__(
        self, name: str, order: WorkOrder, ray_options: Mapping[str, object], bounds: PoolBounds, backlog: TopicBacklog
    ) -> None:
        self.name = name
        self._order = order
        self._stored_order: Any = None
        self._ray_options = ray_options
        self._bounds = bounds
        self._backlog = backlog
        self._sizing = PoolSizing(bounds)
        self._wanted = bounds.minimum
        self._members: list[_Member] = []
        self._deaths: dict[MessagePlace, int] = {}
        """How often messages were being handled when their worker died."""
        self._endings = 0
        """Members that have ended, and may have left a note that was not read yet."""
        self._gone = WorkerFigures()
        """The sum of members that have ended."""
        self._started = 0
        self._replaced = 0
        self._losses = 0
        self._done_at_loss = 0
        self._loss_backoff = Backoff(shared_random(), LOSS_BACKOFF_INITIAL_S, LOSS_BACKOFF_MAX_S)
        self._not_before = 0.0
        self._looked = 0.0
        self._last_backlog: int | None = None
        self._changed = asyncio.Event()
        self._tasks = Tasks()
        self._stopping = False
        self._error: ConsumeFailed | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- the faces ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the subscription if there is none, then begin.

        Raises InvalidConfiguration for an order that cannot be pickled, and what `subscribe` raises.
        """
        try:
            self._stored_order = await asyncio.to_thread(put, self._order)  # once: it may carry a model
        except (TypeError, AttributeError, PicklingError) as error:  # what picklers raise
            why = error.__cause__ or error
            raise InvalidConfiguration(
                f"{self._order.fn!r:.200} or another argument cannot be pickled for the workers: {str(why)[:300]}. "
                "Make locks, files and connections in the function, or pass a class that makes them in its constructor"
            ) from error
        # Now, so that messages published from here on are kept, and errors of the topic are the caller's.
        options: dict[str, Any] = {**self._order.consumer_options(self.name), "receiver_queue_size": 1}
        consumer = await shared_client(self._order.service_url).subscribe(**options)
        await consumer.close()
        self._metrics = RayMetrics(FIGURES, {"subscription": self.name.removeprefix("consume:").rpartition(":")[0]})
        self._tasks.spawn(self._govern(), f"govern {self.name}")

    async def wait(self, timeout_s: float | None) -> bool:
        """Until the end, for at most `timeout_s`. Returns whether it has come. Raises ConsumeFailed."""
        await asyncio.wait({self._end}, timeout=timeout_s)
        if self._end.done() and self._error is not None:
            raise self._error
        return self._end.done()

    async def stop(self, timeout_s: float | None) -> bool:
        """Let running calls finish, for at most `timeout_s`. Returns whether all did. Raises ConsumeFailed."""
        self._stop()
        done, _ = await asyncio.wait({self._end}, timeout=timeout_s)
        if not done:
            await asyncio.gather(*(asyncio.to_thread(kill_actor, one.actor) for one in self._members))
            await self._end
        if self._error is not None:
            raise self._error
        return bool(done)

    async def abandon(self) -> None:
        """This process ends, and its workers with it: ask Ray for nothing more."""
        await self._tasks.close()

    async def stats(self) -> ConsumeStats:
        """What was done until now; asks the workers."""
        await self._ask_members()
        total = self._total()
        states = [one.state for one in self._members]
        return ConsumeStats(
            total.done,
            total.failed,
            total.dead_lettered,
            states.count(MemberState.RUNNING),
            states.count(MemberState.STARTING),
            self._replaced,
            self._last_backlog,
            total.last_error,
        )

    # -- governing ---------------------------------------------------------------------------------------------------

    async def _govern(self) -> None:
        """Ends when the pool stops and its last member has ended.

        Whatever Ray raises when it cannot even be asked for an actor ends the pool, and leaves an error.
        """
        try:
            while not (self._stopping and not self._members):
                self._changed.clear()
                self._leave_if_ray_is_left()
                await self._ask_members()
                if self._stopping:
                    await self._stop_members(len(self._members))
                else:
                    await self._look()
                    await self._fit()
                    await self._warn_of_waiting()
                self._report()
                if self._members or not self._stopping:
                    await self._sleep()
        except Exception as error:
            logger.exception("%s ends", self.name)
            self._error = ConsumeFailed(f"{self.name} cannot go on: {error}")
            self._gone = self._total()
            members, self._members = self._members, []
            await asyncio.gather(*(asyncio.to_thread(kill_actor, one.actor) for one in members), return_exceptions=True)
        finally:
            self._report()
            if not self._end.done():
                self._end.set_result(None)
            await self._tasks.close()

    def _report(self) -> None:
        """Give Ray the figures, for its dashboard."""
        total = self._total()
        running = sum(one.state is MemberState.RUNNING for one in self._members)
        values: dict[str, float] = {
            "magnetar_consume_done": total.done,
            "magnetar_consume_failed": total.failed,
            "magnetar_consume_dead_letters": total.dead_lettered,
            "magnetar_consume_workers": running,
        }
        if self._last_backlog is not None:
            values["magnetar_consume_backlog"] = self._last_backlog
        self._metrics.report(values)

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(LOOK_INTERVAL_S):
                await self._changed.wait()
        except TimeoutError:
            return  # the time of the next look

    def _stop(self) -> None:
        self._stopping = True
        self._changed.set()

    def _leave_if_ray_is_left(self) -> None:
        import ray

        if not ray.is_initialized():
            self._error = ConsumeFailed(f"{self.name}: this process has left Ray, which has ended the workers")
            self._members.clear()
            self._stop()

    async def _look(self) -> None:
        """Ask for the backlog, and decide about the size."""
        if self._bounds.fixed or time.monotonic() < self._looked + LOOK_INTERVAL_S:
            return
        self._looked = time.monotonic()
        try:
            self._last_backlog = await self._backlog.entries()
        except MagnetarError as error:
            logger.warning("%s keeps its size, because nobody says how large the backlog is: %s", self.name, error)
            return
        total = self._total()
        self._wanted = self._sizing.look(self._last_backlog, len(self._in_use()), total.busy_s, total.entries)

    async def _fit(self) -> None:
        """Start or stop members until there are as many as wanted."""
        missing = self._wanted - len(self._in_use())
        if missing < 0:
            await self._stop_members(-missing)
        elif missing and time.monotonic() >= self._not_before and not self._endings:
            await asyncio.gather(*(self._start_one() for _ in range(missing)))

    async def _warn_of_waiting(self) -> None:
        """Say once of each member that has not begun for long what it asks Ray for, and what Ray has."""
        now_s = time.monotonic()
        late = [one for one in self._in_use() if not one.has_answered and now_s >= one.warn_at_s]
        if not late:
            return
        for member in late:
            member.warn_at_s = math.inf
        wanted = asked_resources(self._ray_options)
        everything, free = await asyncio.to_thread(known_resources)
        logger.warning(
            "%s: %d workers have not begun for %.0f s. Each asks Ray for %s. Ray has %s in all, and %s free. Ask for "
            "less with num_cpus, num_gpus and resources, let others end, or add nodes",
            self.name,
            len(late),
            BEGIN_WARNING_S,
            _as_text(wanted, wanted),
            _as_text(wanted, everything),
            _as_text(wanted, free),
        )

    def _in_use(self) -> list[_Member]:
        return [one for one in self._members if one.state in (MemberState.STARTING, MemberState.RUNNING)]

    # -- members -----------------------------------------------------------------------------------------------------

    async def _start_one(self) -> None:
        self._started += 1
        name = f"{self.name}:{self._started}"
        member = _Member(name, await asyncio.to_thread(self._start_actor, name))
        self._members.append(member)
        self._tasks.spawn(self._follow(member), f"follow {name}")
        self._ask(member)

    def _start_actor(self, name: str) -> ConsumeWorker:
        import ray

        if not ray.is_initialized():
            raise ClusterError("this process has left Ray: call magnetar.connect(), then consume again")
        deaths = dict(self._deaths)
        return start_actor(ConsumeWorker, {**self._ray_options, "name": name}, self._stored_order, name, deaths)

    async def _follow(self, member: _Member) -> None:
        """Until a member has ended. If it has by itself, count that."""
        import ray
        from ray.exceptions import RayActorError

        error: Exception | None = None
        try:
            member.knows(await member.actor.run())
        except Exception as failed:  # Ray raises other classes for each way in which a process ends
            error = failed
        asked_to = member.state is MemberState.STOPPING
        member.becomes(MemberState.ENDED)
        if member in self._members:
            self._members.remove(member)
        self._gone = _sum([self._gone, member.figures])
        self._endings += 1  # from the moment when it is missing
        try:
            if ray.is_initialized():
                await asyncio.to_thread(kill_actor, member.actor)  # a thread of the function may still run there
            if error is not None and not asked_to:
                self._lost(member, error)
                if isinstance(error, RayActorError):
                    await self._blame(member.name, member.figures)
        finally:
            self._endings -= 1
        self._changed.set()

    async def _blame(self, name: str, figures: WorkerFigures) -> None:
        """Count the death of a process for the messages that it was handling, and tell the other members."""
        import ray

        if not (figures.note_path and ray.is_initialized()):
            return
        try:
            async with asyncio.timeout(NOTE_TIMEOUT_S):
                taken = await asyncio.to_thread(start_task_on, figures.node_id, take_note, figures.note_path)
                places = await taken
        except Exception as error:  # of any class of Ray, or the time-out: the node may be gone, and the note with it
            logger.warning("nobody knows which messages %s was handling when it died: %s", name, error)
            return
        for place in places:
            self._deaths[place] = self._deaths.pop(place, 0) + 1
        while len(self._deaths) > DEATHS_MAX:
            del self._deaths[next(iter(self._deaths))]
        for other in self._members if places else ():
            _ = other.actor.know_deaths(self._deaths)

    def _lost(self, member: _Member, error: Exception) -> None:
        self._replaced += 1
        total = self._total()
        done = total.done + total.dead_lettered
        if done > self._done_at_loss:
            self._losses = 0
            self._loss_backoff.reset()
        self._losses, self._done_at_loss = self._losses + 1, done
        cause = getattr(error, "cause", None) or error
        text = f"{type(cause).__name__}: {cause}"
        logger.warning("%s has ended, and is replaced: %s", member.name, text)
        self._gone = self._gone._replace(last_error=f"a worker has ended: {text}"[:ERROR_TEXT_MAX])
        self._not_before = time.monotonic() + self._loss_backoff.next_delay_s()
        policy = self._order.dead_letters
        if self._losses >= LOSSES_MAX + (0 if policy is None else policy.max_redeliver_count):
            self._error = ConsumeFailed(
                f"{self.name}: {self._losses} workers have ended in a row, and no message was handled meanwhile. The "
                f"last one ended with {text[:1_000]}"
            )
            self._stop()

    async def _stop_members(self, count: int) -> None:
        """The youngest ones first: they are the least likely to have something loaded."""
        stopping = [one for one in reversed(self._members) if one.state is not MemberState.STOPPING][:count]
        for member in stopping:
            member.becomes(MemberState.STOPPING)
        await asyncio.gather(*(asyncio.to_thread(_tell_to_stop, one) for one in stopping))

    async def _ask_members(self) -> None:
        """Take what members say of themselves in time. Those that have not begun yet are not waited for."""
        for member in self._members:
            self._ask(member)
        if waiting := [one.asked for one in self._members if one.asked is not None and one.has_answered]:
            await asyncio.wait(waiting, timeout=ANSWER_TIMEOUT_S)

    def _ask(self, member: _Member) -> None:
        if member.asked is None:
            member.asked = self._tasks.spawn(_answer_of(member), f"figures of {member.name}")

    def _total(self) -> WorkerFigures:
        return _sum([self._gone, *(one.figures for one in self._members)])


async def _answer_of(member: _Member) -> None:
    try:
        figures = await member.actor.figures()
    except Exception:  # of any class of Ray: the process has ended, which `_follow` is told, too
        return
    finally:
        member.asked = None
    if member.state is not MemberState.ENDED:
        member.knows(figures)


def _as_text(wanted: Mapping[str, float], amounts: Mapping[str, float]) -> str:
    """The amounts of what is wanted."""
    return ", ".join(f"{amounts.get(name, 0):g} {name}" for name in wanted) or "nothing"


def _tell_to_stop(member: _Member) -> None:
    """One that has never answered has no process yet, or has not begun: it is removed. Waits for nothing."""
    if member.has_answered:
        _ = member.actor.stop()
    else:
        kill_actor(member.actor)


def _sum(figures: Sequence[WorkerFigures]) -> WorkerFigures:
    return WorkerFigures(
        True,
        sum(one.done for one in figures),
        sum(one.failed for one in figures),
        sum(one.dead_lettered for one in figures),
        sum(one.busy_s for one in figures),
        sum(one.entries for one in figures),
        next((one.last_error for one in reversed(figures) if one.last_error), ""),
    )
