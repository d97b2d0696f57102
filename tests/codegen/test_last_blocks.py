"""Launches that the last blocks of the launch before them carry out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import VerifyError
from tilesmith.cli.operators import operator
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.c.emit import emit_launches
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.codegen.passes.accesses import map_access
from tilesmith.codegen.passes.last_blocks import last_blocks
from tilesmith.codegen.pipeline import GPU_PASSES, lower
from tilesmith.expr.ints import Int, var
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.ir.launch_form import LaunchForm, launch_form_of
from tilesmith.ir.nodes import Alloc, Stmt, Store, rewrite
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.testing.meaning import assert_close
from tilesmith.testing.programs import random_inputs

H200 = ts.Target.named("nvidia-h200")
NORMS = {"a scalar": (96, 90), "a few rows": (64, 130, 3)}


def programs(shape: tuple[int, ...], count: int = 4) -> tuple[Function, list[Function]]:
    """Norms whose rows are shared by blocks, before lowering."""
    func = operator("norm", shape)
    task = ts.Task(func, H200)
    found = [v for s in SketchSpace().sketches(task) for v in variants(task, s)]
    rng = np.random.default_rng(0)
    shared = [v for v in found if "last" in str(v.func)]
    assert shared
    return func, [v.function(row) for v in shared for row in v.sample(rng, count)]


def launches(program: Function) -> list[LaunchForm]:
    return [launch_form_of(s) for s in program.body if not isinstance(s, Alloc)]


@pytest.mark.parametrize("name", NORMS)
def test_one_launch_means_the_same(name: str) -> None:
    func, found = programs(NORMS[name])
    given = random_inputs(func, np.random.default_rng(1))
    want = evaluate(func, *given)
    for scheduled in found:
        program = lower(scheduled, H200, GPU_PASSES)
        first, second = launches(program)
        assert first.parts > 1
        assert first.grid == first.parts * second.grid
        assert_close(ts.run_simt(program, *given), want, "", func)
        emitted = emit_launches(program, CUDA)
        (launch,) = emitted.launches
        assert launch.counters == second.grid
        assert emitted.source.count("is_last_block(") == 2  # defined and called


def test_nvrtc_compiles_it() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles CUDA")
    for shape in NORMS.values():
        _, found = programs(shape, 1)
        source = emit_launches(lower(found[0], H200, GPU_PASSES), CUDA).source
        for arch in ("sm_75", "sm_90a"):
            assert compile_cuda("norm", source, arch).cubin


def test_opencl_has_two_launches() -> None:
    target = ts.Target("opencl", "", "", 8, num_multiprocessors=8, max_threads=1024, warp_size=16)
    _, found = programs(NORMS["a scalar"], 1)
    first, second = launches(lower(found[0], target, GPU_PASSES))
    assert first.parts == second.parts == 0


def rows_moved(program: Function, move: Callable[[Int], Int]) -> Function:
    """The program whose second launch reads the parts of other rows."""

    def index(buffer: str, at: tuple[Int, ...]) -> tuple[Int, ...]:
        return (at[0], move(at[1])) if buffer == "Y_squares.rf" else at

    def go(s: Stmt) -> tuple[Stmt, ...]:
        return (map_access(s, index),) if isinstance(s, Store) else (s,)

    return replace(program, body=(*program.body[:-1], *rewrite(program.body[-1:], go)))


@pytest.mark.parametrize("row", ["a later one", "an earlier one"])
def test_parts_of_other_groups_are_not_there_yet(row: str) -> None:
    """The pass keeps the second launch then, and the interpreter finds what it would prevent."""
    func, found = programs(NORMS["a few rows"], 1)
    program = lower(found[0], H200, GPU_PASSES)
    (name,) = (f.name for f in launches(program)[1].blocks if f.extent.const == 3)
    assert any("Y_squares.rf" in str(s) for s in program.body[-1:])
    step = 1 if row == "a later one" else 2
    wrong = rows_moved(program, lambda p: (p + var(name) * 0 + step) % 3)
    given = random_inputs(func, np.random.default_rng(1))
    with pytest.raises(VerifyError, match="nobody"):
        ts.run_simt(wrong, *given)
    mended = last_blocks(wrong, H200)
    assert [x.parts for x in launches(mended)] == [0, 0]
    ts.run_simt(mended, *given)
    assert launches(last_blocks(program, H200))[0].parts


def test_launches_of_different_threads_stay_apart() -> None:
    _, found = programs(NORMS["a scalar"], 1)
    program = lower(found[0], H200, GPU_PASSES)
    threads = launches(program)[1].threads[0]

    def fewer(s: Stmt) -> tuple[Stmt, ...]:
        own = getattr(s, "name", "") == threads.name
        return (replace(s, extent=threads.extent + 1),) if own else (s,)  # type: ignore[call-arg]

    other = replace(program, body=tuple(t for s in program.body for t in rewrite((s,), fewer)))
    assert launches(last_blocks(other, H200))[0].parts == 0
    with pytest.raises(VerifyError, match="differ in threads"):
        ts.run_simt(other, *random_inputs(other, np.random.default_rng(0)))
