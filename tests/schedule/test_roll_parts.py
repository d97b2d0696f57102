"""roll_parts: reductions that depend on one another in parts, against the plain program."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.schedule.test_roll import (
    NOTHING,
    Score,
    arrays_of,
    attention,
    capped,
    causal,
    chained,
    negative,
    norm,
    scaled,
    window,
)
from tests.support.meaning import assert_close
from tilesmith.ir.verify import verify


def in_parts(func: ts.Function, keys: int) -> ts.Schedule:
    sch = ts.Schedule(func)
    *_, j = sch.loops("O")
    part, _ = sch.split(j, [None, keys])
    sch.roll_parts("O", part)
    verify(sch.func)
    return sch


@pytest.mark.parametrize("score", [scaled, causal, window, capped, negative])
@pytest.mark.parametrize(("keys", "part"), [(14, 4), (14, 14), (9, 2), (1, 1)])
def test_it_computes_the_same(score: Score, keys: int, part: int) -> None:
    func = attention(11, keys, score)
    sch = in_parts(func, part)
    arrays = arrays_of(func, growing=True)
    want = ts.evaluate(func, *arrays)
    assert_close(ts.evaluate(sch.func, *arrays), want, f"{sch.func}", func)
    assert_close(ts.build(sch, ts.cpu(1))(*arrays), want, f"{sch.func}", func)


def test_terms_that_grow_from_part_to_part_do_not_overflow() -> None:
    func = attention(4, 12, scaled)
    arrays = arrays_of(func, growing=True)
    arrays[1] *= 40  # exp of the last scores alone would be infinite
    got = ts.evaluate(in_parts(func, 3).func, *arrays)
    assert np.isfinite(got).all()
    assert_close(got, ts.evaluate(func, *arrays), "growing", func)


def test_parts_that_see_nothing_and_rows_that_see_nothing() -> None:
    late = attention(4, 12, lambda s, i, j: ts.where(j >= 9, s, NOTHING))
    arrays = arrays_of(late)
    want = ts.evaluate(late, *arrays)
    assert_close(ts.evaluate(in_parts(late, 3).func, *arrays), want, "late", late)
    never = attention(4, 12, lambda s, i, j: ts.where((j >= 0) & (i > 1), s, NOTHING))
    got, want = ts.evaluate(in_parts(never, 3).func, *arrays), ts.evaluate(never, *arrays)
    assert np.isnan(got[:, :2]).all()
    assert np.isnan(want[:, :2]).all()
    assert np.allclose(got[:, 2:], want[:, 2:], rtol=1e-5)


def test_a_norm_in_front_of_a_product_needs_no_repair() -> None:
    func = norm(5, 11)
    sch = in_parts(func, 4)
    assert not any("fix" in b for b in sch.blocks)
    arrays = arrays_of(func)
    assert_close(ts.evaluate(sch.func, *arrays), ts.evaluate(func, *arrays), "norm", func)


def test_trace_is_stored_and_replayed() -> None:
    func = attention(6, 9, causal)
    sch = in_parts(func, 2)
    again = ts.Trace.from_json(sch.trace.to_json()).apply(func)
    assert str(again) == str(sch.func)


def test_what_does_not_factor_is_refused() -> None:
    sch = ts.Schedule(chained(lambda x, m: ts.tanh(x - m)))
    i, _, j = sch.loops("O")
    part, _ = sch.split(j, [None, 2])
    with pytest.raises(ts.ScheduleError, match="terms must be products with exp"):
        sch.roll_parts("O", part)
    with pytest.raises(ts.ScheduleError, match="does not sum over that loop"):
        sch.roll_parts("O", i)
