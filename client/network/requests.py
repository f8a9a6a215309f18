"""The requests under way on one connection, by request id: each gets one answer, or one error.

A request has time-outs. One of a producer that waits for access loses them when the broker says so. What any other
broker could answer, too, fails early when this one is silent.
"""

import asyncio

from google.protobuf.message import Message as WireMessage

from ...protocol.errors import MagnetarError

Answering = asyncio.Future[WireMessage]


class PendingRequests:
    """See the module."""

    def __init__(self) -> None:
        self._futures: dict[int, Answering] = {}
        self._limits: dict[int, tuple[asyncio.Timeout, ...]] = {}
        self._anywhere: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def begin(self, request_id: int, answer: Answering, *, anywhere: bool) -> None:
        """A request is about to be sent. `anywhere`: another broker could answer it as well."""
        self._futures[request_id] = answer
        if anywhere:
            self._anywhere[request_id] = None

    def limit(self, request_id: int, limits: tuple[asyncio.Timeout, ...]) -> None:
        """The time-outs that a request has."""
        self._limits[request_id] = limits

    def end(self, request_id: int) -> None:
        """Nobody waits for the answer any longer."""
        self._futures.pop(request_id, None)
        self._limits.pop(request_id, None)
        self._anywhere.pop(request_id, None)

    def put_off(self, request_id: int) -> None:
        """The answer may take for ever from now on."""
        for limit in self._limits.get(request_id, ()):
            limit.reschedule(None)
        if request_id in self._limits:
            self._limits[request_id] = ()

    @property
    def due(self) -> bool:
        """Whether an answer is awaited that has a time-out."""
        return any(self._limits.values())

    def answer(self, request_id: int, answer: WireMessage) -> None:
        """What the broker answered. Nothing happens if nobody waits for it."""
        future = self._futures.get(request_id)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail(self, request_id: int, error: MagnetarError) -> None:
        """Why a request fails. Nothing happens if nobody waits for it."""
        future = self._futures.get(request_id)
        if future is not None and not future.done():
            future.set_exception(error)

    def fail_anywhere(self, error: MagnetarError) -> None:
        """What other brokers could answer fails."""
        for request_id in list(self._anywhere):
            self.fail(request_id, error)

    def fail_all(self, error: MagnetarError) -> None:
        for request_id in list(self._futures):
            self.fail(request_id, error)
