"""The last value of each key of a topic: what table views of both faces keep.

A null value, or one without bytes, deletes its key. A message without a key is passed over. Listeners hear of each
change after it was entered, in the order of the messages. A listener that joins hears of all that is there first, and
misses nothing: both happen under one lock.
"""

import logging
from collections.abc import Callable

from ...protocol.errors import MagnetarError
from ..core.threading_bridge import ThreadLock
from ..schemas.schema import DecodedValue
from .message import Message

logger = logging.getLogger(__name__)

TableListener = Callable[[str, DecodedValue], object]


class TableState:
    """See the module. From any thread."""

    def __init__(self, lock: ThreadLock) -> None:
        """`lock` may be taken again by the thread that has it: a listener may look up other keys."""
        self._lock = lock
        self._values: dict[str, object] = {}
        self._listeners: list[TableListener] = []

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)

    def get(self, key: str) -> object:
        with self._lock:
            return self._values.get(key)

    def apply(self, message: Message) -> None:
        key = message.partition_key()
        if not key:
            return
        deleted = not message.data() or message.has_null_value()
        try:
            value = (None if message.entry.reading else b"") if deleted else message.value()
        except MagnetarError as error:
            logger.error("a table view leaves out a value of %r that it cannot decode: %s", key, error)
            return
        with self._lock:
            if deleted:
                self._values.pop(key, None)
            else:
                self._values[key] = value
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
