"""chunk_sums and narrow_sums: what they make of a sum, and that its error is as stated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cases import assert_kept, refuse

import tilesmith as ts
from tilesmith.base.dtype import FLOAT16
from tilesmith.ir.contract import MOST_TERMS
from tilesmith.ir.function import Function
from tilesmith.ir.interpreter import interpret
from tilesmith.schedule.chunks import (
    ChunkSums,
    NarrowSums,
    chunk_error,
    error_of_chunk,
    most_terms,
)
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.schedule import Schedule


def matmul(m: int = 5, n: int = 7, k: int = 11, dtype: str = "float16") -> Function:
    a, b = ts.placeholder((m, k), dtype, name="A"), ts.placeholder((k, n), dtype, name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")


def chunked(func: Function, terms: int) -> Schedule:
    sch = Schedule(func)
    outer, inner = sch.split("C_sum.k", [None, terms])
    i, j = sch.loops("C_sum")[:2]
    sch.reorder(outer, inner, i, j)
    assert sch.chunk_sums("C_sum", inner) == "C_sum.chunk"
    assert sch.trace.steps[-1] == ChunkSums("C_sum", inner, terms)
    return sch


def test_chunk_sums(golden):
    sch = chunked(matmul(), 4)
    golden(sch.func)
    assert_kept(sch)


@pytest.mark.parametrize("terms", [1, 2, 3, 11, 16])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_chunks_of_any_length_keep_the_meaning(terms, dtype):
    assert_kept(chunked(matmul(dtype=dtype), terms))


def test_a_tile_inside_of_the_chunk():
    """As the space uses it: registers hold the sums of a tile during a chunk."""
    sch = Schedule(matmul(6, 20, 30))
    i, j, k = sch.loops("C_sum")
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [None, 8])
    k0, k1, k2 = sch.split(k, [None, 4, 2])
    sch.reorder(i0, j0, k0, k1, k2, i1, j1)
    sch.vectorize(j1)
    sch.unroll(i1)
    sch.reverse_compute_at("C", j0)
    sch.apply(ChunkSums("C_sum", k1, 8))
    assert_kept(sch)


def test_several_axes_are_summed_in_one_chunk():
    x = ts.placeholder((1, 5, 9, 9), "float16", name="X")
    w = ts.placeholder((4, 5, 3, 3), "float16", name="W")
    func = ts.function([x, w, ts.ops.conv2d(x, w, padding=1, name="Y")])
    sch = Schedule(func)
    block = "Y_sum"
    channel = next(n for n in sch.loops(block) if n.endswith(".rc"))
    sch.split(channel, [None, 2])
    inner = [n for n in sch.loops(block) if n.endswith((".rc.1", ".rh", ".rw"))]
    others = [n for n in sch.loops(block) if n not in inner]
    sch.reorder(*others, *inner)
    sch.apply(ChunkSums(block, inner[0], 18))
    assert_kept(sch)


def test_narrow_sums(golden):
    sch = Schedule(matmul())
    sch.narrow_sums("C_sum")
    golden(sch.func)
    assert_kept(sch)


@pytest.mark.parametrize(
    ("func", "loop", "terms", "why"),
    [
        (matmul(dtype="float32"), "C_sum.k.1", 4, "not a sum of products of narrow floats"),
        (matmul(), "C_sum.k.0", 4, "does not reduce over a loop outside of C_sum.k.0"),
        (matmul(), "C_sum.k.1", 8, "a chunk has 4 terms, not 8"),
        (matmul(), "C_sum.x", 4, "C_sum.x is not one of its loops"),
    ],
)
def test_what_cannot_be_chunked(func, loop, terms, why):
    block = "C" if func.inputs[0].dtype.name == "float32" else "C_sum"

    def change(sch: Schedule) -> None:
        sch.split(f"{block}.k", [None, 4])
        sch.apply(ChunkSums(block, loop.replace("C_sum", block), terms))

    refuse(func, change, why)


def test_a_parameter_keeps_its_type():
    a, b = ts.placeholder((4, 9), "float16", name="A"), ts.placeholder((9, 3), "float16", name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, out_dtype="float32", name="C")])
    refuse(func, lambda s: s.apply(NarrowSums("C")), "C is a parameter")


# Inputs and weights, of any scale, that are independent of each other.
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
DRAWS: dict[str, tuple[Draw, Draw]] = {
    "normal": (lambda r, s: r.normal(size=s), lambda r, s: r.normal(size=s)),
    "behind relu": (lambda r, s: np.maximum(r.normal(size=s), 0), lambda r, s: r.normal(size=s)),
    "positive": (lambda r, s: r.random(s), lambda r, s: r.random(s)),
    "far from 0": (lambda r, s: r.normal(size=s) + 2, lambda r, s: r.normal(size=s) / 8),
    "heavy tails": (lambda r, s: r.laplace(size=s), lambda r, s: r.laplace(size=s)),
    "scaled channels": (
        lambda r, s: r.normal(size=s) * np.exp(r.normal(size=(1, s[1]))),
        lambda r, s: r.normal(size=s),
    ),
    "rare values": (lambda r, s: r.normal(size=s) * (r.random(s) < 0.2), lambda r, s: r.random(s)),
}


def sum_in_chunks(a: np.ndarray, b: np.ndarray, terms: int) -> np.ndarray:
    """What a kernel with fused multiply-add computes: one rounding to float16 per term."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    for start in range(0, a.shape[1], terms):
        chunk = np.zeros(total.shape, np.float16)
        for k in range(start, min(start + terms, a.shape[1])):
            chunk = (wide_a[:, k : k + 1] * wide_b[k] + chunk.astype(np.float32)).astype(np.float16)
        total += chunk
    return total


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize(("rows", "length"), [(96, 40), (64, 128), (48, 300)])
def test_the_error_is_as_stated(name, rows, length):
    rng = np.random.default_rng(length)
    first, second = DRAWS[name]
    shares = []
    for terms in (8, 32, 64, MOST_TERMS):
        for scale in (2.0**-6, 1.0, 8.0):
            a = (first(rng, (rows, length)) * scale).astype(np.float16)
            b = second(rng, (length, rows)).astype(np.float16)
            want = a.astype(np.float64) @ b.astype(np.float64)
            error = np.abs(sum_in_chunks(a, b, terms) - want).max() / np.abs(want).max()
            shares.append(error / error_of_chunk(min(terms, length), rows * rows, FLOAT16))
    assert max(shares) <= 1.0, shares
    assert max(shares) >= 1 / 16, "the statement says nothing"


