"""Fixtures of tests of every kind."""

import re
from collections.abc import Iterator

import pytest

from magnetar.runtime.environment import Environment


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
