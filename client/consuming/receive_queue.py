"""The receiver queue of one consumer: entries as they came, messages as the application takes them.

All partitions of a consumer share it. Entries are decoded one at a time, on the application's thread, when the
application reaches them. Until then a queue of 1,000 messages in one batch costs one deque item. Taking a message from
an opened entry is a `popleft` without a lock. An entry that cannot be decoded takes its place in the order as an error,
which the next call raises. The messages behind it wait for the call after that.

How many entries may lie here is bounded by the permits that the sources granted to their brokers.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from ...protocol.errors import MagnetarError
from ...protocol.message_id import Position
from ..core.failover_events import FailoverEvents
from ..core.threading_bridge import Handover, LoopSignal
from .message import Message, Opened, ReceivedEntry
from .messages import Messages
from .receive_counts import ReceiveCounts, Waiting, waiting_in

if TYPE_CHECKING:
    from .partition_consumer import PartitionConsumer
    from .topic_consumer import LetterHandling

source_of = attrgetter("source")
_popleft = deque[Message].popleft


class ReceiveQueue:
    """See the module. `arrive` is for the loop, the rest for any thread."""

    def __init__(self, handover: Handover) -> None:
        self.lock, self.arrival = handover.lock_and_signal()
        self.waiting = 0
        """Callers that wait for a message; changed under the lock."""
        self.paused = False
        """Whether the application has paused the consumer: no permits go out. Changed under the lock."""
        self.messages: deque[Message] = deque()
        self.events: FailoverEvents | None = None
        """Where news of active consumers go, if the application wants them."""
        self.failure: MagnetarError | None = None
        """Why no more messages will come."""
        self.defers = False
        """Whether a large entry is left alone until it is prepared, because the callers are on an event loop."""
        self.lets_go: Callable[[object, MagnetarError], bool] | None = None
        """Asked when one source has failed finally: whether the others go on without it."""
        self.gate: LetterHandling | None = None
        """Looks at entries before they are queued, on the loop."""
        self.screen: Callable[[Sequence[Message]], Sequence[Message]] | None = None
        """Says what the application gets of the messages of an opened entry; called under the lock."""
        self.counts: dict[object, ReceiveCounts] = {}
        """What was received of each source that is counted; changed under the lock."""
        self.progress = LoopSignal()
        """For waiting on the loop: an entry came, whatever became of it."""
        self._entries: deque[ReceivedEntry] = deque()
        self._undelivered: tuple[object, MagnetarError] | None = None
        """The source and the error of an entry that could not be opened, until a call raises it. Changed under the
        lock; nothing is opened meanwhile."""

    def arrive(self, entry: ReceivedEntry) -> None:
        """Queue an entry and wake those who wait, unless it goes another way."""
        if self.gate is None or self.failure is not None or not self.gate.takes(entry):
            self.admit(entry)

    def admit(self, entry: ReceivedEntry) -> None:
        """Queue an entry that passed the gate."""
        if self.failure is not None:
            return
        self._entries.append(entry)
        if self.waiting:
            with self.lock:
                self.arrival.notify_all()

    def take(self, *, raises: bool = True) -> Message | None:
        """The next message, or None if none is here now.

        Raises the error of an entry that could not be opened; unless `raises`, that stays for the next call.
        """
        while True:
            try:
                return self.messages.popleft()
            except IndexError:
                if not self._open_next():
                    return None
                if self._undelivered is not None:
                    if not raises:
                        return None
                    self._raise_undelivered()

    def take_many(self, messages_max: int) -> Messages:
        """The next messages that are here now, up to `messages_max`. Raises as `take`, when there is none before it."""
        taken = Messages()
        try:
            while (room := messages_max - len(taken)) > 0:
                if self.messages:
                    single: list[Message] = []
                    self._pop_into(single, room)
                    if single:
                        taken.add(single)
                elif not self._open_into(taken, room) and not self.messages:
                    if self._undelivered is None or taken.parts:
                        break
                    self._raise_undelivered()
        except BaseException:  # such as KeyboardInterrupt, also from an interceptor
            self.put_back(taken)
            raise
        return taken

    def take_entry(self) -> ReceivedEntry | None:
        """The next entry that is here now, for a caller that opens it itself. None if none is.

        Raises why the entry that came is damaged. A caller that takes entries takes no messages besides.
        """
        with self.lock:
            while self._entries:
                entry = self._entries.popleft()
                source = cast("PartitionConsumer", entry.source)
                if entry.generation == source.generation:
                    source.hand_out(entry)
                    return entry
        return None

    def first_chunks(self, source: object) -> list[Position]:
        """Where the messages in chunks begin that `source` has here."""
        with self.lock:
            return [one.chunks[0].position for one in self._entries if one.chunks and one.source is source]

    def put_back(self, messages: Sequence[Message]) -> None:
        """A call took these and does not hand them over, because it was cancelled: they are the next ones again.

        What became void meanwhile is dropped: its broker sends it again, or the application sought away.
        """
        if not messages:
            return
        with self.lock:
            if self.failure is not None:
                self._drop(messages)
                return
            valid = [one for one in messages if one[0].generation == cast("PartitionConsumer", one.source).generation]
            if len(valid) < len(messages):
                self._drop(
                    [one for one in messages if one[0].generation != cast("PartitionConsumer", one.source).generation]
                )
            self.messages.extendleft(reversed(valid))
            if self.waiting:
                self.arrival.notify_all()

    @property
    def is_at_error(self) -> bool:
        """Whether the next call raises the error of an entry that could not be opened."""
        return self._undelivered is not None and not self.messages

    def _raise_undelivered(self) -> None:
        with self.lock:
            undelivered, self._undelivered = self._undelivered, None
        if undelivered is not None:
            raise undelivered[1]

    def _pop_into(self, taken: list[Message], messages_max: int) -> None:
        """Take up to `messages_max` messages one by one. Other threads pop from the same deque without the lock, so
        only a popped message belongs to this call.
        """
        with suppress(IndexError):
            taken.extend(map(_popleft, repeat(self.messages, messages_max)))

    def _open_next(self) -> bool:
        """Open the next entry. False if there is none; true too if it could not be opened."""
        with self.lock:
            opened = self._open()
            if opened is not None:
                self.messages.extend(opened)
            return opened is not None or bool(self.messages) or self._undelivered is not None

    def _open_into(self, taken: Messages, room: int) -> bool:
        """Open the next entry for somebody who takes so many messages; what is too much waits. False if nothing was
        opened."""
        with self.lock:
            opened = self._open()
            if opened is None:
                return False
            if len(opened) > room:
                if isinstance(opened, Opened):
                    opened, rest = opened.split(room)
                else:
                    opened, rest = opened[:room], opened[room:]
                self.messages.extend(rest)
            if opened:
                taken.add(opened)
            return True

    def _open(self) -> Sequence[Message] | None:
        """The messages of the next entry that is not void, perhaps none. None if there is no entry, or nothing may be
        opened now, or it could not be opened. To be called under the lock."""
        if self.messages or self._undelivered is not None:
            return None
        while self._entries:
            if self.defers and self.unprepared() is not None:
                return None
            entry = self._entries[0]
            source = cast("PartitionConsumer", entry.source)
            if entry.generation != source.generation:
                self._remove_first(entry)
            else:
                counts = self.counts.get(source)
                try:
                    opened = source.open_entry(entry)
                    if self.screen is not None:
                        opened = self.screen(opened)
                except MagnetarError as error:
                    self._remove_first(entry)
                    self._undelivered = (source, error)
                    if counts is not None:
                        counts.failed += 1
                    return None
                # Only now: an interrupt in between (KeyboardInterrupt) leaves the entry to the next call.
                self._remove_first(entry)
                if counts is not None:
                    counts.opened(opened)
                return opened
        return None

    def _remove_first(self, entry: ReceivedEntry) -> None:
        """Remove an entry that was looked at, unless its interceptors have had the queue emptied."""
        if self._entries and self._entries[0] is entry:
            self._entries.popleft()

    def unprepared(self) -> ReceivedEntry | None:
        """The entry that all callers wait for until it is prepared."""
        if not self.defers or self.messages or not self._entries:
            return None
        entry = self._entries[0]
        return (
            entry if entry.is_large and entry.generation == cast("PartitionConsumer", entry.source).generation else None
        )

    def has_more(self) -> bool:
        """Whether `take` may return a message or raise; to be called under the lock."""
        return bool(self.messages or self._entries) or self._undelivered is not None

    def is_empty(self) -> bool:
        """Whether `take` would neither return a message nor raise at this moment."""
        while not self.messages:
            if not self._open_next():
                return True
            if self._undelivered is not None:
                return False
        return False

    def discard(self, source: object) -> int:
        """Drop everything from `source`; returns how many of the messages were in entries not yet opened."""
        waiting = 0 if self.gate is None else self.gate.discard(source)
        with self.lock:
            dropped = waiting + sum(entry.permits for entry in self._entries if entry.source is source)
            self._entries = deque(entry for entry in self._entries if entry.source is not source)
            opened: list[Message] = []
            self._pop_into(opened, sys.maxsize)  # a thread that finds it empty in between waits for the lock
            self.messages.extend(message for message in opened if message.source is not source)
            self._drop([message for message in opened if message.source is source])
            if self._undelivered is not None and self._undelivered[0] is source:
                self._undelivered = None  # its entry comes again, or the application sought away
            return dropped

    def _drop(self, messages: Sequence[Message]) -> None:
        """The application does not get these messages. To be called under the lock."""
        for source, group in groupby(messages, source_of):
            counts = self.counts.get(source)
            if counts is not None:
                counts.dropped([*group])

    def waiting_of_sources(self) -> dict[object, Waiting]:
        """What lies here, by source; to be called under the lock."""
        return waiting_in(self.messages.copy(), [(entry.source, entry.permits) for entry in self._entries])

    def first(self, source: object) -> Message | ReceivedEntry | None:
        """The next message of `source`, or its next unopened entry, if there is one."""
        with self.lock:
            for message in self.messages.copy():  # in one step, while others pop
                if message.source is source:
                    return message
            return next((entry for entry in self._entries if entry.source is source), None)

    def queued(self, source: object) -> int:
        """How many messages of `source` are in entries not yet opened; to be called under the lock."""
        waiting = 0 if self.gate is None else self.gate.queued(source)
        return waiting + sum(entry.permits for entry in self._entries if entry.source is source)

    def inherited(self, handover: Handover, failure: MagnetarError) -> None:
        """See `forking`: the lock may be held by a thread that is not here."""
        self.lock, self.arrival = handover.lock_and_signal()
        self.waiting = 0
        self.fail(failure)

    def source_failed(self, source: object, failure: MagnetarError) -> None:
        """No more messages will come from `source`."""
        if self.lets_go is None or not self.lets_go(source, failure):
            self.fail(failure)

    def fail(self, failure: MagnetarError) -> None:
        """No more messages will come: waiting and later calls get `failure`. What is queued is dropped."""
        with self.lock:
            if self.failure is None:
                self.failure = failure
            self._entries.clear()
            left: list[Message] = []
            self._pop_into(left, sys.maxsize)
            self._drop(left)
            self._undelivered = None
            self.arrival.notify_all()
        self.progress.notify_all()
        if self.events is not None:
            self.events.end()