@pytest.mark.parametrize("terms", [8, 64])
def test_the_interpreter_and_the_kernel_are_as_good_as_stated(terms):
    func = matmul(13, 24, 150)
    rng = np.random.default_rng(terms)
    a, b = (rng.normal(size=s).astype(np.float16) for s in ((13, 150), (150, 24)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    sch = chunked(func, terms)
    kernel = ts.build(sch, ts.cpu(1))
    allowed = error_of_chunk(terms, want.size, FLOAT16) + FLOAT16.roundoff
    for got in (interpret(sch.func, a, b), kernel(a, b)):
        error = np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max()
        assert FLOAT16.roundoff / 8 < error <= allowed


def test_the_stated_error_of_a_trace():
    func, size = matmul(64, 64, 512), 64 * 64
    assert chunk_error(func, ()) == 0
    step = ChunkSums("C_sum", "C_sum.k.1", "#C_sum.k.1 * #C_sum.k.2")
    tile = SampleTile("C_sum.k", 3, decision=(16, 8, 4))
    assert chunk_error(func, (tile, step)) == error_of_chunk(32, size, FLOAT16)
    assert chunk_error(func, (step,)) == error_of_chunk(MOST_TERMS, size, FLOAT16)
    assert chunk_error(func, (NarrowSums("C_sum"),)) == error_of_chunk(512, size, FLOAT16)


@pytest.mark.parametrize("accuracy", [0.0, 1e-5, 1e-3, 2e-3, 5e-3, 1.0])
def test_the_longest_chunk_is_as_long_as_the_error_allows(accuracy):
    terms = most_terms(accuracy, 1 << 22, FLOAT16)
    assert 0 <= terms <= MOST_TERMS
    if terms:
        assert error_of_chunk(terms, 1 << 22, FLOAT16) <= accuracy
    if terms < MOST_TERMS:
        assert error_of_chunk(terms + 1, 1 << 22, FLOAT16) > accuracy
