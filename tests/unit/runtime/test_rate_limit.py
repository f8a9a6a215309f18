"""Token buckets: what may pass at which time."""

import random
from math import inf

import pytest

from magnetar.runtime.rate_limit import REST_S, RateLimit, TokenBucket


def test_a_bucket_is_full_at_first_and_fills_at_its_rate() -> None:
    bucket = TokenBucket(10, 2.0, 100.0)
    assert bucket.level(100.0) == 10
    bucket.take(10)
    assert bucket.level(100.0) == 0 and bucket.level(101.0) == 5
    assert bucket.level(500.0) == 10


def test_what_passed_above_the_rate_is_owed() -> None:
    bucket = TokenBucket(10, 1.0, 0.0)
    bucket.take(30)
    assert bucket.level(1.0) == -10
    assert bucket.level(1.0 + bucket.wait_s()) == pytest.approx(1.0)


def test_a_wait_lasts_until_there_is_room_for_a_while() -> None:
    bucket = TokenBucket(100_000, 1.0, 0.0)
    bucket.take(100_000)
    bucket.level(0.0)
    assert bucket.wait_s() == pytest.approx(REST_S)


def test_a_clock_that_stands_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(10, 1.0, 5.0)
    bucket.take(10)
    assert bucket.level(5.0) == bucket.level(4.0) == 0


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_that_is_not_above_zero_is_no_limit(rate: int) -> None:
    limit = RateLimit(rate, rate, 1.0, 0.0)
    limit.take(1 << 40, 1 << 40)
    assert limit.wait_s(0.0) == 0.0 and limit.allowance(0.0) == (inf, inf)


def test_of_messages_and_bytes_the_tighter_one_decides() -> None:
    limit = RateLimit(10, 1000, 1.0, 0.0)
    limit.take(1, 3000)
    assert limit.allowance(0.0) == (9, -2000)
    assert limit.wait_s(0.0) == pytest.approx(2.01)
    limit.take(9, 0)
    assert limit.wait_s(2.5) == 0


def test_more_adds_to_the_rate() -> None:
    limit = RateLimit(10, 0, 1.0, 0.0)
    limit.take(10, 0)
    assert limit.allowance(1.0, (90.0, 0.0)) == (100, inf)


@pytest.mark.parametrize("seed", range(20))
def test_over_time_no_more_passes_than_the_rate_and_one_period(seed: int) -> None:
    chance = random.Random(seed)
    rate, now, passed = chance.choice((3, 50, 7000)), 0.0, 0
    limit = RateLimit(rate, 0, 1.0, now)
    largest = 1
    while now < 60:
        wait_s = limit.wait_s(now)
        if wait_s > 0:
            now += wait_s
            continue
        count = chance.randint(1, rate)
        largest = max(largest, count)
        limit.take(count, 0)
        passed += count
        now += chance.random() / 100
    assert 0.9 * rate * now <= passed <= rate * (now + 1) + largest
