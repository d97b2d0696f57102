"""Cost models: candidates scored a second on one core, from a matrix of decisions, and the memory
that takes; and how well each orders programs of the recorded data set that it has not seen.

Half of each task's records are for learning, the other half is asked about; a model learns from
all tasks at once, or from one task alone ("own"). Of the k truly fastest programs, recall@k is the
share among the k that the model likes best, with k = 30.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench.dataset import DATA, load
from bench.space import CASES
from bench.table import Row, arguments, finish
from tilesmith.cli.operators import operator
from tilesmith.search.protocol import CostModel, Predictor, Scores
from tilesmith.search.statements import statements_of
from tilesmith.search.training import groups_of, pairwise_accuracy, peak_curve, recall_at

MODELS: dict[str, CostModel] = {
    "rank": ts.Gbdt(loss="rank"),
    "packed": ts.Gbdt(loss="packed"),
    "regression": ts.Gbdt(loss="regression"),
    "tree": ts.TreeGru(),
}
POPULATION = 100_000
K = 30

Halves = tuple[list[ts.Measurement], list[ts.Measurement]]


def halves(records: Sequence[ts.Measurement], seed: int) -> Halves:
    """To learn from, and to be asked about."""
    order = np.random.default_rng(seed).permutation(len(records))
    cut = len(order) // 2
    return [records[k] for k in order[:cut]], [records[k] for k in order[cut:]]


def judge(predictor: Predictor, test: Sequence[ts.Measurement]) -> tuple[float, float, float]:
    """Pairwise accuracy, recall and the peak of the first programs, all of one task."""
    groups = groups_of(test)
    labels = np.concatenate([g.labels for g in groups])
    scores: Scores = np.concatenate([predictor.predict(g.variant, g.rows) for g in groups])
    shuffle = np.random.default_rng(0).permutation(len(labels))  # ties are in no one's favour
    scores, labels = scores[shuffle], labels[shuffle]
    return (
        pairwise_accuracy(scores, labels),
        recall_at(scores, labels, K),
        float(peak_curve(scores, labels, 10)[-1]),
    )


def quality(
    data: dict[str, list[ts.Measurement]], models: dict[str, CostModel], splits: int, each: bool
) -> list[Row]:
    rows = []
    for name, model in models.items():
        found: dict[str, list[tuple[float, float, float]]] = {}
        for seed in range(splits):
            parts = {task: halves(ms, seed) for task, ms in data.items()}
            joint = model.fit([m for train, _ in parts.values() for m in train])
            for task, (train, test) in parts.items():
                for way, predictor in (("", joint), (", own", model.fit(train))):
                    if predictor is not None:
                        told = judge(predictor, test)
                        found.setdefault(f"{name}{way}", []).append(told)
                        if each:
                            found.setdefault(f"{name}{way}, {task}", []).append(told)
        for what, told_ in found.items():
            accuracy, recall, peak = (statistics.fmean(x) for x in zip(*told_, strict=True))
            rows += [
                Row(f"{what}: pairwise accuracy", accuracy, ""),
                Row(f"{what}: recall@{K}", recall, ""),
                Row(f"{what}: best of its first 10", peak, "of best"),
            ]
    return rows


def middle_variant(name: str) -> ts.Variant:
    op, shape = CASES[name]
    task = ts.Task(operator(op, shape), ts.cpu(1))
    made = [v for sketch in ts.SketchSpace().sketches(task) for v in ts.variants(task, sketch)]
    return made[len(made) // 2]


def seconds(call: Callable[[], object], rounds: int = 5) -> float:
    """Of the processor, the median: everything here has one thread, and the machine other work."""
    call()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def speed(predictor: Predictor) -> list[Row]:
    rows = []
    for name in CASES:
        v = middle_variant(name)
        population = v.sample(np.random.default_rng(0), POPULATION)
        part = population[: POPULATION // 4]
        features = len(part) / seconds(lambda: statements_of(v).of(part))
        scored = len(part) / seconds(lambda: predictor.predict(v, part))
        nbytes = peak_nbytes(lambda: predictor.predict(v, population))
        rows += [
            Row(f"{name}: features", features / 1e3, "k rows/s"),
            Row(f"{name}: features and prediction", scored / 1e3, "k rows/s"),
            Row(f"{name}: memory for {POPULATION:,}", nbytes / 2**20, "MiB"),
        ]
    return rows


def peak_nbytes(call: Callable[[], object]) -> int:
    """By how much the process grows meanwhile, at most, as the kernel sees it."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest size so far
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(x.split()[1]) for x in lines if x.startswith(f"{what}:"))


def main() -> None:
    parser = arguments(__doc__ or "")
    quick = [name for name in MODELS if name != "tree"]  # which learns for minutes
    parser.add_argument("--models", nargs="*", choices=[*MODELS], default=quick)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--each", action="store_true", help="the figures of each task too")
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()
    data = load(args.data)
    everything = [m for ms in data.values() for m in ms]
    predictor = ts.Gbdt().fit(everything)
    assert predictor is not None, "the data set is too small"
    models = {name: MODELS[name] for name in args.models}
    finish([*speed(predictor), *quality(data, models, args.splits, args.each)], args)


if __name__ == "__main__":
    main()
