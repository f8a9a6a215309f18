"""The interceptors of one producer, called one after the other.

What an interceptor raises is logged, and the others are called all the same. A message that an interceptor does not
return stays as it was.
"""

import logging
from collections.abc import Callable, Sequence

from ...protocol.errors import MagnetarError, UnknownError
from ..core.interceptors import ProducerInterceptor
from ..core.message_id import MessageId
from ..core.outgoing_message import OutgoingMessage
from ..core.results import Result
from .outbox import SendCallback
from .outgoing import Outgoing, checked, payload_of, seen_of
from .partition_producer import Failing

logger = logging.getLogger(__name__)


class Interception:
    """See the module. `face` is what the application has."""

    def __init__(self, face: object, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._face = face
        self._interceptors = interceptors
        self._closed = False

    def message(self, given: OutgoingMessage, sequence_id: int | None, deliver_at_ms: int | None) -> Outgoing:
        """The message as the interceptors want it. Raises InvalidMessage, after they have heard of it."""
        seen = self._before_send(given)
        try:
            fields = {**seen.fields(), "sequence_id": sequence_id, "deliver_at_ms": deliver_at_ms}
            message = checked(**{**fields, "content": payload_of(fields["content"])})  # type: ignore[arg-type]
        except MagnetarError as error:
            self.outcome(seen, None, error)
            raise
        if isinstance(message, bytes):
            message = Outgoing(message)
        message.seen = seen
        return message

    def _before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        for one in self._interceptors:
            try:
                returned: object = one.before_send(self._face, message)
            except Exception:
                logger.exception("an interceptor failed before a message was sent")
                continue
            if isinstance(returned, OutgoingMessage):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                message = returned
            else:
                logger.error("an interceptor returned no message, so it is ignored")
        return message

    def told(self, message: bytes | Outgoing, callback: SendCallback | None) -> SendCallback:
        """The callback of a message, which tells the interceptors first. They alone hear of it without a callback."""
        return InterceptedCallback(self, seen_of(message), callback)

    def outcome(self, message: OutgoingMessage, message_id: MessageId | None, error: MagnetarError | None) -> None:
        """A message is stored, or has failed."""
        self._each(lambda one: one.on_send_acknowledgement(self._face, message, message_id, error))

    def close(self) -> None:
        """The producer is closed. Interceptors hear it once."""
        if not self._closed:
            self._closed = True
            self._each(lambda one: one.close())

    def _each(self, tell: Callable[[ProducerInterceptor], None]) -> None:
        for one in self._interceptors:
            try:
                tell(one)
            except Exception:
                logger.exception("an interceptor failed")


class InterceptedCallback(Failing):
    """A send callback that tells the interceptors first."""

    def __init__(self, interception: Interception, message: OutgoingMessage, callback: SendCallback | None) -> None:
        self._interception = interception
        self._message = message
        self._callback = callback

    def __call__(self, result: Result, message_id: MessageId) -> None:
        error = None if result is Result.Ok else UnknownError(result.name)
        self._interception.outcome(self._message, message_id if error is None else None, error)
        if self._callback is not None:
            self._callback(result, message_id)

    def fail(self, error: MagnetarError) -> None:
        self._interception.outcome(self._message, None, error)
        if isinstance(self._callback, Failing):
            self._callback.fail(error)
        elif self._callback is not None:
            self._callback(Result.of(error), MessageId())
