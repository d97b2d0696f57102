"""Sums in order that are too many for registers are continued from the results."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.passes.lower_blocks import lower_blocks
from tilesmith.ir.nodes import Alloc, Store, statements

ROWS, COLUMNS = 7, 45
WAYS = [*product((False, True), (False, True))]


def in_order(step: int, columns: int = COLUMNS, **settings: bool) -> ts.Schedule:
    """Column sums of a strip of several vectors, row by row."""
    x = ts.placeholder((ROWS, columns), name="X")
    sch = ts.Schedule(ts.function([x, ts.ops.cumsum(x, 0, name="Y", **settings)]))
    k, j = sch.loops("Y")
    j0, j1, j2 = sch.split(j, [None, step, 8])
    sch.reorder(j0, k, j1, j2)
    sch.vectorize(j2)
    return sch


def buffers(sch: ts.Schedule) -> list[str]:
    lowered = lower_blocks(sch.func, ts.cpu(1))
    stored = {w.buffer for s in statements(lowered.body) if isinstance(s, Store) for w in s.writes}
    assert stored <= {b.name for b in (*lowered.params, *lowered.buffers)}
    assert not any(isinstance(s, Alloc) for s in statements(lowered.body))
    return sorted(stored)


def test_sums_in_memory_are_those_of_the_results() -> None:
    assert buffers(in_order(3)) == ["Y"]
    assert buffers(in_order(3, reverse=True)) == ["Y"]


def test_sums_in_registers_and_those_that_no_result_has_are_kept() -> None:
    assert buffers(in_order(1)) == ["Y", "Y.partial"]
    written = in_order(3)
    written.unroll(written.loops("Y")[2])
    assert buffers(written) == ["Y", "Y.partial"]
    assert buffers(in_order(3, exclusive=True)) == ["Y", "Y.partial"]


def test_sums_in_another_type_are_kept() -> None:
    x = ts.placeholder((ROWS, COLUMNS), "float16", name="X")
    sch = ts.Schedule(ts.function([x, ts.ops.cumsum(x, 0, name="Y")]))
    assert buffers(sch) == ["Y", "Y.partial"]


@pytest.mark.parametrize(("reverse", "exclusive"), WAYS)
@pytest.mark.parametrize("columns", [45, 8, 3])
def test_results_are_those_of_the_sums(columns: int, reverse: bool, exclusive: bool) -> None:
    sch = in_order(2, columns, reverse=reverse, exclusive=exclusive)
    x = np.random.default_rng(0).standard_normal((ROWS, columns), np.float32)
    x[0, 0], x[1, 1] = -0.0, np.inf
    got = ts.build(sch, ts.cpu(1))(x)
    np.testing.assert_array_equal(got, ts.interpret(sch.func, x))
    want = np.flip(np.cumsum(np.flip(x, 0), 0), 0) if reverse else np.cumsum(x, 0)
    if not exclusive:
        np.testing.assert_array_equal(got, want)
