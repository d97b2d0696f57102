"""A decided trace, also one that went through JSON, is found again as a row of its variant."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from suite import FOUR_CORES, RULES, SMALL, sketches_of, task_of

from tests.support.thorough import drawn
from tilesmith.schedule.sample import NumericSample
from tilesmith.schedule.trace import Trace
from tilesmith.space.spaces import variants
from tilesmith.space.variant import reopen
from tilesmith.task.task import Candidate, Task


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SMALL)
def test_a_candidate_is_a_row(name: str, rules: str) -> None:
    task = task_of(name, FOUR_CORES, small=True)
    rng = np.random.default_rng(0)
    found = 0
    for sketch in sketches_of(task, rules):
        for v in variants(task, sketch):
            for row in v.sample(rng, drawn(1, 2)):
                c = Candidate(task, Trace.from_json(v.decided(row).to_json()))
                variant, values = reopen(c)
                assert variant.trace == v.trace
                assert values == tuple(row)
                found += 1
    assert found


def test_a_trace_without_decisions_is_the_only_row() -> None:
    task = task_of("matmul", FOUR_CORES, small=True)
    variant, row = reopen(Candidate(Task(task.func, task.target), Trace()))
    assert row == ()
    assert variant.size == 1


def test_the_only_row_is_its_own_child() -> None:
    task = task_of("matmul", FOUR_CORES, small=True)
    variant, _ = reopen(Candidate(Task(task.func, task.target), Trace()))
    rng = np.random.default_rng(0)
    rows = variant.sample(rng, 3)
    assert variant.cross(rng, rows, rows).shape == variant.mutate(rng, rows).shape == (3, 0)


def test_variants_that_begin_alike_are_lowered_as_if_alone() -> None:
    """Steps that they share are applied once; the result is that of the whole trace."""
    task = task_of("conv2d-bn-relu", FOUR_CORES, small=True)
    every = [v for s in sketches_of(task, "default") for v in islice(variants(task, s), 3)]
    assert len(every) > 3
    for v in every:
        func = task.func
        for step in v.trace:
            func = step.apply(func)
        assert v.func == func
        assert [d.columns for d in v.domains] == [
            s.columns for s in v.trace if isinstance(s, NumericSample)
        ]
