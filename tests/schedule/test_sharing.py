"""share_loop runs blocks of any kind in a loop of what reads them."""

from __future__ import annotations

from cases import assert_kept, refuse

import tilesmith as ts
from tilesmith.ir.function import Function
from tilesmith.schedule.schedule import Schedule


def tiles(rows: int = 3) -> Function:
    """Each element of a tile is reversed, summed with those before it, and scaled by tiles."""
    x = ts.placeholder((rows, 4, 5), name="X")
    t = ts.compute((rows, 4, 5), lambda r, t, i: x[r, t, 4 - i], name="T", axes=["r", "t", "i"])
    s = ts.ops.cumsum(t, 2, name="S")
    y = ts.compute((rows, 20), lambda a, b: s[a, b // 5, b % 5] * 2, name="Y", axes=["a", "b"])
    return ts.function([x, y], name="tiles")


def split(sch: Schedule) -> str:
    return sch.split("Y.b", [None, 5])[0]


def test_share_loop(golden):
    sch = Schedule(tiles())
    outer = split(sch)
    sch.share_loop("S", outer)
    sch.share_loop("T", outer)
    golden(sch.func)
    assert_kept(sch)


def test_an_outer_loop_alone():
    sch = Schedule(tiles())
    sch.share_loop("S", "Y.a")
    sch.share_loop("T", "Y.a")
    assert sch.loops("S")[0] == sch.loops("T")[0] == "Y.a"
    assert_kept(sch)


def test_what_is_refused():
    func = tiles()
    refuse(func, lambda s: s.share_loop("T", "Y.a"), "S reads T outside of it")
    refuse(func, lambda s: s.share_loop("S", "Y.b"), "other numbers of iterations")
    refuse(func, lambda s: s.share_loop("Y", "S.i0"), "nothing in it reads the block")
    refuse(func, lambda s: s.share_loop("S", "S.i0"), "no loops of its own in place of those")

    def moved(s: Schedule) -> None:
        s.share_loop("S", "Y.a")
        s.share_loop("S", split(s))

    refuse(func, moved, "it does not stand in loops of its own")

    def around(s: Schedule) -> None:
        s.compute_at("T", "S.i0")
        s.share_loop("S", "Y.a")

    refuse(func, around, "it does not stand in loops of its own")
    x = ts.placeholder((4,), name="X")
    p = ts.compute((4,), lambda i: x[i] + 1, name="P")
    c = ts.compute((4,), lambda i: p[3 - i], name="C")
    other = ts.function([x, c], name="other")
    refuse(other, lambda s: s.share_loop("P", s.loops("C")[0]), "C reads P at")
