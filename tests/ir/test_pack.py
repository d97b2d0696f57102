"""Arrays in the layouts of parameters: every element is where its layout says."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.pack import packed
from tilesmith.schedule.layout import TransformLayout


@pytest.mark.parametrize(
    "layout",
    [
        *permutations(("d0", "d1", "d2")),
        ("d2", "d0", "d1 // 2", "d1 % 2"),
        ("d1 // 5", "d0 // 2", "d2", "d1 % 5", "d0 % 2"),
        ("d2 % 3", "d1", "d0", "d2 // 3"),
        ("d1 // 4", "d2", "d0", "d1 // 2 % 2", "d1 % 2"),
        ("d0*5 + d1", "d2"),
    ],
)
def test_every_element_is_at_its_place(layout: tuple[str, ...]) -> None:
    x = ts.placeholder((3, 5, 4), name="X")
    func = ts.function([x, ts.ops.relu(x)], constants=[x])
    (buffer,) = TransformLayout("X", layout).apply(func).inputs
    a = np.arange(60, dtype=np.float32).reshape(3, 5, 4)
    for given in (a, np.asfortranarray(a)):
        got = packed(buffer, given, "f")
        assert got.flags.c_contiguous
        for i, j, k in np.ndindex(*a.shape):
            place = tuple(eval(p, {"d0": i, "d1": j, "d2": k}) for p in layout)
            assert got[place] == a[i, j, k]
