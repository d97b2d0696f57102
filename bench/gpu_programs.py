"""Checks thousands of GPU programs against the oracle, in the SIMT interpreter: random candidates
of the operator suite, sketches of random programs, and random traces; then removes barriers.

    python -m bench.gpu_programs --rows 20 --programs 200 --traces 2000
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from tests.support.gpu_programs import OPENCL, GpuCheck, without_each_sync
from tests.support.gpu_suite import RULES, SHAPES, candidates
from tests.support.programs import random_program
from tests.support.traces import GPU_WEIGHTS, random_trace
from tests.support.wide_programs import random_wide_program
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.ir.function import Function

TARGETS = {"h200": Target.named("nvidia-h200"), "opencl": OPENCL}


class Tally:
    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self.right = self.refused = self.syncs = self.found = 0

    def check(self, check: GpuCheck, scheduled: Function, what: str, syncs: int = 0) -> None:
        try:
            lowered = check.run(scheduled)
        except BuildError:
            self.refused += 1
        except Exception as e:
            self.failed[what] += 1
            print(f"FAILED {what}: {type(e).__name__}: {e}\n", flush=True)
        else:
            self.right += 1
            for k, racy in enumerate(without_each_sync(lowered)):
                if k == syncs:
                    break
                self.syncs += 1
                self.found += bool(check.race_without(scheduled, racy))

    def __str__(self) -> str:
        text = f"{self.right} right, {self.refused} refused, {sum(self.failed.values())} failed"
        return f"{text}; {self.found} of {self.syncs} missing barriers found"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20, help="candidates per operator and rules")
    parser.add_argument("--programs", type=int, default=0, help="random programs with sketches")
    parser.add_argument("--traces", type=int, default=0, help="random traces of random programs")
    parser.add_argument("--syncs", type=int, default=4, help="barriers removed per program")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    total = Tally()
    for name, shape in SHAPES.items():
        for rules in RULES:
            for where, target in TARGETS.items():
                timed(
                    f"{name} {rules} {where}",
                    total,
                    lambda t: suite(t, args, name, shape, rules, target),
                )
    timed("sketches of random programs", total, lambda t: programs(t, args))
    timed("random traces", total, lambda t: traces(t, args))


def timed(what: str, total: Tally, run: Callable[[Tally], None]) -> None:
    tally, start = Tally(), time.perf_counter()
    run(tally)
    print(f"{what}: {tally}, {time.perf_counter() - start:.1f} s", flush=True)


def suite(
    tally: Tally, args: argparse.Namespace, name: str, shape: tuple[int, ...], rules: str,
    target: Target,
) -> None:  # fmt: skip
    check = GpuCheck(operator(name, shape), target)
    rng = np.random.default_rng(args.seed)
    if args.rows:
        for scheduled in candidates(check.func, target, rules, args.rows, rng):
            tally.check(check, scheduled, name, args.syncs)


def programs(tally: Tally, args: argparse.Namespace) -> None:
    for seed in range(args.seed, args.seed + args.programs):
        rng = np.random.default_rng(seed)
        func = (random_wide_program if seed % 3 == 2 else random_program)(rng)
        target = OPENCL if seed % 2 else TARGETS["h200"]
        check = GpuCheck(func, target, seed)
        for rules in RULES:
            for scheduled in candidates(func, target, rules, 2, rng):
                tally.check(check, scheduled, f"program {seed}", args.syncs)


def traces(tally: Tally, args: argparse.Namespace) -> None:
    for seed in range(args.seed, args.seed + args.traces):
        rng = np.random.default_rng(seed)
        func = (random_wide_program if seed % 3 == 2 else random_program)(rng)
        weights = {**GPU_WEIGHTS, "bind": float(rng.choice([2, 8]))}
        sch = random_trace(func, rng, int(rng.integers(2, 14)), weights)
        check = GpuCheck(func, OPENCL if seed % 2 else TARGETS["h200"], seed)
        tally.check(check, sch.func, f"trace {seed}", args.syncs)


if __name__ == "__main__":
    main()
