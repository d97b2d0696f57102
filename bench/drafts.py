"""Whether other constants of the analytic score give faster drafts: for operators that a seed
draws, the draft with the constants as they are and with each `--set`, timed in turns.

    python -m bench.drafts --seed 7 --set streams=1 --set "overlap_loss=0.5, usable_share=0.9"
                           [--families "product,dense"] [--cases 60] [--seconds 180]

A draft is the best of many thousands of programs, so it finds what a score overrates: constants
that put more pairs of programs in the right order may still give slower drafts.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tilesmith as ts
from bench.everyday_cases import Limits, draw
from bench.table import Row, arguments, finish
from tilesmith.base.target import CpuConstants
from tilesmith.search.evolution import DRAFT_ROWS, draft_variants
from tilesmith.space.spaces import SketchSpace
from tilesmith.tune.compile_model import extract_tasks
from tilesmith_contest.pairs import geometric_mean

_LIMITS = Limits(work=1.5e9, elements=1e7, dtypes=("float32",))
_LEAST_WORK = 1e6  # operations of a case; below, calls take as long as kernels
_ROUNDS = 10
_SAMPLE_SECONDS = 1e-3
_AS_IT_IS = "as it is"


def constants_with(target: ts.Target, text: str) -> CpuConstants:
    """Those of a target with some others, given as `name=value, name=value`. `below` has for each
    cache the bytes per cycle from the next level, and those of a miss.
    """
    known = CpuConstants.of(target)
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    given: dict[str, Any] = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    if wrong := given.keys() - vars(known).keys():
        raise SystemExit(f"{', '.join(wrong)}: the constants are {', '.join(vars(known))}")
    l1, l2, l3 = (
        replace(cache, bandwidth_below=rate, miss_nbytes=missed)
        for cache, (rate, missed) in zip(known.caches, given.get("below", known.below), strict=True)
    )
    return replace(known, caches=(l1, l2, l3), **given)


def draft(task: ts.Task, constants: CpuConstants) -> ts.Trace:
    """As `EvolutionSearch.drafting`, which has the score of its own."""
    drafting = ts.Evolution(
        epsilon=0, cost_model=None, familiar=1.0, variants=draft_variants(task.target),
        each=DRAFT_ROWS,
        score=ts.ScoreByTarget(cpu=ts.CpuScore(constants)),
    )  # fmt: skip
    search = drafting.start(task, SketchSpace().sketches(task), np.random.default_rng(0))
    (candidate,) = search.ask(1)
    return candidate.trace


def call_of(task: ts.Task, trace: ts.Trace, arrays: Sequence[Any]) -> Callable[[], object]:
    func = task.func
    kernel = ts.build(trace.apply(func), task.target)
    given = [
        kernel.pack(b.name, x) if b.scope == "constant" else x
        for b, x in zip(func.inputs, arrays, strict=True)
    ]
    return kernel.bind(*given)


def best_seconds(calls: Mapping[ts.Trace, Callable[[], object]]) -> dict[ts.Trace, float]:
    """Of each, the least mean of a sample of calls; samples take turns, because machines have
    spells in which all is slow.
    """
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(_ROUNDS):
        for trace, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            turns = max(1, int(_SAMPLE_SECONDS / (time.perf_counter() - start)))
            start = time.perf_counter()
            for _ in range(turns):
                call()
            best[trace] = min(best[trace], (time.perf_counter() - start) / turns)
    return best


def tasks(seed: int, count: int, families: tuple[str, ...]) -> Iterator[tuple[str, float, ts.Task]]:
    """The drawn operators that are one kernel, with their names and operations."""
    from bench.everyday_modules import module_of
    from bench.module_contestants import graph_of

    for case in draw(seed, count, _LIMITS, families):
        if case.work < _LEAST_WORK:
            continue
        module, given = module_of(case)
        found = [task for task, _ in extract_tasks(graph_of(module, given), ts.cpu(1))]
        if len(found) == 1:
            yield case.name, case.work, found[0]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--set", action="append", default=[], help="constants, as name=value, ...")
    parser.add_argument("--families", default="product,dense,batched product")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=180.0)
    options = parser.parse_args()
    target = ts.cpu(1)
    sets = {_AS_IT_IS: CpuConstants.of(target)}
    sets |= {text: constants_with(target, text) for text in options.set}
    families = tuple(x.strip() for x in options.families.split(",") if x.strip())
    end, ratios = time.monotonic() + options.seconds, {text: list[float]() for text in sets}
    rng = np.random.default_rng(0)
    for name, work, task in tasks(options.seed, options.cases, families):
        arrays = [
            np.asarray(rng.random([n.number for n in b.shape]), b.dtype.numpy)
            for b in task.func.inputs
        ]
        traces = {text: draft(task, constants) for text, constants in sets.items()}
        calls = {trace: call_of(task, trace, arrays) for trace in set(traces.values())}
        seconds = best_seconds(calls)
        own = {text: seconds[trace] for text, trace in traces.items()}
        told = ", ".join(f"{text}: {work / s * 1e-9:.1f}" for text, s in own.items())
        print(f"{name}: Gop/s {told}", flush=True)
        for text, s in own.items():
            ratios[text].append(own[_AS_IT_IS] / s)
        if time.monotonic() > end:
            break
    rows = []
    for text in options.set:
        mean = geometric_mean(ratios[text]) or 0.0
        what = f"{text}: speed of {len(ratios[text])} drafts"
        rows.append(Row(what, mean, "", _AS_IT_IS, 1.0, mean))
    finish(rows, options)


if __name__ == "__main__":
    main()
