"""The space on one core: rows sampled, mutated, crossed and checked a second, what lowering the
variants of a sketch costs, and what making a row concrete does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

import tilesmith as ts
from bench.table import Row, arguments, finish
from tilesmith.cli.operators import operator
from tilesmith.space import domains
from tilesmith.space.derive import Rule

CASES = {
    "matmul 512": ("matmul", (512, 512, 512)),
    "conv2d 3x3 56x56 64->64": ("conv2d", (56, 64, 64, 3, 1, 1)),
}
RULES = {"ansor": ts.ansor_rules, "default": ts.default_rules}
POPULATION = 65536


def seconds(call: Callable[[], object], rounds: int = 7) -> float:
    """The median; the first call, which fills tables, is not counted."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rates(name: str, v: ts.Variant) -> list[Row]:
    rng = np.random.default_rng(0)
    n = POPULATION
    a, b = v.sample(rng, n), v.sample(rng, n)
    work: dict[str, Callable[[], object]] = {
        "sampled": lambda: v.sample(rng, n),
        "mutated": lambda: v.mutate(rng, a),
        "crossed": lambda: v.cross(rng, a, b),
        "checked": lambda: v.valid(a),
    }
    spent = {what: seconds(f) for what, f in work.items()}
    spent["all of these in sequence"] = sum(spent.values())
    return [Row(f"{name}: {what}", n / s / 1e6, "M rows/s") for what, s in spent.items()]


def lowering(name: str, task: ts.Task, rules: tuple[Rule, ...]) -> tuple[Row, list[ts.Variant]]:
    """All variants of all sketches, derivation included, with no table at hand."""
    domains.tile_table.cache_clear()
    domains.domain_of.cache_clear()
    start = time.perf_counter()
    space = ts.SketchSpace(rules)
    made = [v for sketch in space.sketches(task) for v in ts.variants(task, sketch)]
    spent = time.perf_counter() - start
    return Row(f"{name}: {len(made)} variants lowered cold", spent, "s"), made


def concrete(name: str, variants: list[ts.Variant]) -> list[Row]:
    """One row each of all variants, by its trace and by numbers put into the lowered Function."""
    rng = np.random.default_rng(0)
    pairs = [(v, v.sample(rng, 1)[0]) for v in variants]

    def put() -> None:
        for v, row in pairs:
            v.function(row)

    def replay() -> None:
        for v, row in pairs:
            v.decided(row).apply(v.task.func)

    each = 1e3 / len(pairs)
    return [
        Row(f"{name}: a row made a Function", seconds(put, 3) * each, "ms"),
        Row(f"{name}: the same by replaying its trace", seconds(replay, 3) * each, "ms"),
    ]


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    target = ts.Target.named("neoverse-n1").with_cores(4)
    rows: list[Row] = []
    for name, (op, shape) in CASES.items():
        task = ts.Task(operator(op, shape), target)
        for kind, rules in RULES.items():
            what = f"{name}, {kind}"
            cold, made = lowering(what, task, rules(target))
            rows += [*rates(what, made[len(made) // 2]), cold, *concrete(what, made)]
    finish(rows, args)


if __name__ == "__main__":
    main()
