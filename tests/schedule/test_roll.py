"""roll: reductions that depend on one another in one loop over tiles, against the plain program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tilesmith.ir.verify import verify

Score = Callable[[ts.Value, ts.Value, ts.Value], ts.Value]
NOTHING = float("-inf")


def attention(
    queries: int, keys: int, score: Score, dtype: str = "float32", wide: int = 5, depth: int = 3
) -> ts.Function:
    """Scores of queries and keys, of which `score` makes others, a softmax, and values."""
    q = ts.placeholder((2, queries, depth), dtype, name="Q")
    k = ts.placeholder((2, keys, depth), dtype, name="K")
    v = ts.placeholder((2, keys, wide), dtype, name="V")
    c = ts.reduce_axis(depth, name="c")
    shape = (2, queries, keys)
    s = ts.compute(
        shape,
        lambda n, i, j: ts.sum(
            ts.cast(q[n, i, c], "float32") * ts.cast(k[n, j, c], "float32"), axis=c
        ),
        name="S",
    )
    a = ts.compute(shape, lambda n, i, j: score(s[n, i, j], i, j), name="A")
    x, y, z = (ts.reduce_axis(keys, name="j") for _ in range(3))
    m = ts.compute((2, queries), lambda n, i: ts.amax(a[n, i, x], axis=x), name="M")
    p = ts.compute(shape, lambda n, i, j: ts.exp(a[n, i, j] - m[n, i]), name="P")
    total = ts.compute((2, queries), lambda n, i: ts.sum(p[n, i, y], axis=y), name="L")
    w = ts.compute(shape, lambda n, i, j: ts.cast(p[n, i, j] * (1 / total[n, i]), dtype), name="W")
    o = ts.compute(
        (2, queries, wide),
        lambda n, i, d: ts.sum(
            ts.cast(w[n, i, z], "float32") * ts.cast(v[n, z, d], "float32"), axis=z
        ),
        name="O",
    )
    out = ts.compute((2, queries, wide), lambda n, i, d: ts.cast(o[n, i, d], dtype), name="Y")
    return ts.function([q, k, v, out], name="attention")


def scaled(s: ts.Value, i: ts.Value, j: ts.Value) -> ts.Value:
    return s * 0.3


def causal(s: ts.Value, i: ts.Value, j: ts.Value) -> ts.Value:
    return ts.where(j <= i, s * 0.3, NOTHING)


def window(s: ts.Value, i: ts.Value, j: ts.Value) -> ts.Value:
    return ts.where((j <= i) & (i - j < 4), s, NOTHING)


def capped(s: ts.Value, i: ts.Value, j: ts.Value) -> ts.Value:
    return ts.tanh(s * 0.1) * 10.0 - ts.cast(i - j, "float32") * 0.01


def negative(s: ts.Value, i: ts.Value, j: ts.Value) -> ts.Value:
    return s * -2.0


def rolled(func: ts.Function, rows: int, keys: int, slack: float = 0.0) -> ts.Schedule:
    sch = ts.Schedule(func)
    if "A" in sch.blocks:
        sch.inline("A")
    n, i, d, j = sch.loops("O")
    i0, i1 = sch.split(i, [None, rows])
    j0, j1 = sch.split(j, [None, keys])
    sch.reorder(n, i0, j0, i1, d, j1)
    sch.reverse_compute_at("Y", i0)
    sch.roll("O", j0, slack)
    sch.compute_at("S", j0)
    return sch


def arrays_of(func: ts.Function, growing: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    made = [rng.standard_normal([n.number for n in b.shape]) for b in func.inputs]
    if growing:  # each key more important than those before it, so that every tile repairs
        made[0] = np.abs(made[0])
        made[1] = np.abs(made[1]) * np.linspace(0.1, 9, made[1].shape[1])[None, :, None]
    return [a.astype(b.dtype.numpy) for a, b in zip(made, func.inputs, strict=True)]


@pytest.mark.parametrize("score", [scaled, causal, window, capped, negative])
@pytest.mark.parametrize(("queries", "keys", "rows", "tile"), [(11, 14, 4, 4), (6, 9, 6, 2)])
def test_it_computes_the_same(score: Score, queries: int, keys: int, rows: int, tile: int) -> None:
    func = attention(queries, keys, score)
    sch = rolled(func, rows, tile)
    verify(sch.func)
    arrays = arrays_of(func, growing=True)
    assert_close(ts.build(sch, ts.cpu(1))(*arrays), ts.evaluate(func, *arrays), f"{sch.func}", func)


@pytest.mark.parametrize("score", [scaled, causal, window, capped, negative])
@pytest.mark.parametrize("growth", [1, 40])
def test_small_growth_is_not_repaired(score: Score, growth: int) -> None:
    func = attention(11, 14, score)
    sch = rolled(func, 4, 4, slack=3.0)
    verify(sch.func)
    arrays = arrays_of(func, growing=True)
    arrays[1] *= growth  # some tiles repair, or all do
    assert_close(ts.build(sch, ts.cpu(1))(*arrays), ts.evaluate(func, *arrays), f"{sch.func}", func)


@pytest.mark.parametrize("slack", [-1.0, 20.0, float("nan")])
def test_a_slack_that_halves_do_not_hold_is_refused(slack: float) -> None:
    with pytest.raises(ts.ScheduleError, match=r"cannot roll O over .* its slack is"):
        rolled(attention(4, 8, scaled), 2, 4, slack)


@pytest.mark.parametrize(("keys", "tile"), [(1, 1), (5, 5), (7, 3), (8, 16)])
def test_odd_numbers_of_keys_and_halves(keys: int, tile: int) -> None:
    func = attention(3, keys, scaled, "float16")
    arrays = arrays_of(func)
    got = ts.build(rolled(func, 2, tile), ts.cpu(1))(*arrays)
    assert_close(got, ts.evaluate(func, *arrays), f"{keys} {tile}", func)


def test_terms_grow_from_tile_to_tile_without_overflow() -> None:
    func = attention(4, 12, scaled)
    arrays = arrays_of(func, growing=True)
    arrays[1] *= 40  # exp of the last scores alone would be infinite
    scores = 0.3 * np.einsum("nic,njc->nij", arrays[0], arrays[1])
    assert scores.max() > 100
    got = ts.build(rolled(func, 2, 3), ts.cpu(1))(*arrays)
    assert np.isfinite(got).all()
    assert_close(got, ts.evaluate(func, *arrays), "growing", func)


def test_rows_that_see_nothing_at_first_and_rows_that_see_nothing() -> None:
    late = attention(4, 12, lambda s, i, j: ts.where(j >= 9, s, NOTHING))
    arrays = arrays_of(late)
    got = ts.build(rolled(late, 4, 3), ts.cpu(1))(*arrays)
    assert_close(got, ts.evaluate(late, *arrays), "late", late)
    never = attention(4, 12, lambda s, i, j: ts.where((j >= 0) & (i > 1), s, NOTHING))
    got = ts.build(rolled(never, 4, 3), ts.cpu(1))(*arrays)
    want = ts.evaluate(never, *arrays)
    assert np.isnan(want[:, :2]).all()
    assert np.isnan(got[:, :2]).all()
    assert np.allclose(got[:, 2:], want[:, 2:], rtol=1e-5)


def test_the_smallest_number_as_a_mask_gives_equal_weights() -> None:
    smallest = float(np.finfo(np.float32).min)
    func = attention(4, 12, lambda s, i, j: ts.where((j >= 0) & (i > 1), s, smallest))
    arrays = arrays_of(func)
    got = ts.build(rolled(func, 4, 3), ts.cpu(1))(*arrays)
    assert np.allclose(got[:, :2], arrays[2].mean(axis=1)[:, None], rtol=1e-4, atol=1e-5)


def norm(rows: int, keys: int) -> ts.Function:
    """A product of rows that are divided by their length: nothing is repaired."""
    x = ts.placeholder((2, rows, keys), name="X")
    v = ts.placeholder((2, keys, 4), name="V")
    y, z = ts.reduce_axis(keys, name="j"), ts.reduce_axis(keys, name="j")
    shape = (2, rows, keys)
    s = ts.compute(shape, lambda n, i, j: x[n, i, j] * 2.0 + 1.0, name="S")
    total = ts.compute((2, rows), lambda n, i: ts.sum(s[n, i, y] * s[n, i, y], axis=y), name="L")
    w = ts.compute(shape, lambda n, i, j: s[n, i, j] * ts.rsqrt(total[n, i] + 1e-5), name="W")
    o = ts.compute((2, rows, 4), lambda n, i, d: ts.sum(w[n, i, z] * v[n, z, d], axis=z), name="O")
    out = ts.compute((2, rows, 4), lambda n, i, d: o[n, i, d] + 0.0, name="Y")
    return ts.function([x, v, out], name="norm")


def test_a_norm_in_front_of_a_product_needs_no_repair() -> None:
    func = norm(5, 11)
    sch = rolled(func, 2, 4)
    assert not any("repair" in b for b in sch.blocks)
    arrays = arrays_of(func)
    assert_close(ts.build(sch, ts.cpu(1))(*arrays), ts.evaluate(func, *arrays), "norm", func)


def test_trace_is_stored_and_replayed() -> None:
    func = attention(6, 9, causal)
    sch = rolled(func, 2, 4)
    again = ts.Trace.from_json(sch.trace.to_json()).apply(func)
    assert str(again) == str(sch.func)


def test_tiles_behind_a_mask_are_guarded() -> None:
    sch = rolled(attention(8, 8, causal), 4, 4)
    assert str(sch.func).count("4*O.i.0 - 4*O.j.0 + 3 >= 0") > 5


def chained(weight: Callable[[ts.Value, ts.Value], ts.Value], first: str = "max") -> ts.Function:
    """A sum of weights, each made of an element and a value of its row."""
    x = ts.placeholder((4, 6), name="X")
    j, k = ts.reduce_axis(6, name="j"), ts.reduce_axis(6, name="j")
    reduction = ts.amax if first == "max" else ts.sum
    m = ts.compute((4,), lambda i: reduction(x[i, j], axis=j), name="M")
    w = ts.compute((4, 6), lambda i, j: weight(x[i, j], m[i]), name="W")
    v = ts.placeholder((6, 3), name="V")
    o = ts.compute((4, 3), lambda i, d: ts.sum(w[i, k] * v[k, d], axis=k), name="O")
    out = ts.compute((4, 3), lambda i, d: o[i, d] + 0.0, name="Y")
    return ts.function([x, v, out], name="chained")


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (chained(lambda x, m: ts.tanh(x - m)), "terms must be products with exp"),
        (chained(lambda x, m: ts.exp(x - m) + 1.0), "terms must be products with exp"),
        (chained(lambda x, m: ts.exp(x - m * x)), "terms must be products with exp"),
        (chained(lambda x, m: ts.exp(x - m), "sum"), "not the largest"),
        (chained(lambda x, m: ts.exp(x - m) * ts.exp(x - m)), "one factor to repair"),
    ],
)
def test_what_does_not_factor_is_refused_with_the_reason(func: ts.Function, why: str) -> None:
    sch = ts.Schedule(func)
    i, d, j = sch.loops("O")
    j0, j1 = sch.split(j, [None, 2])
    sch.reorder(j0, i, d, j1)
    before = sch.func
    with pytest.raises(ts.ScheduleError, match=why):
        sch.roll("O", j0)
    assert sch.func is before


def test_it_wants_a_loop_of_its_own_sum() -> None:
    sch = ts.Schedule(chained(lambda x, m: ts.exp(x - m)))
    i, _, _ = sch.loops("O")
    with pytest.raises(ts.ScheduleError, match="does not sum over that loop"):
        sch.roll("O", i)
    with pytest.raises(ts.ScheduleError, match="output"):
        sch.roll("Y", i)
