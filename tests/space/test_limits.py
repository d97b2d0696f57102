"""What is known of a row before anything is built: limits that it keeps, bounds that it passes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from suite import FOUR_CORES, sketches_of, task_of

import tilesmith as ts
from tilesmith.space.domains import Matrix
from tilesmith.space.spaces import variants


def first_variant(name: str, rules: str = "default") -> ts.Variant:
    task = task_of(name, FOUR_CORES)
    return next(variants(task, sketches_of(task, rules)[0]))


def inner(v: ts.Variant, row: Matrix, loop: str, first: int) -> int:
    at = dict(zip(v.columns, row.tolist(), strict=True))
    return prod(n for c, n in at.items() if c.startswith(f"#{loop}.") and int(c[-1]) >= first)


def test_a_matmul_warns_where_its_innermost_tiles_pass_the_first_cache() -> None:
    """SSRSRRS: inside k.0 are the last two parts of i, j and k."""
    v = first_variant("matmul")
    rows = v.sample(np.random.default_rng(0), 400)
    (warned,) = v.warnings(rows).values()
    for row, flag in zip(rows, warned, strict=True):
        i, j, k = inner(v, row, "C.i", 2), inner(v, row, "C.j", 2), inner(v, row, "C.k", 1)
        assert flag == (4 * (i * k + k * j + i * j) > v.task.target.l1_nbytes)
    assert warned.any()
    assert not warned.all()


def test_a_window_overlaps() -> None:
    v = first_variant("conv2d-bn-relu")
    rows = v.sample(np.random.default_rng(0), 200)
    flags = v.warnings(rows)
    (warned,) = (flag for name, flag in flags.items() if name.startswith("Y:"))
    for row, flag in zip(rows, warned, strict=True):
        h, w, f = (inner(v, row, f"Y.{n}", 2) for n in ("h", "w", "f"))
        rh, rw, rc = (inner(v, row, f"Y.{n}", 1) for n in ("rh", "rw", "rc"))
        image = rc * (2 * (h - 1) + rh) * (2 * (w - 1) + rw)
        want = 4 * (image + f * rc * rh * rw + f * h * w)
        assert flag == (want > v.task.target.l1_nbytes)


@pytest.mark.parametrize("name", ["gelu", "sum"])
def test_what_is_not_tiled_has_no_tile_to_warn_of(name: str) -> None:
    v = first_variant(name)
    assert v.warnings(v.sample(np.random.default_rng(0), 4)) == {}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_vector_of_a_tile_spans_a_few_registers(dtype: str) -> None:
    a, b = ts.placeholder((64, 64), dtype, name="A"), ts.placeholder((64, 512), dtype, name="B")
    task = ts.Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")]), FOUR_CORES)
    v = next(variants(task, sketches_of(task, "default")[0]))
    rows = v.sample(np.random.default_rng(0), 500)
    nbytes = rows[:, v.columns.index("#C.j.3")] * np.dtype(dtype).itemsize
    assert nbytes.max() <= 8 * task.target.vector_bits // 8
    assert "C: vector bytes" in {x.name for x in v.limits}


def test_a_register_tile_leaves_room_for_its_operands() -> None:
    """One register too few costs half of the speed: sums, the vectors they share, and one more."""
    task = ts.Task(task_of("matmul", FOUR_CORES).func, FOUR_CORES)
    v = next(variants(task, sketches_of(task, "default")[0]))
    rows = v.sample(np.random.default_rng(0), 2000)
    lanes, registers = task.target.lanes(32), task.target.num_vector_registers
    held = rows[:, v.columns.index("#C.i.3")]
    vectors = -(-rows[:, v.columns.index("#C.j.3")] // lanes)
    full = rows[:, v.columns.index("#C.j.3")] % lanes == 0
    taken = (held * vectors + vectors + 1)[full]
    assert taken.max() <= registers
    assert taken.max() >= registers - 2
