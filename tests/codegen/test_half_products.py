"""Instructions that multiply 16-bit floats and add in float32: BFMMLA, BFDOT and FMLAL on Arm,
which qemu carries out, and VDPBF16PS on x86, which neither qemu 7.2 nor this machine may have: its
code is looked at, and its schedules are interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated import obstacle, run_emulated

import tilesmith as ts
from bench.wrong_kernels import difference
from tests.support.thorough import drawn
from tilesmith.base.dtype import BFLOAT16
from tilesmith.codegen.llvm.compiler import assembly
from tilesmith.ir.interpreter import interpret
from tilesmith.runtime.build import compile_function
from tilesmith.space.spaces import SketchSpace
from tilesmith.task.task import Task
from tilesmith.tune.build_request import drafts_of
from tilesmith.tune.precision import is_faster

Array = np.ndarray[Any, Any]
V1, N1, ZEN4, CASCADE = (
    ts.Target.named(n).with_cores(1) for n in ("neoverse-v1", "neoverse-n1", "zen4", "cascadelake")
)
UNITS = {  # of a target, by what stands in a trace, with the words in the assembly
    "neon.block_bf16": (V1, "bfmmla"), "neon.dot_bf16": (V1, "bfdot"),
    "avx512.dot_bf16": (ZEN4, "vdpbf16ps"),
}  # fmt: skip
needs_emulator = pytest.mark.skipif(
    obstacle("aarch64") is not None, reason=obstacle("aarch64") or ""
)


def product(rows: int, columns: int, depth: int, kind: str = "bfloat16") -> ts.Function:
    a, b = ts.placeholder((rows, depth), kind, name="A"), ts.placeholder((depth, columns), kind)
    k = ts.reduce_axis(depth, name="k")
    c = ts.compute(
        (rows, columns),
        lambda i, j: ts.sum(ts.cast(a[i, k], "float32") * ts.cast(b[k, j], "float32"), axis=k),
        name="C",
    )
    return ts.function([a, b, c], name=f"product_{kind}_{rows}_{columns}_{depth}")


def with_unit(func: ts.Function, unit: str, target: ts.Target) -> list[Any]:
    sketches = SketchSpace().sketches(Task(func, target))
    return [s for s in sketches if f"'{unit}" in str(s)]


def drafted(func: ts.Function, unit: str, target: ts.Target) -> ts.Function:
    """The best draft of the sketches with an instruction."""
    sketches = tuple(with_unit(func, unit, target))
    return drafts_of(Task(func, target), 1, among=sketches)[0].apply(func)


def odd(x: Array) -> Array:
    """Exact sums rounded to float32: the last digit of what is not exact is 1."""
    near = x.astype(np.float32)
    beyond = np.abs(near.astype(np.float64)) > np.abs(x)
    down = np.where(beyond, np.nextafter(near, np.float32(0)), near)
    bits = down.view(np.int32) | (down != x)
    out: Array = bits.view(np.float32)
    return out


def by_pairs(a: Array, b: Array) -> Array:
    """Products as BFDOT and BFMMLA sum them: two at a time, in order."""
    a, b = (x.astype(np.float64) for x in (a, b))
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], 2):
        pair = odd(np.sum(a[:, k : k + 2, None] * b[None, k : k + 2], axis=1))
        total = odd(total.astype(np.float64) + pair)
    return total


def numbers(rng: np.random.Generator, *shape: int) -> Array:
    """Of magnitudes whose sums float64 holds exactly."""
    size = rng.uniform(0.25, 4, shape) * rng.choice((-1, 1), shape)
    found: Array = size.astype(np.float32).astype(BFLOAT16.numpy)
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_sketches_have_them_where_the_processor_does(unit: str) -> None:
    target, word = UNITS[unit]
    func = product(16, 32, 64)
    assert len(re.findall(rf"\b{word}\b", assembly(compile_function(
        drafted(func, unit, target), target)))) >= 16  # fmt: skip
    assert is_faster("bfloat16", target)
    for other in (N1, CASCADE):
        assert not with_unit(func, unit, other)
        assert not is_faster("bfloat16", other)
    assert is_faster("int8", target)


@needs_emulator
def test_sums_of_bfloat16_have_the_bits_that_arm_states(tmp_path: Path) -> None:
    """Whole blocks and parts of them; long sums, whose order is that of the statement."""
    rng, programs = np.random.default_rng(0), []
    for unit in ("neon.block_bf16", "neon.dot_bf16"):
        for sizes in ((6, 16, 64), (5, 7, 13), (2, 4, 512)):
            func = product(*sizes)
            a, b = numbers(rng, sizes[0], sizes[2]), numbers(rng, sizes[2], sizes[1])
            programs.append((drafted(func, unit, V1), [a, b]))
    results = run_emulated(programs, V1, tmp_path)
    for (_, (a, b)), (got,) in zip(programs, results, strict=True):
        np.testing.assert_array_equal(got, by_pairs(a, b))


WRONG: dict[str, Callable[[Array, Array], Array]] = {
    "the last pair is missing": lambda a, b: by_pairs(a[:, :-2], b[:-2]),
    "a pair is counted twice": lambda a, b: by_pairs(
        np.hstack([a, a[:, :2]]), np.vstack([b, b[:2]])
    ),
    "neighbours are exchanged": lambda a, b: by_pairs(a[:, np.arange(a.shape[1]) ^ 1], b),
    "columns are exchanged": lambda a, b: by_pairs(a, b[:, np.arange(b.shape[1]) ^ 1]),
    "sums are bfloat16": lambda a, b: (
        by_pairs(a[:, :8], b[:8]).astype(BFLOAT16.numpy).astype(np.float32)
        + by_pairs(a[:, 8:], b[8:])
    ),
}  # fmt: skip


@pytest.mark.parametrize("depth", [16, 512])
def test_the_check_takes_their_rounding_and_refuses_mistakes(depth: int) -> None:
    func = product(8, 8, depth)
    for seed in range(drawn(1, 6)):
        assert difference(func, by_pairs, seed) is None
    for wrong in WRONG.values():
        assert difference(func, wrong) is not None


@pytest.mark.parametrize("depth", [64, 2048])
def test_the_stated_error_of_rounding_to_odd(depth: int) -> None:
    """Of sums of both signs, of one sign, and of heavy tails: at most a quarter of the bound."""
    rng = np.random.default_rng(depth)
    for kind in ("signed", "positive", "heavy"):
        a, b = (rng.standard_normal(s) for s in ((8, depth), (depth, 8)))
        if kind == "positive":
            a, b = np.abs(a), np.abs(b)
        if kind == "heavy":
            a = np.clip(a / rng.uniform(0.05, 1, a.shape), -60, 60)
        a, b = (x.astype(np.float32).astype(BFLOAT16.numpy) for x in (a, b))
        terms = a.astype(np.float64)[:, :, None] * b.astype(np.float64)[None]
        right, typical = terms.sum(axis=1), np.sqrt((terms**2).sum(axis=1))
        bound = 8 * 2.0**-24 * (8 + depth**0.5) * (np.abs(right) + typical)
        assert (np.abs(by_pairs(a, b) - right) <= bound / 4).all()


@pytest.mark.parametrize("sizes", [(4, 16, 8), (5, 19, 7)])
def test_the_meaning_is_kept(sizes: tuple[int, int, int]) -> None:
    """Any candidate of each instruction, interpreted; and its code is built."""
    func, rng = product(*sizes), np.random.default_rng(1)
    arrays = [numbers(rng, sizes[0], sizes[2]), numbers(rng, sizes[2], sizes[1])]
    want = ts.evaluate(func, *arrays)
    for unit, (target, word) in UNITS.items():
        sketch = with_unit(func, unit, target)[-1]
        variant = next(ts.variants(Task(func, target), sketch))
        for row in variant.sample(rng, drawn(1, 3)):
            scheduled = variant.function(row)
            np.testing.assert_allclose(interpret(scheduled, *arrays), want, rtol=1e-5, atol=1e-5)
            assert word in assembly(compile_function(scheduled, target))


def with_lanes(func: ts.Function, lanes: int, axis: int) -> ts.Schedule:
    sch = ts.Schedule(func)
    loop = sch.loops(sch.blocks[-1])[axis]
    inner = sch.split(loop, [None, lanes])[1]
    if axis != len(sch.loops(sch.blocks[-1])) - 2:
        outer = [x for x in sch.loops(sch.blocks[-1]) if x != inner]
        sch.reorder(*outer, inner)
    sch.vectorize(inner)
    return sch


def difference_of_products(n: int) -> ts.Function:
    """x y - a b and a - x y, with a factor that is one number."""
    x, y, a = (ts.placeholder((n,), "float16", name=name) for name in "XYA")
    s = ts.placeholder((), "float16", name="S")

    def wide(v: Any) -> Any:
        return ts.cast(v, "float32")

    first = ts.compute((n,), lambda i: wide(x[i]) * wide(y[i]) - wide(a[i]) * wide(s[()]), name="D")
    second = ts.compute((n,), lambda i: first[i] - wide(x[i]) * wide(s[()]), name="E")
    return ts.function([x, y, a, s, first, second], name=f"differences_{n}")


@needs_emulator
def test_widening_sums_of_float16_have_the_same_bits_as_conversions(tmp_path: Path) -> None:
    """Drafts, and vectors of lengths that fill registers and that do not; infinities, NaN and
    subnormal numbers among others.
    """
    rng = np.random.default_rng(2)
    programs: list[tuple[Any, list[Array]]] = []
    plain = replace(V1, features=V1.features - {"fp16fml"})

    def halves(*shape: int) -> Array:
        some = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 4, shape)
        special = rng.choice([np.inf, -np.inf, np.nan, 6e-8, -0.0, 65504.0], shape)
        return np.where(rng.random(shape) < 0.02, special, some).astype(np.float16)

    for rows, columns, depth in ((6, 16, 40), (5, 7, 9)):
        func = product(rows, columns, depth, "float16")
        feeds = [halves(rows, depth), halves(depth, columns)]
        (draft,) = drafts_of(Task(func, V1), 1)
        programs.append((draft.apply(func), feeds))
    for lanes in (2, 4, 6, 8, 12, 24):
        func = product(3, 2 * lanes, 5, "float16")
        programs.append((with_lanes(func, lanes, 1), [halves(3, 5), halves(5, 2 * lanes)]))
        func = difference_of_products(2 * lanes)
        sch = ts.Schedule(func)
        for block in sch.blocks:
            sch.vectorize(sch.split(sch.loops(block)[0], [None, lanes])[1])
        feeds = [halves(2 * lanes) for _ in range(3)] + [np.full((), 0.3, np.float16)]
        programs.append((sch, feeds))
    counts = [
        sum(len(re.findall(r"\bfmlal2?\b", assembly(compile_function(p, t)))) for p, _ in programs)
        for t in (V1, plain)
    ]
    assert counts[0] > 100
    assert counts[1] == 0
    both = [tmp_path / "with", tmp_path / "without"]
    for folder in both:
        folder.mkdir()
    results = [run_emulated(programs, t, f) for t, f in zip((V1, plain), both, strict=True)]
    for got, want in zip(*results, strict=True):
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
            np.testing.assert_array_equal(np.where(np.isnan(g), 0, g).view(np.int32),
                                          np.where(np.isnan(w), 0, w).view(np.int32))  # fmt: skip
    assert any(np.isnan(g).any() for got in results[0] for g in got)
