"""`magnetar.Queue`, whose items are synced to two disks, and Ray's own queue, whose items are in one actor's memory.

One task puts and another one gets, each item by a call of its own, at the same time. The rounds of the two queues
alternate.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import ray
import ray.util.queue
from ray import cloudpickle
from rows import Report, Row

import magnetar

ITEMS = 2_000
WARM_UP = 100
ROUNDS = 5


def run(report: Report) -> None:
    """The row."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(ROUNDS):
        rates["theirs"].append(_rate(ray.util.queue.Queue))
        rates["ours"].append(_rate(magnetar.Queue))
    ratios = [ours / theirs for ours, theirs in zip(rates["ours"], rates["theirs"], strict=True)]
    note = "{:,.0f} items/s over {:,.0f} items/s".format(*(statistics.median(rates[one]) for one in ("ours", "theirs")))
    figure = round(statistics.median(ratios), 2)
    report.rows.append(Row("queue: put and get ÷ ray.util.queue", figure, "higher", 1, ratios, "", note))


def _rate(make: Callable[[], Any]) -> float:
    """Items/s from the first put to the last get."""
    one = make()
    putting: Any = ray.remote(num_cpus=0)(put)
    getting: Any = ray.remote(num_cpus=0)(get)
    try:
        ray.get([putting.remote(one, WARM_UP), getting.remote(one, WARM_UP)])
        began = time.monotonic()
        ray.get([putting.remote(one, ITEMS), getting.remote(one, ITEMS)])
        return ITEMS / (time.monotonic() - began)
    finally:
        one.shutdown()


def put(one: Any, count: int) -> None:
    for number in range(count):
        one.put(number)


def get(one: Any, count: int) -> None:
    for number in range(count):
        assert one.get() == number
