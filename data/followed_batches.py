"""The batches of a followed topic, as the application iterates over them: readers, prefetching, acknowledgement.

Ray Data's executor does not run this, because it cannot (Ray 2.60):

- Ray repeats the task of a generator whose worker died, and drops as many of its first items as had come before
  (`max_retries=-1` in `ray/data/_internal/remote_fn.py`). A repeated read goes on from the subscription, so other rows
  would be dropped than those that had come.
- An operator gives a block when it has `target_max_block_size`, 128 MiB, or when its task ends. A smaller target cuts
  blocks into single rows (`ray/data/_internal/output_buffer.py`). So rows would come late, or one by one.
- `Datasource.get_read_tasks` returns a list, made before anything runs. Partitions that are added later have no task.

So each reader is an actor (`follow_reader`) with some of the partitions. This process keeps some calls of `read`
waiting at each, and hands out what they return. Functions of the application run as one Ray task per batch, between the
reader and here. A batch of rows stays one batch, so its places stay exact whatever a function drops or adds.

States of a reader here: RUNNING with an actor → LOST, without one, because its process or the node with its rows is
gone → RUNNING with another actor, after a back-off. It ends with the iteration.

Invariants:

- Batches of one reader come in the order of its calls. `FollowProgress` moves with each batch that is taken here, never
  with one that only waits. A reader that takes the place of another begins behind that. So no row comes twice while
  this process lives, and none is left out.
- What is acknowledged is what `FollowProgress` says, also when it has to be said to another actor again.
- At most `prefetch_batches` + 1 calls of each reader wait. So rows in Ray's memory are bounded.
- At most `ACKNOWLEDGING_MAX` acknowledgements of each reader are under way. So few batches come again after a crash.
- A reader belongs to this process: Ray ends it when the process ends. It is killed when the iteration is closed, or
  forgotten.
"""

# Ray and pyarrow bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import NamedTuple, Self, cast

import pyarrow as pa
import ray
from ray.data.block import BlockAccessor, DataBatch
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from ..client.blocking.client import Client
from ..client.core.configuration import InitialPosition
from ..protocol.errors import (
    AlreadyClosed,
    ChecksumError,
    FollowFailed,
    InvalidConfiguration,
    MagnetarError,
    is_retriable,
)
from ..protocol.topics import TopicName
from ..runtime.backoff import Backoff
from ..runtime.environment import SystemChance
from ..runtime.ray_calls import ask, kill_actor, remote, start_actor, wait_for
from .batch_steps import BatchStep, apply_steps
from .entry_batches import FollowOrder
from .follow_reader import FollowReader
from .positions import EARLIEST_PLACE, FollowProgress, Marks, RowPlace

logger = logging.getLogger(__name__)

LOSS_BACKOFF_INITIAL_S = 0.1
LOSS_BACKOFF_MAX_S = 5.0
LOSSES_MAX = 10
"""So many losses of one reader in a row, without a batch in between, end the iteration."""
PARTITIONS_LOOK_S = 30.0
"""Between two looks for partitions that were added."""
OPEN_PATIENCE_S = 20.0
"""After so long without its readers the log says what is missing."""
ACKNOWLEDGING_MAX = 2
"""So many calls of `acknowledge` of each reader are under way. Their batches come again if this process dies."""
ACKNOWLEDGE_PATIENCE_S = 5.0
"""A reader that takes longer is stuck, and its `read` will say so."""
CLOSE_TIMEOUT_S = 5.0
NAME_SIZE_BYTES = 4


class BatchFormat(NamedTuple):
    """What the application gets, and when."""

    name: str
    prefetch: int
    acknowledges: bool
    """Whether the next call acknowledges what the application got before."""


@dataclass(frozen=True)
class FollowedTopics:
    """What is followed."""

    topics: tuple[str, ...]
    """As the application has named them, in full."""
    order: FollowOrder
    """What the readers have in common."""
    starts: Marks | None
    """Where the application wants to begin; None: where the subscription stands."""
    readers_max: int
    ray_options: dict[str, object]


class _ReadCall(NamedTuple):
    """A call of `read`, and what the steps make of it."""

    table: Awaitable[pa.Table]
    marks: Awaitable[dict[str, RowPlace]]


class _FollowedReader:
    """This process's side of one reader."""

    def __init__(self, order: FollowOrder, random: SystemChance) -> None:
        self.order = order
        self.actor: FollowReader | None = None
        """None while it is lost."""
        self.calls: deque[_ReadCall] = deque()
        self.acknowledging: deque[Awaitable[None]] = deque()
        """Calls of `acknowledge` of this actor, the oldest first: at most `ACKNOWLEDGING_MAX` wait for their end."""
        self.asked = 0
        """Calls of `read` of this actor."""
        self.not_before = 0.0
        self.losses = 0
        self.backoff = Backoff(random, LOSS_BACKOFF_INITIAL_S, LOSS_BACKOFF_MAX_S)


