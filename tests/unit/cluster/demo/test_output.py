"""The demo's picture and its quiet terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.cluster.demo.flights import FLIGHTS, flights
from magnetar.cluster.demo.picture import Drawn, Published, draw, rates, text
from magnetar.cluster.demo.program import main
from magnetar.cluster.demo.quiet import quiet

STEADY = [Published(number * 0.1, number * 100) for number in range(1, 21)]
DELAYS = [("AA", 8.6), ("F9", 20.2), ("HA", -4.9)]


def test_a_steady_stream_has_the_same_rate_in_every_bin() -> None:
    assert rates(STEADY, 0.5)[:4] == pytest.approx([1000.0] * 4)


def test_rates_add_up_to_the_messages_whatever_the_samples() -> None:
    samples = [Published(0.3, 10), Published(0.3, 10), Published(1.75, 40), Published(1.9, 400)]
    assert sum(rates(samples, 0.25)) * 0.25 == pytest.approx(400)
    assert rates([]) == []


def test_a_pause_is_a_gap_in_the_rate() -> None:
    samples = [Published(1.0, 100), Published(2.0, 100), Published(3.0, 200)]
    assert rates(samples, 1.0)[:3] == pytest.approx([100.0, 0.0, 100.0])


def test_the_text_names_the_kill_and_every_carrier() -> None:
    lines = text(STEADY, 1.0, DELAYS).splitlines()
    (marked,) = [line for line in lines if "a broker is killed" in line]
    assert marked.index("▲") == 11 + 4, "under the bin of the kill"
    assert [line.split()[0] for line in lines if line.endswith(("8.6", "20.2", "-4.9"))] == ["AA", "F9", "HA"]


def test_a_long_run_fits_into_a_terminal() -> None:
    samples = [Published(number * 1.0, number * 100) for number in range(1, 301)]
    assert max(map(len, text(samples, 150.0, DELAYS).splitlines())) < 80


def test_nothing_measured_still_gives_a_text() -> None:
    assert "publish rate" in text([], None, [])


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    draw(tmp_path / "demo.png", Drawn("2,000 flights: 0 lost", STEADY, STEADY, 1.0, DELAYS))
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_what_child_processes_print_goes_to_the_log(tmp_path: Path) -> None:
    program = f"""
import os, subprocess, sys
from pathlib import Path
from magnetar.cluster.demo.quiet import quiet
with quiet(Path({str(tmp_path / "log")!r})) as console:
    console.print("ours")
    os.write(2, b"a library\\n")
    subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
print("after")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["ours", "after"] and done.stderr == ""
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["a child", "a library"]


def test_streams_are_restored_after_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="ours"), quiet(tmp_path / "log"):
        raise ValueError("ours")
    os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"


@pytest.mark.parametrize("number", ["0", "9999", str(FLIGHTS + 1), "many"])
def test_a_number_of_flights_that_cannot_be_moved_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--flights", number])
    assert "--flights" in capsys.readouterr().err


def test_shares_of_the_first_flights_are_all_of_them() -> None:
    shares = [flight.sequence for part in range(3) for flight in flights(1_000, part, 3)]
    assert sorted(shares) == list(range(1_000))
