"""Which tasks ran in replicas that died: counted once each, and nobody is blamed who was not alone."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from magnetar.protocol.errors import ConnectError
from magnetar.runtime.environment import Environment
from magnetar.serve.deaths import ALONE_MAX, DeathCount, allowed_deaths
from magnetar.serve.known_deaths import DEATHS_MAX, DEATHS_OF_TASK_MAX, KnownDeaths

DIES = """
import sys, tempfile
from magnetar.runtime.environment import Environment
from magnetar.serve.deaths import DeathCount
tempfile.tempdir = sys.argv[1]
deaths = DeathCount(Environment.real(threads_max=1), "cluster", sys.argv[2], None)
for step in sys.argv[3:]:
    if step == "stop":
        deaths.withdraw()
    elif step.startswith("-"):
        deaths.end(step[1:])
    else:
        deaths.begin(step)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


class StoredDeaths:
    """What a status topic stores; `refuses` makes it fail that often."""

    def __init__(self) -> None:
        self.known = KnownDeaths()
        self.calls = 0
        self.refuses = 0

    async def publish_death(self, task_id: str, note: str, at: float, *, alone: bool) -> None:
        self.calls += 1
        if self.refuses:
            self.refuses -= 1
            raise ConnectError("no broker")
        self.known.enter(task_id, note, alone=alone)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return StoredDeaths()


def replica(stored: Any) -> DeathCount:
    return DeathCount(Environment.real(threads_max=1), "cluster", "queue", stored)


async def dies(directory: Path, *steps: str, queue: str = "queue") -> None:
    """A replica that begins these tasks, ends those with a minus sign, and is killed."""
    program = [sys.executable, "-P", "-c", DIES, str(directory), queue, *steps]
    ended = await asyncio.to_thread(subprocess.run, program, check=False, timeout=60)
    assert ended.returncode == -9


async def test_a_death_counts_for_each_task_and_as_alone_for_one_alone(tmp_path: Path, stored: Any) -> None:
    await dies(tmp_path, "a", "b", "c", "-c")
    await dies(tmp_path, "a")
    await dies(tmp_path, "d", "-d")
    await dies(tmp_path, "other", queue="another queue")
    deaths = replica(stored)
    deaths.begin("mine")
    await deaths.read_notes()
    found = {name: tuple(stored.known.of(name)) for name in ("a", "b", "c", "d", "mine", "other")}
    assert found == {"a": (2, 1), "b": (1, 0), "c": (0, 0), "d": (0, 0), "mine": (0, 0), "other": (0, 0)}
    calls = stored.calls
    await deaths.read_notes()
    assert stored.calls == calls
    deaths.close()


async def test_a_note_stays_until_its_deaths_are_stored(tmp_path: Path, stored: Any) -> None:
    await dies(tmp_path, "a", "b")
    deaths = replica(stored)
    await deaths.read_notes()
    assert tuple(stored.known.of("b")) == (1, 0)
    await dies(tmp_path, "a", "b")
    stored.refuses = 1
    await deaths.read_notes()
    assert tuple(stored.known.of("a")) == (1, 0)
    await deaths.read_notes()
    assert tuple(stored.known.of("a")) == (2, 0)
    deaths.close()
    assert os.listdir(tmp_path) == []


async def test_nobody_is_to_blame_for_a_replica_that_was_told_to_stop(tmp_path: Path, stored: Any) -> None:
    await dies(tmp_path, "a", "stop", "b")
    deaths = replica(stored)
    await deaths.read_notes()
    assert stored.calls == 0
    deaths.close()


def test_a_death_that_is_told_twice_counts_once_and_the_oldest_are_forgotten() -> None:
    known = KnownDeaths()
    for _ in range(2):
        known.enter("task", "note", alone=True)
    assert tuple(known.of("task")) == (1, 1)
    for number in range(2 * DEATHS_OF_TASK_MAX):
        known.enter("task", str(number), alone=number % 2 == 0)
    assert tuple(known.of("task")) == (DEATHS_OF_TASK_MAX, DEATHS_OF_TASK_MAX // 2)
    for number in range(DEATHS_MAX):
        known.enter(str(number), "note", alone=False)
    assert tuple(known.of("task")) == (0, 0) and tuple(known.of("0")) == (1, 0)


def test_as_many_deaths_are_allowed_as_retries_and_at_least_one() -> None:
    assert [allowed_deaths(one) for one in (0, 1, 3, 1_000, None)] == [1, 1, 3, ALONE_MAX, ALONE_MAX]
