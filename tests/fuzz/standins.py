"""Targets that are wrong, each in its own way: what the runner must notice (`tests/service/test_fuzz_harness.py`)."""

import asyncio
import itertools
import os
import signal
from random import Random

from magnetar.protocol.errors import ProtocolError

from .loop import run
from .target import Target, Wrong

_kept: list[bytes] = []
_AFTER = 30
"""Inputs that go well before one does not."""
_taken = 0


def _late() -> bool:
    global _taken
    _taken += 1
    return _taken > _AFTER


def make(random: Random) -> bytes:
    return random.randbytes(20)


def leak(data: bytes) -> None:
    _kept.append(os.urandom(1 << 20))


def swallow(data: bytes) -> None:
    if _late():
        bytearray(200 << 20)[:: 1 << 12] = b"x" * (200 << 8)


def spin(data: bytes) -> None:
    while _late():
        pass


def stand_still(data: bytes) -> None:
    """Where no Python runs, so that no signal is heard."""
    if _late():
        sum(itertools.repeat(0))


def wait_for_nothing(data: bytes) -> None:
    async def main() -> None:
        if _late():
            await asyncio.get_running_loop().create_future()

    run(main())


def leave_a_task(data: bytes) -> None:
    async def main() -> None:
        _tasks.append(asyncio.get_running_loop().create_task(asyncio.sleep(1e9)))

    run(main())


_tasks: list[asyncio.Task[None]] = []


def die(data: bytes) -> None:
    if _late():
        os.kill(os.getpid(), signal.SIGSEGV)


def leave(data: bytes) -> None:
    if _late():
        os._exit(3)


def misjudge(data: bytes) -> None:
    if data[:1] == b"\x05":
        raise Wrong("five is right out")


def refuse(data: bytes) -> None:
    raise ProtocolError("an error of ours that the target did not allow")


def behave(data: bytes) -> None:
    bytes(data)


TARGETS = {
    function.__name__: Target(function.__name__, make, function)
    for function in (
        leak,
        swallow,
        spin,
        stand_still,
        wait_for_nothing,
        leave_a_task,
        die,
        leave,
        misjudge,
        refuse,
        behave,
    )
}
