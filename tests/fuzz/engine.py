"""Running one target: the guard around each input, and the two ways to come by inputs.

The guard notes the input in a file that outlives this process, stops one that does not end, and looks at the
process's memory. Of the engines, atheris mutates what reached new code (magnetar's modules are instrumented on
import), Hypothesis draws inputs with fresh seeds and shrinks the one that fails.
"""

import gc
import hashlib
import importlib
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import Struct
from types import FrameType
from typing import Any, NoReturn

from magnetar.protocol.errors import MagnetarError

from . import loop as fuzz_loop
from .mutation import SIZE_MAX_BYTES, mutate
from .target import Target

HANG_S = 10.0
"""An input that takes longer hangs; the slowest ones take some tens of milliseconds."""
STUCK_S = 30.0
"""The runner kills a process that has not come to the end of an input for so long: it hangs where no Python runs."""
ADDRESS_SPACE_MAX_BYTES = 16 << 30
"""An input that wants more gets a MemoryError, before the machine has none left for others."""
INPUT_MEMORY_MAX_BYTES = 96 << 20
"""One input may not make the process's peak grow by more; what targets allow an input to announce is far below."""
GROWTH_MAX_BYTES = 64 << 20
"""From the first quarter of the run to its end."""
FOUND_DIRECTORY = Path(__file__).resolve().parents[2] / "build" / "fuzz" / "found"
FOUND = 78
"""Exit code of a run that found something and has said so. (77 is libFuzzer's own, when the process dies.)"""

_STATUS = Struct("<QQQI")
_PAGE = mmap.PAGESIZE


class Hang(BaseException):
    """The input did not end in time."""


class StatusFile:
    """How far a run has come, and with which input, in a file mapped into memory: readable after any death."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w+b")
        self._file.truncate(_STATUS.size + SIZE_MAX_BYTES)
        self._map = mmap.mmap(self._file.fileno(), 0)

    def note(self, count: int, rss_first: int, rss_last: int, data: bytes) -> None:
        data = data[:SIZE_MAX_BYTES]
        _STATUS.pack_into(self._map, 0, count, rss_first, rss_last, len(data))
        self._map[_STATUS.size : _STATUS.size + len(data)] = data


def read_status(path: Path) -> tuple[int, int, int, bytes]:
    """(inputs, RSS after the first quarter, RSS now, the last input) that a run noted; sizes in bytes."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0, 0, 0, b""
    count, first, last, size = _STATUS.unpack_from(content)
    return count, first, last, content[_STATUS.size : _STATUS.size + size]


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Guard:
    """Takes inputs one after the other. See the module."""

    def __init__(self, target: Target, seconds: float, status: StatusFile, hang_s: float = HANG_S) -> None:
        self.target = target
        self.count = 0
        self.started = time.monotonic()
        self.ends = self.started + seconds
        self._measure_at = self.started + seconds / 4
        self._status = status
        self._rss_first = 0
        self._rss_last = 0
        self._hang_s = hang_s
        signal.signal(signal.SIGALRM, self._too_long)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.ends

    def take(self, data: bytes) -> None:
        """Raises what is a finding; a hang and a growth of memory end the process at once."""
        self.count += 1
        self._status.note(self.count, self._rss_first, self._rss_last, data)
        peak = _peak_bytes()
        signal.setitimer(signal.ITIMER_REAL, self._hang_s)
        try:
            self.target.take(data)
        except MagnetarError as error:
            raise AssertionError(f"{type(error).__name__} came out of the target: {error}") from error
        except Hang:
            text = f"not done after {self._hang_s:g} s\n{traceback.format_exc()}"
            report(self.target, data, self.count, text)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if _peak_bytes() - peak > INPUT_MEMORY_MAX_BYTES and self.count > 20:
            report(self.target, data, self.count, f"this input alone took {_peak_bytes() - peak >> 20} MiB of memory\n")
        self._measure()

    def _measure(self) -> None:
        now = time.monotonic()
        if now < self._measure_at:
            return
        self._measure_at = now + max(1.0, (self.ends - now) / 4)
        gc.collect()
        self._rss_last = rss_bytes()
        self._rss_first = self._rss_first or self._rss_last
        self._status.note(self.count, self._rss_first, self._rss_last, b"")
        if self._rss_last - self._rss_first > GROWTH_MAX_BYTES:
            text = f"memory grew from {self._rss_first >> 20} to {self._rss_last >> 20} MiB\n"
            report(self.target, b"", self.count, text)

    @staticmethod
    def _too_long(signum: int, frame: FrameType | None) -> NoReturn:
        raise Hang


