"""What must hold of any candidate of any sketch: its symbolic Function with numbers put in is the
Function of its trace, it builds, and it computes what the oracle says.
"""

from __future__ import annotations

import numpy as np
import pytest
from suite import FOUR_CORES, RULES, SMALL, sketches_of, task_of

import tilesmith as ts
from tilesmith.expr.ints import Int, of
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.spaces import structured
from tilesmith.space.variant import Variant, lower
from tilesmith.task.task import Task
from tilesmith.testing.meaning import assert_close
from tilesmith.testing.programs import random_inputs, random_program

VARIANTS = 4  # drawn for each operator and rule set; a row builds in about a tenth of a second
BUILT = 2  # rows of each that are compiled and run


def some_variants(task: Task, rules: str, rng: Rng, count: int) -> list[Variant]:
    """Random structural choices of random sketches; those that are refused are drawn again."""
    every = [list(structured(s)) for s in sketches_of(task, rules)]
    found: list[Variant] = []
    for _ in range(50 * count):
        choices = every[rng.integers(len(every))]
        try:
            found.append(lower(task, choices[rng.integers(len(choices))]))
        except ts.ScheduleError:
            continue
        if len(found) == count:
            return found
    raise AssertionError(f"{task.func.name}: nearly every structure is refused")


def offspring(v: Variant, rng: Rng, n: int = 32) -> Matrix:
    """Rows that were sampled, mutated, crossed, and mutated again."""
    a, b = v.sample(rng, n), v.sample(rng, n)
    assert len(a) == len(b) == n, f"no valid rows: {v.limits}"
    crossed = v.cross(rng, a, b)
    return np.concatenate([a, v.mutate(rng, b), crossed, v.mutate(rng, crossed)])


def sizes_of(v: Variant, row: Matrix) -> dict[str, int]:
    return dict(zip(v.columns, map(int, row), strict=True))


def assert_facts(v: Variant, row: Matrix) -> None:
    env = {k: of(n) for k, n in sizes_of(v, row).items()}

    def number(p: Int) -> int:
        n = p.substitute(env).const
        assert n is not None
        return n

    for fact in v.func.facts:
        first, *rest = map(number, fact.sizes)
        extent, inner = number(fact.extent), int(np.prod(rest))
        assert first == -(-extent // inner), f"{fact} in {env}"
        assert not fact.exact or first * inner == extent, f"{fact} in {env}"


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SMALL)
def test_candidates_build_and_match_the_oracle(name: str, rules: str) -> None:
    rng = np.random.default_rng([len(name), *map(ord, name + rules)])
    task = task_of(name, ts.cpu(2), small=True)
    arrays = random_inputs(task.func, rng)
    want = ts.evaluate(task.func, *arrays)
    for v in some_variants(task, rules, rng, VARIANTS):
        assert ts.Trace.from_json(v.trace.to_json()) == v.trace
        rows = offspring(v, rng)
        assert v.valid(rows).all()
        for domain, span in zip(v.domains, v.spans, strict=True):
            assert domain.contains(rows[:, span]).all()
        for row in rows[rng.choice(len(rows), BUILT, replace=False)]:
            assert_facts(v, row)
            func = v.function(row)
            assert func == v.decided(row).apply(task.func), f"{v.decided(row)}"
            kernel = ts.build(func, task.target)
            assert_close(kernel(*arrays), want, f"{v.decided(row)}")


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SMALL)
def test_numbers_put_in_are_the_trace_applied(name: str, rules: str) -> None:
    """At the sizes of the suite, where factors are many."""
    rng = np.random.default_rng([7, *map(ord, name + rules)])
    task = task_of(name, FOUR_CORES)
    for v in some_variants(task, rules, rng, 3):
        rows = offspring(v, rng, 8)
        for row in rows[rng.choice(len(rows), 4, replace=False)]:
            assert_facts(v, row)
            decided = v.decided(row)
            func = v.function(row)
            assert func == ts.instantiate(v.func, sizes_of(v, row))
            assert func == ts.Trace.from_json(decided.to_json()).apply(task.func), f"{decided}"


def test_random_programs_keep_their_meaning() -> None:
    """Computations that nobody listed, through the default rules."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        task = Task(random_program(rng), ts.cpu(2))
        arrays = random_inputs(task.func, rng)
        want = ts.evaluate(task.func, *arrays)
        for rules in RULES:
            for v in some_variants(task, rules, rng, 2):
                row = offspring(v, rng, 4)[rng.integers(16)]
                func = v.function(row)
                assert func == v.decided(row).apply(task.func), f"seed {seed}"
                kernel = ts.build(func, task.target)
                assert_close(kernel(*arrays), want, f"seed {seed}: {v.decided(row)}")
