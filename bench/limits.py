"""What the disk itself can do, measured in the same run as the figures that are held against it."""

import os
import statistics
import threading
import time
from pathlib import Path

BLOCK_SIZE = 1 << 20


def synced_append_latencies(directory: Path, *, writers: int, size: int, seconds: float) -> list[float]:
    """Latencies, in seconds, of append + fdatasync of `size` bytes by `writers` concurrent threads, a file each.

    What a write replicated to so many bookies of one disk can at best be as fast as.
    """
    start = threading.Barrier(writers)
    results: list[list[float]] = [[] for _ in range(writers)]

    def write(number: int) -> None:
        data = os.urandom(size)
        descriptor = os.open(directory / f"append-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            start.wait()
            end = time.monotonic() + seconds
            while (begin := time.perf_counter()) and time.monotonic() < end:
                os.write(descriptor, data)
                os.fdatasync(descriptor)
                results[number].append(time.perf_counter() - begin)
        finally:
            os.close(descriptor)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [latency for result in results for latency in result]


def synced_write_rate(directory: Path, *, size: int) -> float:
    """Bytes per second of one process that writes blocks of 1 MiB, each followed by fdatasync. The file has `size`
    bytes and was allocated beforehand.
    """
    block = os.urandom(BLOCK_SIZE)
    path = directory / "sequential"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.fsync(descriptor)
        begin = time.perf_counter()
        for offset in range(0, size, BLOCK_SIZE):
            os.pwrite(descriptor, block, offset)
            os.fdatasync(descriptor)
        return size / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)
        path.unlink()


def median_ms(latencies: list[float]) -> float:
    """The median, in milliseconds."""
    return statistics.median(latencies) * 1000
