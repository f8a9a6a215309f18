"""The asyncio face of a table view: the last value of each key of a topic."""

import asyncio
import logging
from collections.abc import Callable

from ...protocol.errors import AlreadyClosed, MagnetarError
from ..consuming.table_state import TableState
from ..core.context import Core
from ..core.threading_bridge import NoLock
from ..schemas.schema import DecodedValue
from .reader import AsyncReader

logger = logging.getLogger(__name__)


class AsyncTableView:
    """The last value of each key of a topic, kept up to date. Made by `AsyncClient.create_table_view`."""

    def __init__(self, core: Core, reader: AsyncReader) -> None:
        self._core = core
        self._reader = reader
        self._state = TableState(NoLock())
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    async def create(core: Core, reader: AsyncReader) -> "AsyncTableView":
        """Read what there is, then go on in a task.

        Args:
            core: What the client's objects share.
            reader: A reader of the topic from its beginning.

        Returns:
            The table view.
        """
        made = AsyncTableView(core, reader)
        try:
            while await reader.has_message_available():
                made._state.apply(await reader.read_next())
        except BaseException:
            await reader.close()
            raise
        made._task = core.tasks.spawn(made._follow(), f"table view of {reader.topic()}"[:200])
        return made

    async def _follow(self) -> None:
        while True:
            try:
                message = await self._reader.read_next()
            except AlreadyClosed:
                return
            except MagnetarError as error:
                logger.error("the table view of %s misses a message: %s", self._reader.topic(), error)
                if not self._reader.is_open():
                    return
                continue
            self._state.apply(message)

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
        """Call a function for each key, and again for each change that comes.

        Args:
            callback: Called as `callback(key, value)`; when the key was deleted, the value is
                empty, or None with a schema.
        """
        self._state.for_each(callback, then_listen=True)

    async def close(self) -> None:
        """Close the table view.

        A second call does nothing.
        """
        await self._reader.close()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        return f"TableView(topic={self._reader.topic()})"
