"""The figures of `bench.papers` that tune: the same operator by several tuners, seed by seed in
turns, from nothing and without drafts; for real, or on recorded programs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

import tilesmith as ts
from bench.dataset import DATA, OPERATORS
from bench.papers_outcome import Outcome, Points
from bench.search import Limited, measurer_of
from tilesmith.cli.operators import operator
from tilesmith.ir.nodes import walk
from tilesmith.space.spaces import Space

BATCH = 16
_RECORDS = 300
CHECKPOINTS = (8, 16, 32, 64, 128, 256, 512, 1000)


@dataclass(frozen=True)
class Options:
    """What the command line gives all figures."""

    seconds: float = 0.0  # of each run; 0: only trials bound it
    trials: int = 64
    seeds: Sequence[int] = (0,)
    operator: Sequence[str] = ()  # a name and its sizes
    threads: int = 1
    replay: str = ""  # a task of the recorded data set, which then answers


@dataclass(frozen=True)
class Contestant:
    strategy: ts.Evolution | ts.Annealing | ts.Genetic | ts.Random
    space: Space = field(default_factory=ts.SketchSpace)

    def on(self, records: Sequence[ts.Measurement]) -> Contestant:
        """The same in the space of these records; a limited space stays limited."""
        limited = isinstance(self.space, FirstStructures)
        return replace(self, space=Limited(records) if limited else ts.RecordedSpace(records))


@dataclass(frozen=True)
class Run:
    """A tuning run: the best seconds after so many seconds and trials."""

    curve: Sequence[tuple[float, int, float]]
    seconds: float
    trials: int

    @property
    def end(self) -> float:
        return self.curve[-1][2]

    def at(self, trials: int) -> float:
        """The best after so many trials; infinite before the first that worked."""
        return min((c for _, n, c in self.curve if n <= trials), default=float("inf"))

    def until(self, cost: float) -> tuple[float, float]:
        """The seconds and trials after which it was that fast; infinite if it never was."""
        found = ((s, float(n)) for s, n, c in self.curve if c <= cost)
        return next(found, (float("inf"), float("inf")))


def recorded(options: Options) -> Sequence[ts.Measurement]:
    """Some records of the task to replay, spread evenly: fitting a simulator takes time by the cube
    of their number. None if measuring is for real.
    """
    return _some_of(options.replay) if options.replay else ()


@cache
def _some_of(name: str) -> Sequence[ts.Measurement]:
    every = ts.read_records(DATA / f"{name}.jsonl.xz")
    return every[:: -(-len(every) // _RECORDS)]


def task_of(options: Options, usual: str) -> ts.Task:
    """The operator of the command line, or the usual one of the figure."""
    if options.replay:
        return recorded(options)[0].candidate.task
    name, *sizes = options.operator or usual.split()
    return ts.Task(operator(name, tuple(map(int, sizes))), ts.cpu(options.threads))


def tuned(
    task: ts.Task, c: Contestant, options: Options, seed: int, measuring: ts.Measuring,
    keep: list[ts.Measurement] | None = None,
) -> Run:  # fmt: skip
    """One run; what it measures is also put into `keep`."""
    budget = ts.Budget(trials=options.trials, seconds=options.seconds or None)
    tuner = ts.TaskTuner(task, budget=budget, space=c.space, strategy=c.strategy, seed=seed)
    while not tuner.finished:
        measured = tuner.step(measuring, BATCH)
        if not measured:
            break
        if keep is not None:
            keep += measured
    result = tuner.result()
    return Run(result.curve, result.seconds, result.trials)


Runs = dict[str, list[Run]]


def contest(task: ts.Task, contestants: dict[str, Contestant], options: Options) -> Runs:
    """All contestants with one seed, then with the next: what disturbs the machine for minutes
    disturbs all of them. The processes that build and measure are started before all runs.
    """
    runs: Runs = {name: [] for name in contestants}
    records = tuple(recorded(options))
    measurer = measurer_of(records, "model") if records else ts.LocalMeasurer()
    if records:
        contestants = {name: c.on(records) for name, c in contestants.items()}
    with measurer.open(task) as measuring:
        warm = replace(options, trials=2, seconds=0.0)
        tuned(task, next(iter(contestants.values())), warm, options.seeds[0], measuring)
        for seed in options.seeds:
            for name, c in contestants.items():
                run = tuned(task, c, options, seed, measuring)
                runs[name].append(run)
                print(
                    f"  seed {seed}, {name}: {1e6 * run.end:.4g} us, {run.trials} trials, "
                    f"{run.seconds:.0f} s", flush=True,
                )  # fmt: skip
    return runs


def outcome(title: str, task: ts.Task, runs: Runs, note: str = "") -> Outcome:
    """Speed after so many trials as a share of the fastest program of all runs, in the median over
    seeds; and the curves.
    """
    best = min(r.end for each in runs.values() for r in each)
    most = max(r.trials for each in runs.values() for r in each)
    checkpoints = [n for n in CHECKPOINTS if n < most] + [most]
    rows = []
    for name, each in runs.items():
        shares = [statistics.median(best / r.at(n) for r in each) for n in checkpoints]
        seconds = statistics.median(r.seconds for r in each)
        rows.append([name, *(f"{s:.2f}" for s in shares), f"{seconds:.0f}"])
    curves: dict[str, list[Points]] = {
        name: [[(float(n), best / c) for _, n, c in (*r.curve, (0.0, r.trials, r.end))]
               for r in each]
        for name, each in runs.items()
    }  # fmt: skip
    seeds = len(next(iter(runs.values())))
    work = task.func.flops / best / 1e9
    return Outcome(
        f"{title}: {task.func.name}, {task.target.num_cores} threads, "
        f"median of {seeds} seeds; "
        f"1.00 is {1e6 * best:.4g} us, {work:.1f} GFLOP/s",
        ["speed after trials", *map(str, checkpoints), "seconds"], rows, curves,
        "trials", "speed, as a share of the best", note=note,
    )  # fmt: skip


# What AutoTVM and Ansor start with: nothing is known before the first measurement.
_NONE = ts.NoScore()
_TREES = ts.Gbdt(base=_NONE)
_CONV = "conv2d 14 64 64 3 1 1"


def _annealing(**settings: Any) -> Contestant:
    return Contestant(ts.Annealing(score=_NONE, plan=24, **{"cost_model": _TREES, **settings}))


def tuners(options: Options) -> list[Outcome]:
    task = task_of(options, _CONV)
    contestants = {
        "trees, annealing (AutoTVM)": _annealing(),
        "TreeGRU, annealing (AutoTVM)": _annealing(
            cost_model=ts.TreeGru(base=_NONE, max_seconds=8.0)
        ),
        "genetic": Contestant(ts.Genetic(population=24)),
        "random": Contestant(ts.Random()),
        "ours": Contestant(ts.Evolution()),
    }
    return [outcome("Tuners", task, contest(task, contestants, options))]


def objectives(options: Options) -> list[Outcome]:
    task = task_of(options, _CONV)
    contestants = {
        f"{kind}, {loss}": _annealing(cost_model=model)
        for loss in ("rank", "regression")
        for kind, model in (
            ("trees", replace(_TREES, loss=loss)),
            ("TreeGRU", ts.TreeGru(base=_NONE, loss=loss, max_seconds=8.0)),  # type: ignore[arg-type]
        )
    }
    contestants["trees, packed (Ansor)"] = _annealing(cost_model=replace(_TREES, loss="packed"))
    return [outcome("Losses of the cost model", task, contest(task, contestants, options))]


def diversity(options: Options) -> list[Outcome]:
    task = task_of(options, _CONV)
    contestants = {f"diversity {d:g}": _annealing(diversity=d) for d in (0.0, 0.02, 0.2, 1.0)}
    return [outcome("Weight of diversity in a batch", task, contest(task, contestants, options))]


def uncertainty(options: Options) -> list[Outcome]:
    task = task_of(options, _CONV)
    members = partial(ts.Ensemble, model=_TREES, members=4)
    contestants = {
        "mean": _annealing(),
        "expected improvement": _annealing(cost_model=members()),
        "upper confidence bound": _annealing(cost_model=members(acquire=ts.upper_confidence_bound)),
    }
    return [outcome("Acquisition functions", task, contest(task, contestants, options))]


_SOURCES = ("conv2d 28 32 64 3 1 1", "conv2d 14 64 128 3 1 1", "conv2d 28 32 32 3 1 1")


def transfer(options: Options) -> list[Outcome]:
    """Records of three other convolutions, drawn at random, before the fourth is tuned."""
    task = task_of(options, _CONV)
    records: list[ts.Measurement] = []
    if options.replay:
        for name in OPERATORS:
            records += _some_of(name)[: options.trials] if name != options.replay else ()
    for source in () if options.replay else _SOURCES:
        other = task_of(replace(options, operator=()), source)
        with ts.LocalMeasurer().open(other) as measuring:
            tuned(other, Contestant(ts.Random()), options, options.seeds[0], measuring, records)
    print(f"  {len(records)} records of other operators", flush=True)
    warm = partial(ts.Transfer, tuple(records), local=_TREES)
    contestants = {
        "from nothing": _annealing(),
        "transferred": _annealing(cost_model=warm(shared=replace(_TREES, rounds=100))),
        "ours, from nothing": Contestant(ts.Evolution()),
        "ours, transferred": Contestant(ts.Evolution(cost_model=ts.Transfer(tuple(records)))),
    }
    runs = contest(task, contestants, options)
    notes = []
    for cold, warm in (
        ("from nothing", "transferred"),
        ("ours, from nothing", "ours, transferred"),
    ):
        target = statistics.median(r.end for r in runs[cold])
        need = statistics.median(r.until(target)[1] for r in runs[warm])
        had = statistics.median(r.until(target)[1] for r in runs[cold])
        notes.append(f"{warm}: {_count(need)} trials until the end of '{cold}' ({_count(had)})")
    return [outcome("Transfer from other operators", task, runs, "; ".join(notes))]


def _count(n: float) -> str:
    return f"{n:.0f}" if np.isfinite(n) else "not reached"


class FirstStructures:
    """A manual template stands for one structure: of each sketch, the places and the order that
    the rules name first.
    """

    def __init__(self, most: int = 1) -> None:
        self.most = most

    def sketches(self, task: ts.Task) -> tuple[ts.Trace, ...]:
        found: dict[ts.Trace, None] = {}
        for sketch in ts.SketchSpace().sketches(task):
            for variant in ts.variants(task, sketch):
                found[variant.trace] = None
                break
            if len(found) >= self.most:
                break
        return tuple(found)


def ablation(options: Options) -> list[Outcome]:
    task = task_of(options, _CONV)
    contestants = {
        "full": Contestant(ts.Evolution()),
        "no fine-tuning": Contestant(ts.Evolution(generations=0, refined=0, local=0.0)),
        "limited space": Contestant(ts.Evolution(), FirstStructures()),
        "no cost model": Contestant(ts.Evolution(cost_model=None)),
        "no analytic score (as Ansor)": Contestant(ts.Evolution(score=_NONE, cost_model=_TREES)),
    }
    note = "The paper's beam search over unfinished programs has no counterpart here."
    return [outcome("Ablation of the search", task, contest(task, contestants, options), note)]


_MATCHED = (_CONV, "depthwise-conv2d 56 64 3 1 1", "matmul 256 256 256", "softmax 512 512")


def matching(options: Options) -> list[Outcome]:
    """Trials and seconds until the end of an AutoTVM-like tuner is reached, operator by operator:
    one structure, as a manual template has, trees that learn from nothing, and annealing.
    """
    autotvm = replace(_annealing(), space=FirstStructures())
    rows = []
    one = options.replay or " ".join(options.operator)
    for name in (one,) if one else _MATCHED:
        task = task_of(replace(options, operator=()), name)
        runs = contest(task, {"autotvm": autotvm, "ours": Contestant(ts.Evolution())}, options)
        target = statistics.median(r.end for r in runs["autotvm"])
        theirs = [statistics.median(r.until(target)[k] for r in runs["autotvm"]) for k in (0, 1)]
        ours = [statistics.median(r.until(target)[k] for r in runs["ours"]) for k in (0, 1)]
        end = statistics.median(r.end for r in runs["ours"])
        rows.append([
            name, f"{theirs[1]:.0f}", _count(ours[1]), f"{theirs[0]:.1f}",
            f"{ours[0]:.1f}" if np.isfinite(ours[0]) else "not reached",
            f"{theirs[0] / ours[0]:.1f}x", f"{target / end:.2f}",
        ])  # fmt: skip
    return [Outcome(
        "Until the end of an AutoTVM-like tuner is reached (one structure, trees, annealing)",
        ["operator", "its trials", "ours", "its seconds", "ours", "faster", "our end / its"], rows,
        bars=5, across="how many times sooner",
    )]  # fmt: skip


def _leave(state: ts.State) -> ts.Derived:
    return ts.Derived((state.skip(),))


def composition(options: Options) -> list[Outcome]:
    """Spaces by one more rule at a time, each searched alike."""
    if options.replay:
        raise SystemExit("composition tunes for real: its spaces have no records to replay")
    task = task_of(options, "matmul-relu 256 256 256")
    target = task.target
    vectors = ts.CpuAnnotation()
    plain, lanes = ts.Tiling("SSRSRS"), target.lanes(32)
    free = ts.Tiling("SSRSRRS", "any", max_innermost=8 * lanes, lanes=lanes, registers=True)
    rules: dict[str, tuple[Any, ...]] = {
        "loops as stated": (_leave,),
        "+ vectors, unrolling, threads": (_leave, vectors),
        "+ inlining": (ts.InlineCheap(), _leave, vectors),
        "+ multi-level tiling": (ts.InlineCheap(), ts.Tile(plain), _leave, vectors),
        "+ fusion into tiles": (
            ts.InlineCheap(), ts.TileAndFuse(plain), ts.Tile(plain), _leave, vectors
        ),
        "+ register tiles, any factors": (
            ts.InlineCheap(), ts.TileAndFuse(free), ts.Tile(free), _leave, vectors
        ),
        "all default rules": ts.default_rules(target),
    }  # fmt: skip
    contestants = {
        name: Contestant(ts.Evolution(), ts.SketchSpace(each)) for name, each in rules.items()
    }
    runs = contest(task, contestants, options)
    best = min(r.end for each in runs.values() for r in each)
    rows = []
    for name, each in rules.items():
        end = statistics.median(r.end for r in runs[name])
        sketches = len(ts.SketchSpace(each).sketches(task))
        rows.append([
            name, str(len(each)), str(sketches), f"{1e6 * end:.4g}", f"{best / end:.3f}",
            f"{statistics.median(r.seconds for r in runs[name]):.0f}",
        ])  # fmt: skip
    blocks = sum(1 for _ in walk(task.func.body))
    return [Outcome(
        f"One more rule at a time: {task.func.name} of {blocks} blocks, "
        f"{len(options.seeds)} seeds of {options.trials} trials at most",
        ["space", "rules", "sketches", "us", "share of the best", "seconds"], rows,
        bars=4, across="speed, as a share of the best",
    )]  # fmt: skip
