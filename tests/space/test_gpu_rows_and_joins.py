"""Blocks of threads that take several rows, and launches that add up parts of sums in vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.cli.operators import operator
from tilesmith.codegen.c.backends import emit_launches
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.pipeline import GPU_PASSES, lower
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.ir.launch_form import launch_form_of
from tilesmith.ir.nodes import Alloc
from tilesmith.space.spaces import SketchSpace, variants

SMALL = replace(ts.Target.named("nvidia-h200"), num_multiprocessors=4)


def found(func: Function) -> list[ts.Variant]:
    task = ts.Task(func, SMALL)
    return [v for s in SketchSpace().sketches(task) for v in variants(task, s)]


def layer_norm(rows: int, columns: int) -> Function:
    x = ts.placeholder((rows, columns), name="X")
    gamma, beta = (ts.placeholder((columns,), name=n) for n in ("gamma", "beta"))
    return ts.function([x, gamma, beta, ts.ops.layer_norm(x, gamma, beta, name="Y")])


def single_row() -> Function:
    x = ts.placeholder((4750,), name="X")
    return ts.function([x, ts.ops.softmax(x, axis=0, name="Y")])


ROWS = {"softmax": operator("softmax", (96, 72)), "layer norm": layer_norm(64, 50)}


@pytest.mark.parametrize("name", ROWS)
def test_blocks_take_several_rows(name: str) -> None:
    func = ROWS[name]
    (v,) = found(func)
    column = list(v.columns).index("#Y.rows")
    rng = np.random.default_rng(0)
    rows = v.sample(rng, 200)
    counts = {int(n) for n in rows[:, column]}
    assert {1, 2, 4, 8} <= counts
    given = random_inputs(func, rng)
    want = evaluate(func, *given)
    for n in sorted(counts - {1}):
        row = next(r for r in rows if r[column] == n)
        program = lower(v.function(row), SMALL, GPU_PASSES)
        (launch,) = (launch_form_of(s) for s in program.body if not isinstance(s, Alloc))
        assert launch.num_threads == n * row[list(v.columns).index("#Y.threads")]
        assert_close(ts.run_simt(program, *given), want, "", func)


def test_blocks_take_many_of_rows_whose_number_has_few_divisors() -> None:
    """Of 4 * 1009 rows, the last block has fewer."""
    func = operator("softmax", (4036, 32))
    (v,) = found(func)
    column = list(v.columns).index("#Y.rows")
    row = next(r for r in v.sample(np.random.default_rng(0), 200) if r[column] == 32)
    given = random_inputs(func, np.random.default_rng(1))
    program = lower(v.function(row), SMALL, GPU_PASSES)
    assert_close(ts.run_simt(program, *given), evaluate(func, *given), "", func)


def test_a_single_row_is_one_launch() -> None:
    func = single_row()
    (v,) = found(func)
    given = random_inputs(func, np.random.default_rng(1))
    for row in v.sample(np.random.default_rng(0), 3):
        program = lower(v.function(row), SMALL, GPU_PASSES)
        assert len([s for s in program.body if not isinstance(s, Alloc)]) == 1
        assert_close(ts.run_simt(program, *given), evaluate(func, *given), "", func)


def reduced(rows: int, columns: int, keep: bool) -> Function:
    """The largest element of each row; with `keep`, and what each element is less."""
    x = ts.placeholder((rows, columns), name="X")
    k = ts.reduce_axis(columns, name="k")
    y = ts.compute((rows,), lambda i: ts.amax(x[i, k], axis=k), name="Y")
    if not keep:
        return ts.function([x, y])
    z = ts.compute((rows, columns), lambda i, j: x[i, j] - y[i], name="Z")
    return ts.function([x, z])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("columns", [64, 72, 2000])
def test_several_rows_have_no_more_threads_than_a_block_may(columns: int, keep: bool) -> None:
    """Also where nothing but the reduction itself uses the threads of a row."""
    wanted = set()
    for v in found(reduced(256, columns, keep)):
        for row in v.sample(np.random.default_rng(0), 60):
            program = lower(v.function(row), SMALL, GPU_PASSES)  # raises if it is too many
            wanted |= {
                launch_form_of(s).num_threads for s in program.body if not isinstance(s, Alloc)
            }
    assert max(wanted) == SMALL.max_threads


def test_threads_keep_their_part_of_one_of_several_rows() -> None:
    (v,) = found(operator("softmax", (96, 128)))
    at = {c: k for k, c in enumerate(v.columns)}
    rows = v.sample(np.random.default_rng(0), 400)
    even = 128 % (rows[:, at["#Y.threads"]] * rows[:, at["#Y.width"]]) == 0
    some = rows[even & (rows[:, at["#Y.rows"]] > 1) & (rows[:, at["#Y.held"]] > 0)]
    source = emit_launches(lower(v.function(some[0]), SMALL, GPU_PASSES), CUDA).source
    assert source.count("X_held") > 2
    assert source.count("= *(const") + source.count(" X[") <= 3  # X is read at one place


@pytest.mark.parametrize("name", ["conv2d", "conv2d-bn-relu"])
def test_parts_are_added_up_in_vectors(name: str) -> None:
    func = operator(name, (16, 32, 8, 3, 1, 1))
    split = [v for v in found(func) if any(".rf" in c for c in v.columns)]
    rng = np.random.default_rng(0)
    given = random_inputs(func, rng)
    want = evaluate(func, *given)
    column = next(c for c in split[0].columns if c.endswith(("Y.width", "Z.width")))
    rows = split[0].sample(rng, 60)
    for width in (1, 2, 4):
        row = next(r for r in rows if r[list(split[0].columns).index(column)] == width)
        program = lower(split[0].function(row), SMALL, GPU_PASSES)
        assert_close(ts.run_simt(program, *given), want, "", func)
        *_, last = emit_launches(program, CUDA).source.split("__global__")
        assert (f"float{width}" in last) == (width > 1)
        assert "if (" not in last or name != "conv2d"
