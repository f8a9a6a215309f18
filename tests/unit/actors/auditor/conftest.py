"""What tests of the auditor share."""

import pytest

from support.fakes.auditing import World


@pytest.fixture
async def world(monkeypatch):
    made = World(monkeypatch)
    yield made
    await made.auditor.close()
    await made.cluster.close()
