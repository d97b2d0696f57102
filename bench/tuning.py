"""Tuning from end to end: trials a second, where the time goes, how soon a run is near its best,
and the kernel beside the libraries: `python -m bench.tuning [--seeds 3] [--seconds 30] [--json F]`.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.table import Row, arguments, finish
from tilesmith.cli.operators import operator
from tilesmith.measure.local import LocalRun
from tilesmith.measure.this_machine import multiply_add
from tilesmith.schedule.trace import Trace
from tilesmith.search.protocol import Search
from tilesmith.space.domains import Rng
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith_contest.compare import Contestants
from tilesmith_contest.pairs import Turns
from tilesmith_contest.peers import installed_peers
from tilesmith_contest.problems import question_of, to_layout


@dataclass(frozen=True)
class Subject:
    """`plain` is the operator as the peers have it; `func` what is tuned, in our layout."""

    name: str
    operator: str
    numbers: dict[str, int]
    plain: ts.Function
    func: ts.Function
    layout: str | None = None
    goal: float | None = None  # trials a second


def subjects() -> list[Subject]:
    out = []
    for n, goal in ((512, 12.0), (128, 30.0)):
        func = operator("matmul", (n, n, n))
        out.append(Subject(f"matmul {n}", "matmul", {}, func, func, goal=goal))
    plain = operator("conv2d", (56, 64, 64, 3, 1, 1))
    # its weights are constant, as those of the peers are, who prepare them ahead
    func = operator("conv2d", (56, 64, 64, 3, 1, 1), "NHWC", prepared=True)
    out.append(Subject("conv2d 56x56 64->64", "conv2d", {"S": 1, "P": 1}, plain, func, "NHWC"))
    return out


@dataclass(frozen=True)
class Timed:
    """A strategy, with the seconds it takes."""

    inner: Any
    spent: dict[str, float] = field(default_factory=lambda: {"ask": 0.0, "tell": 0.0})

    def start(self, task: ts.Task, sketches: Sequence[Trace], rng: Rng) -> Search:
        return TimedSearch(self.inner.start(task, sketches, rng), self.spent)


class TimedSearch:
    def __init__(self, inner: Search, spent: dict[str, float]) -> None:
        self._inner, self._spent = inner, spent

    def ask(self, n: int) -> list[ts.Candidate]:
        start = time.perf_counter()
        found = self._inner.ask(n)
        self._spent["ask"] += time.perf_counter() - start
        return found

    def tell(self, measurements: Sequence[ts.Measurement]) -> None:
        start = time.perf_counter()
        self._inner.tell(measurements)
        self._spent["tell"] += time.perf_counter() - start


@dataclass(frozen=True)
class Kept:
    """A measurer whose runs are kept, to ask them what they spent."""

    inner: ts.LocalMeasurer = field(default_factory=ts.LocalMeasurer)
    runs: list[LocalRun] = field(default_factory=list)

    def open(self, task: ts.Task) -> LocalRun:
        self.runs.append(self.inner.open(task))
        return self.runs[-1]


@dataclass(frozen=True)
class Outcome:
    result: ts.Result
    first: float  # seconds until there was a kernel
    shares: dict[str, float]  # of the wall clock

    @property
    def rate(self) -> float:
        return self.result.trials / self.result.seconds


def tune(s: Subject, seconds: float, seed: int) -> Outcome:
    strategy, measurer = Timed(ts.Evolution()), Kept()
    result = ts.tune(
        s.func, ts.cpu(1), budget=ts.Budget(seconds=seconds), strategy=strategy,
        measurer=measurer, seed=seed, quiet=True,
    )  # fmt: skip
    spent = measurer.runs[0].spent
    parts = {
        "search, beside measuring": strategy.spent["ask"],
        "learning, between batches": strategy.spent["tell"],
        "building, all cores": spent.building,
        "waiting for builds": spent.waiting,
        "checking, first call included": spent.checking,
        "timing": spent.timing,
        "racing and confirming": spent.racing,
    }
    shares = {name: 100 * x / result.seconds for name, x in parts.items()}
    return Outcome(result, result.curve[0][0], shares)


def beside(s: Subject, kernel: ts.Kernel) -> list[tuple[str, float, float, float, float]]:
    """(peer, our seconds, theirs, the ratio, its spread), with one thread each."""
    names = ["numpy"] if s.operator == "matmul" else ["torch", "onnxruntime"]
    peers, absent = installed_peers(names)
    for why in absent:
        print(f"({why}: its rows are left out)")
    rng = np.random.default_rng(0)
    shapes = [tuple(e.number for e in b.shape) for b in s.plain.inputs]
    plain = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    question = question_of(s.operator, s.numbers, plain)
    turns = Turns(rounds=31, close=float("inf"))
    with Contestants(peers, 1) as contestants:
        done, notes = contestants.contest(
            kernel.artifact, to_layout(s.operator, s.layout, plain), s.layout, question, turns
        )
    for note in notes:
        print(f"({s.name}: {note})")
    return [(d.peer, d.ours, d.theirs, d.ratio, d.spread) for d in done.duels]


def spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / 2


def summary(s: Subject, runs: Sequence[Outcome], peak: float) -> list[Row]:
    """Medians over the seeds; the spread is half of what lies between the extremes."""
    work = s.func.flops / 1e9
    rates = [r.rate for r in runs]
    middle = statistics.median(rates)
    goal = ("goal", s.goal, middle / s.goal) if s.goal else (None, None, None)
    rows = [Row(f"{s.name}, 1 thread: trials", middle, "1/s", *goal, spread(rates))]
    rows += [Row("  slowest seed", min(rates), "1/s"), Row("  fastest seed", max(rates), "1/s")]
    for name in runs[0].shares:
        rows.append(Row(f"  {name}", statistics.median(r.shares[name] for r in runs), "% of wall"))
    failed = [
        100 * sum(n for n, _ in r.result.failures.values()) / max(1, r.result.trials) for r in runs
    ]
    rows.append(Row("  failed", statistics.median(failed), "%"))
    for name, values in (
        ("first kernel after", [r.first for r in runs]),
        ("within 10 % of its best after", [r.result.near for r in runs]),
        ("asked for, and taken", [r.result.seconds for r in runs]),
    ):
        rows.append(Row(f"  {name}", statistics.median(values), "s", spread=spread(values)))
    best = [work / r.result.best.cost for r in runs]
    share = statistics.median(best) / peak
    rows.append(
        Row("  best", statistics.median(best), "GFLOP/s", "FMA peak", peak, share, spread(best))
    )
    duels: dict[str, list[tuple[float, float, float]]] = {}
    for r in runs:
        for peer, mine, theirs, ratio, _ in beside(s, r.result.kernel):
            duels.setdefault(peer, []).append((work / mine, work / theirs, ratio))
    for peer, found in duels.items():
        mine, theirs, ratio = (statistics.median(column) for column in zip(*found, strict=True))
        wide = spread([x for _, _, x in found])
        rows.append(Row("  its kernel side by side", mine, "GFLOP/s", peer, theirs, ratio, wide))
    return rows


def memory(trials: int) -> list[Row]:
    """What the process that tunes holds, in a run whose kernels are small."""
    func = operator("matmul", (48, 48, 48))
    seen: list[tuple[int, float]] = []

    def watch(p: ts.Progress) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        seen.append((p.trials, pages * resource.getpagesize() / 2**20))

    budget = ts.Budget(trials=trials)
    result = ts.tune(func, ts.cpu(1), budget=budget, observers=[watch], quiet=True)
    done = [(n, mb) for n, mb in seen if n >= trials // 10]
    return [
        Row("memory of the tuner, at a tenth of the trials", done[0][1], "MB"),
        Row(f"  after {result.trials} trials", done[-1][1], "MB"),
        Row("  trials", result.trials / result.seconds, "1/s"),
    ]


def loop(trials: int = 300) -> list[Row]:
    """What a trial costs where measuring is free: the search and the loop around it."""
    func = operator("matmul", (512, 512, 512))
    strategy = Timed(ts.Evolution())
    result = ts.tune(
        func, ts.cpu(1), budget=ts.Budget(trials=trials), strategy=strategy,
        measurer=FakeMeasurer(), quiet=True,
    )  # fmt: skip
    each = 1e3 / result.trials
    searching = each * sum(strategy.spent.values())
    return [
        Row("a trial whose measurement is free", each * result.seconds, "ms"),
        Row("  of which search", searching, "ms"),
    ]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each run")
    parser.add_argument("--only", default="", help="subjects whose name begins so")
    parser.add_argument(
        "--memory", type=int, default=0, metavar="TRIALS", help="watch memory over so many instead"
    )
    args = parser.parse_args()
    if args.memory:
        finish(memory(args.memory), args)
        return
    peak = multiply_add("float32", ts.cpu(1)) / 1e9
    rows = loop()
    for s in subjects():
        if s.name.startswith(args.only):
            rows += summary(s, [tune(s, args.seconds, k) for k in range(args.seeds)], peak)
    finish(rows, args)


if __name__ == "__main__":
    main()
