"""What a benchmark yields: rows of ratios, and the raw measurements behind them."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Row:
    """One figure, always a ratio or a bound taken within one run; `samples` are the single figures it was made of."""

    row: str
    figure: float
    better: Literal["higher", "lower"]
    target: float
    samples: list[float] = field(default_factory=list)
    unit: str = ""
    """Empty for a ratio."""
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.figure >= self.target if self.better == "higher" else self.figure <= self.target

    def to_dict(self) -> dict[str, Any]:
        """As it stands in `latest.json`."""
        return {**asdict(self), "ok": self.ok}


@dataclass
class Report:
    """Everything of one run."""

    rows: list[Row] = field(default_factory=list)
    raw: list[dict[str, Any]] = field(default_factory=list)
    """Measurements with the field names of the OpenMessaging Benchmark."""
    limits: dict[str, float] = field(default_factory=dict)
    """What the machine itself can do, measured in the same run."""
    problems: dict[str, str] = field(default_factory=dict)
    """Benchmarks that did not end: name → why."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Benchmarks that this machine cannot run: name → what to install."""

    def save(self, directory: Path = RESULTS) -> Path:
        """Write `latest.json` (the rows) and `latest-raw.json` (the measurements)."""
        directory.mkdir(parents=True, exist_ok=True)
        latest = directory / "latest.json"
        _write(latest, [row.to_dict() for row in self.rows])
        _write(
            directory / "latest-raw.json",
            {"measurements": self.raw, "limits": self.limits, "problems": self.problems, "left_out": self.left_out},
        )
        return latest


def ratio(name: str, figure: float, target: float, *, better: Literal["higher", "lower"], **more: Any) -> Row:
    """A row with its figure rounded to what the measurement can bear."""
    return Row(name, float(f"{figure:.4g}"), better, target, **more)


def median_of_pairs(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, list[float]]:
    """The median of ratios taken pair by pair, with the ratios: neighbours in time see the same machine."""
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), ratios


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
