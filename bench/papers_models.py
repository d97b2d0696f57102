"""The figures of `bench.papers` that are about cost models and schedulers, on recorded programs and
without the hardware: the same numbers on every machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

import tilesmith as ts
from bench.ablation_run import compare_models
from bench.dataset import load
from bench.papers_outcome import Outcome
from bench.papers_tuning import Options
from bench.scoring import K, halves, judge
from tilesmith.search.protocol import CostModel, FeatureExtractor, Predictor
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.training import groups_of

_NONE = ts.NoScore()
_MOST, _FEW = 400, 150  # records of each task; of fits for each task apart
Data = dict[str, list[ts.Measurement]]


def _family(task: str) -> str:
    return task.split("_")[0]


def _data(most: int) -> Data:
    """Some records of each task, spread evenly over the order in which they were measured."""
    return {name: ms[:: max(1, len(ms) // most)][:most] for name, ms in load().items()}


def representations(options: Options) -> list[Outcome]:
    """Trees fitted to one set of operators order the programs of another, by features."""
    data = _data(_FEW)
    features: dict[str, FeatureExtractor] = {
        "knobs": ts.KnobFeatures(),
        "statements (Ansor's)": ts.StatementFeatures(),
        "relations (AutoTVM's)": ts.RelationFeatures(),
    }
    ways = {
        "the same sizes": lambda test, task: task == test,
        "other sizes of the operator": lambda test, task: (
            task != test and _family(task) == _family(test)
        ),
        "other operators": lambda test, task: _family(task) != _family(test),
    }
    rows = []
    for name, extractor in features.items():
        cells = []
        for is_source in ways.values():
            found = []
            for seed in options.seeds[:2]:
                for test, records in data.items():
                    train, asked = halves(records, seed)
                    told = [
                        m for task, ms in data.items() if is_source(test, task)
                        for m in (train if task == test else ms)
                    ]  # fmt: skip
                    model = ts.Gbdt(features=extractor, base=_NONE, most=2000).fit(told)
                    if model is not None:
                        found.append(judge(model, asked)[0])
            cells.append(f"{statistics.fmean(found):.3f}" if found else "-")
            print(f"  {name}: {cells[-1]}", flush=True)
        rows.append([name, *cells])
    return [Outcome(
        "Representations: pairwise accuracy on programs that were not learned from, by what was",
        ["features", *ways], rows, bars=2, across="pairwise accuracy, learned from other sizes",
        note="0.5 is chance. The analytic score is not used.",
    )]  # fmt: skip


def _speeds(
    predictor: Predictor, records: Sequence[ts.Measurement], loss: str
) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Predicted and true speeds, relative to the fastest."""
    groups = groups_of(records)
    labels = np.concatenate([g.labels for g in groups])
    scores = np.concatenate([predictor.predict(g.variant, g.rows) for g in groups])
    return (np.exp2(scores - scores.max()) if loss == "regression" else scores), labels


def cost_models(options: Options) -> list[Outcome]:
    """As in the paper's section on its cost model: half of the programs are learned from."""
    data = _data(_MOST)
    models: dict[str, tuple[str, CostModel | None]] = {
        "packed (Ansor)": ("packed", ts.Gbdt(loss="packed", base=_NONE, rounds=300)),
        "regression": ("regression", ts.Gbdt(loss="regression", base=_NONE, rounds=300)),
        "rank": ("rank", ts.Gbdt(loss="rank", base=_NONE)),
        "rank, corrects the analytic score (ours)": ("rank", ts.Gbdt()),
        "analytic score, nothing learned": ("rank", None),
    }
    rows = []
    for name, (loss, model) in models.items():
        told: list[tuple[float, ...]] = []
        errors: list[tuple[float, float]] = []
        for seed in options.seeds[:3]:
            parts = {task: halves(ms, seed) for task, ms in data.items()}
            train = [m for learned, _ in parts.values() for m in learned]
            predictor = ScoreByTarget() if model is None else model.fit(train)
            assert predictor is not None, "the data set is too small"
            for _, asked in parts.values():
                told.append(judge(predictor, asked))
                if loss != "rank":
                    got, want = _speeds(predictor, asked, loss)
                    rmse = float(np.sqrt(np.mean((got - want) ** 2)))
                    errors.append((rmse, 1 - rmse**2 / float(want.var())))
        accuracy, recall, peak = (statistics.fmean(x) for x in zip(*told, strict=True))
        means = [f"{statistics.fmean(x):.3f}" for x in zip(*errors, strict=True)] or ["-", "-"]
        rows.append([name, *means, f"{accuracy:.3f}", f"{recall:.3f}", f"{peak:.3f}"])
    return [Outcome(
        f"Cost models on {len(data)} recorded operators, all learned together",
        ["model", "RMSE", "R2", "pairwise", f"recall@{K}", "best of its first 10"], rows, bars=3,
        across="pairwise accuracy",
        note="Ansor states RMSE 0.079, R2 0.958, pairwise 0.851, recall@30 0.624.",
    )]  # fmt: skip


def schedulers(options: Options) -> list[Outcome]:
    """Five recorded operators as one network, tuned by trials that take as long as they took."""
    curves = compare_models(len(options.seeds), options.trials, 300)
    best = min(run[-1][1] for runs in curves.values() for run in runs)
    rows = []
    for name, runs in curves.items():
        end = statistics.median(run[-1][1] for run in runs)
        seconds = statistics.median(run[-1][0] for run in runs)
        rows.append([name, f"{1e3 * end:.4g}", f"{best / end:.3f}", f"{seconds:.0f}"])
    return [Outcome(
        f"Task scheduler, shared model and transfer, {options.trials} trials for five operators",
        ["contestant", "ms in the end", "speed", "seconds"], rows,
        {name: [[(s, best / c) for s, c in run] for run in runs] for name, runs in curves.items()},
        "seconds", "speed, as a share of the best",
    )]  # fmt: skip
