"""A throw-away PostgreSQL server from the distribution's package, on a Unix socket in a directory of its own."""

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any


def find_binaries() -> str | None:
    """The directory of `initdb` and `postgres`, the newest installed version's; None when there is none."""
    found = glob.glob("/usr/lib/postgresql/*/bin/postgres")
    if found:
        return os.path.dirname(max(found, key=lambda path: float(path.split("/")[4])))
    on_path = shutil.which("postgres")
    if on_path is not None and shutil.which("initdb") is not None:
        return os.path.dirname(on_path)
    return None


def reason_to_skip() -> str | None:
    """Why no server can be started on this machine, or None."""
    if find_binaries() is None:
        return "no PostgreSQL server is installed (Debian and Ubuntu: apt install postgresql)"
    if os.geteuid() == 0 and _unprivileged_user() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    return None


def _unprivileged_user() -> str | None:
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    return None


class PostgresqlServer:
    """`start`, then connect to `url`; `kill` is a crash, after which `start` recovers; `remove` ends all of it."""

    def __init__(self) -> None:
        binaries = find_binaries()
        assert binaries is not None
        self._binaries = binaries
        self.directory = tempfile.mkdtemp(prefix="magnetar-pg-")
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam(_unprivileged_user() or "nobody")
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._data = os.path.join(self.directory, "data")
        self._process: subprocess.Popen[Any] | None = None
        self._run("initdb", "-D", self._data, "-U", "magnetar", "-A", "trust", "-N", "--no-instructions", "-E", "UTF8")

    @property
    def url(self) -> str:
        return f"postgresql://magnetar@/postgres?host={self.directory}"

    def start(self) -> None:
        log = open(os.path.join(self.directory, "log"), "ab")
        process = self._process = subprocess.Popen(
            [
                os.path.join(self._binaries, "postgres"), "-D", self._data, "-k", self.directory,
                "-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=20",
                "-c", "autovacuum=off",
            ],
            stdout=log, stderr=log, cwd=self.directory, **self._as_user,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + 30
        while subprocess.run(
            [
                os.path.join(self._binaries, "pg_isready"),
                "-q",
                "-h",
                self.directory,
                "-d",
                "postgres",
                "-U",
                "magnetar",
            ],
            check=False,
        ).returncode:
            if time.monotonic() > deadline or process.poll() is not None:
                with open(os.path.join(self.directory, "log")) as text:
                    raise RuntimeError(f"PostgreSQL did not start: {text.read()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Crash the server: every connection ends, what was committed is there after the next start."""
        self._end(signal.SIGQUIT)  # immediate shutdown: the postmaster takes its children with it

    def empty(self, table: str) -> None:
        """Delete all rows of a table."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {table}")  # pyright: ignore[reportArgumentType, reportCallIssue]

    def remove(self) -> None:
        self._end(signal.SIGINT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [os.path.join(self._binaries, program), *arguments],
            check=True, capture_output=True, cwd=self.directory, **self._as_user,
        )  # fmt: skip
