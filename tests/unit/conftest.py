"""Fixtures of the unit tests."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.fakes.bookies import FakeCluster
from support.files.faulty_files import FaultyFiles


@pytest.fixture
def files() -> FaultyFiles:
    """An empty file system in memory."""
    return FaultyFiles()


def cluster_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the test, or its file, says with the mark `cluster_settings`."""
    mark = request.node.get_closest_marker("cluster_settings")
    return mark.kwargs if mark is not None else {}


@pytest.fixture
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[FakeCluster]:
    """Three scripted bookies in memory."""
    made = FakeCluster(3, **cluster_settings(request))
    yield made
    await made.close()


@pytest.fixture
async def five(request: pytest.FixtureRequest) -> AsyncIterator[FakeCluster]:
    """Five scripted bookies in memory."""
    made = FakeCluster(5, **cluster_settings(request))
    yield made
    await made.close()
