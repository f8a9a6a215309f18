"""`make fuzz` notices crashes, hangs and growth of memory: its runner on targets that do just that."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_RUN = [sys.executable, "-P", str(_ROOT / "tests" / "fuzz" / "run.py"), "--targets", "fuzz.standins", "--seed", "1"]

HANGING = ("spin", "stand_still")


def fuzz(target: str, minutes: float, *options: str) -> tuple[int, str]:
    command = [*_RUN, "--target", target, "--minutes", str(minutes), "--engine", "hypothesis", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "target, outcome, told",
    [
        ("leak", "FOUND", "memory grew from"),
        ("swallow", "FOUND", "this input alone took"),
        ("spin", "FOUND", "not done after 1 s"),
        ("stand_still", "DIED", "hung and was killed"),
        ("wait_for_nothing", "FOUND", "nothing is ready and no timer runs"),
        ("leave_a_task", "FOUND", "tasks are left behind"),
        ("die", "DIED", "ended with code -11"),
        ("leave", "DIED", "ended with code 3"),
        ("misjudge", "FOUND", "five is right out"),
        ("refuse", "FOUND", "ProtocolError came out of the target"),
    ],
)
def test_a_target_that_is_wrong_is_noticed(target: str, outcome: str, told: str) -> None:
    hang_s = "1" if target in HANGING else "60"  # a busy machine is slow at the others, too
    code, printed = fuzz(target, 0.12, "--hang-seconds", hang_s)
    assert code == 1, printed
    assert told in printed
    assert printed.split("growth")[1].split("\n")[1].split()[-1] == outcome
    assert f"--target {target} --replay" in printed


def test_an_input_that_was_found_is_shrunk_and_can_be_taken_again() -> None:
    _, printed = fuzz("misjudge", 0.5)
    path = Path(printed.split("--replay ")[1].split()[0])
    assert path.read_bytes()[:1] == b"\x05"
    again = subprocess.run([*_RUN, "--target", "misjudge", "--replay", str(path)], capture_output=True, check=False)
    assert again.returncode != 0 and b"five is right out" in again.stderr


def test_a_target_that_is_right_is_left_in_peace() -> None:
    code, printed = fuzz("behave", 0.04)
    assert code == 0, printed
    row = printed.split("growth")[1].split("\n")[1].split()
    assert row[0] == "behave" and row[-1] == "ok" and int(row[1].replace(",", "")) > 20
