"""Reductions over any axes on GPUs: the interpreter agrees with the oracle on candidates of every
sketch, NVRTC compiles them, and the space of whatever users bring is large.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

import tilesmith as ts
from bench.everyday_cases import GPU, Case, draw
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tests.support.thorough import THOROUGH
from tilesmith.codegen.c import nvrtc
from tilesmith.codegen.c.backends import emit_launches
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.pipeline import GPU_PASSES, lower
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.ir.launch_form import launch_form_of
from tilesmith.ir.nodes import Alloc, walk
from tilesmith.ir.notes import ReduceAcross
from tilesmith.space.derive import Rule
from tilesmith.space.rules_columns import FuseColumns
from tilesmith.space.rules_rows import FuseRows
from tilesmith.space.sets import default_rules
from tilesmith.space.spaces import SketchSpace, variants

H200 = ts.Target.named("nvidia-h200")
SMALL = replace(H200, num_multiprocessors=4)


def eager_rules() -> tuple[Rule, ...]:
    """The default rules, of which those that wait for long rows and columns do not."""

    def eager(rule: Rule) -> Rule:
        match rule:
            case FuseRows():
                return replace(rule, longest=100)
            case FuseColumns():
                return replace(rule, least=8)
        return rule

    return tuple(map(eager, default_rules(SMALL)))


def found(func: Function) -> list[ts.Variant]:
    task = ts.Task(func, SMALL)
    return [v for s in SketchSpace(eager_rules()).sketches(task) for v in variants(task, s)]


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], kind: str, dtype: str) -> Function:
    x = ts.placeholder(shape, dtype, name="X")
    match kind:
        case "sum":
            y = ts.ops.reduce_sum(x, axes=axes, name="Y")
        case "mean":
            y = ts.ops.reduce_mean(x, axes=axes, name="Y")
        case "max":
            y = ts.ops.reduce_max(x, axes=axes, name="Y")
        case "argmax":
            y = ts.ops.argmax(x, axis=axes[0], name="Y")
        case "softmax":
            y = ts.ops.softmax(x, axis=axes[0], name="Y")
        case _:
            y = ts.ops.log_softmax(x, axis=axes[0], name="Y")
    return ts.function([x, y])


KINDS = ("sum", "mean", "max", "argmax", "softmax", "log_softmax")


def drawn(seed: int) -> Function:
    """Any axes of an array with odd extents and those of one element."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 8, 12, 33, 200], rng.integers(1, 5)))
    while prod(shape) > 6000:
        shape = tuple(max(1, n // 2) for n in shape)
    count = int(rng.integers(1, len(shape) + 1))
    axes = tuple(sorted(int(a) for a in rng.permutation(len(shape))[:count]))
    dtype = str(rng.choice(["float32", "float16", "bfloat16"]))
    return reduced(shape, axes, KINDS[seed % len(KINDS)], dtype)


def agree(func: Function, count: int) -> list[ts.Variant]:
    rng = np.random.default_rng(0)
    given = random_inputs(func, rng)
    want = evaluate(func, *given)
    every = found(func)
    for v in every:
        for row in v.sample(rng, count):
            program = lower(v.function(row), SMALL, GPU_PASSES)
            told = str(dict(zip(v.columns, row, strict=True)))
            assert_close(ts.run_simt(program, *given), want, told, func)
    return every


@pytest.mark.parametrize("seed", range(18))
def test_any_axes(seed: int) -> None:
    agree(drawn(seed), 2)


LONG = [
    ((1000, 3), (0,)), ((3, 1000), (1,)), ((777,), (0,)), ((2, 400, 5), (1,)),
    ((300, 2, 7), (0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axes"), LONG)
def test_blocks_share_long_rows_and_columns(
    kind: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    func = reduced(shape, axes, kind, "float32")
    every = agree(func, 2 if THOROUGH else 1)
    if kind not in ("softmax", "log_softmax") or len(axes) == 1:
        assert any(".rf" in b.name for v in every for _, b in walk(v.func.body))


def weighted(rows: int, columns: int, batch: int) -> Function:
    """Sums of a matrix's rows with weights: the product of the transposed matrix and a column."""
    lead = (batch,) if batch else ()
    x = ts.placeholder((*lead, rows, columns), name="X")
    w = ts.placeholder((*lead, rows), name="W")
    k = ts.reduce_axis(rows, name="k")
    y = ts.compute(
        (*lead, columns), lambda *i: ts.sum(x[*i[:-1], k, i[-1]] * w[*i[:-1], k], axis=k), name="Y"
    )
    return ts.function([x, w, y])


@pytest.mark.parametrize(
    ("rows", "columns", "batch"), [(700, 13, 0), (96, 40, 3), (1000, 1, 2), (1, 1, 1)]
)
def test_sums_of_rows_with_weights_are_sums_of_columns(rows: int, columns: int, batch: int) -> None:
    """As plain ones are, beside the sketches of products."""
    func = weighted(rows, columns, batch)
    teams = [v for v in found(func) if "#Y.team" in v.columns or "#Y.rf.team" in v.columns]
    assert teams or columns == 1
    rng = np.random.default_rng(rows)
    given = random_inputs(func, rng)
    want = evaluate(func, *given)
    for v in teams:
        for row in v.sample(rng, 2):
            program = lower(v.function(row), SMALL, GPU_PASSES)
            told = str(dict(zip(v.columns, row, strict=True)))
            assert_close(ts.run_simt(program, *given), want, told, func)


def norm(shape: tuple[int, ...], groups: int, dtype: str) -> Function:
    x = ts.placeholder(shape, dtype, name="X")
    scale, bias = (ts.placeholder((shape[1],), dtype, name=n) for n in ("S", "B"))
    y = ts.ops.group_norm(x, scale, bias, groups=groups, name="Y")
    return ts.function([x, scale, bias, y])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(2, 8, 5, 5), (3, 12, 4, 6), (1, 4, 17, 17)])
def test_group_norm_is_one_launch(shape: tuple[int, ...], dtype: str) -> None:
    func = norm(shape, 4, dtype)
    agree(func, 2)
    task = ts.Task(func, H200)
    (sketch, *_) = SketchSpace().sketches(task)
    for v in variants(task, sketch):
        (row,) = v.sample(np.random.default_rng(0), 1)
        program = lower(v.function(row), H200, GPU_PASSES)
        launches = [launch_form_of(s) for s in program.body if not isinstance(s, Alloc)]
        assert len(launches) == 1


def test_neighbouring_threads_take_neighbouring_columns() -> None:
    """And move 16 bytes at once, also of halves."""
    (v, *_) = found(reduced((4096, 512), (0,), "max", "float16"))
    at = {c: k for k, c in enumerate(v.columns)}
    rows = v.sample(np.random.default_rng(0), 400)
    row = next(r for r in rows if r[at["#Y.width"]] == 8 and r[at["#Y.threads"]] == 32)
    source = emit_launches(lower(v.function(row), SMALL, GPU_PASSES), CUDA).source
    assert "(const uint4*)" in source
    loops = {f.name: f for path, _ in walk(v.func.body) for f in path}
    assert loops["Y.i0.1"].kind == "threadIdx.x"
    assert any(f.note(ReduceAcross) == ReduceAcross("threadIdx.y") for f in loops.values())


@pytest.mark.parametrize("kind", ["sum", "argmax", "softmax"])
def test_nvrtc_compiles(kind: str) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    for shape, axes in (((300, 7), (0,)), ((5, 37), (1,))):
        for v in found(reduced(shape, axes, kind, "float16")):
            (row,) = v.sample(np.random.default_rng(0), 1)
            launches = emit_launches(lower(v.function(row), SMALL, GPU_PASSES), CUDA)
            compiled = nvrtc.compile_cuda("reduced", launches.source, "sm_90a")
            assert all(r.registers <= 255 for r in compiled.resources.values())


def stated(case: Case) -> Function:
    """The drawn operator in a few stages, without its data."""
    shape, settings = case.inputs[0].shape, case.settings
    match case.family:
        case "softmax":
            kind = "log_softmax" if settings["log"] else "softmax"
            return reduced(shape, (settings["axis"],), kind, case.dtype)
        case "reduction":
            kind = {"var": "mean", "any": "max"}.get(settings["kind"], settings["kind"])
            return reduced(shape, tuple(settings["axes"]), kind, case.dtype)
    if settings["kind"] in ("group", "instance"):
        groups = settings["groups"] if settings["kind"] == "group" else shape[1]
        return norm(shape, groups, case.dtype)
    x = ts.placeholder(shape, case.dtype, name="X")
    scale, bias = (ts.placeholder(shape[-1:], case.dtype, name=n) for n in ("S", "B"))
    if settings["kind"] == "rms":
        return ts.function([x, scale, ts.ops.rms_norm(x, scale, name="Y")])
    return ts.function([x, scale, bias, ts.ops.layer_norm(x, scale, bias, name="Y")])


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_what_users_bring_has_many_programs(seed: int) -> None:
    counted = 0
    for case in draw(seed, 30, GPU, ("reduction", "softmax", "norm")):
        if case.work > 1e6:
            task = ts.Task(stated(case), H200)
            size = sum(v.size for s in SketchSpace().sketches(task) for v in variants(task, s))
            assert size >= 50, case.name
            counted += 1
    assert counted > 5


def test_few_short_rows_share_warps() -> None:
    """Of 512 rows of 8 elements, no program was left: threads of whole warps were idle."""
    x = ts.placeholder((128, 4, 8), "float16", name="X")
    task = ts.Task(ts.function([x, ts.ops.softmax(x, -1)], name="rows"), H200)
    for sketch in SketchSpace().sketches(task):
        for v in variants(task, sketch):
            assert len(v.sample(np.random.default_rng(0), 8)) > 4


@pytest.mark.parametrize("shape", [(40,), (11, 1, 5, 8, 7)])
def test_a_product_summed_to_a_scalar_has_sketches(shape: tuple[int, ...]) -> None:
    """No matrix instruction computes it, and no rule that asks for one may stumble."""
    x, m = ts.placeholder(shape, name="X"), ts.placeholder((), name="M")
    axes = [ts.reduce_axis(n, name=f"k{d}") for d, n in enumerate(shape)]
    d = ts.compute(shape, lambda *i: x[i] - m[()], name="D")
    s = ts.compute((), lambda: ts.sum(d[*axes] * d[*axes], axis=axes), name="S")
    func = ts.function([x, m, ts.compute((), lambda: s[()] * 0.1, name="Y")])
    for target in (H200, ts.Target.named("nvidia-a100")):
        assert SketchSpace().sketches(ts.Task(func, target))


@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 61, 1, 4, 9), (1, 2, 3)), ((5, 40, 1, 6), (1, 2))]
)
def test_threads_share_columns_with_an_axis_of_one_element_among_their_rows(shape, axes):
    every = agree(reduced(shape, axes, "mean", "bfloat16"), 2)
    notes = [[f.note(ReduceAcross) for path, _ in walk(v.func.body) for f in path] for v in every]
    assert all(any(note is not None for note in own) for own in notes)
