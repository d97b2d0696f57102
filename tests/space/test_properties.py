"""What must hold of any candidate of any sketch: its symbolic Function with numbers put in is the
Function of its trace, it builds, and it computes what the oracle says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from suite import FOUR_CORES, RULES, SMALL, sketches_of, task_of

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs, random_program
from tests.support.thorough import THOROUGH, drawn
from tilesmith.expr.ints import Int, of
from tilesmith.ir.function import with_sizes
from tilesmith.measure.child.guarded_memory import Region
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.spaces import structured
from tilesmith.space.variant import Variant, lower
from tilesmith.task.task import Task

# So many candidates of an operator and rule set are built, each in less than a tenth of a second;
# with TILESMITH_THOROUGH=1 so many of every sketch, which takes most of an hour on one core.
BUILT = drawn(8, 200)


def legal_variants(task: Task, sketch: ts.Trace, rng: Rng, count: int) -> list[Variant]:
    """Random structural choices of a sketch, each once; those that are refused are left out."""
    choices = list(structured(sketch))
    found: list[Variant] = []
    for k in rng.permutation(len(choices)):
        try:
            found.append(lower(task, choices[k]))
        except ts.ScheduleError:
            continue
        if len(found) == count:
            break
    assert found, f"{task.func.name}: every structure is refused: {sketch}"
    return found


def some_variants(task: Task, rules: str, rng: Rng, count: int) -> list[Variant]:
    sketches = sketches_of(task, rules)
    picked = rng.integers(len(sketches), size=count)
    return [v for k in picked for v in legal_variants(task, sketches[k], rng, 1)]


def offspring(v: Variant, rng: Rng, n: int = 32) -> Matrix:
    """n rows that were sampled, then n mutated, n crossed, and n mutated again."""
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


class Guarded:
    """Arguments of a Function in memory that faults when it is left, and what should come out."""

    def __init__(self, func: ts.Function, rng: Rng) -> None:
        arrays = random_inputs(func, rng)
        self.want = ts.evaluate(func, *arrays)
        self._regions: list[Region] = []
        self.inputs = [self._put(x) for x in arrays]
        for r in self._regions:
            r.make_read_only()
        wants = self.want if isinstance(self.want, tuple) else (self.want,)
        self.outputs = [self._put(x) for x in wants]

    def _put(self, x: Any) -> Any:
        region = Region("array", x.nbytes)
        self._regions.append(region)
        placed = region.bytes.view(x.dtype).reshape(x.shape)
        placed[...] = x
        return placed

    def check(self, kernel: ts.Kernel, what: str) -> None:
        for out in self.outputs:
            out[...] = np.nan
        kernel(*self.inputs, out=self.outputs[0] if len(self.outputs) == 1 else self.outputs)
        got = tuple(self.outputs) if isinstance(self.want, tuple) else self.outputs[0]
        assert_close(got, self.want, what)
        assert all(r.is_intact for r in self._regions), f"written beside an array: {what}"


def assert_candidate(v: Variant, row: Matrix, arguments: Guarded) -> None:
    """It lowers to what its trace says, builds, and computes what the oracle does."""
    assert_facts(v, row)
    func, decided = v.function(row), v.decided(row)
    assert func == decided.apply(v.task.func), f"{decided}"
    arguments.check(ts.build(func, v.task.target), f"{decided}")


def assert_population(v: Variant, rows: Matrix) -> None:
    assert ts.Trace.from_json(v.trace.to_json()) == v.trace
    assert v.valid(rows).all()
    for domain, span in zip(v.domains, v.spans, strict=True):
        assert domain.contains(rows[:, span]).all()


@pytest.mark.turns(6)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SMALL)
def test_candidates_build_and_match_the_oracle(name: str, rules: str) -> None:
    rng = np.random.default_rng([len(name), *map(ord, name + rules)])
    task = task_of(name, ts.cpu(2), small=True)
    arguments = Guarded(task.func, rng)
    sketches = sketches_of(task, rules)
    each = BUILT if THOROUGH else -(-BUILT // len(sketches))
    for sketch in sketches:
        chosen = legal_variants(task, sketch, rng, -(-each // 4))
        for v in chosen:
            rows = offspring(v, rng)
            assert_population(v, rows)
            few = -(-each // len(chosen))
            kinds = rows.reshape(4, -1, rows.shape[1])[:, : -(-few // 4)]
            picked = np.unique(kinds.swapaxes(0, 1).reshape(-1, rows.shape[1])[:few], axis=0)
            for row in picked:
                assert_candidate(v, row, arguments)


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
            assert func == with_sizes(v.func, sizes_of(v, row))
            assert func == ts.Trace.from_json(decided.to_json()).apply(task.func), f"{decided}"


def test_random_programs_keep_their_meaning() -> None:
    """Computations that nobody listed, through the default rules."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        task = Task(random_program(rng), ts.cpu(1 + seed % 2))
        arrays = random_inputs(task.func, rng)
        want = ts.evaluate(task.func, *arrays)
        for rules in RULES:
            for v in some_variants(task, rules, rng, 2):
                row = offspring(v, rng, 4)[rng.integers(16)]
                func = v.function(row)
                assert func == v.decided(row).apply(task.func), f"seed {seed}"
                kernel = ts.build(func, task.target)
                assert_close(kernel(*arrays), want, f"seed {seed}: {v.decided(row)}")
