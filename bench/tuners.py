"""Tuners side by side: the same matmul tuned by Tilesmith and by TVM's MetaSchedule where that is
installed, what each had reached over time, and the two kernels in turns:

    python -m bench.tuners [--seconds 10] [--trials 64] [--limit 600]

MetaSchedule ends after its trials or after the limit, whichever comes first: there is always a
table, of what was reached by then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench import metaschedule
from bench.metaschedule import Moment
from bench.table import Row, arguments, finish
from tilesmith_contest.compare import our_contestants
from tilesmith_contest.pairs import Turns, contest
from tilesmith_contest.problems import disagreement
from tilesmith_contest.process import ContestantProcess, Make, cores_for


def over_time(name: str, work: float, progress: Sequence[Moment], shown: int = 8) -> list[Row]:
    """A row for each moment with a better kernel: the first, the last, and some between them."""
    better = [m for k, m in enumerate(progress) if all(m.best < p.best for p in progress[:k])]
    if len(better) > shown:
        places = np.linspace(0, len(better) - 1, shown).round().astype(int)
        better = [better[k] for k in places]
    return [
        Row(f"{name} after {m.seconds:.1f} s, {m.trials} trials", work / m.best, "GFLOP/s")
        for m in better
    ]


def rows_of(
    sizes: tuple[int, int, int], seconds: float, trials: int, limit: float, seed: int
) -> list[Row]:
    n, k, m = sizes
    A, B = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    func = ts.function([A, B, ts.ops.matmul(A, B)], name="matmul")
    ours: list[Moment] = []

    def watch(p: ts.Progress) -> None:
        if p.best is not None:
            ours.append(Moment(p.seconds, p.trials, p.best.cost))

    budget = ts.Budget(seconds=seconds)
    result = ts.tune(func, ts.cpu(1), budget=budget, seed=seed, quiet=True, observers=[watch])
    ours.append(Moment(result.seconds, result.trials, result.best.cost))
    work = func.flops / 1e9
    print(f"matmul {n}x{k}x{m}, 1 thread")
    rows = over_time("Tilesmith", work, ours)
    rows.append(Row("Tilesmith: seconds", result.seconds, "s"))
    if not metaschedule.is_installed():
        print("(MetaSchedule is absent: pip install apache-tvm==0.26.0 xgboost-cpu)")
        return rows
    with tempfile.TemporaryDirectory() as folder:
        theirs = metaschedule.tuned(sizes, trials, Path(folder), limit)
        rows += over_time(metaschedule.NAME, work, theirs.progress)
        rows.append(Row(f"{metaschedule.NAME}: seconds", theirs.seconds, "s"))
        print(f"({metaschedule.NAME}: {theirs.ended})")
        if theirs.progress:
            rows.append(side_by_side(sizes, work, result.kernel, folder))
    return rows


def side_by_side(sizes: tuple[int, int, int], work: float, kernel: ts.Kernel, folder: str) -> Row:
    n, k, m = sizes
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((n, k), np.float32), rng.standard_normal((k, m), np.float32)
    cores = cores_for(1)
    with ContestantProcess("tilesmith", cores) as p, ContestantProcess("tvm", cores) as q:
        (ours,) = p.make(Make(our_contestants, (kernel.artifact, (a, b), None)))
        (peer,) = q.make(Make(metaschedule.contestants, (sizes, folder, [a, b])))
        if why := disagreement(p.answer(ours), q.answer(peer)):
            raise SystemExit(f"ours and {peer}: {why}")
        (d,) = contest(p.sampler(ours), {peer: q.sampler(peer)}, Turns()).duels
    return Row("side by side", work / d.ours, "GFLOP/s", peer, work / d.theirs, d.ratio, d.spread)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sizes", type=int, nargs=3, default=(512, 512, 512), metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, help="tuning time of Tilesmith")
    parser.add_argument("--trials", type=int, default=64, help="trials of MetaSchedule")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of MetaSchedule")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    n, k, m = args.sizes
    finish(rows_of((n, k, m), args.seconds, args.trials, args.limit, args.seed), args)


if __name__ == "__main__":
    main()
