"""CODEGEN_VERSION is part of every task's key: timings of code that is generated otherwise are not
this code's. The LLVM text of a set of kernels is hashed, and may change only with the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.codegen.llvm.emit import emit_function
from tilesmith.schedule.kinds import AutoPrefetch
from tilesmith.task.task import CODEGEN_VERSION

GOLDEN = Path(__file__).parents[1] / "golden" / "codegen_version.txt"
TARGETS = ("x86-64", "haswell", "skylake-avx512", "sapphirerapids", "neoverse-n1", "cortex-a53")


def matmul(n: int, m: int, depth: int, dtype: str = "float32") -> ts.Schedule:
    a, b = ts.placeholder((n, depth), dtype, name="a"), ts.placeholder((depth, m), dtype, name="b")
    k = ts.reduce_axis(depth, name="k")
    c = ts.compute((n, m), lambda i, j: ts.sum(a[i, k] * b[k, j], axis=k), name="c")
    y = ts.compute((n, m), lambda i, j: ts.maximum(c[i, j], 0), name="y")
    return ts.Schedule(ts.function([a, b, y]))


def tiled(n: int, m: int, depth: int, dtype: str = "float32") -> ts.Schedule:
    sch = matmul(n, m, depth, dtype)
    i, j = sch.loops("y")
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [None, 32])
    sch.reorder(i0, j0, i1, j1)
    sch.compute_at("c", j0)
    ci, cj, ck = sch.loops("c")[2:]
    sch.reorder(ck, ci, cj)
    for loop in (ci, i1):
        sch.unroll(loop)
    for loop in (cj, j1):
        sch.vectorize(loop)
    sch.parallel(i0)
    return sch


def rows(fetches: int) -> ts.Schedule:
    """Softmax."""
    x = ts.placeholder((9, 1000), name="x")
    k, k2 = ts.reduce_axis(1000, name="k"), ts.reduce_axis(1000, name="k2")
    top = ts.compute((9,), lambda i: ts.amax(x[i, k], axis=k), name="top")
    e = ts.compute((9, 1000), lambda i, j: ts.exp(x[i, j] - top[i]), name="e")
    total = ts.compute((9,), lambda i: ts.sum(e[i, k2], axis=k2), name="total")
    y = ts.compute((9, 1000), lambda i, j: e[i, j] / total[i], name="y")
    sch = ts.Schedule(ts.function([x, y]))
    row = sch.loops("y")[0]
    for block in ("total", "e", "top"):
        sch.compute_at(block, row)
    for block in sch.blocks:
        sch.vectorize(sch.loops(block)[-1])
    sch.parallel(row)
    if fetches:
        sch.apply(AutoPrefetch(fetches))
    return sch


def vectorized(func: ts.Function) -> ts.Schedule:
    sch = ts.Schedule(func)
    sch.vectorize(sch.loops(sch.blocks[-1])[-1])
    return sch


def elementwise(dtype: str, f: Callable[[Any], Any]) -> ts.Schedule:
    x = ts.placeholder((37,), dtype, name="x")
    return vectorized(ts.function([x, ts.compute((37,), lambda i: f(x[i]), name="y")]))


def reduction(dtype: str, join: Any) -> ts.Schedule:
    x, k = ts.placeholder((5, 333), dtype, name="x"), ts.reduce_axis(333, name="k")
    y = ts.compute((5,), lambda i: join(x[i, k], axis=k), name="y")
    return vectorized(ts.function([x, y]))


def convolution(is_written_out: bool = False) -> ts.Schedule:
    """Padded: its guards are cut off. Written out, its rows run on several threads."""
    x, w = ts.placeholder((12, 17), name="x"), ts.placeholder((3, 3), name="w")
    p, q = ts.reduce_axis(3, name="p"), ts.reduce_axis(3, name="q")

    def at(i: Any, j: Any) -> Any:
        inside = (i >= 1) & (i < 13) & (j >= 1) & (j < 18)
        return ts.where(inside, x[i - 1, j - 1], 0.0)

    y = ts.compute((12, 17), lambda i, j: ts.sum(at(i + p, j + q) * w[p, q], axis=(p, q)), name="y")
    sch = ts.Schedule(ts.function([x, w, y]))
    if is_written_out:
        sch.write_out("y")
        sch.parallel(sch.loops("y")[0])
    i, j, *taps = sch.loops("y")
    sch.reorder(i, *taps, j)
    sch.vectorize(j)
    return sch


def turned() -> ts.Schedule:
    x = ts.placeholder((45, 38), name="x")
    return vectorized(ts.function([x, ts.compute((38, 45), lambda j, i: x[i, j] * 2, name="y")]))


def packed() -> ts.Schedule:
    sch = matmul(8, 48, 20)
    sch.transform_layout("b", ("d1 // 16", "d0", "d1 % 16"))
    sch.vectorize(sch.loops("y")[-1])
    return sch


def phases() -> ts.Schedule:
    """What a window with steps of two reads: even and odd columns apart."""
    x = ts.placeholder((5, 38), name="x")
    p = ts.compute((5, 38), lambda i, j: x[i, j] * 2, name="p")
    y = ts.compute((5, 18), lambda i, j: p[i, 2 * j] + p[i, 2 * j + 3], name="y")
    sch = ts.Schedule(ts.function([x, y]))
    sch.transform_layout("p", ("d0", "d1 % 2", "d1 // 2"))
    for block in sch.blocks:
        sch.vectorize(sch.loops(block)[-1])
    return sch


def gathered() -> ts.Schedule:
    table, ids = ts.placeholder((64, 5), name="table"), ts.placeholder((37,), "int32", name="ids")
    out = ts.compute((37,), lambda i: ts.where(ids[i] >= 0, table[ids[i], i % 5], 0.0), name="y")
    return vectorized(ts.function([table, ids, out]))


def kernels() -> Iterator[tuple[str, ts.Schedule]]:
    yield "matmul", matmul(7, 9, 11)
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32"):
        yield f"matmul tiled {dtype}", tiled(18, 70, 33, dtype)
    yield "convolution", convolution()
    yield "convolution written out", convolution(is_written_out=True)
    yield "softmax", rows(0)
    yield "softmax that fetches ahead", rows(1)
    yield "turned", turned()
    yield "packed", packed()
    yield "phases", phases()
    yield "gathered", gathered()
    for dtype in ("float32", "float16", "int8", "uint8"):
        yield f"sum {dtype}", reduction(dtype, ts.sum)
        yield f"maximum {dtype}", reduction(dtype, ts.amax)
    functions = ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "floor")
    for name in functions:
        for dtype in ("float32", "float64", "float16"):
            yield f"{name} {dtype}", elementwise(dtype, getattr(ts, name))
    yield "power", elementwise("float32", lambda v: ts.power(v, 2.5))
    for dtype in ("int8", "uint16", "int32", "int64"):
        yield f"quotient {dtype}", elementwise(dtype, lambda v: v // 3 + v % 5 + v // (v + 1))
    for have in ("float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool"):
        for want in ("float32", "float16", "bfloat16", "int8", "uint32", "bool"):
            if have != want:
                yield f"{have} to {want}", elementwise(have, lambda v, t=want: ts.cast(v, t))


def hashes() -> list[str]:
    """One line per kernel: of our own text, which LLVM's version has no say in."""
    lines = []
    for name, sch in kernels():
        found = sha256()
        for target in TARGETS:
            found.update(emit_function(sch.func, ts.Target.named(target)).source.encode())
        lines.append(f"{found.hexdigest()[:16]} {name}")
    return lines


