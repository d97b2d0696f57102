"""Whether constants measured on this machine would rank programs better than the table that the
analytic score uses: `python -m bench.constants [--data FOLDER]`, on an idle machine.

Times are in cycles of a clock that is derived from the peak of multiply-adds: a core that starts
`ports` of them a cycle.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench.dataset import DATA, load
from bench.table import Row, arguments, finish
from tilesmith.base.target import CpuConstants
from tilesmith.measure.this_machine import multiply_add
from tilesmith.search.training import pairwise_accuracy

_ROW = 4096  # elements


def measured(target: ts.Target) -> CpuConstants:
    """The constants of one core of this machine."""
    known = CpuConstants.of(target)
    peak = multiply_add("float32", target)
    clock = peak / (2 * known.lanes(32) * known.ports)
    alone = multiply_add("float32", target, chains=(1,))
    latency = peak / alone / known.ports + 1  # one cycle of scheduling loss
    caches = []
    for k, cache in enumerate(known.caches):
        below = known.caches[k + 1].nbytes // 2 if k < 2 else 4 * cache.nbytes
        rate = _bytes_per_second(max(below, 2 * cache.nbytes), target)
        caches.append(replace(cache, bandwidth_below=round(rate / clock, 1)))
    l1, l2, l3 = caches
    return replace(known, fma_latency=round(latency, 1), caches=(l1, l2, l3))


def _bytes_per_second(nbytes: int, target: ts.Target) -> float:
    """Of sums over the rows of an array of that size, the best of several calls."""
    rows = max(1, nbytes // (4 * _ROW))
    a, k = ts.placeholder((rows, _ROW), name="A"), ts.reduce_axis(_ROW, name="k")
    s = ts.compute((rows,), lambda i: ts.sum(a[i, k], axis=k), name="S")
    kernel = ts.build(ts.function([a, s], name="row_sums"), target)
    x, out = np.ones((rows, _ROW), np.float32), np.empty(rows, np.float32)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        kernel(x, out=out)
        best = min(best, time.perf_counter() - start)
    return x.nbytes / best


def accuracy(data: dict[str, list[ts.Measurement]], constants: CpuConstants) -> dict[str, float]:
    """The share of pairs of programs, by task, that the analytic score puts in the right order."""
    score, out = ts.CpuScore(constants), {}
    for name, records in data.items():
        groups = ts.groups_of(records)
        scores = np.concatenate([score.predict(g.variant, g.rows) for g in groups])
        out[name] = pairwise_accuracy(scores, np.concatenate([g.labels for g in groups]))
    return out


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--data", type=Path, default=DATA, help="a folder of bench.dataset")
    args = parser.parse_args()
    data = load(args.data)
    (target,) = {m.candidate.task.target for records in data.values() for m in records}
    if target.fingerprint != ts.cpu(1).fingerprint:
        parser.error(
            f"the records in {args.data} are of another machine; record some here: "
            "python -m bench.dataset --to FOLDER"
        )
    usual, here = CpuConstants.of(target), measured(target)
    rows = [Row("cycles between dependent FMAs", here.fma_latency, "", "table", usual.fma_latency)]
    for name, a, b in zip(("L2", "L3", "memory"), usual.caches, here.caches, strict=True):
        what = f"bytes a cycle from {name}"
        rows.append(Row(what, b.bandwidth_below, "", "table", a.bandwidth_below))
    ranked, by_table = accuracy(data, here), accuracy(data, usual)
    for name, share in ranked.items():
        rows.append(Row(f"{name}: pairs in order", share, "", "table", by_table[name]))
    mean, of_table = (statistics.fmean(x.values()) for x in (ranked, by_table))
    rows.append(Row("mean of all tasks", mean, "", "table", of_table, mean / of_table))
    finish(rows, args)


if __name__ == "__main__":
    main()
