"""Delays between tries, and the three loops that repeat an attempt."""

import asyncio
import logging

import pytest

from magnetar.protocol.errors import MetadataUnavailable, NoSuchKey
from magnetar.runtime import retry
from magnetar.runtime.backoff import Backoff, LimitedBackoff
from magnetar.runtime.environment import SeededChance


class Attempts:
    """An attempt that raises these errors, one after the other, and then returns its number."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.made = 0

    async def __call__(self) -> int:
        self.made += 1
        if self._errors:
            raise self._errors.pop(0)
        return self.made


class Retries:
    """What `on_retry` was told."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.delays_s: list[float] = []

    def __call__(self, error: Exception, delay_s: float) -> None:
        self.errors.append(error)
        self.delays_s.append(delay_s)


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    """The delays that were slept, without the time."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


def backoff() -> Backoff:
    return Backoff(SeededChance(1), 0.1, 1.0)


def unavailable(error: Exception) -> bool:
    return isinstance(error, MetadataUnavailable)


def test_backoff_doubles_to_its_maximum_and_begins_again_after_a_reset():
    delays = backoff()
    for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0):
        assert 0.8 * expected <= delays.next_delay_s() <= expected
    delays.reset()
    assert delays.next_delay_s() <= 0.1


def test_limited_backoff_sums_up_to_its_limit_and_then_answers_none():
    delays = LimitedBackoff(SeededChance(1), 0.1, 1.0, limit_s=5.0)
    found = []
    while (delay_s := delays.next_delay_s()) is not None:
        found.append(delay_s)
    assert 0.08 <= found[0] <= 0.1 and max(found) <= 1.0 and sum(found) == pytest.approx(5.0)
    delays.reset()
    again = delays.next_delay_s()
    assert again is not None and again <= 0.1


@pytest.mark.parametrize(("initial_s", "maximum_s"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0)])
def test_backoff_refuses_delays_that_make_no_sense(initial_s, maximum_s):
    with pytest.raises(ValueError, match="back-off needs"):
        Backoff(SeededChance(1), initial_s, maximum_s)


async def test_forever_repeats_until_the_attempt_returns(slept):
    errors = [MetadataUnavailable(str(number)) for number in range(20)]
    attempts, retries = Attempts(*errors), Retries()
    result = await retry.forever(backoff(), attempts, retriable=unavailable, on_retry=retries)
    assert result == 21 and retries.errors == errors
    assert slept == retries.delays_s and slept[0] <= 0.1 and max(slept) <= 1.0


async def test_forever_raises_another_error_at_once(slept):
    attempts, retries = Attempts(MetadataUnavailable("away"), NoSuchKey("gone")), Retries()
    with pytest.raises(NoSuchKey):
        await retry.forever(backoff(), attempts, retriable=unavailable, on_retry=retries)
    assert attempts.made == 2 and len(slept) == 1 and len(retries.errors) == 1


async def test_forever_ends_with_what_on_retry_raises(slept):
    def give_up(error: Exception, delay_s: float) -> None:
        raise NoSuchKey("given up") from error

    with pytest.raises(NoSuchKey):
        await retry.forever(
            backoff(), Attempts(MetadataUnavailable("away")), retriable=retry.every_error, on_retry=give_up
        )
    assert slept == []


@pytest.mark.parametrize("during", ["attempt", "delay"])
async def test_forever_ends_when_it_is_cancelled_in_an_attempt_or_a_delay(during):
    reached = asyncio.Event()
    made = 0

    async def attempt() -> None:
        nonlocal made
        made += 1
        if during == "attempt":
            reached.set()
            await asyncio.Event().wait()
        raise MetadataUnavailable("away")

    task = asyncio.create_task(
        retry.forever(
            Backoff(SeededChance(1), 60.0, 60.0),
            attempt,
            retriable=retry.every_error,
            on_retry=lambda error, delay_s: reached.set(),
        )
    )
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made == 1


async def test_on_retry_runs_within_the_except_block_so_that_it_can_log(slept, caplog):
    await retry.forever(
        backoff(),
        Attempts(MetadataUnavailable("the disk is away")),
        retriable=retry.every_error,
        on_retry=lambda error, delay_s: logging.getLogger("test").exception("tried again"),
    )
    assert "the disk is away" in caplog.text


async def test_limited_raises_the_last_error_when_its_time_is_used_up(slept):
    errors = [MetadataUnavailable(str(number)) for number in range(50)]
    attempts = Attempts(*errors)
    with pytest.raises(MetadataUnavailable) as raised:
        await retry.limited(
            LimitedBackoff(SeededChance(1), 0.1, 1.0, 3.0), attempts, retriable=unavailable, on_retry=retry.silently
        )
    assert raised.value is errors[attempts.made - 1] and sum(slept) == pytest.approx(3.0)


async def test_limited_returns_the_result_and_raises_other_errors(slept):
    limit = LimitedBackoff(SeededChance(1), 0.1, 1.0, 3.0)
    attempts = Attempts(MetadataUnavailable("away"), MetadataUnavailable("away"))
    assert await retry.limited(limit, attempts, retriable=unavailable, on_retry=retry.silently) == 3
    with pytest.raises(NoSuchKey):
        await retry.limited(limit, Attempts(NoSuchKey("gone")), retriable=unavailable, on_retry=retry.silently)
