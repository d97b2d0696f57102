"""Hand-scheduled kernels beside the libraries, what building and calling them costs, and the
machine's own limits.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.peak import bandwidth
from bench.table import Row, arguments, duel, finish
from tilesmith.codegen.llvm.compiler import compile_ir
from tilesmith.codegen.llvm.emit import emit_function
from tilesmith.measure.this_machine import dot_product, multiply_add, multiply_add_call
from tilesmith_contest.compare import Contestants
from tilesmith_contest.pairs import Contest, Turns
from tilesmith_contest.peers import installed_peers
from tilesmith_contest.problems import Convolution, Plain, Question

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))


def example(name: str) -> Any:
    return importlib.import_module(name)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def machine(target: ts.Target) -> list[Row]:
    rows = []
    for d in ("float32", "float64"):
        rows.append(Row(f"peak {d}, one core", multiply_add(d, target) / 1e9, "GFLOP/s"))
    if "fp16" in target.features:
        rows.append(Row("peak float16, one core", multiply_add("float16", target) / 1e9, "GFLOP/s"))
    if (rate := dot_product(target)) is not None:
        rows.append(Row("peak int8 dot product, one core", rate / 1e9, "GOP/s"))
    for level, nbytes in (
        ("L1", target.l1_nbytes * 3 // 4), ("L2", target.l2_nbytes * 3 // 4),
        ("L3", min(target.l3_nbytes // 4, 8 << 20)), ("memory", 256 << 20),
    ):  # fmt: skip
        rows.append(Row(f"bandwidth {level}, one core", bandwidth(nbytes, target) / 1e9, "GB/s"))
    return rows


def beside(
    peers: list[str], threads: int, kernel: ts.Kernel, arrays: list[Any], question: Question,
    layout: str | None = None,
) -> Contest:  # fmt: skip
    """Ours beside the installed peers, each in a process of its own."""
    found, absent = installed_peers(peers)
    for why in absent:
        print(f"({why}: its rows are left out)")
    turns = Turns(rounds=31, close=float("inf"))
    with Contestants(found, threads) as contestants:
        result, notes = contestants.contest(kernel.artifact, arrays, layout, question, turns)
    for note in notes:
        print(f"({kernel.name}, {threads} thread(s): {note})")
    return result


def matmuls(target: ts.Target, fma_peak: float) -> list[Row]:
    rows = []
    for n in (512, 1024):
        a, b = random(n, n), random(n, n)
        for threads in (1, 2):
            if threads > target.num_cores:
                continue
            here = target.with_cores(threads)
            func = example("matmul").matmul(n)
            kernel = ts.build(example("matmul").schedule(func, here), here)
            question = Question(Plain("matmul", (a, b)), np.asarray)
            result = beside(["numpy"], threads, kernel, [a, b], question)
            work = func.flops / 1e9
            name = f"matmul {n} float32, {threads} thread(s)"
            rows += duel_rows(name, "GFLOP/s", result, lambda seconds: work / seconds)
            if threads == 1:
                rows.append(Row("  share of the peak", 100 * work / result.ours / fma_peak, "%"))
    return rows


def duel_rows(name: str, unit: str, result: Contest, value: Callable[[float], float]) -> list[Row]:
    return [
        Row(name, value(d.ours), unit, d.peer, value(d.theirs), d.ratio, d.spread)
        for d in result.duels
    ]


def softmaxes(target: ts.Target) -> list[Row]:
    n = 1024
    x = random(n, n)
    here = target.with_cores(1)
    kernel = ts.build(example("softmax").schedule(example("softmax").softmax(n, n), here), here)
    y = kernel(x)
    want = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, want / want.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)
    rows = [Row(f"softmax {n}x{n}, 1 thread", kernel.time(x, out=y).median * 1e6, "us")]
    z = np.empty_like(x)
    name = f"softmax {n}x{n}, 1 thread"
    # A copy reads and writes as much as a softmax, and computes nothing.
    mine, theirs, ratio, spread = duel(lambda: kernel(x, out=y), lambda: np.copyto(z, x), rounds=31)
    rows.append(Row(name, mine * 1e6, "us", "a copy", theirs * 1e6, ratio, spread))
    question = Question(Plain("softmax", (x,)), np.asarray)
    result = beside(["torch", "onnxruntime"], 1, kernel, [x], question)
    return rows + duel_rows(name, "us", result, lambda seconds: seconds * 1e6)


def convolutions(target: ts.Target) -> list[Row]:
    here = target.with_cores(1)
    func = example("conv2d").conv2d(56, 64, 64)
    sch = example("conv2d").schedule(func, here)
    x, w = random(1, 56, 56, 64), random(3, 3, 64, 64)
    packed = ts.pack(sch.func, "W", w)
    kernel = ts.build(sch, here)
    y = kernel(x, packed)
    np.testing.assert_allclose(y, ts.evaluate(func, x, w), rtol=1e-3, atol=1e-3)
    work = 2 * 56 * 56 * 64 * 64 * 9 / 1e9
    name = "conv2d 3x3 56x56 64->64 NHWC, 1 thread"
    rows = []
    limit, operations = multiply_add_call("float32", here)
    memory = np.empty(4096, np.uint8)
    mine, theirs, ratio, spread = duel(
        lambda: kernel(x, packed, out=y), lambda: limit(out=memory), rounds=61
    )  # in turns, as the clock is not steady
    best, share = operations / theirs / 1e9, work * 1e9 / operations
    rows.append(Row(name, work / mine, "GFLOP/s", "FMA peak", best, ratio * share, spread * share))
    nchw = Convolution(
        np.ascontiguousarray(x.transpose(0, 3, 1, 2)),
        np.ascontiguousarray(w.transpose(3, 2, 0, 1)),
        stride=1,
        padding=1,
    )
    result = beside(["torch"], 1, kernel, [x, w], Question(nchw, np.asarray), "NHWC")
    return rows + duel_rows(name, "GFLOP/s", result, lambda seconds: work / seconds)


def integers(target: ts.Target) -> list[Row]:
    n = 512
    here = target.with_cores(1)
    unit = example("int8_matmul").instruction(here)
    if unit is None:
        print("(this machine has no int8 dot-product instruction: its rows are left out)")
        return []
    left = "uint8" if unit is ts.AVX512_DOT_U8S8 else "int8"
    func = example("int8_matmul").matmul(n, left)
    sch = example("int8_matmul").schedule(func, unit)
    kernel = ts.build(sch, here)
    rng = np.random.default_rng(0)
    a = rng.integers(0, 100, (n, n)).astype(left)
    b = rng.integers(-128, 128, (n, n)).astype("int8")
    packed = ts.pack(sch.func, "B", b)
    c = kernel(a, packed)
    assert (c == a.astype("int32") @ b.astype("int32")).all(), "int8 matmul is not exact"
    f32 = ts.build(example("matmul").schedule(example("matmul").matmul(n), here), here)
    x, y, z = random(n, n), random(n, n), np.empty((n, n), np.float32)
    mine, theirs, ratio, spread = duel(
        lambda: kernel(a, packed, out=c), lambda: f32(x, y, out=z), rounds=31
    )
    work = func.flops / 1e9
    name = f"matmul {n} int8, exact, packed B, 1 thread"
    return [Row(name, work / mine, "GOP/s", "our float32", work / theirs, ratio, spread)]


def costs(target: ts.Target) -> list[Row]:
    """From Schedule to callable, and what a call takes on top of the work."""
    here = target.with_cores(1)
    func = example("matmul").matmul(512)
    samples = []
    for _ in range(7):
        start = time.perf_counter()
        sch = example("matmul").schedule(func, here)
        scheduled = time.perf_counter()
        emitted = emit_function(sch.func, here)
        written = time.perf_counter()
        compile_ir(func.name, emitted.source, here, [])
        compiled = time.perf_counter()
        ts.build(sch, here)
        built = time.perf_counter()
        samples.append(
            (scheduled - start, written - scheduled, compiled - written, built - compiled)
        )
    parts = np.median(np.array(samples), axis=0) * 1e3
    names = ("scheduling", "lowering and emission", "LLVM", "Schedule to callable, all of it")
    rows = [Row(f"matmul 512: {n}", p, "ms") for n, p in zip(names, parts, strict=True)]
    x = ts.placeholder((16,), name="x")
    y = ts.placeholder((16,), name="y")
    z = ts.compute((16,), lambda i: x[i] + y[i], name="z")
    kernel = ts.build(ts.Schedule(ts.function([x, y, z], name="tiny")), here)
    a, b, c = random(16), random(16), np.empty(16, np.float32)
    best = []
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(200):
            kernel(a, b, out=c)
        best.append((time.perf_counter() - start) / 200)
    rows.append(Row("kernel call, three parameters", float(np.median(best)) * 1e6, "us"))
    return rows


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    target = ts.cpu()
    rows = machine(target)
    fma_peak = rows[0].value
    rows += matmuls(target, fma_peak)
    rows += softmaxes(target)
    rows += convolutions(target)
    rows += integers(target)
    rows += costs(target)
    finish(rows, args)


if __name__ == "__main__":
    main()
