"""Integer expressions from text, boxes that are touched and boxes that are made, and starts of
sums.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tilesmith.expr.ints import of, parse_int, var
from tilesmith.ir.dependence import check_concurrent
from tilesmith.ir.function import find_block, find_loop, is_own_loop
from tilesmith.ir.initial import split_init
from tilesmith.ir.nodes import Block, For, Iter, walk
from tilesmith.ir.regions import box_of, extent, separate, union, written_box
from tilesmith.schedule.schedule import Schedule

X, Y, N = var("x"), var("y"), var("#n")


# parse
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", of(3)),
        ("-x + 4", 4 - X),
        ("3*x + y - 1", 3 * X + Y - 1),
        ("(x + y) // 4", (X + Y) // 4),
        ("x % 4", X % 4),
        ("x // #n", X // N),
        ("#a.b.0*x", var("#a.b.0") * X),
        ("2*(x - (y - 1))", 2 * X - 2 * Y + 2),
    ],
)
def test_parse_int(text, value):
    assert parse_int(text) == value


def test_text_of_an_int_parses_to_itself():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = of(0)
        for _ in range(int(rng.integers(1, 5))):
            term = of(int(rng.integers(-5, 6)))
            for v in rng.choice([X, Y, N, (X + 3 * Y) // 4, X // N], int(rng.integers(0, 3))):
                term = term * v
            p = p + term
        assert parse_int(str(p)) == p


@pytest.mark.parametrize(
    "text", ["x +", "x / 2", "f(x)", "x ** 2", "1.5", "'x'", "", "x if y else 1"]
)
def test_what_is_no_integer_expression(text):
    with pytest.raises(ts.TraceError, match="is not"):
        parse_int(text)


# boxes
RANGES = {"x": of(4), "y": of(3)}


def numbers(box):
    return [tuple(p.const for p in span) for span in box]


def test_box_of_an_access():
    box = box_of([2 * X + Y, of(5), X - Y], (of(20), of(6), of(9)), RANGES, {})
    assert numbers(box) == [(0, 8), (5, 5), (-2, 3)]
    assert [extent(s, {}).const for s in box] == [9, 1, 6]


def test_box_keeps_loops_that_stay_outside():
    ((lo, hi),) = box_of([4 * X + Y], (of(20),), {"y": of(3)}, {})
    assert (lo, hi) == (4 * X, 4 * X + 2)


def test_box_of_what_has_no_closed_form_is_whole():
    assert numbers(box_of([X * Y], (of(20),), RANGES, {})) == [(0, 19)]


def test_union_takes_the_outer_corners():
    box = union(((X, X + 3),), ((X - 1, X + 2),))
    assert box == ((X - 1, X + 3),)
    assert union(None, box) == box
    ((lo, hi),) = union(((of(0), N),), ((of(0), of(5)),))
    assert (lo, str(hi)) == (of(0), "max(#n, 5)")


def made(bind, extents, loop, where=()):
    """The box of P that a block makes below `loop`, in a nest of the given loops."""
    block = Block(
        "P",
        (Iter("i", "S", of(100), bind),),
        ts.function([ts.compute((100,), lambda i: i, name="P")]).body[0].body[0].writes,
        where=frozenset(where),
    )
    return written_box(block, tuple(For(n, of(e), ()) for n, e in extents), "P", loop, {})


@pytest.mark.parametrize(
    ("bind", "last"),
    [
        (X * 8 + Y, 2),  # one piece of three
        (X * 8, 0),
        (X * 8 + 2 * Y, None),  # every second element
    ],
)
def test_written_box(bind, last):
    box = made(bind, [("x", 4), ("y", 3)], "x")
    if last is None:
        assert box is None
    else:
        assert box == ((8 * X, 8 * X + last),)


def test_written_box_of_pieces_that_meet_or_overlap():
    z = var("z")
    loops = [("x", 4), ("y", 3), ("z", 2)]
    assert made(X * 8 + 2 * Y + z, loops, "x") == ((8 * X, 8 * X + 5),)
    assert made(X * 8 + Y + z, loops, "x") == ((8 * X, 8 * X + 3),)
    assert made(X * 8 + 3 * Y + z, loops, "x") is None
    assert made(X * 8 + z * Y, loops, "x") is None


def test_written_box_under_guards():
    loops = [("x", 4), ("y", 6)]
    inside = made(X * 4 + Y, loops, "x", [99 - 4 * X - Y])  # stays in the buffer
    assert inside == ((4 * X, 4 * X + 5),)
    assert made(X * 4 + Y, loops, "x", [3 - Y]) == ((4 * X, 4 * X + 3),)  # a tail
    assert made(X * 4 + Y, loops, "x", [7 - 2 * Y]) is None  # leaves out who knows what
    assert made(X * 4 + Y, loops, "x", [2 - X]) == ((4 * X, 4 * X + 5),)  # none or all
    assert made(X * 4 + Y, loops, "x", [5 - Y]) == ((4 * X, 4 * X + 5),)  # always holds


def test_separate():
    z = var("z")
    ranges = {"x": of(4), "y": of(3), "z": of(2)}
    assert separate(3 * X + Y, "x", ranges, {})
    assert separate(3 * X + Y, "y", ranges, {})
    assert separate(X + 4 * Y, "x", ranges, {})
    assert separate(6 * X + 2 * Y + z, "y", ranges, {})
    assert not separate(2 * X + Y, "x", ranges, {})
    assert not separate(X * Y, "x", ranges, {})
    assert not separate(of(3), "x", ranges, {})
    n = {"x": of(4), "y": N}
    assert separate(N * X + Y, "x", n, {})
    assert not separate((N - 1) * X + Y, "x", n, {})


# dependence
def two() -> Schedule:
    x = ts.placeholder((4, 4), name="X")
    p = ts.compute((4, 4), lambda i, j: x[i, j], name="P")
    c = ts.compute((4, 4), lambda i, j: p[i, j], name="C")
    return Schedule(ts.function([x, c], name="two"))


def test_find():
    func = two().func
    assert find_block(func, "C")[1].name == "C"
    path, loop = find_loop(func, "C.j")
    assert ([f.name for f in path], loop.name) == (["C.i"], "C.j")
    with pytest.raises(ts.ScheduleError, match="no block 'Q' in two; it has P, C"):
        find_block(func, "Q")
    with pytest.raises(
        ts.ScheduleError, match=r"no loop 'Q' in two; it has P\.i, P\.j, C\.i, C\.j"
    ):
        find_loop(func, "Q")


@pytest.mark.parametrize(
    ("owner", "own"),
    [("C", True), ("P", False), ("C.local", False), ("CC", False), ("", False)],
)
def test_a_loop_belongs_to_its_owner(owner, own):
    """Whatever its name: a user may rename loops."""
    func = two().func
    _, block = find_block(func, "C")
    _, loop = find_loop(func, "C.j")
    for name in ("C.j", "P.j", "rows"):
        named = replace(loop, name=name, owner=owner)
        assert is_own_loop(block, named) is own
        assert is_own_loop(replace(block, name="C.init"), named) is own


def test_steps_keep_the_owner_of_a_loop():
    sch = two()
    _, block = find_block(sch.func, "C")
    i, j = sch.loops("C")
    i0, i1 = sch.split(i, [None, 2])
    sch.reorder(i0, j, i1)
    sch.fuse(i0, j)
    path, _ = find_block(sch.func, "C")
    assert len(path) == 2
    assert all(is_own_loop(block, f) for f in path)


def test_check_concurrent_names_what_is_shared():
    x = ts.placeholder((4, 4), name="X")
    a = ts.compute((4,), lambda i: x[i, 0], name="A")
    c = ts.compute((4, 4), lambda i, j: a[i] + x[i, j], name="C")
    sch = Schedule(ts.function([x, c]))
    sch.compute_at("A", "C.j")
    _, loop = find_loop(sch.func, "C.j")
    check_concurrent(sch.func, loop, "do it")  # each iteration has A to itself
    (a_buffer,) = sch.func.buffers
    public = replace(sch.func, params=(*sch.func.params, a_buffer), num_outputs=2, buffers=())
    with pytest.raises(
        ts.ScheduleError, match=r"cannot do it: every iteration of C\.j .* of A in A"
    ):
        check_concurrent(public, loop, "do it")


# starts of sums
@pytest.mark.parametrize("loop", ["S.i", "S.k", None])
def test_split_init(loop):
    a = ts.placeholder((3, 4), name="A")
    k = ts.reduce_axis(4, name="k")
    s = ts.compute((3,), lambda i: ts.sum(a[i, k], axis=k), name="S")
    func = ts.function([a, s])
    path, block = find_block(func, "S")
    if loop is None:
        sch = Schedule(func)
        sch.blockize("S.k")
        func = sch.func
        path, block = find_block(func, "S")
    done = replace(func, body=split_init(func.body, block, path, loop))
    assert [b.name for _, b in walk(done.body)] == ["S.init", "S"]
    assert not find_block(done, "S")[1].init
    data = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    assert_close(ts.interpret(done, data), data.sum(1))
