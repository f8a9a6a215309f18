"""Fuzzing: gives every target its share of the time, one after the other on one core, and says what each took.

    make fuzz MINUTES=10
    .venv/bin/python -P tests/fuzz/run.py --minutes 1 --target storage --engine hypothesis
    .venv/bin/python -P tests/fuzz/run.py --target storage --replay build/fuzz/found/storage-0123456789ab

Each target runs in a process of its own, so that one that dies takes nothing with it; its last input is then in its
status file. Inputs that reach new code are kept under build/fuzz/corpus (atheris). atheris is no dependency: where it
is missing, the runner tries to fetch the pinned wheel into build/fuzz/site, and goes on with Hypothesis if there is
none for this machine. Exit code 0: nothing was found.
"""

import argparse
import importlib
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_WORK = _ROOT / "build" / "fuzz"
_SITE = _WORK / "site"
_ATHERIS = "atheris==3.0.0"
_START_S, _SHRINK_S = 60.0, 120.0
_STUCK = -1000
if __name__ == "__main__":
    sys.path[:0] = [str(_HERE.parent)]


def main() -> int:
    arguments = _parse()
    if arguments.replay is not None:
        return _replay(arguments)
    if arguments.child:
        _run_child(arguments)
        return 0
    targets = importlib.import_module(arguments.targets).TARGETS
    names = arguments.target or list(targets)
    unknown = [name for name in names if name not in targets]
    if unknown:
        sys.exit(f"no target {', '.join(unknown)}; there are {', '.join(targets)}")
    engine = _choose_engine(arguments.engine)
    seed = arguments.seed if arguments.seed is not None else SystemRandom().randrange(1 << 31)
    share_s = arguments.minutes * 60 / sum(targets[name].share for name in names)
    print(f"{len(names)} targets, {arguments.minutes * 60:.1f} s, engine {engine}, seed {seed}", flush=True)
    rows = [_run_target(arguments, name, engine, share_s * targets[name].share, seed) for name in names]
    print(f"\n{'target':14}{'inputs':>10}{'a second':>10}{'memory MiB':>12}{'growth':>8}  outcome")
    for row in rows:
        print(f"{row.name:14}{row.inputs:>10,}{row.rate:>10,.0f}{row.mib:>12,.0f}{row.grown_mib:>8,.0f}  {row.outcome}")
    print(f"{'together':14}{sum(row.inputs for row in rows):>10,}")
    return 0 if all(row.outcome == "ok" for row in rows) else 1


class Row(NamedTuple):
    """What became of one target."""

    name: str
    inputs: int
    rate: float
    mib: float
    grown_mib: float
    outcome: str


def _parse() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--engine", choices=["auto", "atheris", "hypothesis"], default="auto")
    parser.add_argument("--seed", type=int, help="of the first input; random if not given")
    parser.add_argument("--replay", metavar="FILE", type=Path, help="take the input in this file once")
    parser.add_argument("--targets", default="fuzz.targets", metavar="MODULE", help=argparse.SUPPRESS)
    parser.add_argument("--hang-seconds", type=float, default=10.0, help="for one input")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _replay(arguments: Any) -> int:
    from fuzz import engine as fuzz_engine

    if not arguments.target or len(arguments.target) != 1:
        sys.exit("--replay needs exactly one --target")
    fuzz_engine.replay(_load(arguments.targets, arguments.target[0]), arguments.replay.read_bytes())
    print("nothing is wrong with it")
    return 0


def _choose_engine(wanted: str) -> str:
    from fuzz import engine as fuzz_engine

    if wanted == "hypothesis":
        return wanted
    if fuzz_engine.engine_available(_SITE) is None:
        fetch = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        fetch += ["--only-binary=:all:", "--target", str(_SITE), _ATHERIS]
        try:
            subprocess.run(fetch, check=True, timeout=180, capture_output=True)
        except (OSError, subprocess.SubprocessError):
            pass
        importlib.invalidate_caches()
    if fuzz_engine.engine_available(_SITE) is not None:
        return "atheris"
    if wanted == "atheris":
        sys.exit(f"{_ATHERIS} cannot be installed here")
    return "hypothesis"


def _run_target(arguments: Any, name: str, engine: str, seconds: float, seed: int) -> Row:
    """One target in a process of its own."""
    from fuzz import engine as fuzz_engine

    status, log = _WORK / f"{name}.status", _WORK / f"{name}.log"
    status.unlink(missing_ok=True)
    command = [sys.executable, "-P", __file__, "--child", "--target", name, "--engine", engine]
    command += ["--minutes", str(seconds / 60), "--seed", str(seed), "--targets", arguments.targets]
    command += ["--hang-seconds", str(arguments.hang_seconds)]
    started = time.monotonic()
    outcome = "ok"
    _WORK.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stderr=errors)
        code = _wait(process, status, seconds, fuzz_engine.STUCK_S * arguments.hang_seconds / fuzz_engine.HANG_S)
    count, first, last, data = fuzz_engine.read_status(status)
    if code == fuzz_engine.FOUND:
        outcome = "FOUND"
    elif code:
        outcome = "DIED"
        why = "hung and was killed" if code == _STUCK else f"ended with code {code}"
        text = f"the process {why}; the end of {log}:\n{log.read_text('utf-8', 'replace')[-3000:]}"
        print(fuzz_engine.describe(name, data, count, text), flush=True)
    elif not count:
        outcome = "NO INPUTS"
    taken = max(time.monotonic() - started, 0.001)
    print(f"  {name}: {count:,} inputs, {outcome}", flush=True)
    return Row(name, count, count / taken, last / (1 << 20), (last - first) / (1 << 20), outcome)


def _wait(process: "subprocess.Popen[bytes]", status: Path, seconds: float, stuck_s: float) -> int:
    """The process's exit code; it is killed, and the code _STUCK, when it stands still at one input."""
    from fuzz import engine as fuzz_engine

    count, since = -1, time.monotonic()
    ends = since + seconds
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            pass
        now, found = time.monotonic(), fuzz_engine.read_status(status)[0]
        if found != count:
            count, since = found, now
        # Before the first input it imports; at the end of its time it may be shrinking what it found.
        if now - since > stuck_s + (_START_S if count <= 0 else 0) or now > ends + _START_S + _SHRINK_S:
            process.kill()
            process.wait()
            return _STUCK


def _run_child(arguments: Any) -> None:
    from fuzz import engine as fuzz_engine

    name, seconds = arguments.target[0], arguments.minutes * 60
    status = _WORK / f"{name}.status"
    fuzz_engine.limit_memory()
    if arguments.engine == "atheris":
        fuzz_engine.engine_available(_SITE)
        load = partial(_load, arguments.targets, name)
        fuzz_engine.run_atheris(load, seconds, arguments.seed, status, arguments.hang_seconds)
    target = _load(arguments.targets, name)
    status_file = fuzz_engine.StatusFile(status)
    fuzz_engine.run_hypothesis(target, seconds, arguments.seed, status_file, arguments.hang_seconds)


def _load(module: str, name: str) -> Any:
    return importlib.import_module(module).TARGETS[name]


if __name__ == "__main__":
    sys.exit(main())
