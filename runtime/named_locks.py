"""Locks by name: callers that name the same thing take turns, others do not wait for each other.

A lock is there as long as a caller holds it or waits for it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class NamedLocks:
    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """With the number of callers that hold the lock or wait for it."""

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncGenerator[None]:
        """Wait for the turn, and have it until the end of the block."""
        lock, callers = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = (lock, callers + 1)
        try:
            async with lock:
                yield
        finally:
            lock, callers = self._locks[name]
            if callers == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, callers - 1)

    def __len__(self) -> int:
        return len(self._locks)
