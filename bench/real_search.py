"""`python -m bench.search --real`: real runs of `ts.tune`, no replays.

    python -m bench.search --real --seed 1234 [--operators 6] [--seeds 5] [--seconds 10]
        [--only default "no model"] [--model FILE] [--json FILE] [--limit SECONDS]

The seed draws operators from the families that nothing was fitted to. Each contestant tunes each of
them with each seed of the search; contestants take turns, in an order that the seed shuffles. Told
is the speed of the best program after so many seconds of the run, relative to the best program that
anyone found for the operator: the geometric mean, and a 95 % interval of it by drawing runs again.
`--model` is a file of `tilesmith learn` or `bench.learned -o`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import exp, log
from typing import Any

import numpy as np

import tilesmith as ts
from bench.drawn_dataset import NEVER_FITTED, operators
from bench.gpu_table import Table
from tilesmith.search.protocol import Strategy

AFTER = (1, 3, 10, 30)  # seconds
Make = Callable[[], Strategy]


def contestants(model: str | None) -> dict[str, Make]:
    out: dict[str, Make] = {
        "default": ts.Evolution,
        "no model": partial(ts.Evolution, cost_model=None),
        "no analytic score": lambda: ts.Evolution(
            score=ts.NoScore(), cost_model=ts.Gbdt(base=ts.NoScore())
        ),
        "random": ts.Random,
    }
    if model is not None:
        learned = ts.load_cost_model(model)
        out["learned"] = partial(ts.Evolution, cost_model=learned)
        never = ts.Gbdt(fewest=sys.maxsize)  # the task's own measurements teach nothing
        alone = ts.LearnedModel(learned.score, local=never, fading=float("inf"))
        out["learned alone"] = partial(ts.Evolution, cost_model=alone)
    return out


def after(curve: Sequence[Sequence[float]], seconds: float) -> float | None:
    """The cost of the best program by then."""
    return min((cost for at, _, cost in curve if at <= seconds), default=None)


def speeds(rows: Sequence[dict[str, Any]], name: str, seconds: float) -> list[float]:
    """log of the relative speed in each run; a run that has no program yet is taken for one that is
    as slow as the slowest first program of anyone.
    """
    out = []
    for operator in dict.fromkeys(r["operator"] for r in rows):
        own = [r for r in rows if r["operator"] == operator]
        best = min(r["curve"][-1][2] for r in own)
        worst = max(r["curve"][0][2] for r in own)
        for r in own:
            if r["contestant"] == name:
                out.append(log(best / (after(r["curve"], seconds) or worst)))
    return out


def interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean, and where it lies with a probability of 95 %."""
    values, rng = np.array(logs), np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(4000, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return exp(values.mean()), exp(low), exp(high)


def show(rows: Sequence[dict[str, Any]], seconds: float) -> None:
    columns = [s for s in AFTER if s <= seconds]
    count = len({r["operator"] for r in rows})
    print(f"\n{count} operators, {len(rows)} runs: speed of the best program, 95 % interval")
    print(f"{'':20}" + "".join(f"{f'after {s} s':>22}" for s in columns) + f"{'trials':>9}")
    for name in dict.fromkeys(r["contestant"] for r in rows):
        cells = ""
        for s in columns:
            mean, low, high = interval(speeds(rows, name, s))
            cells += f"{f'{mean:.3f} ({low:.3f}-{high:.3f})':>22}"
        trials = [r["trials"] for r in rows if r["contestant"] == name]
        print(f"{name:20}{cells}{sum(trials) / len(trials):9.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="real runs (this program)")
    parser.add_argument("--seed", type=int, required=True, help="draws the operators")
    parser.add_argument("--operators", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run")
    parser.add_argument("--only", nargs="+", help="contestants")
    parser.add_argument("--model", help="a cost model: adds the contestants that use it")
    parser.add_argument("--json", help="rows go here; runs that it has are not made again")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds in all")
    args = parser.parse_args()
    table = Table(args.json, args.limit)
    makes = contestants(args.model)
    names = args.only or [*makes]
    drawn = list(operators(args.seed, args.operators, NEVER_FITTED))
    rng = np.random.default_rng(args.seed)
    for seed in range(args.seeds):
        for o in drawn:
            for name in rng.permutation(names):
                run = f"{o.case}, {name}, seed {seed}"
                if table.has(run) or table.left < args.seconds:
                    continue
                result = ts.tune(
                    o.task.func, o.task.target, strategy=makes[name](), seed=seed, quiet=True,
                    budget=ts.Budget(seconds=args.seconds),
                )  # fmt: skip
                curve = [[round(s, 3), n, cost] for s, n, cost in result.curve]
                table.add(
                    run, operator=o.case, contestant=str(name), seed=seed, trials=result.trials,
                    curve=curve,
                )  # fmt: skip
    if table.rows:
        show(table.rows, args.seconds)


if __name__ == "__main__":
    main()
