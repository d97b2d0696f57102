"""How many candidates are measured in a second, checking included, and where the time goes:
`python -m bench.measuring [--seconds 15] [--stability] [--json F]`.
"""

from __future__ import annotations

import importlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.table import Row, arguments, finish
from tilesmith.task.task import Candidate, Task

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

BATCH = 32
GOALS = {512: 12.0, 128: 30.0}  # trials a second


def random_trace(func: ts.Function, rng: random.Random) -> ts.Trace:
    """The schedule of examples/matmul.py with random tiles: most are mediocre, as in a search."""
    sch = ts.Schedule(func)
    packed = sch.cache_read("C", "B")
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, [None, rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 10, 12])])
    j0, j1 = sch.split(j, [None, rng.choice([8, 16, 24, 32, 48, 64])])
    k0, k1, k2 = sch.split(k, [None, rng.choice([8, 16, 32, 64, 128, 256]), rng.choice([1, 2, 4])])
    outer = [j0, k0, i0] if rng.random() < 0.5 else [k0, j0, i0]
    sch.reorder(*outer, k1, k2, i1, j1)
    sch.compute_at(packed, k0)
    sch.vectorize(sch.loops(packed)[-1])
    sch.vectorize(j1)
    sch.unroll(k2, i1)
    return sch.trace


def distinct(task: Task, count: int, seed: int = 0) -> list[Candidate]:
    rng = random.Random(seed)
    found: dict[str, Candidate] = {}
    for _ in range(20 * count):
        c = Candidate(task, random_trace(task.func, rng))
        found.setdefault(c.key, c)
        if len(found) == count:
            break
    return list(found.values())


def measure(n: int, seconds: float, **settings: Any) -> list[Row]:
    func = importlib.import_module("matmul").matmul(n)
    task = Task(func, ts.cpu(1))
    candidates = distinct(task, 2000)
    with ts.LocalMeasurer(**settings).open(task) as run:
        start = time.perf_counter()
        run.measure(candidates[:1])
        started = time.perf_counter() - start
        measured, batches = [], 0
        spent_before = run.spent.building
        start = time.perf_counter()
        while time.perf_counter() - start < seconds and batches * BATCH < len(candidates):
            measured += run.measure(candidates[batches * BATCH : (batches + 1) * BATCH])
            batches += 1
        took = time.perf_counter() - start
        best = run.best(task)
    rate = len(measured) / took
    spent = run.spent
    name = f"matmul {n}, 1 thread"
    failures = sum(m.failure is not None for m in measured)
    contended = sum(m.contended for m in measured)
    kernels = len({m.seconds for m in measured})
    rows = [
        Row(f"{name}: trials measured", rate, "1/s", "goal", GOALS[n], rate / GOALS[n]),
        Row("  distinct kernels", 100 * kernels / len(measured), "%"),
        Row("  building, all cores", 100 * (spent.building - spent_before) / took, "% of wall"),
        Row("  waiting for builds", 100 * spent.waiting / took, "% of wall"),
        Row("  checking, first call included", 100 * spent.checking / took, "% of wall"),
        Row("  timing", 100 * spent.timing / took, "% of wall"),
        Row("  racing and confirming", 100 * spent.racing / took, "% of wall"),
        Row("  contended", 100 * contended / len(measured), "%"),
        Row("  failed", 100 * failures / len(measured), "%"),
        Row("  first measurement after opening", started, "s"),
    ]
    if best is not None:
        rows.append(Row("  best", func.flops / best.cost / 1e9, "GFLOP/s"))
    return rows


@contextmanager
def loaded(busy: bool) -> Iterator[None]:
    """With another process that takes all it gets of one core, or without."""
    if not busy:
        yield
        return
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def stability(seconds: float, busy: bool) -> list[Row]:
    """Winners of three seeds, timed again side by side: whether they are as their records say.
    Those were taken at different times; they are compared by what the machine's moods leave.
    """
    func = importlib.import_module("matmul").matmul(256)
    with loaded(busy):
        found = [
            ts.tune(func, ts.cpu(1), budget=ts.Budget(seconds=seconds), seed=seed, quiet=True)
            for seed in range(3)
        ]
        rng = random.Random(0)
        a, b = (np.random.default_rng(k).random((256, 256), np.float32) for k in range(2))
        out = np.empty((256, 256), np.float32)
        samples: list[list[float]] = [[], [], []]
        for _ in range(61):  # in rounds, each in another order
            for k in rng.sample(range(3), 3):
                timing = found[k].kernel.time(a, b, out=out, repeats=1, min_seconds=0.004)
                samples[k].append(timing.median)
    rows = []
    load = "one core loaded" if busy else "nothing else running"
    for i, j in combinations(range(3), 2):
        ratio = statistics.median(x / y for x, y in zip(samples[i], samples[j], strict=True))
        (low_i, high_i), (low_j, high_j) = (found[k].best.normal_confidence for k in (i, j))
        low, high = low_i / high_j, high_i / low_j
        said = found[i].best.normal_cost / found[j].best.normal_cost
        name = f"winner {i} / winner {j}, {load}"
        rows.append(Row(name, ratio, "x", "records", said, ratio / said, (high - low) / 2))
        off = max(0.0, low / ratio - 1, ratio / high - 1)
        rows.append(Row("  beyond the stated confidence", 100 * off, "%"))
    return rows


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each size")
    parser.add_argument(
        "--stability", action="store_true", help="winners of three seeds against their records"
    )
    args = parser.parse_args()
    if args.stability:
        both = [row for busy in (False, True) for row in stability(args.seconds, busy)]
        finish(both, args)
        return
    rows = [row for n in GOALS for row in measure(n, args.seconds)]
    finish(rows, args)


if __name__ == "__main__":
    main()
