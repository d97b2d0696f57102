"""write_out: a short reduction as one expression, and the program means the same."""

from __future__ import annotations

import pytest
from cases import assert_kept, refuse

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import find_block
from tilesmith.ir.serialize import function_to_json
from tilesmith.schedule.schedule import Schedule


def pooled(kind: str, size: int) -> ts.Function:
    x = ts.placeholder((size, 4), name="x")
    r = ts.reduce_axis(3, name="r")
    how = {"max": ts.amax, "sum": ts.sum, "min": ts.amin, "prod": ts.prod}[kind]
    y = ts.compute((size - 2, 4), lambda i, c: how(x[i + r, c], axis=r), name="y")
    return ts.function([x, y])


@pytest.mark.parametrize("kind", ["max", "sum", "min", "prod"])
def test_the_meaning_stays(kind: str) -> None:
    sch = Schedule(pooled(kind, 7))
    sch.write_out("y")
    _, b = find_block(sch.func, "y")
    assert not b.reducing
    assert b.combiner is None
    assert_kept(sch)
    again = sch.func
    assert function_from_json(function_to_json(again)) == again


def test_a_convolution_is_inlined_into_its_consumer() -> None:
    sch = Schedule(operator("depthwise-conv2d", (6, 3, 3, 1, 1), "NHWC"))
    name = next(n for n in sch.blocks if find_block(sch.func, n)[1].reducing)
    sch.write_out(name)
    assert_kept(sch)


def test_write_out(golden) -> None:
    sch = Schedule(pooled("sum", 6))
    sch.write_out("y")
    golden(sch.func)


def test_write_out_refuses() -> None:
    f = pooled("sum", 7)
    x = ts.placeholder((8, 65), name="x")
    r = ts.reduce_axis(65, name="r")
    long = ts.function([x, ts.compute((8,), lambda i: ts.sum(x[i, r], axis=r), name="y")])
    refuse(long, lambda s: s.write_out("y"), "write_out y", "it has 65 terms, not 1 to 64")

    def after_split(s: Schedule) -> None:
        s.split("y.i", [None, 2])
        s.write_out("y")

    def twice(s: Schedule) -> None:
        s.write_out("y")
        s.write_out("y")

    refuse(f, after_split, "write_out y", "they were cut; do this first")
    refuse(f, twice, "write_out y", "it is not a whole reduction")
