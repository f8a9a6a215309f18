"""The rows of a run as a picture: how each figure stands against its target."""

from pathlib import Path

from rows import Row


def draw(rows: list[Row], path: Path) -> None:
    """One bar a row, as a multiple of its target on a logarithmic scale; right of the line is better."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(rows) + 1.5), layout="constrained")
    smallest = 1e-3  # a figure of nothing has no logarithm
    for position, row in enumerate(reversed(rows)):
        goodness = row.figure / row.target if row.better == "higher" else row.target / max(row.figure, smallest)
        axes.barh(position, goodness, left=0, color="tab:green" if row.ok else "tab:red", height=0.6)
        axes.annotate(f" {row.figure:g} {row.unit}", (max(goodness, 1.0), position), va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [f"{row.row}\n{_target(row)}" for row in reversed(rows)], fontsize=9)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.margins(x=0.15)
    axes.set_xlabel("times as good as the target")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _target(row: Row) -> str:
    return f"{'≥' if row.better == 'higher' else '≤'} {row.target:g} {row.unit}".strip()
