"""The receiver queue of one consumer: entries as they came, messages as the application takes them.

All partitions of a consumer share it. Entries are opened one at a time, when the application comes to them, on its
thread; so a queue of 1,000 messages in one batch costs one deque item until then. Taking a message from an opened entry
is a `popleft` without a lock.

How many entries may lie here is bounded by the permits that the sources granted to their brokers.
"""

import sys
from collections import deque
from contextlib import suppress
from itertools import repeat
from typing import Protocol, cast

from ..protocol.errors import MagnetarError
from .handover import Handover
from .message import Entry, Message


class Source(Protocol):
    """A partition's consumer, as the inbox sees it."""

    generation: int
    """Entries of an earlier generation are void: the broker will deliver them again, or the application sought away."""

    def open_entry(self, entry: Entry) -> list[Message]:
        """The messages of an entry that the application has come to, which frees its permits. Never raises."""
        ...


class Inbox:
    """See the module. `arrive` is for the loop, the rest for any thread."""

    def __init__(self, handover: Handover) -> None:
        self.lock = handover.lock()
        self.arrival = handover.signal(self.lock)
        self.waiting = 0
        """Callers that wait for a message; changed under the lock."""
        self.messages: deque[Message] = deque()
        self.failure: MagnetarError | None = None
        """Why nothing will come any more."""
        self._entries: deque[Entry] = deque()

    def arrive(self, entry: Entry) -> None:
        """Queue an entry and wake those who wait."""
        if self.failure is not None:
            return
        self._entries.append(entry)
        if self.waiting:
            with self.lock:
                self.arrival.notify_all()

    def take(self) -> Message | None:
        """The next message, or None if none is here now."""
        while True:
            try:
                return self.messages.popleft()
            except IndexError:
                if not self._open_next():
                    return None

    def take_many(self, messages_max: int) -> list[Message]:
        """The next messages that are here now, at most so many."""
        taken: list[Message] = []
        while len(taken) < messages_max:
            self._pop_into(taken, messages_max - len(taken))
            if len(taken) < messages_max and not self._open_next():
                break
        return taken

    def _pop_into(self, taken: list[Message], messages_max: int) -> None:
        """Take at most so many of the messages one by one: others pop from the same deque without the lock, and only
        what was popped is nobody else's.
        """
        popleft, append = self.messages.popleft, taken.append
        with suppress(IndexError):
            for _ in repeat(None, messages_max):
                append(popleft())

    def _open_next(self) -> bool:
        """Open the next entry. False if there is none."""
        with self.lock:
            if self.messages:
                return True
            while self._entries:
                entry = self._entries.popleft()
                source = cast(Source, entry.source)
                if entry.generation == source.generation:
                    self.messages.extend(source.open_entry(entry))
                    return True
            return False

    def has_more(self) -> bool:
        """Whether `take` may return a message; to be called under the lock."""
        return bool(self.messages or self._entries)

    def is_empty(self) -> bool:
        """Whether `take` would return None at this moment."""
        while not self.messages:
            if not self._open_next():
                return True
        return False

    def discard(self, source: object) -> int:
        """Drop everything from `source`; returns how many of the messages were in entries not yet opened."""
        with self.lock:
            dropped = sum(entry.count for entry in self._entries if entry.source is source)
            self._entries = deque(entry for entry in self._entries if entry.source is not source)
            opened: list[Message] = []
            self._pop_into(opened, sys.maxsize)  # whoever finds it empty in between waits for the lock
            self.messages.extend(message for message in opened if message.source is not source)
            return dropped

    def first(self, source: object) -> Message | Entry | None:
        """The next message of `source`, or its next unopened entry, if there is one."""
        with self.lock:
            for message in self.messages.copy():  # in one step, while others pop
                if message.source is source:
                    return message
            return next((entry for entry in self._entries if entry.source is source), None)

    def queued(self, source: object) -> int:
        """How many messages of `source` are in entries not yet opened; to be called under the lock."""
        return sum(entry.count for entry in self._entries if entry.source is source)

    def fail(self, failure: MagnetarError) -> None:
        """Nothing will come any more: whoever waits or comes later gets `failure`. What is queued is dropped."""
        with self.lock:
            if self.failure is None:
                self.failure = failure
            self._entries.clear()
            self.messages.clear()
            self.arrival.notify_all()
