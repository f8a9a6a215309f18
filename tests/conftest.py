"""Fixtures of tests of every kind."""

import logging
import re
from collections.abc import Iterator

import hypothesis
import pytest

from magnetar.runtime.environment import Environment

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


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
