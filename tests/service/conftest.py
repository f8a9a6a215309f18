"""Fixtures of the service tests."""

from collections.abc import Iterator

import postgresql_server
import pytest


@pytest.fixture(scope="session")
def postgresql() -> Iterator[postgresql_server.PostgresqlServer]:
    """A running PostgreSQL server; the test is skipped, with the reason, where none can be had."""
    reason = postgresql_server.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    server = postgresql_server.PostgresqlServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
