"""A process that forks while it has clients: what the child inherits of them is of no use, and says so at once.

The threads of the parent do not exist in the child, and locks that they held are never released there. Sockets and
event loops are shared with the parent. So the child touches none of them. Whatever is watched here is told in the child
before any other code runs there: it takes new locks and fails every call with `inherited_error`. A blocking client with
a service URL starts again at its next use. Its producers, consumers and readers do not, and must be created again.

What the child inherits is kept until it ends: to release an event loop or a transport would touch what it shares.
"""

import os
import sys
from typing import Protocol
from weakref import WeakSet

from ...protocol.errors import AlreadyClosed


class Inheritable(Protocol):
    """Something that a child process may inherit."""

    def inherited(self) -> None:
        """This is the child. Must not wait for anything."""
        ...


_watched: WeakSet[Inheritable] = WeakSet()
_kept: list[Inheritable] = []
_ray_was_there: list[bool] = []


def watch(one: Inheritable) -> None:
    """Tell `one` when it finds itself in the child of a fork."""
    _watched.add(one)


def inherited_error(what: str) -> AlreadyClosed:
    """What calls of the parent's `what` raise in the child."""
    return AlreadyClosed(
        f"the {what} belongs to the parent process {os.getppid()}, from which this one was forked: "
        f"create a new {what} in this process, or use the start method 'spawn'"
    )


def ray_was_inherited() -> bool:
    """Whether Ray was connected before a fork: it does not work in the child, and waits for ever."""
    return bool(_ray_was_there)


def release_sockets(numbers: list[int]) -> None:
    """Let go of sockets that the parent uses, so that their end is seen when the parent closes them.

    The numbers stay taken, because code in this process may still close them.
    """
    if not numbers:
        return
    reading, writing = os.pipe()
    for number in numbers:
        os.dup2(reading, number, inheritable=False)
    os.close(reading)
    os.close(writing)


def _in_child() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and getattr(ray, "is_initialized", bool)():
        _ray_was_there.append(True)
    for one in list(_watched):
        _kept.append(one)
        _watched.discard(one)
        one.inherited()


os.register_at_fork(after_in_child=_in_child)