def report(target: Target, data: bytes, count: int, text: str) -> NoReturn:
    """Say what was found, and end."""
    print(describe(target.name, data, count, text), flush=True)
    os._exit(FOUND)


def describe(name: str, data: bytes, count: int, text: str) -> str:
    """The finding as text; its input goes into a file, from which it can be replayed."""
    path = FOUND_DIRECTORY / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return (
        f"\nFOUND in target {name} with input {count}:\n{text.rstrip()}\n"
        f"the input, {len(data)} bytes: {data[:200].hex()}{'…' * (len(data) > 200)}\n"
        f"to replay it: .venv/bin/python -P tests/fuzz/run.py --target {name} --replay {path}\n"
    )


# ---- Engines ----


def run_hypothesis(target: Target, seconds: float, seed: int, status: StatusFile, hang_s: float) -> None:
    """Ends the process with FOUND at the first finding, shrunk."""
    import hypothesis
    from hypothesis import strategies as st

    guard = Guard(target, seconds, status, hang_s)
    valid = st.integers(0, (1 << 64) - 1).map(lambda number: target.make(Random(number)))
    damaged = st.builds(lambda data, number: mutate(data, Random(number)), valid, st.integers(0, (1 << 64) - 1))
    inputs = st.one_of(valid, damaged, st.binary(max_size=400))
    failed: list[bytes] = []

    def one(data: bytes) -> None:
        if guard.over and not failed:
            return
        try:
            guard.take(data)
        except Exception:
            failed[:] = [data]
            raise

    while not guard.over:
        seed += 1
        settings = hypothesis.settings(
            max_examples=500,
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        )
        try:
            hypothesis.seed(seed)(settings(hypothesis.given(inputs)(one)))()
        except Exception:
            data = failed[0] if failed else b""
            report(target, data, guard.count, traceback.format_exc())
    guard._measure()


def run_atheris(load: Callable[[], Target], seconds: float, seed: int, status_path: Path, hang_s: float) -> NoReturn:
    """`load` imports the code under test, so that it is instrumented."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["magnetar"]):
        target = load()
    corpus = status_path.parent / "corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(100):
        (corpus / f"seed-{number}").write_bytes(target.make(Random(number)))
    guard = Guard(target, seconds, StatusFile(status_path), hang_s)

    def one(data: bytes) -> None:
        try:
            guard.take(data)
        except Exception:
            report(target, data, guard.count, traceback.format_exc())

    def vary(data: bytes, size_max: int, number: int) -> bytes:
        random = Random(number)
        choice = random.random()
        if choice < 0.2:
            return target.make(random)[:size_max]
        if choice < 0.6:
            return mutate(data, random)[:size_max]
        return atheris.Mutate(data, size_max)

    arguments = [
        sys.argv[0],
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed & 0x7FFFFFFF or 1}",
        f"-max_len={SIZE_MAX_BYTES}",
        "-timeout=0",
        "-handle_alrm=0",
        "-rss_limit_mb=0",
        "-verbosity=0",
        f"-artifact_prefix={status_path.parent}/",
        str(corpus),
    ]
    atheris.Setup(arguments, one, custom_mutator=vary)
    atheris.Fuzz()
    os._exit(0)


def limit_memory() -> None:
    """For this process, from now on."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX_BYTES, most))


def replay(target: Target, data: bytes) -> None:
    """Take one input, without a guard: what is wrong comes as its traceback."""
    try:
        target.take(data)
    finally:
        fuzz_loop.close()


def engine_available(site: Path) -> Any:
    """The atheris module, None where it is not installed. `site`: where the runner may have put it."""
    if site.is_dir() and str(site) not in sys.path:
        sys.path.append(str(site))
    try:
        return importlib.import_module("atheris")
    except ImportError:
        return None
