"""The central property: any program under any legal trace gives the same result compiled,
interpreted and by NumPy, and compiles for every kind of processor.
"""

from __future__ import annotations

import pytest
from random_cases import TARGETS, Case, agree

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.thorough import by_turns, drawn
from tilesmith.codegen.pipeline import CPU_PASSES
from tilesmith.runtime.build import compile_function
from tilesmith.runtime.loader import undefined_symbols

CASES, GROUP = by_turns(400, 1600), 25
# The first of them compile for all targets, the others for one of these in turn.
ON_ALL = drawn(40, 400)


@pytest.mark.turns(4)
@pytest.mark.parametrize("group", range(0, len(CASES), GROUP))
def test_compiled_random_traces(group: int) -> None:
    for number in range(group, group + GROUP):
        seed = CASES[number]
        c = Case.drawn(seed)
        cores = 1 + seed % 2
        kernel = ts.build(c.schedule, ts.cpu(cores))
        agree(kernel(*c.packed), ts.evaluate(c.func, *c.arrays), c.note)
        for target in TARGETS if number < ON_ALL else TARGETS[seed % len(TARGETS) :][:1]:
            made = compile_function(c.schedule, target.with_cores(cores))
            # LLVM's own helpers need not be in a user's process; libc and libm are.
            helpers = [s for s in undefined_symbols(made.code) if s.startswith("__")]
            assert helpers == [], f"{target.cpu}, {c.note}"


WIDE = by_turns(100, 400)


@pytest.mark.parametrize("group", range(0, len(WIDE), GROUP))
def test_compiled_wide_programs(group: int) -> None:
    for k in WIDE[group : group + GROUP]:
        seed = 30_000 + k
        c = Case.drawn(seed, wide=True)
        cores = 1 + seed % 2
        kernel = ts.build(c.schedule, ts.cpu(cores))
        assert_close(kernel(*c.packed), ts.evaluate(c.func, *c.arrays), c.note, c.func)
        compile_function(c.schedule, TARGETS[seed % len(TARGETS)].with_cores(cores))


STAGED = by_turns(50, 200)


@pytest.mark.parametrize("group", range(0, len(STAGED), GROUP))
def test_every_pass_on_random_traces(group: int) -> None:
    for seed in STAGED[group : group + GROUP]:
        c = Case.drawn(10_000 + seed, steps=8)
        want, packed = ts.evaluate(c.func, *c.arrays), c.packed
        stage, physical = c.schedule.func, False
        target = TARGETS[seed % len(TARGETS)]
        for step in CPU_PASSES:
            stage = step(stage, target)
            physical = physical or step.__name__ == "apply_layouts"
            note = f"after {step.__name__} for {target.cpu}, {c.note}"
            agree(ts.interpret(stage, *(packed if physical else c.arrays)), want, note)
