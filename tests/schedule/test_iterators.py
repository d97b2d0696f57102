"""split_iterator: what a block divides becomes two iterators, and the program means the same."""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept, matmul_relu, refuse

import tilesmith as ts
from tests.support.meaning import assert_same_meaning
from tests.support.programs import random_program
from tests.support.traces import CPU_WEIGHTS, random_trace
from tilesmith.ir.function import find_block
from tilesmith.schedule.schedule import Schedule


def grouped(layout: str = "NCHW") -> ts.Function:
    first = layout == "NCHW"
    x = ts.placeholder((1, 4, 5, 5) if first else (1, 5, 5, 4), name="X")
    w = ts.placeholder((6, 2, 3, 3) if first else (3, 3, 2, 6), name="W")
    y = ts.ops.conv2d(x, w, groups=2, padding=1, layout=layout, name="Y")
    return ts.function([x, w, y], name="grouped")


def test_split_iterator(golden):
    sch = Schedule(grouped())
    outer, inner = sch.split_iterator("Y", "f", 3)
    assert (outer, inner) == ("Y.f_outer", "Y.f_inner")
    golden(sch.func)
    assert "//" not in str(sch.func)
    assert_kept(sch)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("factor", [1, 2, 3, 6])
def test_any_divisor_keeps_the_meaning(layout, factor):
    sch = Schedule(grouped(layout))
    sch.split_iterator("Y", "f", factor)
    assert_kept(sch)


def test_the_two_loops_are_loops_like_others():
    sch = Schedule(grouped("NHWC"))
    outer, inner = sch.split_iterator("Y", "f", 3)
    sch.compute_at("pad", outer)
    assert [f.extent.const for f in find_block(sch.func, "pad")[0]][-1] == 2  # one group's channels
    _, lanes = sch.split(inner, [None, 2])
    n, y, x, *_ = sch.loops("Y")
    sch.vectorize(lanes)
    sch.parallel(n, y, x, outer)
    assert_kept(sch)


def test_sums_are_split_as_well_and_blocks_inside_follow():
    sch = Schedule(matmul_relu(6, 8, 6))
    sch.split_iterator("C", "k", 3)
    sch.reverse_compute_at("D", "C.j")
    sch.split_iterator("C", "j", 4)  # D is inside of that loop
    assert_kept(sch)


def test_split_iterator_refuses():
    f = matmul_relu(6, 7, 5)
    refuse(f, lambda s: s.split_iterator("C", "z", 2), "iterator z of C", "it has i, j, k")
    refuse(f, lambda s: s.split_iterator("C", "i", 4), "iterator i of C", "6, which 4 does not")

    def after_split(s):
        s.split("C.i", [None, 2])
        s.split_iterator("C", "i", 2)

    refuse(f, after_split, "iterator i of C", "a plain loop of its own; do this first")

    def twice(s):
        s.split_iterator("C", "i", 2)
        s.split_iterator("C", "i", 2)

    refuse(f, twice, "iterator i of C", "it has i_outer, i_inner")


def test_random_schedules_with_split_iterators_keep_their_meaning():
    weights = {**CPU_WEIGHTS, "split_iterator": 6}
    used = 0
    for seed in range(60):
        rng = np.random.default_rng([11, seed])
        sch = random_trace(random_program(rng), rng, 8, weights)
        used += any(s.name == "split_iterator" for s in sch.trace)
        assert_same_meaning(sch.origin, sch.func, seed=seed)
    assert used > 15
