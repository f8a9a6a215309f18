"""How many workers of `consume` a backlog needs."""

import pytest

from magnetar.protocol.errors import InvalidConfiguration
from magnetar.tasks.pool_sizing import SHRINK_LOOKS, WORK_OFF_S, PoolBounds, PoolSizing, wanted_workers


@pytest.mark.parametrize(
    ("backlog", "workers", "entry_s", "wanted"),
    [
        (0, 0, None, 0),  # nothing to do
        (0, 5, 0.01, 0),
        (1, 0, 0.001, 1),  # an entry needs a worker, however short it is
        (100, 0, 0.001, 1),
        (100, 0, None, 1),  # from nothing to one; the next look knows more
        (100, 1, None, 2),
        (100, 4, None, 8),  # at most twice as many at one look
        (3, 4, None, 3),  # never more than there are entries
        (3, 4, 60.0, 3),
        (1_000, 4, WORK_OFF_S / 250, 4),  # in time with those that are there
        (1_001, 4, WORK_OFF_S / 250, 5),
        (250, 4, WORK_OFF_S / 250, 1),
        (10**9, 9, 1.0, 10),  # the upper bound
    ],
)
def test_the_wanted_size_works_the_backlog_off_in_time(
    backlog: int, workers: int, entry_s: float | None, wanted: int
) -> None:
    assert wanted_workers(backlog, workers, PoolBounds(0, 10), entry_s) == wanted


def test_the_bounds_hold_whatever_the_backlog_is() -> None:
    for backlog in (0, 1, 7, 10_000):
        for workers in range(7):
            for entry_s in (None, 0.0, 0.01, 100.0):
                assert 2 <= wanted_workers(backlog, workers, PoolBounds(2, 6), entry_s) <= 6


def test_a_pool_shrinks_only_when_several_looks_want_less_and_grows_at_once() -> None:
    sizing = PoolSizing(PoolBounds(0, 8))
    assert sizing.look(100, 4, 0.0, 0.0) == 8
    sizes = [sizing.look(0, 8, 100.0, 100.0) for _ in range(SHRINK_LOOKS)]
    assert sizes == [8] * (SHRINK_LOOKS - 1) + [0]
    assert sizing.look(100, 4, 100.0, 100.0) == 8


def test_a_pool_does_not_shrink_before_it_has_looked_often_enough() -> None:
    sizing = PoolSizing(PoolBounds(1, 8))
    assert [sizing.look(0, 4, 0.0, 0.0) for _ in range(SHRINK_LOOKS)] == [4] * (SHRINK_LOOKS - 1) + [1]


def test_the_time_of_an_entry_is_that_of_the_last_ones_and_stays_known() -> None:
    sizing = PoolSizing(PoolBounds(0, 100))
    assert sizing.look(50, 10, 100.0, 10.0) == 20  # 10 s each
    sizes = [sizing.look(50, 20, 100.0 + 5 * WORK_OFF_S, 60.0) for _ in range(SHRINK_LOOKS)]  # then a tenth of the time
    assert sizes[-1] == 5
    assert sizing.look(50, 5, 100.0 + 5 * WORK_OFF_S, 60.0) == 5  # no call has ended since


def test_a_steady_stream_settles_at_the_workers_that_it_needs() -> None:
    sizing, workers, backlog, busy_s, entries = PoolSizing(PoolBounds(1, 20)), 1, 0.0, 0.0, 0.0
    sizes: list[int] = []
    for _ in range(60):  # 40 entries/s, each of 0.1 s, so four workers are busy
        done = min(backlog + 80, workers * 2 / 0.1)
        backlog, busy_s, entries = backlog + 80 - done, busy_s + done * 0.1, entries + done
        workers = sizing.look(round(backlog), workers, busy_s, entries)
        sizes.append(workers)
    assert all(3 <= size <= 6 for size in sizes[30:])


@pytest.mark.parametrize("concurrency", [0, -1, True, (0, 0), (2, 1), (-1, 3), (1, 2, 3), [1, 2], "4", None, (1, True)])
def test_bounds_that_make_no_sense_are_refused(concurrency: object) -> None:
    with pytest.raises(InvalidConfiguration, match="concurrency is"):
        PoolBounds.of(concurrency)


def test_a_number_fixes_the_size_and_a_pair_bounds_it() -> None:
    assert PoolBounds.of(3) == (3, 3) and PoolBounds.of(3).fixed
    assert PoolBounds.of((0, 3)) == (0, 3) and not PoolBounds.of((0, 3)).fixed
