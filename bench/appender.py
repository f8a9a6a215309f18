"""Appends a block and syncs it, so many times a second: `appender.py FILE SIZE RATE SECONDS`.

Prints the seconds that each append with its fdatasync took, as JSON. The baseline of this disk: a program that makes
every small write durable in the plainest way. Three processes at a time stand for three bookies.

An append that its predecessor holds up counts from the moment when it was due. A disk that stops for 0.3 s therefore
delays every append that was due in that time, as it delays every message. Counted from the moment of the call, it would
show in one append only.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def append(path: str, size: int, rate: float, seconds: float) -> list[float]:
    """One process's work, in seconds per append. A late append does not delay the schedule of the next ones."""
    block = os.urandom(size)
    found: list[float] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        start = time.perf_counter()
        for number in range(int(rate * seconds)):
            begin = due = start + number / rate
            wait_s = due - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
                begin = time.perf_counter()  # the timer's own lateness is not the disk's
            os.write(descriptor, block)
            os.fdatasync(descriptor)
            found.append(time.perf_counter() - begin)
    finally:
        os.close(descriptor)
        os.remove(path)
    return found


def append_in_processes(directory: Path, *, processes: int, size: int, rate: float, seconds: float) -> list[float]:
    """The latencies, in seconds, of so many processes at once, a file each."""
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(directory / f"paced-{number}"), str(size), str(rate), str(seconds)],
            stdout=subprocess.PIPE,
        )
        for number in range(processes)
    ]
    found: list[float] = []
    for process in running:
        output, _ = process.communicate(timeout=seconds * 10 + 60)
        if process.returncode:
            raise RuntimeError(f"an appending process ended with status {process.returncode}")
        found += json.loads(output)
    return found


if __name__ == "__main__":
    print(json.dumps(append(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))))
