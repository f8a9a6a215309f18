"""Bugs of a client whose broker falls silent."""

from contextlib import ExitStack
from typing import Any

from magnetar.client.core.connection import ClientConnection
from magnetar.client.core.liveness import Liveness
from magnetar.client.core.lookup import Lookup

from .mutant import Mutant, replace


def _wait_for_the_keep_alive(stack: ExitStack) -> None:
    replace(stack, Liveness, "_awaited", lambda self: (False, False))


def _leave_without_asking(stack: ExitStack) -> None:
    async def elsewhere(self: Lookup, *unused: Any) -> str:
        return "somebody else may have it"

    replace(stack, Lookup, "elsewhere", elsewhere)


def _order_by_the_clock(stack: ExitStack) -> None:
    """What came in the millisecond of the PING came before it: of two chunks, the later one counts."""
    receive = ClientConnection.data_received

    def received(self: ClientConnection, data: bytes) -> None:
        chunks = self.chunks
        receive(self, data)
        if self.heard_at <= self.liveness._asked_at:
            self.chunks = chunks

    replace(stack, ClientConnection, "data_received", received)


SILENCE = (
    Mutant(
        "same time",
        "a client takes a PONG in the millisecond of its PING for none",
        "I19",
        _order_by_the_clock,
        "holding",
    ),
    Mutant(
        "patient client",
        "a client waits for the keep-alive rule on a silent broker",
        "I8",
        _wait_for_the_keep_alive,
        "cut off",
    ),
    Mutant(
        "impatient client",
        "a client leaves a silent broker that still owns its topic",
        "I8",
        _leave_without_asking,
        "cut off",
    ),
)
