"""Draws the rows of a benchmark as a bar chart: one bar per case, grouped by operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from tilesmith.base.whole_file import named_errors, whole_file
from tilesmith_contest.pairs import geometric_mean
from tilesmith_contest.rows import Row

matplotlib.use("Agg")  # needs no display
from matplotlib import pyplot

_COLOURS = ("#4878a8", "#a8c4de", "#d98c3f", "#7a9e59")


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draws the ratio to the best peer; above 1 ours is faster."""
    shown = [r for r in rows if r.ratio is not None and r.error is None]
    threads = sorted({r.threads for r in shown})
    height = 3.2 * max(1, len(threads))
    figure, panels = pyplot.subplots(
        max(1, len(threads)), 1, figsize=(13, height), squeeze=False, layout="constrained"
    )
    for panel, n in zip(panels[:, 0], threads, strict=False):
        _panel(panel, [r for r in shown if r.threads == n], n)
    with named_errors(path), whole_file(path) as file:
        figure.savefig(file, dpi=110, format=path.suffix[1:] or "png")
    pyplot.close(figure)


def _panel(panel: matplotlib.axes.Axes, rows: Sequence[Row], threads: int) -> None:
    at, ticks, labels = 0.0, [], []
    for op in dict.fromkeys(r.op for r in rows):
        of = [r for r in rows if r.op == op]
        places = [at + k for k in range(len(of))]
        ratios = [r.ratio or 0.0 for r in of]
        panel.bar(
            places, ratios, 0.9, yerr=[r.spread or 0.0 for r in of],
            color=[_COLOURS[k % len(_COLOURS)] for k in range(len(of))],
            error_kw={"elinewidth": 0.8},
        )  # fmt: skip
        ticks.append(at + (len(of) - 1) / 2)
        labels.append(f"{op}\n{geometric_mean(ratios):.2f}")
        at += len(of) + 1
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_xticks(ticks, labels)
    panel.set_ylabel("best peer's time / ours")
    mean = geometric_mean(r.ratio or 0.0 for r in rows)
    words = f"{threads} thread{'s' * (threads > 1)}"
    panel.set_title(f"{words}: geometric mean {mean:.2f} over {len(rows)} cases", fontsize=10)
    panel.margins(x=0.01)
