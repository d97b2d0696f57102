"""Kernels for the architecture that this machine is not, emulated: random programs, every cast,
every function, divisions.
"""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cast_cases import cast_of, equal, expected, specials
from emulated import obstacle, run_emulated
from random_cases import Case, agree

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.thorough import drawn
from tilesmith.base.dtype import DTYPES

OTHER = "aarch64" if ts.cpu().arch == "x86-64" else "x86-64"
# qemu 7.2 knows nothing of AVX-512.
NAMES = {"x86-64": ("x86-64", "haswell"), "aarch64": ("cortex-a53", "neoverse-n1")}[OTHER]
FLOATS = ("float16", "bfloat16", "float32", "float64")
N = 37

pytestmark = [
    pytest.mark.skipif(obstacle(OTHER) is not None, reason=str(obstacle(OTHER))),
    pytest.mark.turns(2),  # the processors
]


def vectorized(func: ts.Function) -> ts.Schedule:
    sch = ts.Schedule(func)
    sch.vectorize(sch.loops(sch.blocks[-1])[-1])
    return sch


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("start", range(20_000, 20_000 + drawn(40, 120), 40))
def test_random_programs(name: str, start: int, tmp_path: Path) -> None:
    cases = [Case.drawn(seed) for seed in range(start, start + 40)]
    programs = [(c.schedule, c.packed) for c in cases]
    results = run_emulated(programs, ts.Target.named(name).with_cores(2), tmp_path)
    for c, got in zip(cases, results, strict=True):
        agree(got, ts.evaluate(c.func, *c.arrays), f"{name}, {c.note}")


@pytest.mark.parametrize("name", NAMES)
def test_wide_programs(name: str, tmp_path: Path) -> None:
    cases = [Case.drawn(seed, wide=True) for seed in range(40_000, 40_000 + drawn(30, 60))]
    programs = [(c.schedule, c.packed) for c in cases]
    results = run_emulated(programs, ts.Target.named(name).with_cores(2), tmp_path)
    for c, got in zip(cases, results, strict=True):
        want = ts.evaluate(c.func, *c.arrays)
        one = got if isinstance(want, tuple) else got[0]
        assert_close(one, want, f"{name}, {c.note}", c.func)


@pytest.mark.parametrize("name", NAMES)
def test_every_cast(name: str, tmp_path: Path) -> None:
    programs: list[Any] = []
    wants = []
    for have in DTYPES:
        x = specials(have)
        for want in DTYPES:
            func = cast_of(have, want, len(x))
            for what in (func, vectorized(func)):
                programs.append((what, [x]))
                wants.append(expected(x, want))
    results = run_emulated(programs, ts.Target.named(name).with_cores(1), tmp_path)
    for (got,), result in zip(results, wants, strict=True):
        equal(got, result)


@pytest.mark.parametrize("name", NAMES)
def test_functions(name: str, tmp_path: Path) -> None:
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-13}
    programs: list[Any] = []
    limits = []
    for f in ("exp", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "log", "abs", "floor", "ceil",
              "round", "sin", "cos", "atan", "expm1", "trunc", "sign", "tan", "sinh", "cosh",
              "asinh", "log1p", "log2", "log10"):  # fmt: skip
        for dtype in FLOATS:
            x = ts.placeholder((N,), dtype, name="x")
            y = ts.compute((N,), lambda i, f=f, x=x: getattr(ts, f)(x[i]), name="y")
            func = ts.function([x, y])
            a = np.linspace(0.1 if f in ("sqrt", "rsqrt", "log", "log1p") else -3, 3, N)
            if f in ("sin", "cos"):
                top = {"float16": 15.9, "float64": 1023}.get(dtype, 127)
                a[::2] = 2.0 ** np.linspace(4, top, len(a[::2]))
            for what in (func, vectorized(func)):
                programs.append((what, [a.astype(ts.dtype(dtype).numpy)]))
                limits.append((func, tolerance[dtype], f"{f} of {dtype}"))
    results = run_emulated(programs, ts.Target.named(name).with_cores(1), tmp_path)
    for (got,), (func, limit, note), (_, arrays) in zip(results, limits, programs, strict=True):
        want = ts.evaluate(func, *arrays).astype(np.float64)
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=limit, atol=limit, err_msg=note
        )


