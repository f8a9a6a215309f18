"""Who of the handlers of a replica may run: many at once, or one alone. Each waits for those that came before it."""

import asyncio
from collections import deque


class HandlerGate:
    """For one loop."""

    def __init__(self) -> None:
        self._inside = 0
        self._one_is_alone = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()
        """Whether it goes in alone, and what it waits for."""

    async def enter(self, *, alone: bool) -> bool:
        """Go in as soon as it is possible. Who went in calls `leave`. Whether it had to wait."""
        if not self._waiting and self._has_room(alone):
            self._let_in(alone)
            return False
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((alone, waiting))
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.cancelled():
                self._waiting.remove((alone, waiting))
                self._open()
            else:  # it was let in at the same moment
                self.leave()
            raise
        return True

    def leave(self) -> None:
        """Go out, and let in who may go in now."""
        self._inside -= 1
        self._one_is_alone = False
        self._open()

    def _has_room(self, alone: bool) -> bool:
        return not self._one_is_alone and not (alone and self._inside)

    def _let_in(self, alone: bool) -> None:
        self._inside += 1
        self._one_is_alone = alone

    def _open(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            alone, waiting = self._waiting.popleft()
            self._let_in(alone)
            waiting.set_result(None)
