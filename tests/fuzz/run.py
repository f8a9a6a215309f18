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
from pathlib import Path
from random import SystemRandom
from typing import Any

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_WORK = _ROOT / "build" / "fuzz"
_SITE = _WORK / "site"
_ATHERIS = "atheris==3.0.0"
sys.path[:0] = [str(_HERE), str(_HERE.parent / "support")]


def main() -> int:
    arguments = _parse()
    if arguments.replay is not None:
        return _replay(arguments.target, arguments.replay)
    if arguments.child:
        _run_child(arguments)
        return 0
    import fuzz_targets

    names = arguments.target or list(fuzz_targets.TARGETS)
    unknown = [name for name in names if name not in fuzz_targets.TARGETS]
    if unknown:
        sys.exit(f"no target {', '.join(unknown)}; there are {', '.join(fuzz_targets.TARGETS)}")
    engine = _choose_engine(arguments.engine)
    seed = arguments.seed if arguments.seed is not None else SystemRandom().randrange(1 << 31)
    seconds = arguments.minutes * 60 / len(names)
    print(f"{len(names)} targets, {seconds:.1f} s each, engine {engine}, seed {seed}", flush=True)
    rows = [_run_target(name, engine, seconds, seed) for name in names]
    print(f"\n{'target':14}{'inputs':>10}{'a second':>10}{'memory MiB':>12}{'growth':>8}  outcome")
    for name, count, rate, rss, growth, outcome in rows:
        print(f"{name:14}{count:>10,}{rate:>10,.0f}{rss:>12,.0f}{growth:>8,.0f}  {outcome}")
    print(f"{'together':14}{sum(row[1] for row in rows):>10,}")
    return 0 if all(row[5] == "ok" for row in rows) else 1


def _parse() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--engine", choices=["auto", "atheris", "hypothesis"], default="auto")
    parser.add_argument("--seed", type=int, help="of the first input; random if not given")
    parser.add_argument("--replay", metavar="FILE", type=Path, help="take the input in this file once")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _replay(names: list[str] | None, path: Path) -> int:
    import fuzz_engine
    import fuzz_targets

    if not names or len(names) != 1:
        sys.exit("--replay needs exactly one --target")
    fuzz_engine.replay(fuzz_targets.TARGETS[names[0]], path.read_bytes())
    print("nothing is wrong with it")
    return 0


def _choose_engine(wanted: str) -> str:
    import fuzz_engine

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


def _run_target(name: str, engine: str, seconds: float, seed: int) -> tuple[str, int, float, float, float, str]:
    """(name, inputs, inputs a second, MiB, MiB grown, outcome) of one target in a process of its own."""
    import fuzz_engine

    status = _WORK / f"{name}.status"
    status.unlink(missing_ok=True)
    command = [sys.executable, "-P", __file__, "--child", "--target", name, "--engine", engine]
    command += ["--minutes", str(seconds / 60), "--seed", str(seed)]
    started = time.monotonic()
    outcome = "ok"
    log = _WORK / f"{name}.log"
    _WORK.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        try:
            code = subprocess.run(command, stderr=errors, timeout=seconds + 120, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
    count, first, last, data = fuzz_engine.read_status(status)
    if code == fuzz_engine.FOUND:
        outcome = "FOUND"
    elif code:
        outcome = "DIED"
        text = f"the process ended with code {code}; the end of {log}:\n{log.read_text('utf-8', 'replace')[-3000:]}"
        print(fuzz_engine.describe(name, data, count, text), flush=True)
    taken = max(time.monotonic() - started, 0.001)
    print(f"  {name}: {count:,} inputs, {outcome}", flush=True)
    return name, count, count / taken, last / (1 << 20), (last - first) / (1 << 20), outcome


def _run_child(arguments: Any) -> None:
    import fuzz_engine

    name, seconds = arguments.target[0], arguments.minutes * 60
    status = _WORK / f"{name}.status"

    def load() -> Any:
        import fuzz_targets

        return fuzz_targets.TARGETS[name]

    if arguments.engine == "atheris":
        fuzz_engine.engine_available(_SITE)
        fuzz_engine.run_atheris(load, seconds, arguments.seed, status)
    fuzz_engine.run_hypothesis(load(), seconds, arguments.seed, fuzz_engine.StatusFile(status))


if __name__ == "__main__":
    sys.exit(main())
