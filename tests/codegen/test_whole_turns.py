"""Sums of what threads read in global memory: what is loaded before the first term of a turn, and
turns without the conditions of the last one.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import launch_form
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.ir.nodes import Alloc, If, statements
from tilesmith.ir.notes import ReduceAcross
from tilesmith.ir.simt import run_simt

H200 = ts.Target.named("nvidia-h200")


def sums(columns: int, at_once: int) -> ts.Function:
    """Each thread sums some terms of a row, several written out."""
    x = ts.placeholder((3, columns), name="X")
    w = ts.placeholder((columns,), name="W")
    k = ts.reduce_axis(columns, name="k")
    y = ts.compute((3,), lambda i: ts.sum(x[i, k] * w[k], axis=k), name="Y")
    sch = ts.Schedule(ts.function([x, w, y]))
    row, terms = sch.loops("Y")
    turn, once, lane = sch.split(terms, [None, at_once, 8])
    sch.reorder(row, lane, turn, once)
    sch.bind(row, "blockIdx.x")
    sch.annotate(lane, ReduceAcross("threadIdx.x"))
    sch.unroll(once)
    return sch.func


@pytest.mark.parametrize(("columns", "at_once"), [(96, 4), (77, 4), (33, 2), (5, 4), (130, 8)])
def test_results_are_those_of_the_oracle(columns: int, at_once: int) -> None:
    func = sums(columns, at_once)
    rng = np.random.default_rng(columns)
    x, w = rng.random((3, columns), np.float32), rng.random(columns, np.float32)
    lowered = launch_form(func, H200)
    np.testing.assert_allclose(run_simt(lowered, x, w), x @ w, rtol=1e-5)


def guards(columns: int) -> list[If]:
    """The conditions around what reads X."""
    found = statements(launch_form(sums(columns, 4), H200).body)
    reads = [s for s in found if isinstance(s, If)]
    return [s for s in reads if any(a.buffer == "X" for a in accesses(s.body))]


def test_loads_come_first_and_only_the_last_turn_has_conditions() -> None:
    whole = statements(launch_form(sums(96, 4), H200).body)
    assert {s.buffer.name[:7] for s in whole if isinstance(s, Alloc)} >= {"X.ahead", "W.ahead"}
    assert not guards(96)
    inside, end, term = guards(77)
    assert not any(isinstance(s, If) for s in statements(inside.body))
    assert term in statements(end.body)


def test_a_single_turn_is_whole_or_not() -> None:
    """No condition is left that is the same in all turns."""
    assert guards(29)
    assert all(p.const is None for s in guards(29) for p in s.conds)
    lowered = statements(launch_form(sums(29, 4), H200).body)
    assert not any(isinstance(s, Alloc) and ".ahead" in s.buffer.name for s in lowered)


def test_nothing_is_loaded_ahead_that_registers_do_not_hold() -> None:
    lowered = launch_form(sums(4096, 128), H200)
    assert not any(
        isinstance(s, Alloc) and ".ahead" in s.buffer.name for s in statements(lowered.body)
    )
