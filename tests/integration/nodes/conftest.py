"""Ray nodes with addresses of their own, in network namespaces of this machine."""

from collections.abc import Iterator

import pytest

from support.nodes.namespaces import reason_to_skip
from support.nodes.ray_hosts import RayHosts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the four nodes come last: those before them end their own."""
    items.sort(key=lambda item: "hosts" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def shared_hosts() -> Iterator[RayHosts]:
    """Four Ray nodes with addresses of their own."""
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with RayHosts() as found:
        yield found


@pytest.fixture
def hosts(shared_hosts: RayHosts) -> Iterator[RayHosts]:
    """The same four for all tests, without a cluster. What a test does to their network, and to them, is undone."""
    yield shared_hosts
    shared_hosts.repair()
