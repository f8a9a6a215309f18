"""Send callbacks of our own: they gather ids, and are told the error itself when a message fails."""

from collections.abc import Callable

from ...protocol.errors import MagnetarError
from ..core.message_id import MessageId
from ..core.results import Result
from .partition_producer import Failing


class SendOutcome(Failing):
    """Gathers the outcome of `expected` messages, then calls `done` (on the loop)."""

    def __init__(self, expected: int, done: Callable[[], object]) -> None:
        self.ids: list[MessageId] = []
        self.error: MagnetarError | None = None
        """The first failure."""
        self._left = expected
        self._done = done

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self.ids.append(message_id)
        self._left -= 1
        if not self._left:
            self._done()

    def fail(self, error: MagnetarError) -> None:
        if self.error is None:
            self.error = error
        self._count(1)

    def forget(self, messages: int, error: MagnetarError) -> None:
        """So many messages were never accepted, because of `error`."""
        if self.error is None:
            self.error = error
        self._count(messages)

    def _count(self, messages: int) -> None:
        self._left -= messages
        if not self._left:
            self._done()
