"""Fixtures of tests of every kind, and what each test costs."""

import gc
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from magnetar.runtime.environment import Environment

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

COSTS = os.environ.get("TEST_COSTS", "")
"""A file that gets a line for each test: its id, seconds, CPU seconds. `tests/tools/print_costs.py` reads it."""
BEGAN_S = time.perf_counter()


def _cpu_s() -> float:
    """CPU seconds of this process, and of those that ended as its children."""
    return sum(os.times()[:4])


def _note(what: str, seconds: float, cpu_seconds: float) -> None:
    with Path(COSTS).open("a") as file:
        file.write(f"{what}\t{seconds:.3f}\t{cpu_seconds:.3f}\n")


def pytest_collection_finish() -> None:
    """Start and imports of a process belong to no test. What they left stays: no collection of garbage looks at it."""
    gc.freeze()
    if COSTS:
        _note("collection", time.perf_counter() - BEGAN_S, _cpu_s())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test costs, with its fixtures."""
    began_s, began_cpu_s = time.perf_counter(), _cpu_s()
    result = yield
    if COSTS:
        _note(item.nodeid, time.perf_counter() - began_s, _cpu_s() - began_cpu_s)
    return result


class _Stalls(logging.Handler):
    """Keeps what brokers of this process say about dispatch that did not go on by itself."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "had stalled" in record.msg:
            self.seen.append(record.getMessage())


@pytest.fixture(autouse=True)
def no_dispatch_stalls(request: pytest.FixtureRequest) -> Iterator[None]:
    """The watchdog of dispatch fires only where there is a defect, so a test in which it does has failed."""
    stalls, logger = _Stalls(), logging.getLogger("magnetar.actors.topics.pump")
    logger.addHandler(stalls)
    yield
    logger.removeHandler(stalls)
    if request.node.get_closest_marker("stalls") is None:
        assert not stalls.seen


@pytest.fixture
def env() -> Iterator[Environment]:
    """The real environment, closed afterwards."""
    made = Environment.real()
    yield made
    made.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The full name of a topic that no other test uses, in a cluster that many may share."""
    name = f"{request.node.name}-{request.module.__name__.rpartition('.')[2]}"
    return "persistent://public/default/" + re.sub(r"\W", "-", name)
