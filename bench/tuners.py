"""Tuners side by side: the same matmul tuned by Tilesmith and by TVM's MetaSchedule where that is
installed, what each spent, and the two kernels in turns: `python -m bench.tuners [--trials 64]`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench import metaschedule
from bench.table import Row, arguments, finish
from tilesmith.report.compare import our_contestants
from tilesmith.report.pairs import Turns, contest
from tilesmith.report.problems import disagreement
from tilesmith.report.process import ContestantProcess, Make, cores_for


def rows_of(sizes: tuple[int, int, int], seconds: float, trials: int, seed: int) -> list[Row]:
    n, k, m = sizes
    A, B = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    func = ts.function([A, B, ts.ops.matmul(A, B)], name="matmul")
    budget = ts.Budget(seconds=seconds)
    result = ts.tune(func, ts.cpu(1), budget=budget, seed=seed, quiet=True)
    work = func.flops / 1e9
    name = f"matmul {n}x{k}x{m}, 1 thread"
    rows = [
        Row(f"{name}: Tilesmith", work / result.best.cost, "GFLOP/s"),
        Row("  trials", result.trials, ""),
        Row("  seconds", result.seconds, "s"),
    ]
    if not metaschedule.is_installed():
        print("(MetaSchedule is absent: pip install apache-tvm==0.26.0 xgboost-cpu)")
        return rows
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((n, k), np.float32), rng.standard_normal((k, m), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        theirs = metaschedule.tuned(sizes, trials, Path(folder))
        rows += [
            Row(f"{name}: MetaSchedule", work / theirs.best, "GFLOP/s"),
            Row("  trials", theirs.trials, ""),
            Row("  seconds", theirs.seconds, "s"),
        ]
        cores = cores_for(1)
        with ContestantProcess("tilesmith", cores) as p, ContestantProcess("tvm", cores) as q:
            (ours,) = p.make(Make(our_contestants, (result.kernel.artifact, (a, b), None)))
            (peer,) = q.make(Make(metaschedule.contestants, (sizes, folder, [a, b])))
            if why := disagreement(p.answer(ours), q.answer(peer)):
                raise SystemExit(f"ours and {peer}: {why}")
            done = contest(p.sampler(ours), {peer: q.sampler(peer)}, Turns())
    (d,) = done.duels
    side = f"{name}: side by side"
    return [*rows, Row(side, work / d.ours, "GFLOP/s", peer, work / d.theirs, d.ratio, d.spread)]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sizes", type=int, nargs=3, default=(512, 512, 512), metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, help="tuning time of Tilesmith")
    parser.add_argument("--trials", type=int, default=64, help="trials of MetaSchedule")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    n, k, m = args.sizes
    finish(rows_of((n, k, m), args.seconds, args.trials, args.seed), args.json)


if __name__ == "__main__":
    main()
