"""Signs of life on a broker's connection: those of the client, and those that the broker gives while it does not read.

A client asks a broker for a sign of life with PING when it hears nothing for a second. It leaves a connection that does
not answer soon, if a new one does. A broker that pauses reading does not see the PING: a topic has taken more than its
rate allows, or the disks are slow and too many publishes wait. The client must not leave then. It would send all of
these publishes again, and would get round the rate. So the broker sends PINGs of its own as long as it does not read.
"""

import asyncio
from collections.abc import Callable

from ...protocol.commands import ping

FIRST_PING_S = 0.4
"""After reading has paused. A client that was read until then waits longer before it doubts."""
NEXT_PING_S = 1.0


class SignsOfLife:
    """See the module. `unread` says whether the connection is not read on purpose, `write` sends bytes."""

    def __init__(self, unread: Callable[[], bool], write: Callable[[bytes], None]) -> None:
        self.heard = True
        """Whether the client has sent anything since the last tick."""
        self.silent_ticks = 0
        """Ticks without a sign of life."""
        self._unread = unread
        self._write = write
        self._timer: asyncio.TimerHandle | None = None

    def paused(self) -> None:
        """The connection is not read from now on. One timer follows, however often this is called."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FIRST_PING_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._unread():
            self._write(ping())
            self._timer = asyncio.get_running_loop().call_later(NEXT_PING_S, self._look)
