"""How well the analytic score of GPUs chooses among programs: those of operators that a seed draws
are measured once on a GPU, and judged by the score as it is, on any machine.

    python -m bench.gpu_choices --seed 7 --to FILE.jsonl.xz [--families "product,softmax"]
                                [--cases 12] [--programs 80] [--limit SECONDS]
    python -m bench.gpu_choices --judge FILE.jsonl.xz

Of each operator there are its drafts, those that the score likes best in each structure, and as
many drawn at random. A row of the judgement has the speed of the favourite and of the best among
five, relative to the fastest one, and the share of pairs in the right order.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench.dataset import condensed
from bench.everyday_cases import GPU, draw
from bench.gpu_cases import device
from bench.gpu_dataset import QUICK
from tilesmith.base.errors import TilesmithError
from tilesmith.ir.nodes import walk
from tilesmith.records.lines import write_lines
from tilesmith.records.rows import Entry, record_row, task_row
from tilesmith.search.gpu_score import GpuScore
from tilesmith.search.training import groups_of, pairwise_accuracy
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.task.describe import shapes_text
from tilesmith.tune.build_request import drafts_of
from tilesmith.tune.compile_model import extract_tasks
from tilesmith_contest.pairs import geometric_mean

_DRAFTS = 12
_STRUCTURES = 40  # of an operator, at most
_DRAWN = 64  # rows for each that the score likes best
_SECONDS = 7.0  # of measuring an operator, at most


def tasks_of(
    seed: int, count: int, families: tuple[str, ...], target: ts.Target
) -> Iterator[ts.Task]:
    """Of each case the task with the most instances."""
    from bench.everyday_modules import module_of
    from bench.module_contestants import graph_of

    for case in draw(seed, count, GPU, families):
        try:
            tasks = [t for t, _ in extract_tasks(graph_of(*module_of(case)), target)]
        except TilesmithError as error:
            print(f"{case.name}: {error}")
            continue
        if tasks:
            yield max(tasks, key=_instances)


def _instances(task: ts.Task) -> float:
    return sum(float(np.prod([i.extent.number for i in b.iters])) for _, b in walk(task.func.body))


def programs(task: ts.Task, count: int, rng: np.random.Generator) -> list[ts.Candidate]:
    out = [ts.Candidate(task, t) for t in drafts_of(task, _DRAFTS)]
    every = list(chain.from_iterable(variants(task, s) for s in SketchSpace().sketches(task)))
    every = [every[k] for k in rng.permutation(len(every))[:_STRUCTURES]]
    each = max(1, -(-count // (2 * len(every))))
    for v in every:
        rows = v.sample(rng, _DRAWN * each)
        best = np.argsort(-GpuScore().predict(v, rows))[: 2 * each : 2]
        out += [v.candidate(row) for row in (*v.sample(rng, each), *rows[best])]
    return list(dict.fromkeys(out))[: _DRAFTS + count]


def measure(options: argparse.Namespace) -> None:
    target = device(options.target)
    families = tuple(x.strip() for x in options.families.split(",") if x.strip())
    rng, began = np.random.default_rng(options.seed), time.monotonic()
    entries: list[Entry] = []
    run = None
    measurer = ts.LocalMeasurer(rules=QUICK, confirm=False, timeout=10.0)
    try:
        for task in tasks_of(options.seed, options.cases, families, target):
            if time.monotonic() - began > options.limit:
                break
            asked = programs(task, options.programs, rng)
            run = measurer.open(task).__enter__() if run is None else run
            try:
                found = condensed(run.measure(asked, seconds=_SECONDS))
            except TilesmithError as error:
                print(f"{task.func.name}: {error}", flush=True)
                continue
            entries += [Entry(task_row(task), record_row(m)) for m in found]
            write_lines(options.to, entries)
            print(f"{task.func.name} {shapes_text(task.func)}: {len(found)} programs", flush=True)
    finally:
        if run is not None:
            run.__exit__(None, None, None)


def judgement(measured: Sequence[ts.Measurement]) -> tuple[float, float, float, float]:
    """The least microseconds; the favourite's speed, and that of the best of five, relative to the
    fastest; and the share of pairs in the right order.
    """
    groups = groups_of([m for m in measured if m.failure is None])
    scores = np.concatenate([GpuScore().predict(g.variant, g.rows) for g in groups])
    labels = np.concatenate([g.labels for g in groups])
    order, best = np.argsort(-scores, kind="stable"), float(labels.max())
    least = min(m.cost for m in measured if m.failure is None) * 1e6
    favourites = float(labels[order[0]]) / best, float(labels[order[:5]].max()) / best
    return least, *favourites, pairwise_accuracy(scores, labels)


def judge(path: Path) -> None:
    by_task: dict[str, list[ts.Measurement]] = defaultdict(list)
    for m in ts.read_records(path):
        by_task[m.candidate.task.key].append(m)
    rows = []
    for measured in by_task.values():
        func = measured[0].candidate.task.func
        rows.append(row := judgement(measured))
        print(
            f"{func.name} {shapes_text(func)}: {len(measured)} programs, best {row[0]:.2f} us, "
            f"favourite {row[1]:.2f}, of five {row[2]:.2f}, pairs {row[3]:.2f}"
        )
    one, five = (geometric_mean(max(r[k], 0.01) for r in rows) for k in (1, 2))
    pairs = sum(r[3] for r in rows) / max(1, len(rows))
    print(f"\n{len(rows)} operators: favourite {one:.3f}, of five {five:.3f}, pairs {pairs:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--families", default="")
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--programs", type=int, default=80)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds; then nothing is begun")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--judge", type=Path)
    options = parser.parse_args()
    if options.judge is not None:
        judge(options.judge)
    elif options.seed is None or options.to is None:
        parser.error("give --seed and --to to measure, or --judge")
    else:
        measure(options)


if __name__ == "__main__":
    main()
