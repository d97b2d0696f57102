"""ungroup makes the groups of a sum a dimension of its result and its operands."""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept, refuse, softmax

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.ir.function import Function, find_block
from tilesmith.schedule.schedule import Schedule


def grouped(layout: str = "NHWC", groups: int = 3, dtype: str = "float32") -> Function:
    last = layout == "NHWC"
    channels, filters = 2 * groups, 4 * groups
    x = ts.placeholder((1, 5, 3, channels) if last else (1, channels, 5, 3), dtype, name="X")
    w = ts.placeholder((3, 3, 2, filters) if last else (filters, 2, 3, 3), dtype, name="W")
    y = ts.ops.conv2d(x, w, 1, 1, groups=groups, layout=layout, name="Y")
    z = ts.compute(y.shape, lambda *at: ts.maximum(y[at], 0), name="Z", axes=list("abcd"))
    return ts.function([x, w, z], name="grouped")


def test_ungroup(golden):
    sch = Schedule(grouped())
    assert sch.ungroup("Y", "f", 4) == "Y.groups"
    golden(sch.func)
    assert_kept(sch)
    total = find_block(sch.func, "Y.groups")[1]
    assert [str(p) for x in total.loads for p in x.index] == [
        "n", "h + rh", "rw + w", "f_outer", "rc", "rh", "rw", "rc", "f_outer", "f_inner"
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_groups_can_be_padded_by_themselves(layout):
    func = grouped(layout)
    arrays = random_inputs(func, np.random.default_rng(0))
    sch = Schedule(func)
    sch.ungroup("Y", "f", 4)
    sch.inline("Y")
    sch.split_iterator("Z", "d" if layout == "NHWC" else "b", 4)
    sch.pad("Y.groups", {"rc": 3, "f_inner": 5})
    assert_close(ts.build(sch)(*arrays), ts.evaluate(func, *arrays))


def test_what_is_not_finite_stays_in_its_group():
    func = grouped()
    x, w = random_inputs(func, np.random.default_rng(0))
    x[..., 0] = np.nan
    sch = Schedule(func)
    sch.ungroup("Y", "f", 4)
    sch.pad("Y.groups", {"rc": 4})
    found = ts.build(sch)(x, w)
    assert np.isnan(found[..., :4]).all()
    assert np.isfinite(found[..., 4:]).all()


def test_what_is_refused():
    func = grouped()
    refuse(func, lambda s: s.ungroup("Y", "rc", 2), "no spatial iterator of a reduction")
    refuse(func, lambda s: s.ungroup("Y", "f", 5), "5 does not divide")
    refuse(func, lambda s: s.ungroup("Z", "d", 4), "no spatial iterator of a reduction")
    # Windows of neighbouring groups of rows overlap.
    refuse(func, lambda s: s.ungroup("Y", "h", 5), "groups of pad do not lie one after the other")
    refuse(softmax(), lambda s: s.ungroup("top", "j", 1), "no spatial iterator")

    def late(s: Schedule) -> None:
        s.split("Y.h", (None, 2))
        s.ungroup("Y", "f", 4)

    refuse(func, late, "before its loops are scheduled")
