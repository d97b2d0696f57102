"""What a figure of `bench.papers` is when it was measured: a table, curves or bars, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tilesmith.base.whole_file import write_whole

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Outcome:
    """A table with a row per contestant; and what is drawn: `curves` of points by contestant, a
    list for each seed, or else a bar for each row with the number in the column `bars`.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    curves: dict[str, list[Points]] = field(default_factory=dict)
    across: str = ""  # what the axes of the curves are, or of the bars
    up: str = ""
    bars: int = 1
    note: str = ""

    @property
    def text(self) -> str:
        cells = [list(map(str, r)) for r in (self.header, *self.rows)]
        widths = [max(len(r[k]) for r in cells) for k in range(len(self.header))]
        lines = [
            "  ".join(c.ljust(w) if k == 0 else c.rjust(w)
                      for k, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
            for r in cells
        ]  # fmt: skip
        return "\n".join([self.title, *lines, *([self.note] if self.note else [])])


def write(outcomes: dict[str, Outcome], path: Path, told: dict[str, str]) -> None:
    """The outcomes by the names of their figures, with the date, the machine and the command."""
    figures = {name: asdict(o) for name, o in outcomes.items()}
    write_whole(path, json.dumps({**told, "figures": figures}, indent=1) + "\n")


def draw(name: str, outcome: Outcome, folder: Path) -> Path:
    """A picture of the outcome, in this folder."""
    # Imported here: only --plot needs it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    if outcome.curves:
        for k, (label, runs) in enumerate(outcome.curves.items()):
            for points in runs:
                x, y = zip(*points, strict=True)
                axes.step(x, y, where="post", color=f"C{k}", alpha=0.7,
                          label=label if points is runs[0] else None)  # fmt: skip
        axes.legend(fontsize=8)
    else:
        labels = [r[0] for r in outcome.rows]
        numbers = [_number(r[outcome.bars]) for r in outcome.rows]
        axes.barh(range(len(labels)), numbers, color="C0")
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.invert_yaxis()
    axes.set(xlabel=outcome.across, ylabel=outcome.up)
    axes.set_title(outcome.title, fontsize=9, wrap=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return path


def _number(text: str) -> float:
    try:
        return float(text.rstrip("x%"))
    except ValueError:
        return 0.0
