"""A host that is made of Linux namespaces: a network, a process table, a name and mounts of its own.

The namespaces belong to the host's first process, which waits for the end of its standard input. The kernel
kills every process of the host when that one ends. It ends with the program that made the host, however that ends,
because the program holds the other end of the pipe. So nothing is left behind, and nothing has to be swept up.

Each host sees a directory of its own at a path that all hosts share (`Place`), as machines do.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS = ("ip", "unshare", "nsenter", "mount", "hostname")
END_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 120.0
WAIT_FOR_END = (
    "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    "os.read(0, 1)"
)
"""What the first process of a host runs. The kernel reaps processes that have lost their parent, as it ignores SIGCHLD:
Ray's workers take a raylet that is a zombie for alive.
"""
CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000

_libc = ctypes.CDLL(None, use_errno=True)


def reason_to_skip() -> str | None:
    """Why hosts cannot be made here, or None."""
    if not os.path.exists("/proc/self/ns/net"):
        return "hosts with addresses of their own need Linux"
    if os.geteuid() != 0:
        return "hosts with addresses of their own need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts with addresses of their own need these commands: {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "ip", "rule"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode:
        return f"the kernel refuses network namespaces: {tried.stderr.strip()}"
    return None


@dataclass(frozen=True)
class Place:
    """`outside` is a host's own directory as the test sees it; on the host it lies at `inside`."""

    outside: Path
    inside: Path


class Namespaces:
    """A host. It runs from its making until `end`."""

    def __init__(self, name: str, place: Place | None = None) -> None:
        self.name = name
        script = ['hostname "$1"']
        if place is not None:
            place.outside.mkdir(parents=True, exist_ok=True)
            place.inside.mkdir(parents=True, exist_ok=True)
            script.append('mount --bind "$2" "$3"')
        # Python goes on reading after any signal. A shell's `read` ended when a raylet below it was aborted.
        script += ["ip link set lo up", "echo ready", f'exec {sys.executable} -I -S -c "{WAIT_FOR_END}"']
        paths = [str(place.outside), str(place.inside)] if place is not None else []
        self._unshare = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc",
             "sh", "-ec", "; ".join(script), "sh", name, *paths],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != "ready\n":
            _, errors = self._unshare.communicate()
            raise RuntimeError(f"the host {name} did not start: {errors}")
        self.process_id = self._first_process()

    def _first_process(self) -> int:
        parent = self._unshare.pid
        (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return int(child)

    def end(self) -> None:
        """Kill every process of the host and wait for it."""
        if self._unshare.poll() is None:
            os.kill(self.process_id, signal.SIGKILL)
        self._unshare.communicate(timeout=END_TIMEOUT_S)

    def command(self, arguments: Sequence[str], *, network_only: bool = False) -> list[str]:
        """A command line that runs `arguments` on the host, or only on its network."""
        kinds = ["--net"] if network_only else ["--net", "--mount", "--pid", "--uts"]
        return ["nsenter", f"--target={self.process_id}", *kinds, "--", *arguments]

    def run(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        given: str | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
        network_only: bool = False,
        may_fail: bool = False,
    ) -> str:
        """Run a command on the host; returns what it prints. Raises RuntimeError with both outputs if it fails."""
        done = subprocess.run(
            self.command(arguments, network_only=network_only),
            env={**os.environ, **(environment or {})},
            input=given if given is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode and not may_fail:
            raise RuntimeError(f"{arguments} failed on {self.name} ({done.returncode}): {done.stderr}{done.stdout}")
        return done.stdout

    def popen(
        self, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[Any]":
        """Start a command on the host. The process is that of `nsenter`; the command's own ends with the host."""
        return subprocess.Popen(self.command(arguments), env={**os.environ, **(environment or {})}, **options)

    @contextmanager
    def network(self) -> Iterator[None]:
        """Let this thread, and the threads that it starts meanwhile, use the host's network: their new sockets are the
        host's. So a test talks to the host's network with clients that live in the test's own process.
        """
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            self.enter(mounts=False)
            try:
                yield
            finally:
                _set_namespace(before, CLONE_NEWNET)
        finally:
            os.close(before)

    def enter(self, *, mounts: bool) -> None:
        """Let this thread use the host's network for good, and its mounts. The latter takes a process of one thread."""
        wanted = [("net", CLONE_NEWNET), *([("mnt", CLONE_NEWNS)] if mounts else [])]
        opened = [(os.open(f"/proc/{self.process_id}/ns/{kind}", os.O_RDONLY), flag) for kind, flag in wanted]
        for descriptor, flag in opened:
            try:
                _set_namespace(descriptor, flag)
            finally:
                os.close(descriptor)

    def signal_process(self, process_id: int, number: signal.Signals) -> None:
        """Send a signal to a process by the id that it has on the host."""
        self.run("kill", f"-{number.value}", str(process_id))


def _set_namespace(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
