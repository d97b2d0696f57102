"""Asserts that a scheduled Function computes the same as the unscheduled one.

It is interpreted as it is, and once more in the hardest way that a code generator may run it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.programs import random_inputs
from tests.support.strict import hardened, races
from tilesmith.expr.dynamic import below
from tilesmith.expr.walk import preorder
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.ir.interpreter import interpret
from tilesmith.ir.nodes import walk
from tilesmith.ir.verify import verify

# Sums are accumulated in another order, and intermediate results are rounded to their dtype.
_RTOL = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def assert_same_meaning(func: Function, scheduled: Function, seed: int = 0) -> None:
    """`scheduled` computes the same as the unscheduled `func`, on random arrays."""
    verify(scheduled)
    arrays = random_inputs(func, np.random.default_rng(seed))
    want = evaluate(func, *arrays)
    assert_close(interpret(scheduled, *arrays), want, f"{scheduled}", func)
    assert_close(interpret(hardened(scheduled), *arrays), want, f"hardened {scheduled}", func)
    conflicts = races(scheduled)
    assert not conflicts, f"{conflicts[0]} in {scheduled}"


def assert_close(got: Any, want: Any, what: str = "", func: Function | None = None) -> None:
    """Arrays, or tuples of them, are equal up to rounding: that of their own dtype, or that of the
    coarsest dtype that `func` computes in.
    """
    coarsest = 0.0 if func is None else max(map(_rtol, _dtypes(func)), default=0.0)
    left = got if isinstance(got, tuple) else (got,)
    right = want if isinstance(want, tuple) else (want,)
    for x, y in zip(left, right, strict=True):
        assert x.shape == y.shape, f"shape {x.shape}, not {y.shape}: {what}"
        assert x.dtype == y.dtype, f"dtype {x.dtype}, not {y.dtype}: {what}"
        # float64 results may come from float32 inputs, whose rounding they inherit
        floats = x.dtype.name in _RTOL
        rtol = max(_rtol(x.dtype.name), coarsest, 1e-5) if floats else 0.0
        a, b = (v.astype(np.float64) if floats else v for v in (x, y))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=what)


def _rtol(dtype: str) -> float:
    return _RTOL.get(dtype, 0.0)


def _dtypes(func: Function) -> set[str]:
    return {
        e.dtype.name for _, b in walk(func.body) for w in b.writes for e in preorder(w.value, below)
    }
