"""The figure and the tables of docs/networks.md, from the log of `bench.networks`."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from bench.network_log import Case, Compared, NetworkLog, Tuned
from tilesmith.base.whole_file import write_whole
from tilesmith_contest.model_rows import ModelRow

matplotlib.use("Agg")
from matplotlib import pyplot

BEGIN, END = "<!-- bench.networks: begin -->", "<!-- bench.networks: end -->"
EARLY_SECONDS = 60.0
_BOUND = (
    "The bound is a time that no kernels beat: 95 % of that of the arithmetic at the measured\n"
    "peak rate (convolutions by minimal filtering: without its transforms), or of moving all\n"
    "parameters once, whichever is longer."
)
_COLOURS = {
    "tilesmith": "#d1495b", "onnxruntime": "#4472c4", "openvino": "#66a182", "mnn": "#edae49",
    "torch": "#8d96a3", "torch-compile": "#b8bec8",
}  # fmt: skip


def draw(log: NetworkLog, path: Path) -> None:
    """One row of panels for each number of threads: how many times as fast as ONNX Runtime everyone
    is, and how our estimate came down while tuning, beside the fastest engine.
    """
    results = log.results
    counts = list(dict.fromkeys(r.case.threads for r in results))
    if not counts:
        raise SystemExit(f"{log.path} has no comparison yet")
    networks = list(dict.fromkeys(r.case.network for r in results))
    # The text stays text, and the same figures give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "networks"})
    size = (4 + 1.6 * len(networks), 3.2 * len(counts))
    figure, axes = pyplot.subplots(len(counts), 2, figsize=size, squeeze=False)
    for row, count in enumerate(counts):
        here = [r for r in results if r.case.threads == count]
        _bars(axes[row][0], here, count)
        _curves(axes[row][1], log, here, count)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _bars(axes: Any, results: Sequence[Compared], count: int) -> None:
    """Milliseconds of the fastest engine over everyone's: above 1 is faster than every engine."""
    names = ["tilesmith", *dict.fromkeys(e.name for r in results for e in r.row.engines)]
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        heights = [_speed(r.row, name) for r in results]
        places = [x + (k - (len(names) - 1) / 2) * width for x in range(len(results))]
        axes.bar(places, heights, width, label=name, color=_COLOURS.get(name))
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(results)), [r.case.network for r in results], fontsize=7)
    axes.set_ylabel("speed, of the fastest engine")
    axes.set_title(_threads(count), fontsize=9)
    axes.legend(fontsize=6, ncols=2)


def _speed(row: ModelRow, name: str) -> float:
    best = min((e.ms for e in row.engines if e.ms), default=None)
    found = row.engine(name)
    ms = row.value if name == "tilesmith" else found.ms if found is not None else None
    return best / ms if best and ms else 0.0


def _curves(axes: Any, log: NetworkLog, results: Sequence[Compared], count: int) -> None:
    """Of each network, how fast the kernels so far are together, over the fastest engine."""
    for r in results:
        tuned = log.tuned(r.case)
        if tuned is None or not tuned.curve or not r.row.peer_value:
            continue
        seconds = [*(t for t, _ in tuned.curve), tuned.seconds]
        ratios = [r.row.peer_value / (1e3 * x) for _, x in tuned.curve]
        axes.step(seconds, [*ratios, ratios[-1]], where="post", label=r.case.network)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="seconds of tuning", ylabel="speed, of the fastest engine")
    axes.set_title(f"best so far, {_threads(count)}", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=6)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def write_page(log: NetworkLog, path: Path, figure: Path) -> None:
    """Replaces what stands between the two marks of the page by the figure and the tables."""
    text = path.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{path} has no marks {BEGIN} and {END} to write between")
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    image = f"![Networks beside the engines]({os.path.relpath(figure, path.parent)})"
    write_whole(path, f"{head}{BEGIN}\n{image}\n\n{tables(log)}\n{END}{tail}")


def tables(log: NetworkLog) -> str:
    lines: list[str] = []
    for count in dict.fromkeys(r.case.threads for r in log.results):
        here = [r for r in log.results if r.case.threads == count]
        lines += [*_table(here, count), ""]
    lines += _tuning_table(log)
    machines = dict.fromkeys(r.row.machine for r in log.results if r.row.machine)
    versions = dict.fromkeys(r.row.versions for r in log.results if r.row.versions)
    return "\n".join([*lines, "", f"Machine: {'; '.join(machines)}. {'; '.join(versions)}."])


def _table(results: Sequence[Compared], count: int) -> list[str]:
    names = list(dict.fromkeys(e.name for r in results for e in r.row.engines))
    header = ["network", "tilesmith", *names, "best / ours", "±", "error"]
    lines = [f"Milliseconds of one run, {_threads(count)}:", "", _line(header), _rule(header)]
    for r in results:
        times = [e.ms if (e := r.row.engine(n)) is not None else None for n in names]
        cells = [r.case.network, _number(r.row.value), *map(_number, times)]
        error = "-" if r.row.error is None else f"{r.row.error:.1e}"
        lines.append(_line([*cells, _number(r.row.ratio), _number(r.row.spread), error]))
    ratios = [r.row.ratio for r in results if r.row.ratio]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines += ["", f"Geometric mean of the ratios to the best engine: {mean:.2f}."]
    return lines


def _tuning_table(log: NetworkLog) -> list[str]:
    header = [
        "network", "threads", "tasks", "trials", "first ms", "after 60 s", "in the end",
        "60 s / end", "bound", "seconds",
    ]  # fmt: skip
    lines = ["Tuning (sums of the kernels' times, ms):", "", _line(header), _rule(header)]
    for case in dict.fromkeys(s.case for s in log.steps if isinstance(s, Tuned)):
        tuned = log.tuned(case)
        if tuned is not None and tuned.curve:
            lines.append(_line(_tuned(case, tuned)))
    lines += ["", _BOUND]
    return lines


def _tuned(case: Case, t: Tuned) -> list[str]:
    early = t.at(EARLY_SECONDS)
    ratio = None if early is None else early / t.estimate
    return [
        case.network, str(case.threads), str(t.tasks), str(t.trials), _number(1e3 * t.curve[0][1]),
        _number(None if early is None else 1e3 * early), _number(1e3 * t.estimate), _number(ratio),
        _number(1e3 * t.bound or None), f"{t.seconds:.0f}",
    ]  # fmt: skip


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(cells: Sequence[str]) -> str:
    return f"|{'---|' * len(cells)}"


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.2f}"
