"""Compiles GPU programs to C and checks them: NVRTC compiles each for several architectures, and
each runs on the devices that are here, against the oracle. Random candidates of the operator suite,
sketches of random programs, and random traces.

    python -m bench.gpu_kernels --rows 20 --programs 50 --traces 200
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.gpu_suite import RULES, SHAPES, candidates
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs, random_program
from tests.support.traces import GPU_WEIGHTS, random_trace
from tests.support.wide_programs import random_wide_program
from tilesmith.base.errors import BuildError, TargetError
from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.ir.pack import packed
from tilesmith.runtime.build import build, compile_function
from tilesmith.runtime.devices.open import cuda, opencl

H200 = Target.named("nvidia-h200")


def devices() -> list[Target]:
    found = []
    for find in (opencl, cuda):
        try:
            found.append(find())
        except TargetError as e:
            print(f"not run: {e}")
    return found


class Checks:
    """What became of the programs so far."""

    def __init__(self, archs: list[str], where: list[Target]) -> None:
        self.archs, self.where = archs, where
        self.count: Counter[str] = Counter()

    def check(self, func: Function, scheduled: Function, seed: int, what: str) -> None:
        arrays = random_inputs(func, np.random.default_rng(seed))
        want = evaluate(func, *arrays)
        jobs: list[tuple[str, Callable[[], None]]] = []
        for arch in self.archs:
            target = replace(H200, arch=arch, cpu=arch)
            jobs.append((arch, lambda t=target: _compile(scheduled, t)))
        for target in self.where:
            jobs.append((target.kind, lambda t=target: _run(scheduled, t, arrays, want, func)))
        for name, job in jobs:
            try:
                job()
                self.count[name] += 1
            except BuildError as e:
                self.count[f"{name} refused"] += 1
                if "compile" in str(e):
                    print(f"{what} on {name}: {e}\n", flush=True)
            except Exception as e:
                self.count[f"{name} FAILED"] += 1
                print(f"{what} on {name}: {type(e).__name__}: {str(e)[:1500]}\n", flush=True)

    def __str__(self) -> str:
        return ", ".join(f"{n} {k}" for k, n in sorted(self.count.items()))


def _compile(scheduled: Function, target: Target) -> None:
    compile_function(scheduled, target)


def _run(
    scheduled: Function, target: Target, arrays: Sequence[Any], want: Any, func: Function
) -> None:
    kernel = build(scheduled, target)
    given = [packed(b, a, func.name) for b, a in zip(scheduled.inputs, arrays, strict=True)]
    assert_close(kernel(*given), want, kernel.source, func)


def programs(args: argparse.Namespace) -> Iterator[tuple[str, Function, Function, int]]:
    for name in args.only or SHAPES:
        func = operator(name, SHAPES[name])
        for rules in RULES if args.rows else ():
            rng = np.random.default_rng(args.seed)
            for scheduled in candidates(func, H200, rules, args.rows, rng):
                yield f"{name} {rules}", func, scheduled, 0
    for seed in range(args.seed, args.seed + args.programs):
        rng = np.random.default_rng(seed)
        func = (random_wide_program if seed % 3 == 2 else random_program)(rng)
        for rules in RULES:
            for scheduled in candidates(func, H200, rules, 1, rng):
                yield f"sketches of program {seed}", func, scheduled, seed
    for seed in range(args.seed, args.seed + args.traces):
        rng = np.random.default_rng(seed)
        func = (random_wide_program if seed % 3 == 2 else random_program)(rng)
        weights = {**GPU_WEIGHTS, "bind": float(rng.choice([2, 8]))}
        scheduled = random_trace(func, rng, int(rng.integers(2, 14)), weights).func
        yield f"trace {seed}", func, scheduled, seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2, help="candidates per operator and rules")
    parser.add_argument("--programs", type=int, default=0, help="random programs with sketches")
    parser.add_argument("--traces", type=int, default=0, help="random traces of random programs")
    parser.add_argument("--archs", default="sm_75,sm_80,sm_90a", help="to compile for")
    parser.add_argument("--only", nargs="*", help="operators; all by default")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    checks = Checks([a for a in args.archs.split(",") if a], devices())
    start, last = time.perf_counter(), ""
    for what, func, scheduled, seed in programs(args):
        group = what.rstrip("0123456789 ")
        if group != last and last:
            print(f"{last}: {checks}, {time.perf_counter() - start:.0f} s", flush=True)
        last = group
        checks.check(func, scheduled, seed, what)
    print(f"{last}: {checks}, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
