"""Off-loading, files, back-off and tasks: order, errors, bounds."""

import asyncio
import os
import threading

import pytest

from magnetar.protocol.errors import DirectoryLocked
from magnetar.runtime.environment import Environment
from magnetar.runtime.files import RealFiles
from magnetar.runtime.tasks import Tasks


async def test_a_lane_keeps_order_on_one_thread_and_hands_errors_over():
    env = Environment.real()
    lane = env.offload.lane("test")
    seen = []
    results = await asyncio.gather(
        *(lane.run(lambda n=n: (seen.append(n), threading.get_ident())[1]) for n in range(200))
    )
    assert seen == list(range(200)) and len(set(results)) == 1 and results[0] != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)
    assert await env.offload.run(sum, [1, 2]) == 3
    env.close()
    with pytest.raises(RuntimeError):
        lane.submit(print, (), lambda result, error: None)


async def test_a_cancelled_wait_leaves_the_lane_usable():
    env = Environment.real()
    lane = env.offload.lane("test")
    gate = threading.Event()
    waiting = asyncio.ensure_future(lane.run(gate.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    gate.set()
    assert await lane.run(lambda: "on") == "on"
    env.close()


def test_files_write_many_parts_and_read_short_at_the_end(tmp_path):
    files = RealFiles()
    file = files.open(str(tmp_path / "f"), create=True, preallocate=4096)
    parts = [bytes([n % 256]) * (n % 7) for n in range(3000)]  # more pieces than one system call takes, some empty
    file.write_at(10, parts)
    file.sync()
    whole = b"".join(parts)
    assert file.read_at(10, len(whole)) == whole
    file.truncate(10 + len(whole))
    assert file.read_at(10, len(whole) + 100) == whole and file.read_at(1 << 20, 5) == b""
    file.close()
    file.close()


def test_atomic_replacement_and_listing(tmp_path):
    files = RealFiles()
    files.make_directory(str(tmp_path / "a" / "b"))
    files.write_atomic(str(tmp_path / "a" / "z"), b"one")
    files.write_atomic(str(tmp_path / "a" / "z"), b"two")
    assert files.read_bytes(str(tmp_path / "a" / "z")) == b"two"
    assert files.list(str(tmp_path / "a")) == ["b", "z"]
    usage = files.disk_usage(str(tmp_path))
    assert 0 < usage.used_fraction < 1 and usage.total_bytes > usage.free_bytes > 0


def test_a_lock_is_held_until_released(tmp_path):
    files = RealFiles()
    lock = files.lock(str(tmp_path / "lock"))
    with pytest.raises(DirectoryLocked, match="another running process"):
        files.lock(str(tmp_path / "lock"))
    lock.release()
    lock.release()
    files.lock(str(tmp_path / "lock")).release()


def test_a_lock_ends_with_its_process(tmp_path):
    path = str(tmp_path / "lock")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        RealFiles().lock(path)
        os.write(writer, b"x")
        os.kill(os.getpid(), 9)
    os.read(reader, 1)
    os.waitpid(child, 0)
    RealFiles().lock(path).release()
    os.close(reader)
    os.close(writer)


async def test_tasks_report_failures_and_end_together():
    errors = []
    tasks = Tasks(errors.append)
    blocked = asyncio.Event()

    async def fail():
        raise KeyError("x")

    failed = tasks.spawn(fail(), "fail")
    waiting = tasks.spawn(blocked.wait(), "wait")
    await asyncio.wait([failed])
    await asyncio.sleep(0)
    assert len(tasks) == 1 and isinstance(errors[0], KeyError)
    await tasks.close()
    assert waiting.cancelled() and len(tasks) == 0
    with pytest.raises(RuntimeError):
        tasks.spawn(blocked.wait(), "late")
