"""The demo's picture: what came of the run, publish and consume rates over time, and the mean delay of each carrier.

As a PNG, and as text of the same content for a terminal.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ...protocol.errors import ClusterError

BIN_S = 0.25
BLOCKS = " ▁▂▃▄▅▆▇█"
TEXT_HEIGHT = 6
TEXT_WIDTH = 60
BAR_WIDTH = 48


class Published(NamedTuple):
    """How many messages had their receipts, or had arrived, `seconds` after the beginning."""

    seconds: float
    messages: int


class Drawn(NamedTuple):
    """What the picture shows. `killed_s` counts like `published`; the consumers have a clock of their own."""

    statement: str
    published: Sequence[Published]
    consumed: Sequence[Published]
    killed_s: float | None
    delays: Sequence[tuple[str, float]]


def rates(samples: Sequence[Published], bin_s: float = BIN_S) -> list[float]:
    """Messages per second in each `bin_s` seconds; what happens between two samples is taken as even."""
    bins = [0.0] * (int(samples[-1].seconds / bin_s) + 1 if samples else 0)
    for before, after in pairwise([Published(0.0, 0), *samples]):
        seconds = after.seconds - before.seconds
        if seconds <= 0:
            continue
        rate = (after.messages - before.messages) / seconds
        at = before.seconds
        while at < after.seconds:
            index = int(at / bin_s + 1e-9)
            end = min((index + 1) * bin_s, after.seconds)
            bins[min(index, len(bins) - 1)] += rate * (end - at)
            at = end
    return [messages / bin_s for messages in bins]


def text(samples: Sequence[Published], killed_s: float | None, delays: Sequence[tuple[str, float]]) -> str:
    """Both charts as lines of text."""
    lines = ["publish rate, messages per second"]
    bin_s = max(BIN_S, samples[-1].seconds / TEXT_WIDTH) if samples else BIN_S
    found = rates(samples, bin_s)
    top = max(found, default=0.0)
    for row in reversed(range(TEXT_HEIGHT)):
        levels = [rate / top * TEXT_HEIGHT - row if top else 0.0 for rate in found]
        blocks = "".join(BLOCKS[max(0, min(8, round(level * 8)))] for level in levels)
        label = f"{top:,.0f}" if row == TEXT_HEIGHT - 1 else "0" if row == 0 else ""
        lines.append(f"{label:>9} ┤{blocks}".rstrip())
    if killed_s is not None:
        lines.append(" " * (11 + int(killed_s / bin_s)) + "▲ a broker is killed")
    if delays:
        longest = max(abs(delay) for _, delay in delays) or 1.0
        lines += ["", "mean departure delay, minutes"]
        for carrier, delay in delays:
            lines.append(f"{carrier:>9} ┤{'█' * round(abs(delay) / longest * BAR_WIDTH)} {delay:.1f}")
    return "\n".join(lines)


def draw(path: Path, run: Drawn) -> None:
    """Write the charts to `path` as a PNG. Raises ClusterError without matplotlib, OSError."""
    try:
        import matplotlib
    except ImportError as error:
        raise ClusterError("the picture needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (upper, middle, lower) = pyplot.subplots(3, 1, figsize=(9, 10), layout="constrained")
    figure.suptitle(run.statement)  # pyright: ignore[reportUnknownMemberType] (as below)
    for axes, samples, title in (
        (upper, run.published, "Publishing, from Ray tasks"),
        (middle, run.consumed, "Consuming from a Shared subscription, in Ray tasks"),
    ):
        found = rates(samples)
        axes.plot([(index + 0.5) * BIN_S for index in range(len(found))], found, drawstyle="steps-mid")
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_xlabel("time, s")
        axes.set_ylabel("messages per second")
    if run.killed_s is not None:
        upper.axvline(run.killed_s, color="tab:red", linestyle="--")
        upper.annotate(" a broker is killed", (run.killed_s, 0), color="tab:red", va="bottom")
    lower.bar([carrier for carrier, _ in run.delays], [delay for _, delay in run.delays])
    lower.set_title("Mean departure delay of each carrier" + ("" if run.delays else ": the Spark step did not run"))
    lower.set_xlabel("carrier")
    lower.set_ylabel("minutes")
    figure.savefig(path, dpi=120)  # pyright: ignore[reportUnknownMemberType] (matplotlib types it in part)
    pyplot.close(figure)
