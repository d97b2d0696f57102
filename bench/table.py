"""Rows of a benchmark: measured side by side, printed as a table, written as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.figures import save_figure
from tilesmith.base.target import cpu
from tilesmith.base.whole_file import write_whole
from tilesmith_contest.compare import machine_of


@dataclass(frozen=True)
class Row:
    """`ratio` above 1 means that we are better."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    spread: float | None = None


def duel(
    ours: Callable[[], object],
    peer: Callable[[], object],
    rounds: int = 15,
    calls: int = 1,
) -> tuple[float, float, float, float]:
    """Two calls of this process in turns: (our seconds, the other's, the median of the paired
    ratios other/ours, its spread). Each turn begins with a call that is not timed, so that neither
    meets the other's cache. Other libraries are compared with in processes of their own
    (`tilesmith_contest.compare`).
    """

    def once(call: Callable[[], object]) -> float:
        call()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    once(peer), once(ours)
    pairs = [(once(peer), once(ours)) for _ in range(rounds)]
    ratios = sorted(p / o for p, o in pairs)
    spread = (ratios[(3 * rounds) // 4] - ratios[rounds // 4]) / 2
    mine, theirs = (statistics.median(x) for x in ([o for _, o in pairs], [p for p, _ in pairs]))
    return mine, theirs, statistics.median(ratios), spread


def show(rows: list[Row]) -> None:
    print(f"{'':44} {'value':>10} {'unit':8} {'peer':>26} {'peer value':>10} {'ratio':>6} {'±':>5}")
    for r in rows:
        peer = "" if r.peer is None else r.peer
        theirs = "" if r.peer_value is None else f"{r.peer_value:10.2f}"
        ratio = "" if r.ratio is None else f"{r.ratio:6.2f}"
        spread = "" if r.spread is None else f"{r.spread:5.2f}"
        print(
            f"{r.name:44} {r.value:10.2f} {r.unit:8} {peer:>26} {theirs:>10} {ratio:>6} {spread:>5}"
        )


def finish(rows: list[Row], options: argparse.Namespace) -> None:
    """Prints the rows, and writes them to the files that `arguments` takes."""
    show(rows)
    if options.json:
        write_whole(Path(options.json), json.dumps([asdict(r) for r in rows], indent=1))
    if options.figure:
        header = ["case", "value", "unit", "peer", "its value", "ratio", "±"]
        cells = []
        for r in rows:
            numbers = (r.peer_value, r.ratio, r.spread)
            cells.append([r.name, _cell(r.value), r.unit, r.peer or "", *map(_cell, numbers)])
        save_figure(options.figure, machine_of(cpu()), header, cells)


def _cell(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}"


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", metavar="FILE", help="write the rows here too")
    parser.add_argument("--figure", metavar="FILE", help="and as a figure, see bench.figures")
    return parser
