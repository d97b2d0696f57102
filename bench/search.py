"""Strategies and models compared on the recorded data set, seed by seed, without the hardware:
trials until random search's best is reached, and how fast the best program is after some trials.

    python -m bench.search --seeds 5 --trials 200 --plots build

What was recorded answers as it was; of other programs a simulator fitted to the records speaks
(see `tilesmith.measure.simulate`; its error is printed). With `--replay recorded` the strategies
are kept to recorded programs instead, with `--replay nearest` the nearest record answers. With
`--replay listed` there is no strategy but a choice among all records: whatever the contestant's
model, fitted to what was chosen so far, likes best. `--real` makes real runs instead, on drawn
operators: see `bench/real_search.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.dataset import DATA, load
from tilesmith.base.whole_file import write_whole
from tilesmith.search.classic.ensemble import upper_confidence_bound
from tilesmith.search.protocol import CostModel, Strategy
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.training import groups_of, pairwise_accuracy
from tilesmith.space.spaces import Space

Records = Sequence[ts.Measurement]
Curve = list[float]  # the best cost after 1, 2, ... trials

BATCH, FIRST_BATCH = 16, 8
TUNED_BEFORE = 96  # trials that tasks have had, from which is transferred
RANDOM, TUNED = "random", "transfer, tuned"
REPLAYS = ("model", "nearest", "recorded", "listed")
CHECKPOINTS = (8, 16, 32, 64, 128, 200)
NEAR = (1.2, 1.1, 1.05)  # of the best known


@dataclass(frozen=True)
class Limited:
    """The plainest recorded variant alone: a template fixes what a sketch leaves open."""

    records: Records

    def sketches(self, task: ts.Task) -> tuple[ts.Trace, ...]:
        return (min(ts.RecordedSpace(self.records).sketches(task), key=lambda t: len(t.steps)),)


@dataclass(frozen=True)
class Listed:
    """Chooses among records, by a cost model; by the draft as long as the model knows nothing."""

    model: CostModel | None
    records: Records

    def start(self, task: ts.Task, sketches: object, rng: np.random.Generator) -> ListedSearch:
        return ListedSearch(self, rng)


class ListedSearch:
    def __init__(self, settings: Listed, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self._groups = groups_of(settings.records)
        self._left = set(range(len(settings.records)))
        self._told: list[ts.Measurement] = []

    def ask(self, n: int) -> list[ts.Candidate]:
        model, records = self.settings.model, self.settings.records
        predictor = None if model is None else model.fit(self._told)
        scores = np.full(len(records), -np.inf)
        for g in self._groups:
            scores[g.at] = (predictor or ScoreByTarget()).predict(g.variant, g.rows)
        order = self.rng.permutation(len(records))  # ties are in no one's favour
        order = order[np.argsort(-scores[order], kind="stable")]
        best = [int(k) for k in order if k in self._left][:n]
        self._left -= set(best)
        return [records[k].candidate for k in best]

    def tell(self, measurements: Records) -> None:
        self._told += measurements


Make = Callable[[Records], Strategy]  # from the records of other tasks


def _evolution(**settings: Any) -> Make:
    return lambda others: ts.Evolution(**settings)


def _transfer(others: Records) -> Strategy:
    return ts.Evolution(cost_model=ts.Transfer(others))


CONTESTANTS: dict[str, tuple[Make, Callable[[Records], Space]]] = {
    RANDOM: (lambda others: ts.Random(), ts.RecordedSpace),
    "evolution": (_evolution(), ts.RecordedSpace),
    # the ablations of Ansor
    "no model": (_evolution(cost_model=None), ts.RecordedSpace),
    "no fine-tuning": (_evolution(generations=0, local=0.0, measured=0.0), ts.RecordedSpace),
    "limited space": (_evolution(), Limited),
    # the comparisons of AutoTVM
    "packed": (_evolution(cost_model=ts.Gbdt(loss="packed")), ts.RecordedSpace),
    "regression": (_evolution(cost_model=ts.Gbdt(loss="regression")), ts.RecordedSpace),
    "TreeGru": (_evolution(cost_model=ts.TreeGru()), ts.RecordedSpace),
    "no diversity": (_evolution(diversity=0.0), ts.RecordedSpace),
    "diversity x5": (_evolution(diversity=0.1), ts.RecordedSpace),
    "expected improvement": (_evolution(cost_model=ts.Ensemble()), ts.RecordedSpace),
    "upper confidence bound": (
        _evolution(cost_model=ts.Ensemble(acquire=upper_confidence_bound)), ts.RecordedSpace
    ),
    "transfer": (_transfer, ts.RecordedSpace),
    TUNED: (_transfer, ts.RecordedSpace),  # from tasks that have been tuned
    # what the defaults might be
    "rank, depth 4": (_evolution(cost_model=ts.Gbdt(depth=4)), ts.RecordedSpace),
    "rank, 120 trees": (_evolution(cost_model=ts.Gbdt(rounds=120)), ts.RecordedSpace),
}  # fmt: skip


SLOW = (TUNED, "transfer", "TreeGru")  # begin first: nobody waits for them at the end


def replay(
    strategy: Strategy, space: Space, records: Records, how: str, trials: int, seed: int,
    keep: list[ts.Measurement] | None = None,
) -> Curve:  # fmt: skip
    """What is measured on the way is also put into `keep`."""
    task = records[0].candidate.task
    if how == "recorded" or (how == "listed" and isinstance(strategy, ts.Random)):
        strategy = ts.Recorded(strategy, records)
    elif how == "listed":
        assert isinstance(strategy, ts.Evolution), "it has a model"
        strategy = Listed(strategy.cost_model, records)
    search = strategy.start(task, space.sketches(task), np.random.default_rng(seed))
    costs: list[float] = []
    with measurer_of(tuple(records), how).open(task) as run:
        while len(costs) < trials:
            n = min(BATCH if costs else FIRST_BATCH, trials - len(costs))
            candidates = search.ask(n)
            if not candidates:
                break
            measured = run.measure(candidates)
            search.tell(measured)
            costs += [m.cost for m in measured]
            if keep is not None:
                keep += measured
    return [float(c) for c in np.minimum.accumulate(costs)]


_MEASURERS: dict[tuple[str, str], ts.ReplayMeasurer] = {}


def measurer_of(records: Records, how: str) -> ts.ReplayMeasurer:
    """Made once for a task: it fits a simulator."""
    key = records[0].candidate.task.key, how
    if key not in _MEASURERS:
        _MEASURERS[key] = ts.ReplayMeasurer(
            records, "fail" if how in ("recorded", "listed") else how
        )
    return _MEASURERS[key]


def trials_to(curve: Curve, target: float) -> float:
    return next((k for k, c in enumerate(curve, 1) if c <= target * 1.0001), float("inf"))


@dataclass(frozen=True)
class Report:
    """Curves by task, contestant and seed."""

    curves: dict[str, dict[str, list[Curve]]]

    def target(self, task: str) -> float:
        """Random search's best, in the median over seeds."""
        return statistics.median(c[-1] for c in self.curves[task][RANDOM])

    def best(self, task: str) -> float:
        return min(c[-1] for cs in self.curves[task].values() for c in cs)

    def trials(self, task: str, name: str, target: float) -> float:
        return statistics.median(trials_to(c, target) for c in self.curves[task][name])

    def speed(self, task: str, name: str, trials: int) -> float:
        """Of the best program known, in the median over seeds."""
        best = self.best(task)
        return statistics.median(best / c[min(trials, len(c)) - 1] for c in self.curves[task][name])

    def show(self) -> None:
        tasks, names = [*self.curves], [*next(iter(self.curves.values()))]
        longest = max(len(c) for cs in self.curves.values() for c in cs[RANDOM])
        self._table(
            f"Trials until the best of {longest} random ones is reached",
            {t: self.target(t) for t in tasks},
        )
        for near in NEAR:
            self._table(
                f"Trials until a program takes at most {near} of the best one's time",
                {t: near * self.best(t) for t in tasks},
            )
        print(
            "\nSpeed after so many trials, as a share of the best known (geometric mean of tasks)"
        )
        shortest = min(len(c) for cs in self.curves.values() for x in cs.values() for c in x)
        checkpoints = [n for n in CHECKPOINTS if n <= shortest]
        print(f"{'':24}" + "".join(f"{n:>10}" for n in checkpoints))
        for name in names:
            shares = (
                statistics.geometric_mean(self.speed(t, name, n) for t in tasks)
                for n in checkpoints
            )
            print(f"{name:24}" + "".join(f"{s:10.3f}" for s in shares))

    def _table(self, title: str, targets: dict[str, float]) -> None:
        print(f"\n{title} (median over seeds)")
        print(f"{'':24}" + "".join(f"{t[:18]:>20}" for t in targets) + f"{'median':>10}")
        for name in next(iter(self.curves.values())):
            counts = [self.trials(t, name, target) for t, target in targets.items()]
            cells = "".join(f"{_count(n):>20}" for n in counts)
            print(f"{name:24}{cells}{_count(statistics.median(counts)):>10}")
        self._transfers(targets)

    def _transfers(self, targets: dict[str, float]) -> None:
        """Trials with transfer as a share of those of a cold start, for all shapes of an operator
        together; a run that does not get there counts with its length.
        """
        names = [*next(iter(self.curves.values()))]
        for name in names:
            if not name.startswith("transfer") or "evolution" not in names:
                continue
            spent: dict[str, list[tuple[float, float]]] = {}
            for t, target in targets.items():
                pair = [
                    statistics.median(min(trials_to(c, target), len(c)) for c in self.curves[t][n])
                    for n in (name, "evolution")
                ]
                spent.setdefault(t.split("_")[0], []).append((pair[0], pair[1]))
            shares = {op: sum(w for w, _ in x) / sum(c for _, c in x) for op, x in spent.items()}
            each = ", ".join(f"{op} {x:.2f}" for op, x in shares.items())
            middle = statistics.median(shares.values())
            print(f"{name} / evolution: median of the operators {middle:.2f} ({each})")

    def plot(self, folder: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        folder.mkdir(parents=True, exist_ok=True)
        for task, by_name in self.curves.items():
            figure, axes = pyplot.subplots(figsize=(8, 5))
            best = self.best(task)
            for name, curves in by_name.items():
                length = min(map(len, curves))
                middle = np.median([np.array(c[:length]) for c in curves], axis=0)
                axes.plot(np.arange(1, length + 1), best / middle, label=name)
            axes.set(xscale="log", xlabel="trials", ylabel="speed, of the best known", title=task)
            axes.legend(fontsize=7)
            figure.savefig(folder / f"{task}.png", dpi=120, bbox_inches="tight")
            pyplot.close(figure)


def _count(n: float) -> str:
    return "not" if n == float("inf") else f"{n:.0f}"


def describe(data: dict[str, list[ts.Measurement]], how: str, threads: int) -> None:
    if how == "model":
        with ThreadPoolExecutor(threads) as pool:  # fitting simulators is BLAS
            list(pool.map(partial(_simulator, how), data.values()))
    for name, records in data.items():
        text = f"{name}: {len(records)} records"
        table = measurer_of(tuple(records), how).tables[records[0].candidate.task.key]
        if how == "model" and table.simulator is not None:
            s = table.simulator
            accuracy = pairwise_accuracy(-s.left_out, -s.seconds)
            text += (
                f"; simulator, each record left out in turn: pairwise accuracy {accuracy:.2f}, "
                f"off by a factor of {np.exp(s.error**0.5):.2f}"
            )
        print(text, flush=True)


def _simulator(how: str, records: Records) -> object:
    return measurer_of(tuple(records), how).tables[records[0].candidate.task.key].simulator


@dataclass(frozen=True)
class Job:
    """All seeds: a strategy that transfers fits a model to all other tasks, once."""

    name: str
    task: str
    trials: int
    seeds: int


# Set before processes are forked: what was recorded, and what tuning each task finds.
_DATA: dict[str, list[ts.Measurement]] = {}
_FOUND: dict[str, list[ts.Measurement]] = {}


def _tune(task: str) -> list[ts.Measurement]:
    """As records are where someone works: most are of programs that a search liked."""
    found: list[ts.Measurement] = []
    records, strategy = _DATA[task], ts.Evolution()
    replay(strategy, ts.RecordedSpace(records), records, "model", TUNED_BEFORE, 100, found)
    return found


def _run(how: str, job: Job) -> tuple[Job, list[Curve]]:
    records = _DATA[job.task]
    make, space = CONTESTANTS[job.name]
    sources = (_DATA, _FOUND) if job.name == TUNED else (_DATA,)
    strategy = make([m for s in sources for t, ms in s.items() if t != job.task for m in ms])
    curves = [
        replay(strategy, space(records), records, how, job.trials, seed)
        for seed in range(job.seeds)
    ]
    return job, curves


def main() -> None:
    if "--real" in sys.argv:
        from bench.real_search import main as real

        real()
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--random-trials", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=[*CONTESTANTS], default=[*CONTESTANTS])
    parser.add_argument("--tasks", nargs="+", help="of the data set; all by default")
    parser.add_argument("--replay", choices=REPLAYS, default="model")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all curves here")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the curves, a file each")
    args = parser.parse_args()
    _DATA.update(load(args.data))
    data = {name: _DATA[name] for name in args.tasks or _DATA}
    describe(data, args.replay, args.jobs)
    names = list(dict.fromkeys([RANDOM, *args.only]))
    jobs = [
        Job(name, task, args.random_trials if name == RANDOM else args.trials, args.seeds)
        for name in sorted(names, key=lambda name: name not in SLOW) for task in data
    ]  # fmt: skip
    curves: dict[str, dict[str, list[Curve]]] = {task: {n: [] for n in names} for task in data}
    start = time.monotonic()
    # Forked: the records and the simulators are made once.
    if TUNED in names:
        with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
            _FOUND.update(zip(_DATA, pool.map(_tune, _DATA, chunksize=1), strict=True))
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for job, found in pool.imap_unordered(partial(_run, args.replay), jobs):
            curves[job.task][job.name] = found
            print(f"{time.monotonic() - start:6.0f} s  {job.name}, {job.task}", flush=True)
    if args.json:
        write_whole(args.json, json.dumps(curves))
    report = Report(curves)
    report.show()
    if args.plots:
        report.plot(args.plots)


if __name__ == "__main__":
    main()
