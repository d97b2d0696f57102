"""A guard that lets one lane of a vector through: LLVM narrows and stores that lane as one wide
number, over its neighbours, if it is given a masked store.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.codegen.llvm.backend import LlvmBackend
from tilesmith.expr.ints import of, var
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, If, Stmt

LANES = 16


def guarded(body: tuple[Stmt, ...], first: int, last: int) -> tuple[Stmt, ...]:
    """Lanes from `first` to `last` of every vectorized loop do something."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            inner = guarded(s.body, first, last)
            if s.kind == "vectorize":
                lane = var(s.name)
                inner = (If((lane - first, of(last) - lane), inner),)
            s = replace(s, body=inner)
        out.append(s)
    return tuple(out)


def source(target: str, dtype: str, first: int, last: int) -> str:
    x = ts.placeholder((3, LANES), "int32", name="X")
    y = ts.compute((3, LANES), lambda i, j: ts.cast(x[i, j] >> 5, dtype), name="Y")
    sch = ts.Schedule(ts.function([x, y]))
    sch.vectorize("Y.j")

    def guard(func: Function, _: ts.Target) -> Function:
        return replace(func, body=guarded(func.body, first, last))

    backend = LlvmBackend(passes=(*ts.CPU_PASSES, guard))
    return backend.compile(sch.func, ts.Target.named(target).with_cores(1)).source


def masked(text: str) -> list[str]:
    return [line for line in text.splitlines() if "call" in line and "masked.store" in line]


@pytest.mark.parametrize("target", ["skylake-avx512", "emeraldrapids", "neoverse-n1"])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("lane", [0, 5, LANES - 1])
def test_one_lane_is_a_plain_store(target: str, dtype: str, lane: int) -> None:
    text = source(target, dtype, lane, lane)
    assert not masked(text)
    assert f"store {dtype.replace('nt', '')} " in text


def test_no_lane_stores_nothing_and_some_are_masked() -> None:
    assert "store i8 " not in source("emeraldrapids", "int8", 5, 4)
    assert masked(source("emeraldrapids", "int8", 0, 2))