REFRESH = "pytest --update-golden tests/codegen/test_codegen_version.py"


def complaint(lines: list[str], before: list[str]) -> str | None:
    """What is wrong with these hashes, after those that were written down."""
    if lines == before:
        return None
    changed = [line.split(" ", 1)[1] for line in lines[1:] if line not in before]
    if before[:1] != lines[:1]:
        return f"the hashes of {lines[0]} are not written down; {REFRESH}"
    return (
        f"the code of {len(changed)} kernels changed ({', '.join(changed[:8])}), and timings of "
        f"the old code would be taken for those of the new one; bump CODEGEN_VERSION in "
        f"tilesmith/task/task.py, then {REFRESH}"
    )


def test_the_code_changes_only_with_the_version(request: pytest.FixtureRequest) -> None:
    lines = [f"version {CODEGEN_VERSION}", *hashes()]
    before = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    if request.config.getoption("--update-golden") and before[:1] != lines[:1]:
        GOLDEN.write_text("\n".join(lines) + "\n")
        before = lines
    assert complaint(lines, before) is None, complaint(lines, before)


def test_a_change_without_a_new_version_is_refused() -> None:
    before = ["version 2", "aa exp", "bb log"]
    assert complaint(before, before) is None
    assert "log), and timings" in str(complaint(["version 2", "aa exp", "cc log"], before))
    assert "version 3 are not written" in str(complaint(["version 3", "aa exp", "cc log"], before))
    assert "version 3 are not written" in str(complaint(["version 3", *before[1:]], before))
    assert "version 2 are not written" in str(complaint(before, []))
