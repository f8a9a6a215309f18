"""The last value of each key of a topic: what table views of both faces keep.

A null value, or one without bytes, deletes its key. A message without a key is passed over. Listeners hear of each
change after it was entered, in the order of the messages. A listener that joins hears of all that is there first, and
misses nothing: both happen under one lock.
"""

import logging
from collections.abc import Callable

from ..core.threading_bridge import ThreadLock
from .message import Message

logger = logging.getLogger(__name__)

TableListener = Callable[[str, bytes], object]


class TableState:
    """See the module. From any thread."""

    def __init__(self, lock: ThreadLock) -> None:
        """`lock` may be taken again by the thread that has it: a listener may look up other keys."""
        self._lock = lock
        self._values: dict[str, bytes] = {}
        self._listeners: list[TableListener] = []

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)

    def get(self, key: str) -> bytes | None:
        """The value of a key."""
        with self._lock:
            return self._values.get(key)

    def apply(self, message: Message) -> None:
        """A message came."""
        key, value = message.partition_key(), message.data()
        if not key:
            return
        with self._lock:
            if value and not message.has_null_value():
                self._values[key] = value
            else:
                self._values.pop(key, None)
                value = b""
            for listener in self._listeners:
                try:
                    listener(key, value)
                except Exception:  # the application's
                    logger.exception("a listener of a table view failed")

    def for_each(self, listener: TableListener, *, then_listen: bool = False) -> None:
        """Call `listener` for each key and value, and with `then_listen` for each change from then on."""
        with self._lock:
            for key, value in list(self._values.items()):
                listener(key, value)
            if then_listen:
                self._listeners.append(listener)
