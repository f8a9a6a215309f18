"""A throw-away PostgreSQL server from the distribution's package, on a Unix socket in a directory of its own."""

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest


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
    if os.geteuid() == 0 and unprivileged_user() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    return None


def unprivileged_user() -> str | None:
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    return None


class PostgresqlServer:
    """`start`, then connect to `url`; `kill` is a crash, after which `start` recovers; `remove` ends all of it.

    `settings` are those of the server, `name=value`.
    """

    def __init__(self, *settings: str, standby_of: "PostgresqlServer | None" = None) -> None:
        binaries = find_binaries()
        assert binaries is not None
        self._binaries = binaries
        self.directory = tempfile.mkdtemp(prefix="magnetar-pg-")
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam(unprivileged_user() or "nobody")
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._data = os.path.join(self.directory, "data")
        self._process: subprocess.Popen[Any] | None = None
        self._settings = [word for setting in settings for word in ("-c", setting)]
        if standby_of is not None:
            self._copy(standby_of)
            return
        self._run("initdb", "-D", self._data, "-U", "magnetar", "-A", "trust", "-N", "--no-instructions", "-E", "UTF8")

    @property
    def url(self) -> str:
        return f"postgresql://magnetar@/postgres?host={self.directory}"

    def start(self) -> None:
        log = open(os.path.join(self.directory, "log"), "ab")
        process = self._process = subprocess.Popen(
            [
                os.path.join(self._binaries, "postgres"), "-D", self._data, "-k", self.directory,
                "-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=100",
                "-c", "autovacuum=off", *self._settings,
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

    def pause(self) -> None:
        """Stop the server's processes, as on a machine that hangs; `resume` lets them go on."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wait_for_waiting_commit(self) -> int:
        """The process id of a backend that waits for a standby, as soon as there is one."""
        import psycopg

        deadline = time.monotonic() + 20
        with psycopg.connect(self.url, autocommit=True) as connection:
            while time.monotonic() < deadline:
                row = connection.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchone()
                if row is not None:
                    return row[0]
        raise RuntimeError("no commit waits for a standby")

    def cancel_waiting_commit(self) -> None:
        """As an administrator does who is tired of waiting."""
        import psycopg

        process = self.wait_for_waiting_commit()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_cancel_backend(%s)", (process,))

    def promote(self) -> None:
        """Make a standby the primary."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 30)")

    def stop(self) -> None:
        """End the server in good order."""
        self._end(signal.SIGINT)

    def empty(self, table: str) -> None:
        """Delete all rows of a table."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {table}")  # pyright: ignore[reportArgumentType, reportCallIssue]

    def drop_table(self, table: str) -> None:
        """Remove a table, if it is there."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {table}")  # pyright: ignore[reportArgumentType, reportCallIssue]

    def remove(self) -> None:
        self._end(signal.SIGINT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _copy(self, primary: "PostgresqlServer") -> None:
        """The data of a stopped primary, and what makes it follow that one."""
        shutil.copytree(primary._data, self._data)
        with open(os.path.join(self._data, "standby.signal"), "w"):
            pass
        with open(os.path.join(self._data, "postgresql.auto.conf"), "a") as file:
            file.write(f"primary_conninfo = 'host={primary.directory} user=magnetar'\n")
        if self._as_user:
            for root, names, files in os.walk(self._data):
                for name in (*names, *files):
                    os.chown(os.path.join(root, name), self._as_user["user"], self._as_user["group"])
            os.chown(self._data, self._as_user["user"], self._as_user["group"])
        os.chmod(self._data, 0o700)

    def _signal(self, how: signal.Signals) -> None:
        assert self._process is not None
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], check=True, capture_output=True, text=True
        ).stdout
        os.kill(self._process.pid, how)
        for child in map(int, children.split()):
            with contextlib.suppress(ProcessLookupError):  # a backend that has ended since
                os.kill(child, how)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self.resume()
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [os.path.join(self._binaries, program), *arguments],
            check=True, capture_output=True, cwd=self.directory, **self._as_user,
        )  # fmt: skip


@contextlib.contextmanager
def running(*settings: str) -> Iterator[PostgresqlServer]:
    """A server that runs within the block. The test is skipped, with the reason, where none can be had."""
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    server = PostgresqlServer(*settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()
