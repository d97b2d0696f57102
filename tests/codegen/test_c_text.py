"""The C text of GPU programs: golden texts of hand-written launches, vector moves, guards, index
arithmetic, names, shared memory. Where a device is here, the same programs run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_targets import ARCHITECTURES, devices, nvidia
from launch_programs import (
    buffer,
    joined_groups,
    launch,
    load,
    loop,
    moved,
    rows_softmax,
    store,
    tiled_matmul,
)

import tilesmith as ts
from tilesmith.base.dtype import BOOL, FLOAT32
from tilesmith.codegen.c.backends import CudaBackend, OpenclBackend, emit_launches, require_valid
from tilesmith.codegen.c.dialect import CUDA, OPENCL, Dialect
from tilesmith.codegen.c.nvrtc import compile_cuda, options_of, resources_of
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.ints import atom, of, var
from tilesmith.expr.nodes import Binary, Const, Expr, Select
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, If, Stmt
from tilesmith.ir.simt import run_simt

DIALECTS = (CUDA, OPENCL)
both = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
RNG = np.random.default_rng(0)


def runs(func: Function, *arrays: Any) -> list[Any]:
    """What the SIMT interpreter and every device here make of a Function in launch form."""
    out = [run_simt(func, *arrays)]
    for target in devices():
        backend = (CudaBackend if target.kind == "cuda" else OpenclBackend)(passes=())
        out.append(ts.build(func, target, backend=backend)(*arrays))
    return out


def compiles(func: Function, archs: tuple[str, ...] = ("sm_75",)) -> None:
    for arch in archs:
        nvidia(arch)
        compile_cuda(func.name, emit_launches(func, CUDA).source, arch)


@both
def test_text_of_a_tiled_matmul(dialect: Dialect, golden: Callable[[object], None]) -> None:
    golden(emit_launches(tiled_matmul(), dialect).source)


@both
def test_text_of_a_softmax(dialect: Dialect, golden: Callable[[object], None]) -> None:
    golden(emit_launches(rows_softmax(threads=32 if dialect is CUDA else 48), dialect).source)


def test_a_tiled_matmul_is_right() -> None:
    func = tiled_matmul()
    a, b = (RNG.standard_normal((64, 64), dtype=np.float32) for _ in range(2))
    for got in runs(func, a, b):
        np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)
    compiles(func, ARCHITECTURES)


@pytest.mark.parametrize("threads", [32, 48])
def test_a_softmax_is_right(threads: int) -> None:
    func = rows_softmax(threads=threads)
    x = RNG.standard_normal((5, 96), dtype=np.float32)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    for got in runs(func, x):
        np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5)
    compiles(func)


# (threads, extent, stride): in a warp, across warps, strided, odd, and with a smaller last group
GROUPS = [
    (64, 8, 1), (64, 8, 4), (128, 128, 1), (256, 64, 4), (128, 2, 64), (96, 3, 1), (66, 33, 2),
    (50, 20, 1), (40, 16, 1), (20, 4, 1),
]  # fmt: skip


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("op", ["add", "argmax"])
def test_joins(group: tuple[int, int, int], op: str) -> None:
    threads, extent, stride = group
    func = joined_groups(*group, op)
    x = RNG.integers(-9, 9, (3, threads)).astype(np.float32)
    t = np.arange(threads)
    same = (t[:, None] // (stride * extent) == t // (stride * extent)) & (
        t[:, None] % stride == t % stride
    )
    if op == "add":
        want: Any = x @ same
    else:
        masked = np.where(same, x[:, None, :], -np.inf)
        want = masked.max(-1), masked.argmax(-1)
    compiles(func)
    results = [run_simt(func, x)]
    if group in GROUPS[3:10:2]:  # a kernel takes PoCL a third of a second
        results = runs(func, x)
    for got in results:
        np.testing.assert_array_equal(got, want)


def test_the_memory_of_joins_is_used_again() -> None:
    func = joined_groups(96, 48, 2, "add", twice=True)
    x = RNG.integers(-9, 9, (3, 96)).astype(np.float32)
    first, *others = runs(func, x)
    for got in others:
        np.testing.assert_array_equal(got, first)
    for dialect in DIALECTS:
        text = emit_launches(func, dialect).source
        body = text[text.index("again") :]
        barrier = dialect.barriers["shared"]
        assert body.index(barrier) < body.index("exchange"), "threads may still read it"


# what moves, per dtype and lanes
MOVES = [
    ("float32", "float32", 4, 0, "float4", "float4"),
    ("float32", "float32", 4, 2, "float2", "float2"),
    ("float32", "float32", 4, 1, None, None),
    ("float32", "float32", 8, 0, "float4", "float4"),
    ("float32", "float32", 6, 0, "float2", "float2"),
    ("float16", "float16", 8, 0, "uint4", "ushort8"),
    ("bfloat16", "float32", 8, 0, "uint4", "ushort8"),
    ("int8", "int32", 16, 0, "int4", "char16"),
    ("float64", "float64", 2, 0, "double2", "double2"),
    ("bool", "bool", 4, 0, "uchar4", "uchar4"),
    ("int64", "float16", 4, 0, "longlong2", "long2"),
]


@pytest.mark.parametrize("move", MOVES, ids=lambda m: "-".join(map(str, m[:4])))
def test_vectors_move_aligned_elements(move: tuple[Any, ...]) -> None:
    have, want, lanes, shift, cuda, opencl = move
    func = moved(have, want, lanes, shift)
    for dialect, kind in ((CUDA, cuda), (OPENCL, opencl)):
        text = emit_launches(func, dialect).source
        loaded = set(re.findall(r"\*\(const (?:__global )?(\w+)\*\)&x(?:_at)?\[", text))
        assert loaded == ({kind} if kind else set()), text
    compiles(func)
    n = func.params[0].shape[0].const
    x = RNG.integers(0, 2 if have == "bool" else 50, n).astype(ts.dtype(have).numpy)
    results = [run_simt(func, x)]
    if move in MOVES[3:8]:
        results = runs(func, x)
    for got in results:
        np.testing.assert_array_equal(got, x[shift : shift + 64 * lanes].astype(got.dtype))


@pytest.mark.parametrize(("guard", "whole"), [(100, True), (102, False), (101, False)])
def test_a_guard_stands_around_vectors_and_what_it_splits_is_moved_by_itself(
    guard: int, whole: bool
) -> None:
    func = moved("float32", "float32", 4, guard=guard)
    text = emit_launches(func, CUDA).source
    assert "float4" in text
    assert ("if (!(" not in text) == whole
    x = RNG.standard_normal(64 * 4 + 16, dtype=np.float32)
    want = np.where(np.arange(256) < guard, x[:256], np.float32(7))
    for got in runs(func, x):
        np.testing.assert_array_equal(got, want)


def test_divisions_of_data_round_down() -> None:
    """Sums of loops are written so that no dividend is negative; data may be."""
    t, ids = var("t"), buffer("ids", 40, dtype="int32")
    table, y = buffer("table", 64, dtype="int32"), buffer("y", 40, dtype="int32")
    data = atom(Dynamic(load(ids, t)))
    for n, q in ((data, "floordiv_int64"), (t - 7, " / 3")):
        value = load(table, n // 3 + 5 + (n % 5) * 2)
        func = Function("f", (ids, table, y), 1, (), (launch(1, 40, store(y, (t,), value)),))
        for dialect in DIALECTS:
            assert q in emit_launches(func, dialect).source
        numbers = np.arange(40, dtype=np.int32) - 7
        held = RNG.integers(0, 99, 64).astype(np.int32)
        for got in runs(func, numbers, held):
            np.testing.assert_array_equal(got, held[numbers // 3 + 5 + numbers % 5 * 2])


def test_what_a_condition_leaves_one_value_is_a_number() -> None:
    """ptxas up to 13.0 takes (k + 1) % 2 for 0 below k == 0, as seen in its machine code."""
    k, t, x, y = var("k"), var("t"), buffer("x", 8), buffer("y", 2, 8)
    ahead = If((-k,), (store(y, ((k + 1) % 2, t), load(x, t)),))
    now = If((k - 1,), (store(y, (k - 1, t), load(x, t)),))
    func = Function("f", (x, y), 1, (), (launch(1, 8, loop("k", 2, ahead, now)),))
    for dialect in DIALECTS:
        text = emit_launches(func, dialect).source
        assert "if (k == 0)" in text
        assert "y[t + 8] = x[t]" in text
    held = RNG.standard_normal(8, dtype=np.float32)
    for got in runs(func, held):
        np.testing.assert_array_equal(got, [held, held])


@both
def test_addresses_beyond_an_int_are_wide(dialect: Dialect) -> None:
    """Elements of a buffer of 2**33, of which little is touched."""

    def func(rows: int) -> Function:
        y, at = buffer("y", rows, 1 << 13), (var("b"), var("k") * 32 + var("t"))
        zero = store(y, at, Const(0.0, FLOAT32))
        return Function("f", (y,), 1, (), (launch(rows, 32, loop("k", 256, zero)),))

    text = emit_launches(func(1 << 20), dialect).source
    kind = "long long" if dialect is CUDA else "long"
    wide = f"8192{dialect.long_suffix}*b + ({kind})t"
    assert f"const {kind} y_at = {wide};" in text or f"const auto y_at = y + ({wide});" in text
    assert kind not in emit_launches(func(1 << 10), dialect).source


def test_much_shared_memory_is_given_by_the_launch() -> None:
    def func(n: int) -> Function:
        tiles = tuple(buffer(f"tile{k}", n, scope="shared") for k in range(2))
        x, y = buffer("x", 64), buffer("y", 64)
        t = var("t")
        body: list[Stmt] = [store(s, (t,), load(x, t)) for s in tiles]
        body.append(store(y, (t,), load(tiles[1], t)))
        return Function("f", (x, y), 1, (), (launch(1, 64, *body, shared=tiles),))

    (launched,) = emit_launches(func(6144), CUDA).launches
    assert launched.shared_nbytes == 0
    wide = emit_launches(func(6150), CUDA)
    assert wide.launches[0].shared_nbytes == 2 * 6152 * 4  # 16-byte boundaries
    assert "(float*)(shared_memory + 24608)" in wide.source
    assert emit_launches(func(6150), OPENCL).launches[0].shared_nbytes == 0
    compiles(func(6150))


def test_names_that_c_reserves() -> None:
    x, y = buffer("float", 8), buffer("kernel", 8)
    both_names = buffer("A.b", 8), buffer("A_b", 8)
    params = (x, *both_names, y)
    body = [store(y, (var("for"),), load(b, var("for"))) for b in params[:3]]
    func = Function("2d max", params, 1, (), (launch(1, 1, loop("for", 8, *body)),))
    for dialect in DIALECTS:
        text = emit_launches(func, dialect).source
        assert "k2d_max_kernel(" in text
        assert {"float_", "A_b", "A_b_1", "kernel_"} <= set(re.findall(r"\w+", text))
    compiles(func)


def test_deep_expressions_are_written_in_pieces() -> None:
    """Compilers limit the depth of parentheses, to 256 for instance."""
    x, y = buffer("x", 4), buffer("y", 4)
    value: Expr = load(x, var("t"))
    positive = Binary("gt", value, Const(0.0, FLOAT32), BOOL)
    for k in range(700):
        step = Binary("sub", Const(float(k % 3 + 1), FLOAT32), value, FLOAT32)
        value = Select(positive, step, value, FLOAT32) if k % 100 == 99 else step
    func = Function("f", (x, y), 1, (), (launch(1, 4, store(y, (var("t"),), value)),))
    for dialect in DIALECTS:
        text = emit_launches(func, dialect).source
        assert max(map(len, text.splitlines())) < 1000
    compiles(func)


def test_a_mistake_in_opencl_text_is_found_before_it_is_loaded() -> None:
    if not any(t.kind == "opencl" for t in devices()):
        pytest.skip("no OpenCL device is here")
    require_valid("good", emit_launches(tiled_matmul(), OPENCL).source, 0)
    with pytest.raises(ts.BuildError, match=r"does not compile 'bad':\n.*undeclared"):
        require_valid("bad", "__kernel void k(__global float* x) { x[0] = y; }", 0)


def test_launches_get_what_they_use() -> None:
    a, b, c = (buffer(n, 8) for n in "abc")
    between = buffer("between", 8)
    t = var("t")
    first = launch(1, 8, store(between, (t,), load(a, t)))
    second = launch(1, 8, If((of(3) - t,), (store(c, (t,), load(between, t)),)))
    third = launch(1, 8, If((t - 4,), (store(c, (t,), load(b, t)),)))
    func = Function("f", (a, b, c), 1, (), (Alloc(between), first, second, third))
    emitted = emit_launches(func, CUDA)
    assert [x.arguments for x in emitted.launches] == [
        ("a", "between"),
        ("c", "between"),
        ("b", "c"),
    ]
    assert (emitted.scratch, emitted.workspace_nbytes) == ((("between", of(0)),), of(256))
    x, y = np.arange(8, dtype=np.float32), -np.arange(8, dtype=np.float32)
    for got in runs(func, x, y):
        np.testing.assert_array_equal(got, [0, 1, 2, 3, -4, -5, -6, -7])


def test_nvrtc_keeps_nothing_for_later() -> None:
    """What it takes from its cache has no log of what kernels use. Old ones have no such cache."""
    assert b"--no-cache" in options_of("sm_90a", (13, 0))
    assert b"--no-cache" in options_of("sm_90a", (12, 9))
    assert b"--no-cache" not in options_of("sm_90a", (12, 8))


@pytest.mark.parametrize("turn", range(2))
def test_resources_are_read_back(turn: int) -> None:
    kernel = ts.build(tiled_matmul(), nvidia("sm_90a"), backend=CudaBackend(passes=()))
    (launched,) = kernel.artifact.entries[0].launches
    assert launched.resources is not None
    assert 16 < launched.resources.registers < 256
    assert launched.resources.spilled_nbytes == 0
    assert launched.resources.shared_nbytes == 2 * 8 * 32 * 4
    assert "__global__" in kernel.source
    log = (
        "ptxas info : Compiling entry function 'k' for 'sm_75'\n"
        "ptxas . 24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info : Used 255 registers, used 1 barriers, 512 bytes smem\n"
    )
    found = resources_of(log)["k"]
    assert (found.registers, found.spilled_nbytes, found.shared_nbytes) == (255, 20, 512)


def test_errors_name_the_kernel_and_say_why() -> None:
    nvidia("sm_75")
    with pytest.raises(ts.BuildError, match=r"does not compile 'bad' for sm_75:\n.*undefined"):
        compile_cuda("bad", "__global__ void k() { undefined(); }", "sm_75")
    with pytest.raises(ts.BuildError, match="does not compile 'bad' for sm_1:"):
        compile_cuda("bad", "", "sm_1")
    func = tiled_matmul()
    with pytest.raises(ts.BuildError, match="kernels that check indices are built for CPUs only"):
        ts.build(func, nvidia("sm_75"), checked=True)
    with pytest.raises(ts.BuildError, match="opencl code is not for a target of kind cuda"):
        ts.build(func, nvidia("sm_75"), backend=OpenclBackend(passes=()))
    odd = Function("f", func.params, 1, (), (launch(1, 1, loop("i", 2, kind="parallel")),))
    with pytest.raises(ts.BuildError, match="loop 'i' is parallel"):
        emit_launches(odd, CUDA)
