"""Counting the Python calls of something that runs."""

import threading
from collections import Counter
from collections.abc import Callable

from magnetar.protocol import commands
from magnetar.storage.bookie import store
from support.checks.call_counts import Call, CallLog, Counted, Line, of_magnetar, part_of, place, table

TIMES = 100


def inner() -> None:
    """Calls nothing."""


def outer() -> None:
    """Calls `inner` twice."""
    inner()
    inner()


def act() -> None:
    """A message: one `outer`, two `inner`."""
    for _ in range(TIMES):
        outer()


def by_name(counted: Counted) -> Counter[str]:
    found: Counter[str] = Counter()
    for call, made in counted.calls.items():
        found[call.function.co_name] += made
    return found


def test_a_chain_of_calls_gives_their_number_with_their_callers() -> None:
    counted = CallLog().during(act)
    assert (by_name(counted)["outer"], by_name(counted)["inner"]) == (TIMES, 2 * TIMES)
    assert counted.calls[Call(inner.__code__, outer.__code__)] == 2 * TIMES
    assert inner() is None and by_name(counted)["inner"] == 2 * TIMES, "behind it nothing is counted"


def test_a_coroutine_that_goes_on_is_one_call_more() -> None:
    def steps() -> None:
        for _ in pieces():
            pass

    def pieces():
        yield 1
        yield 2

    assert by_name(CallLog().during(steps))["pieces"] == 3, "its begin, and two times it goes on"


def test_threads_that_start_while_the_log_watches_are_counted() -> None:
    log = CallLog()
    go = threading.Event()

    def working() -> None:
        go.wait()
        act()

    unwatched = threading.Thread(target=working)
    unwatched.start()
    with log.watching():
        watched = threading.Thread(target=working)
        watched.start()

    def both() -> None:
        go.set()
        watched.join()
        unwatched.join()

    assert by_name(log.during(both))["inner"] == 2 * TIMES


def test_what_runs_while_nobody_publishes_is_subtracted_in_proportion_to_the_time() -> None:
    busy = Counted(2.0, Counter({Call(inner.__code__, outer.__code__): 250, Call(outer.__code__, None): 100}))
    idle = Counted(4.0, Counter({Call(inner.__code__, act.__code__): 100}))
    lines = table(busy, idle, messages=100)
    assert [(line.place.rpartition(" ")[2], line.calls) for line in lines] == [("inner", 2.0), ("outer", 1.0)]
    assert lines[0].callers == {place(outer.__code__): 2.5} and lines[1].callers == {"C": 1.0}


def test_a_function_that_is_called_rarely_is_no_part_of_a_message() -> None:
    assert table(Counted(1.0, Counter({Call(inner.__code__, None): 4})), Counted(1.0, Counter()), 100) == []


def test_each_file_belongs_to_one_part() -> None:
    def shown(function: Callable[..., object]) -> str:
        return place(function.__code__)

    assert shown(commands.varint) == "protocol/commands.py: varint"
    assert part_of(shown(commands.varint)) == "shared"
    assert part_of(shown(store.refuse_known_ledger)) == "bookie"
    assert part_of("storage/managed/cursor.py: Cursor.acknowledge") == "broker"
    assert part_of(shown(inner)) == part_of(shown(threading.Thread.start)) == "others"
    assert of_magnetar([Line("bookie", "a", 2.5, {}), Line("others", "b", 9.0, {}), Line("rpc", "c", 1.0, {})]) == 3.5