def quotient(op: Any, kind: str, x: Any, y: Any) -> Any:
    """Of data by data, or by an axis."""
    start = -1 if x.dtype.kind == "i" else 0
    return lambda i: op(x[i], y[i] if kind == "data" else ts.cast(i + start, x.dtype) + 0 * y[i])


@pytest.mark.parametrize("name", NAMES)
def test_divisions(name: str, tmp_path: Path) -> None:
    """On x86 a division by zero, and one that overflows, is a trap."""
    programs: list[Any] = []
    wants = []
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        d = ts.dtype(dtype)
        low, high = int(d.lowest()), int(d.highest())
        values = np.array([v for v in (low, -7, -1, 0, 1, 7, high) if v >= low], d.numpy)
        a, b = (np.ascontiguousarray(g.ravel()) for g in np.meshgrid(values, values))
        x, y = (ts.placeholder(a.shape, dtype, name=n) for n in "xy")
        for kind in ("data", "axis"):
            for op in (operator.floordiv, operator.mod, ts.trunc_divide, ts.fmod):
                func = ts.function([x, y, ts.compute(a.shape, quotient(op, kind, x, y))])
                for what in (func, vectorized(func)):
                    programs.append((what, [a, b]))
                    wants.append(ts.evaluate(func, a, b))
    results = run_emulated(programs, ts.Target.named(name).with_cores(1), tmp_path)
    for (got,), want in zip(results, wants, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_extremes_of_constants_that_are_no_numbers(name: str, tmp_path: Path) -> None:
    """maximum and minimum hand a NaN on, whichever operand it is, also a constant."""
    programs: list[Any] = []
    wants = []
    data = np.array([np.nan, np.inf, -np.inf, 0.0, 1.5, -2.0, np.nan, 7.0])
    for dtype in FLOATS:
        for value in (np.nan, np.inf, 0.5):
            for f, want in ((ts.maximum, np.maximum), (ts.minimum, np.minimum)):
                for first in (False, True):
                    x = ts.placeholder((len(data),), dtype, name="X")
                    y = ts.compute(
                        x.shape,
                        lambda i, x=x, f=f, value=value, first=first: (
                            f(value, x[i]) if first else f(x[i], value)
                        ),
                        name="Y",
                    )
                    func = ts.function([x, y])
                    given = data.astype(x.dtype.numpy)
                    for what in (func, vectorized(func)):
                        programs.append((what, [given]))
                        wants.append(want(given.astype(np.float64), value))
    results = run_emulated(programs, ts.Target.named(name).with_cores(1), tmp_path)
    for (got,), result in zip(results, wants, strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), result)


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_bytes(name: str, tmp_path: Path) -> None:
    programs: list[Any] = []
    wants = []
    places = np.random.default_rng(0).integers(0, 256, (3, 200)).astype(np.uint8)
    table = np.random.default_rng(1).permutation(256).astype(np.uint8).view(np.int8)
    for lanes in (4, 8, 16, 64):
        x = ts.placeholder(places.shape, "uint8", name="x")
        t = ts.placeholder((256,), "int8", name="t")
        sch = ts.Schedule(ts.function([x, t, ts.ops.lookup(x, t, name="y")]))
        sch.vectorize(sch.split(sch.loops("y")[-1], [None, lanes])[1])
        programs.append((sch, [places, table]))
        wants.append(table[places])
    results = run_emulated(programs, ts.Target.named(name).with_cores(1), tmp_path)
    for (got,), want in zip(results, wants, strict=True):
        np.testing.assert_array_equal(got, want)
