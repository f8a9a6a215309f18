"""A topic takes only so many messages and bytes in a second.

Every entry passes, and is counted. As in Pulsar, the connection of an entry after which nothing more may pass is held.
The broker does not read from it until the rate allows it. What it has read before waits, too: at most one read buffer.
So the client feels it as back-pressure. Everything else that the client sends over that connection waits behind it,
PINGs included.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from ...runtime.rate_limit import RateLimit
from ..policies.rates import PublishRate


class Holder(ABC):
    """Somebody because of whom a connection is not read."""

    @abstractmethod
    def forget(self, connection: "Holdable") -> None:
        """A connection that was held is gone."""


class Holdable(Protocol):
    """A connection, which is not read while somebody holds it."""

    closed: bool

    def hold(self, holder: Holder) -> None: ...
    def release(self, holder: Holder) -> None: ...


class PublishThrottle(Holder):
    """The rate of one topic. See the module."""

    def __init__(self, rate: PublishRate) -> None:
        self.rate = rate
        self._loop = asyncio.get_running_loop()
        self._limit = RateLimit(rate.messages, rate.size_bytes, 1.0, self._loop.time())
        self._held: dict[Holdable, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def holds(self) -> int:
        """How many connections are held."""
        return len(self._held)

    def took(self, connection: Holdable, messages: int, size_bytes: int) -> None:
        """An entry came over this connection."""
        self._limit.take(messages, size_bytes)
        wait_s = self._limit.wait_s(self._loop.time())
        if wait_s > 0:
            if connection not in self._held and not connection.closed:
                self._held[connection] = None
                connection.hold(self)
            if self._timer is None:
                self._timer = self._loop.call_later(wait_s, self._look_again)

    def forget(self, connection: Holdable) -> None:
        """A connection that was held is gone."""
        self._held.pop(connection, None)

    def end(self) -> None:
        """Nothing is owed any longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release()

    def _look_again(self) -> None:
        self._timer = None
        wait_s = self._limit.wait_s(self._loop.time())
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._look_again)
        else:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, {}
        for connection in held:
            connection.release(self)
