"""The blocking face of a table view: the last value of each key of a topic."""

import threading
from collections.abc import Callable

from ..consuming.table_state import TableState
from ..schemas.schema import DecodedValue
from .reader import Reader, listen


class TableView:
    """The last value of each key of a topic, kept up to date by a thread. Made by `Client.create_table_view`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._state = TableState(threading.RLock())
        try:
            while reader.has_message_available():
                self._state.apply(reader.read_next())
        except BaseException:
            reader.close()
            raise
        self._listener = listen(reader, self._state.apply)

    def get(self, key: str) -> DecodedValue:
        """Return the value of a key.

        Args:
            key: The key.

        Returns:
            The value of its last message; None if there is none, or that message was a null value.
        """
        return self._state.get(key)

    def for_each(self, callback: Callable[[str, DecodedValue], object]) -> None:
        """Call a function for each key.

        Args:
            callback: Called as `callback(key, value)`.
        """
        self._state.for_each(callback)

    def for_each_and_listen(self, callback: Callable[[str, DecodedValue], object]) -> None:
        """Call a function for each key, and again for each change that comes, on the table view's thread.

        Args:
            callback: Called as `callback(key, value)`; when the key was deleted, the value is
                empty, or None with a schema.
        """
        self._state.for_each(callback, then_listen=True)

    def close(self) -> None:
        """Close the table view.

        A second call does nothing.
        """
        self._reader.close()
        self._listener.stop()

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        return f"TableView(topic={self._reader.topic()})"
