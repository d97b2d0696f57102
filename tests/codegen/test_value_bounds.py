"""What is known of values from types and limits, and the code that follows: one conversion behind a
quantised sum, with the same results for NaN and for what is beyond the limits.
"""

from __future__ import annotations

import re
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.llvm.compiler import assembly
from tilesmith.codegen.value_bounds import Bounds, bounds_of
from tilesmith.expr import functions
from tilesmith.expr.values import cast
from tilesmith.ir.function import find_block
from tilesmith.runtime.build import compile_function

HERE = ts.cpu(num_cores=1)


def bounds(body: Any) -> Bounds:
    """Of a function of a float32 number, an int8 and a uint16."""
    x, z, w = (
        ts.placeholder((8,), d, name=n)
        for n, d in (("x", "float32"), ("z", "int8"), ("w", "uint16"))
    )
    func = ts.function([x, z, w, ts.compute((8,), lambda i: body(x[i], z[i], w[i]), name="y")])
    _, block = find_block(func, "y")
    return bounds_of(block.writes[0].value)


def test_limits_come_from_types_and_constants() -> None:
    assert bounds(lambda x, z, w: x) == Bounds()
    assert bounds(lambda x, z, w: cast(z, "float32")) == Bounds(-128, 127, True)
    top = bounds(lambda x, z, w: functions.minimum(x, 127.0 - cast(z, "float32")))
    assert (top.low, top.high, top.number) == (-inf, 255, False)
    both = bounds(
        lambda x, z, w: functions.round_(
            functions.maximum(functions.minimum(x, 127.0 - cast(z, "float32")), -0.5)
        )
    )
    assert (both.low, both.high, both.number) == (0, 255, False)
    assert bounds(lambda x, z, w: cast(w, "float32") + cast(z, "float32")) == Bounds(
        -128, 65535 + 127, True
    )
    # what is rounded, or may be infinite, is not known
    assert bounds(lambda x, z, w: cast(w, "float32") + 0.1) == Bounds()
    assert bounds(lambda x, z, w: cast(z, "float32") * x) == Bounds()
    assert bounds(lambda x, z, w: functions.maximum(x, nan)) == Bounds()
    assert bounds(lambda x, z, w: cast(cast(x, "float16"), "float32")) == Bounds()


def rounded(dtype: str, zero: str, lanes: int) -> ts.Schedule:
    s = ts.placeholder((5, 40), "int32", name="s")
    f = ts.placeholder((40,), "float32", name="f")
    z = ts.placeholder((), zero, name="z")
    sch = ts.Schedule(ts.function([s, f, z, ts.ops.requantize(s, f, z, dtype=dtype, name="y")]))
    loop = sch.loops("y")[-1]
    sch.vectorize(sch.split(loop, [None, lanes])[1])
    return sch


@pytest.mark.parametrize("lanes", [1, 3, 8, 40])
@pytest.mark.parametrize(
    ("dtype", "zero"),
    [("uint8", "uint8"), ("int8", "int8"), ("int16", "int16"), ("uint8", "float32")],
)
def test_requantised_sums_are_those_of_the_oracle(dtype: str, zero: str, lanes: int) -> None:
    """Exactly, for factors that are no numbers too."""
    rng = np.random.default_rng(lanes)
    s = rng.integers(-(2**31), 2**31, (5, 40), np.int32)
    s[0, :8] = 0, 1, -1, 2**31 - 1, -(2**31), 100, 3, 5
    f = np.exp2(rng.integers(-30, 3, 40)).astype(np.float32)
    f[:12] = nan, inf, -inf, 0, 0.5, 1e-3, 1e30, -1e30, nan, inf, -0.0, 1e-45
    sch = rounded(dtype, zero, lanes)
    kernel = ts.build(sch, HERE)
    ends = np.iinfo(np.dtype(dtype))
    for z in (ends.min, ends.max, 0, 7):
        at = np.asarray(z, zero)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(kernel(s, f, at), ts.evaluate(sch.func, s, f, at))


@pytest.mark.parametrize("name", ["x86-64", "haswell", "cascadelake", "sapphirerapids"])
def test_one_instruction_converts_where_the_limits_are_known(name: str) -> None:
    def count(zero: str, pattern: str) -> int:
        text = assembly(compile_function(rounded("uint8", zero, 8).func, ts.Target.named(name)))
        return len(re.findall(pattern, text))

    assert count("uint8", r"cvttps2dq") == 0
    assert count("uint8", r"cvtps2dq") > 0
    assert count("float32", r"cvttps2dq") > 0  # z could be NaN or infinite
