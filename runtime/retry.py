"""Try again until it works: without an end, or for a limited time.

Rules of both:
- an attempt that returns ends the loop, and its result is returned;
- an error that is not `retriable` leaves at once, without a delay; so does a cancellation, in an attempt or a delay;
- `on_retry` is called with the error and the delay before each delay, within the `except` block: it may log the
  traceback. What it raises ends the loop;
- an attempt that is not wanted any more returns, for instance None;
- the caller makes the back-off, and resets it when an attempt has done some good before it failed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..protocol.errors import MagnetarError
from .backoff import Backoff, LimitedBackoff

T = TypeVar("T")

Retriable = Callable[[Exception], bool]
OnRetry = Callable[[Exception, float], None]


async def forever(
    backoff: Backoff, attempt: Callable[[], Awaitable[T]], *, retriable: Retriable, on_retry: OnRetry
) -> T:
    """The result of `attempt`, however often it has to be repeated. Raises what is not `retriable`."""
    return await _until_it_works(backoff, attempt, retriable, on_retry)


async def limited(
    backoff: LimitedBackoff, attempt: Callable[[], Awaitable[T]], *, retriable: Retriable, on_retry: OnRetry
) -> T:
    """The result of `attempt`, repeated until the limit of the back-off is used up.

    Raises what is not `retriable`, and the last error when the limit is used up.
    """
    return await _until_it_works(backoff, attempt, retriable, on_retry)


async def _until_it_works(
    backoff: Backoff | LimitedBackoff, attempt: Callable[[], Awaitable[T]], retriable: Retriable, on_retry: OnRetry
) -> T:
    while True:
        try:
            return await attempt()
        except Exception as error:
            if not retriable(error):
                raise
            delay_s = backoff.next_delay_s()
            if delay_s is None:
                raise
            on_retry(error, delay_s)
        await asyncio.sleep(delay_s)


def every_error(error: Exception) -> bool:
    """For `retriable`: whatever went wrong."""
    return True


def our_error(error: Exception) -> bool:
    """For `retriable`: what Magnetar raises on purpose, but no defect."""
    return isinstance(error, MagnetarError)


def silently(error: Exception, delay_s: float) -> None:
    """For `on_retry`: a caller waits for the result and sees the last error itself, so nothing is logged."""