class FollowedBatches:
    """An iterator over batches that goes on until it is closed. Made by `Following.iter_batches`.

    Use it in a `with` statement, in one thread. When it is closed or forgotten, its readers end.
    """

    def __init__(self, followed: FollowedTopics, steps: Sequence[BatchStep], batch_format: BatchFormat) -> None:
        """Call `Following.iter_batches` instead. Raises what that raises."""
        self._followed = followed
        self._format = batch_format
        self._random = SystemChance()
        self._client = Client(followed.order.service_url)
        self._ended = threading.Event()
        self._actors: list[FollowReader] = []
        """Of all readers that run; shared with the finalizer."""
        self._end = weakref.finalize(self, _kill, self._actors)
        self._end.atexit = False  # Ray ends the actors of a process that ends
        name, number = TopicName.parse(followed.topics[0]), self._random.hex(NAME_SIZE_BYTES)
        self._name = f"follow:{name.namespace}/{name.local_name}:{followed.order.subscription}:{number}"
        self._started = 0
        self._steps = ray.put(tuple(steps)) if steps else None
        self._apply = remote(apply_steps, num_cpus=max([step.num_cpus for step in steps], default=0))
        self._readers: list[_FollowedReader] = []
        self._progress = FollowProgress({}, moves_by_itself=batch_format.acknowledges)
        self._look_at = time.monotonic() + PARTITIONS_LOOK_S
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<FollowedBatches {self._name}>"

    def __next__(self) -> DataBatch:
        """The next batch, in the format that was asked for. It waits for rows without end.

        Unless the application acknowledges itself, what it got before is acknowledged now. An error ends the iteration.

        Raises:
            FollowFailed: If a reader was lost ten times in a row.
            MagnetarError: Why a reader cannot go on.
            RayTaskError: What a function of the application raised.
        """
        try:
            if self._format.acknowledges and not self._ended.is_set():
                self._send(self._progress.finish())
            while not self._ended.is_set():
                reader = self._wait()
                batch = None if reader is None else self._take(reader)
                if batch is not None:
                    return batch
        except Exception:
            self.close()
            raise
        raise StopIteration

    def positions(self) -> dict[str, str]:
        """Return where the batches end that the application got so far.

        Store them together with what was made of the batches. `start=positions` goes on behind them.

        Returns:
            By partition a place. It can be stored as JSON.
        """
        return self._progress.positions()

    def acknowledge(self) -> None:
        """Acknowledge all rows of the batches that the application got so far.

        Raises:
            AlreadyClosed: If the iteration has ended.
        """
        if self._ended.is_set():
            raise AlreadyClosed(f"{self._name} is closed: acknowledge before the iteration ends")
        self._send(self._progress.finish())

    def close(self) -> None:
        """Send the acknowledgements that wait, and end the readers. A second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if ray.is_initialized():
            running = [(one.actor, self._finished_of(one)) for one in self._readers if one.actor is not None]
            if running:
                wait_for([actor.close(finished) for actor, finished in running], CLOSE_TIMEOUT_S)
        self._end()
        self._client.close()

    # -- readers -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        starts = self._followed.starts
        names = self._partitions()
        if starts is not None and (unknown := sorted(set(starts) - set(names))):
            raise InvalidConfiguration(f"start names {unknown[0]}, which is no partition of what is followed")
        count = min(self._followed.readers_max, len(names))
        for number in range(count):
            topics = names[number::count]
            behind = {} if starts is None else {name: starts.get(name, EARLIEST_PLACE) for name in topics}
            order = replace(self._followed.order, topics=topics, behind=behind, is_start=True)
            self._readers.append(_FollowedReader(order, self._random))
            self._start(self._readers[-1])
        opening = [(reader, reader.actor.open()) for reader in self._readers if reader.actor is not None]
        while wait_for([opened for _, opened in opening], OPEN_PATIENCE_S):
            logger.warning("%s waits for its readers: does Ray have the CPUs that they ask for?", self._name)
        for reader, opened in opening:
            try:
                begins = ask(opened)
            except RayTaskError as error:
                raise (error.cause if isinstance(error.cause, MagnetarError) else error) from error
            self._progress.begin(begins)
            # A subscription is there now. What comes to it from here on is wanted, by any reader.
            reader.order = replace(reader.order, is_start=False, initial_position=InitialPosition.Earliest)

    def _partitions(self) -> tuple[str, ...]:
        found = [name for topic in self._followed.topics for name in self._client.get_topic_partitions(topic)]
        return tuple(dict.fromkeys(TopicName.parse(name).full for name in found))

    def _start(self, reader: _FollowedReader) -> None:
        """Begin behind what came here, with another actor."""
        given = {name: place for name, place in self._progress.given.items() if name in reader.order.topics}
        reader.order = replace(reader.order, behind={**reader.order.behind, **given})
        self._started += 1
        name = f"{self._name}:{self._started}"
        reader.actor = start_actor(FollowReader, {**self._followed.ray_options, "name": name}, name, reader.order)
        self._actors.append(reader.actor)
        reader.asked = 0
        reader.acknowledging.clear()
        if finished := self._finished_of(reader):
            reader.acknowledging.append(reader.actor.acknowledge(finished))
        for _ in range(self._format.prefetch + 1):
            self._submit(reader, reader.actor)

    def _submit(self, reader: _FollowedReader, actor: FollowReader) -> None:
        read = cast("Callable[[int], tuple[Awaitable[pa.Table], Awaitable[dict[str, RowPlace]]]]", actor.read)
        table, marks = read(reader.asked)
        reader.asked += 1
        if self._steps is not None:
            table = self._apply.remote(self._steps, table)
        reader.calls.append(_ReadCall(table, marks))

    def _finished_of(self, reader: _FollowedReader) -> Marks:
        return self._progress.finished_of(frozenset(reader.order.topics))

    def _stop(self, reader: _FollowedReader) -> None:
        """End its actor. What waits of it is read again."""
        reader.calls.clear()
        actor, reader.actor = reader.actor, None
        if actor is not None:
            self._actors.remove(actor)
            _kill([actor])

    def _lost(self, reader: _FollowedReader, error: Exception) -> None:
        if self._ended.is_set():
            return
        self._stop(reader)
        reader.losses += 1
        if reader.losses > LOSSES_MAX:
            raise FollowFailed(
                f"{self._name} has lost a reader {reader.losses} times in a row, the last time by: {error}. Look into "
                "the logs of Ray's workers, then iterate again"
            ) from error
        delay_s = reader.backoff.next_delay_s()
        reader.not_before = time.monotonic() + delay_s
        logger.warning("%s starts another reader in %.1f s, because one is lost: %s", self._name, delay_s, error)

    def _look_for_partitions(self) -> None:
        """Give partitions that were added to the reader with the fewest."""
        try:
            names = self._partitions()
        except MagnetarError as error:
            logger.warning("%s cannot look for added partitions now: %s", self._name, error)
            return
        added = tuple(name for name in names if name not in self._progress.given)
        if not added:
            return
        reader = min(self._readers, key=lambda one: len(one.order.topics))
        self._progress.begin(dict.fromkeys(added, EARLIEST_PLACE))
        self._stop(reader)
        reader.order = replace(reader.order, topics=(*reader.order.topics, *added))

    # -- batches -----------------------------------------------------------------------------------------------------

    def _wait(self) -> _FollowedReader | None:
        """A reader whose next call has ended; None after a pause in which something else was done."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + PARTITIONS_LOOK_S
            self._look_for_partitions()
        lost = [one for one in self._readers if one.actor is None]
        for reader in lost:
            if now >= reader.not_before:
                self._start(reader)
        wakes = [self._look_at, *(one.not_before for one in lost if one.actor is None)]
        timeout_s = max(min(wakes) - now, 0.0)
        heads = {one.calls[0].table: one for one in self._readers if one.calls}
        if not heads:
            self._ended.wait(timeout_s)
            return None
        ready, _ = ray.wait(cast("list[ray.ObjectRef[object]]", [*heads]), num_returns=1, timeout=timeout_s)
        if not ready:
            return None
        found = heads[cast("Awaitable[pa.Table]", ready[0])]
        # Ray looks at them in this order: who was served waits for the others.
        self._readers.remove(found)
        self._readers.append(found)
        return found

    def _take(self, reader: _FollowedReader) -> DataBatch | None:
        """What the next call of a reader has returned. None if it has no rows, or if the reader is lost."""
        call = reader.calls[0]
        try:
            marks = ask(call.marks)
        except RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, MagnetarError):
                raise
            if not (is_retriable(cause) or isinstance(cause, ChecksumError)):
                raise cause from error
            self._lost(reader, cause)
            return None
        except RayError as error:
            self._lost(reader, error)
            return None
        try:
            table = ask(call.table)
        except ObjectLostError as error:
            self._lost(reader, error)
            return None
        has_rows = bool(table.num_rows)
        batch = BlockAccessor.for_block(table).to_batch_format(self._format.name) if has_rows else None
        reader.losses = 0
        reader.backoff.reset()
        assert reader.actor is not None
        self._submit(reader, reader.actor)
        # Only now: an interrupted call (KeyboardInterrupt) leaves the batch to the next one.
        reader.calls.popleft()
        self._send(self._progress.passed(marks, has_rows=has_rows))
        return batch

    def _send(self, marks: Marks) -> None:
        """Have these places acknowledged. A reader that is lost gets them with its next actor."""
        for reader in self._readers if marks else ():
            own = {name: place for name, place in marks.items() if name in reader.order.topics}
            if own and reader.actor is not None:
                reader.acknowledging.append(reader.actor.acknowledge(own))
                if len(reader.acknowledging) > ACKNOWLEDGING_MAX:
                    # Else a fast application would be far ahead of what would be acknowledged if it died now.
                    wait_for([reader.acknowledging.popleft()], ACKNOWLEDGE_PATIENCE_S)


def _kill(actors: list[FollowReader]) -> None:
    """End these actors, at once."""
    for actor in actors if ray.is_initialized() else ():
        with suppress(RayError, ValueError):  # it is gone already
            kill_actor(actor)
    actors.clear()
