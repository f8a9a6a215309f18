"""Print what each part of the tests costs, and the ten dearest tests of all parts.

    python tests/tools/print_costs.py FILE

`make test` does this at its end. `tests/conftest.py` writes a line to FILE for each test, in each process of pytest.
Seconds of a part are those of its tests one after the other, also where two processes ran them. CPU seconds leave out
what goes on after a test, such as a cluster on Ray.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

DEAREST = 10


class Cost(NamedTuple):
    """What a test cost, with its fixtures."""

    test: str
    seconds: float
    cpu_seconds: float

    @property
    def part(self) -> str:
        """The directory of the test below `tests`; nodes are a part of their own."""
        parts = self.test.partition("::")[0].split("/")
        return "/".join(parts[: 2 if parts[:2] == ["integration", "nodes"] else 1])


def read(lines: Iterable[str]) -> list[Cost]:
    """The costs of a file's lines."""
    rows = [line.rstrip("\n").rsplit("\t", 2) for line in lines]
    return [Cost(test, float(seconds), float(cpu_seconds)) for test, seconds, cpu_seconds in rows]


def report(costs: list[Cost]) -> str:
    """The text that is printed."""
    parts = list(dict.fromkeys(one.part for one in costs))
    rows = []
    for part in parts:
        here = [one for one in costs if one.part == part]
        rows.append((part, len(here), sum(one.seconds for one in here), sum(one.cpu_seconds for one in here)))
    rows.sort(key=lambda row: -row[2])
    lines = [f"{'part':20} {'tests':>6} {'seconds':>9} {'CPU seconds':>12}"]
    lines += [f"{part:20} {count:6} {seconds:9.0f} {cpu_s:12.0f}" for part, count, seconds, cpu_s in rows]
    lines += ["", f"the {DEAREST} dearest tests, in seconds and CPU seconds"]
    dearest = sorted((one for one in costs if "::" in one.test), key=lambda one: -one.seconds)
    lines += [f"{one.seconds:8.1f} {one.cpu_seconds:8.1f}  {one.test}" for one in dearest[:DEAREST]]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(read(Path(sys.argv[1]).read_text().splitlines())))
