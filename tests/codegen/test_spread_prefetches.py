"""Which loop asks memory for what a loop around it will need, and for which lines."""

from __future__ import annotations

import re

import numpy as np
from lowered import lower

import tilesmith as ts
from tilesmith.codegen.passes.spread_prefetches import spread_prefetches
from tilesmith.ir.nodes import For, Stmt, statements
from tilesmith.ir.notes import FetchAhead, FetchLines, Note, Prefetch
from tilesmith.schedule.kinds import AutoPrefetch


def loops(func: ts.Function) -> dict[str, tuple[Note, ...]]:
    return {s.name: s.notes for s in statements(func.body) if isinstance(s, For)}


def rows(n: int, m: int, width: int = 16) -> ts.Schedule:
    """A row is read, computed with, and written, in three loops."""
    x = ts.placeholder((n, m), name="x")
    k = ts.reduce_axis(m, name="k")
    top = ts.compute((n,), lambda i: ts.amax(x[i, k], axis=k), name="top")
    e = ts.compute((n, m), lambda i, j: ts.exp(x[i, j] - top[i]), name="e")
    y = ts.compute((n, m), lambda i, j: e[i, j] * 2, name="y")
    sch = ts.Schedule(ts.function([x, y]))
    row = sch.loops("y")[0]
    for block in ("e", "top"):
        sch.compute_at(block, row)
    for block in ("e", "y"):
        _, inner = sch.split(sch.loops(block)[-1], [None, width])
        sch.vectorize(inner)
    return sch


def test_the_loop_with_most_arithmetic_asks() -> None:
    sch = rows(9, 256)
    sch.prefetch("y.i", "x", 1)
    sch.prefetch("y.i", "y", 0)
    notes = loops(spread_prefetches(lower(sch.func), ts.cpu(1)))
    assert notes["y.i"] == ()
    # 1024 bytes in 16 turns: one line a turn; of x from the next row on
    found = [
        s
        for s in statements(spread_prefetches(lower(sch.func), ts.cpu(1)).body)
        if isinstance(s, For)
    ]
    (heavy,) = [s for s in found if s.notes]
    assert heavy.name == "e.j.0"
    assert heavy.notes == (
        FetchLines("x", False, 1, 256, 1, (("y.i", 256), ("e.j.0", 16))),
        FetchLines("y", True, 1, 0, 1, (("y.i", 256), ("e.j.0", 16))),
    )


def test_loops_of_as_many_turns_take_a_line_off_it() -> None:
    sch = rows(9, 1024, width=64)
    sch.prefetch("y.i", "x", 1)
    sch.prefetch("y.i", "y", 0)
    done = spread_prefetches(lower(sch.func), ts.cpu(1))
    found = {s.name: s.notes for s in statements(done.body) if isinstance(s, For) and s.notes}
    # 64 lines each in 16 turns; what this turn writes is asked for before the loop that writes it
    assert found == {
        "y.j.0": (FetchLines("x", False, 1, 1024, 1, (("y.i", 1024), ("y.j.0", 16))),),
        "e.j.0": (
            FetchLines("x", False, 1, 1024 + 16 * 16, 3, (("y.i", 1024), ("e.j.0", 48))),
            FetchLines("y", True, 1, 0, 4, (("y.i", 1024), ("e.j.0", 64))),
        ),
    }
    a = np.random.default_rng(0).standard_normal((9, 1024), dtype=np.float32)
    want = 2 * np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(a), want, rtol=1e-5, atol=1e-6)


def test_the_same_is_computed() -> None:
    for cores in (1, 2):
        sch = rows(9, 256)
        sch.parallel("y.i")
        sch.prefetch("y.i", "x", 1)
        sch.prefetch("y.i", "y", 1)
        kernel = ts.build(sch, ts.cpu(cores))
        # Each line of both rows once, however many of them a turn of the loop computes.
        *_, last = re.finditer("call void @llvm.prefetch", kernel.source)
        end = re.search(r"icmp ult i64 %L\d+\.i\.n, (\d+)", kernel.source[last.end() :])
        assert end is not None
        a_turn = kernel.source.count("call void @llvm.prefetch")
        assert a_turn * int(end[1]) == 2 * 256 * 4 // 64
        a = np.random.default_rng(0).standard_normal((9, 256), dtype=np.float32)
        want = 2 * np.exp(a - a.max(1, keepdims=True))
        np.testing.assert_allclose(kernel(a), want, rtol=1e-5, atol=1e-6)


def test_what_is_not_one_piece_stays_beside_the_access() -> None:
    x = ts.placeholder((64, 64), name="x")
    k = ts.reduce_axis(8, name="k")
    y = ts.compute((64, 8), lambda i, j: ts.sum(x[i, 8 * j + k], axis=k), name="y")
    sch = ts.Schedule(ts.function([x, y]))
    i, j, _ = sch.loops("y")
    sch.reorder(j, i)  # a column of tiles: rows of 8 that lie far apart
    sch.prefetch(j, "x", 1)
    before = lower(sch.func)
    assert spread_prefetches(before, ts.cpu(1)) == before


def test_a_long_loop_does_not_ask_for_a_short_row() -> None:
    sch = rows(9, 16)  # one line, and 16 turns of the only loop that runs
    sch.prefetch("y.i", "x", 1)
    before = lower(sch.func)
    assert spread_prefetches(before, ts.cpu(1)) == before


def test_a_result_of_this_turn_is_asked_for_before_it_is_written() -> None:
    """With nothing before the first store there is no earlier place than beside it."""
    x = ts.placeholder((32, 512), name="x")
    y = ts.compute((32, 512), lambda i, j: ts.exp(x[i, j]), name="y")
    sch = ts.Schedule(ts.function([x, y]))
    sch.prefetch(sch.loops("y")[0], "y", 0)
    before = lower(sch.func)
    assert spread_prefetches(before, ts.cpu(1)) == before


def test_many_lines_are_spread_over_a_nest_and_go_to_the_second_level() -> None:
    """Tiles of 32 rows are copied, then used in a nest of 32 x 64 turns."""
    x, w = ts.placeholder((128, 1024), name="x"), ts.placeholder((1024, 64), name="w")
    c = ts.compute((128, 1024), lambda i, j: x[i, j] + 1, name="c")
    k = ts.reduce_axis(1024, name="k")
    y = ts.compute((128, 64), lambda i, j: ts.sum(c[i, k] * w[k, j], axis=k), name="y")
    sch = ts.Schedule(ts.function([x, w, y]))
    i, _, _ = sch.loops("y")
    i0, i1 = sch.split(i, [None, 32])
    sch.compute_at("c", i0)
    sch.prefetch(i0, "x", 1)
    done = spread_prefetches(lower(sch.func), ts.cpu(1))
    (asks,) = [s for s in statements(done.body) if isinstance(s, For) and s.notes]
    # 128 KB are 2048 lines: one for each turn of the two outer loops of the product
    assert asks.name == "y.j"
    (note,) = asks.notes
    first = 32 * 1024
    strides = ((i0, first), ("y.j", 16), (i1, 64 * 16))
    assert note == FetchLines("x", False, 2, first, 1, strides)
    a = np.random.default_rng(0).standard_normal((128, 1024), dtype=np.float32)
    b = np.random.default_rng(1).standard_normal((1024, 64), dtype=np.float32)
    kernel = ts.build(sch, ts.cpu(1))
    np.testing.assert_allclose(kernel(a, b), (a + 1) @ b, rtol=1e-3, atol=1e-3)
    if ts.cpu().arch == "x86-64":
        assert "prefetcht1" in kernel.assembly


def test_a_loop_over_rows_finds_by_itself_what_to_ask_for() -> None:
    asked, found = rows(9, 1024, width=64), rows(9, 1024, width=64)
    asked.prefetch("y.i", "x", 1)
    asked.prefetch("y.i", "y", 0)
    found.apply(AutoPrefetch(1))
    want, have = (spread_prefetches(lower(s.func), ts.cpu(1)).body for s in (asked, found))
    assert loops_of(have) == loops_of(want)
    idle = rows(9, 1024, width=64)
    idle.apply(AutoPrefetch(0))
    assert not loops_of(spread_prefetches(lower(idle.func), ts.cpu(1)).body)


def loops_of(body: tuple[Stmt, ...]) -> dict[str, list[FetchLines]]:
    """What each loop fetches, if anything."""
    every = {s.name: s.notes for s in statements(body) if isinstance(s, For)}
    fetched = {n: [x for x in notes if isinstance(x, FetchLines)] for n, notes in every.items()}
    return {n: notes for n, notes in fetched.items() if notes}


def test_loops_inside_each_other_ask_for_the_next_row() -> None:
    """A turn of the innermost loop is 256 bytes, too little to be asked for a turn ahead; of the
    next one it is a row.
    """
    x = ts.placeholder((3, 5, 512), name="x")
    axes = [ts.reduce_axis(n, name=f"k{d}") for d, n in enumerate((3, 5, 512))]
    y = ts.compute((), lambda: ts.sum(x[tuple(axes)], axis=axes), name="y")
    sch = ts.Schedule(ts.function([x, y]))
    _, inner = sch.split("y.k2", [None, 64])
    sch.vectorize(inner)
    sch.apply(AutoPrefetch(1))
    assert loops(sch.func)["y.k0"] == (FetchAhead(1),)
    notes = loops(spread_prefetches(lower(sch.func), ts.cpu(1)))
    strides = (("y.k0", 5 * 512), ("y.k1", 512), ("y.k2.0", 64))
    assert notes["y.k2.0"] == (FetchLines("x", False, 1, 512, 4, strides),)
    a = np.random.default_rng(0).integers(-4, 4, (3, 5, 512)).astype(np.float32)
    assert ts.build(sch, ts.cpu(1))(a) == a.sum()


def test_a_loop_around_several_has_the_note_itself() -> None:
    sch = rows(9, 256)
    sch.apply(AutoPrefetch(1))
    assert [name for name, notes in loops(sch.func).items() if notes] == ["y.i"]


def test_a_body_that_is_written_out_asks_beside_its_accesses() -> None:
    """Rows of 256 bytes: four of them ahead."""
    x = ts.placeholder((40, 64), name="x")
    axes = [ts.reduce_axis(n, name=f"k{d}") for d, n in enumerate((40, 64))]
    y = ts.compute((), lambda: ts.sum(x[tuple(axes)], axis=axes), name="y")
    sch = ts.Schedule(ts.function([x, y]))
    sch.vectorize("y.k1")
    sch.apply(AutoPrefetch(1))
    notes = loops(spread_prefetches(lower(sch.func), ts.cpu(1)))
    assert Prefetch("x", 4) in notes["y.k0"]
    lanes_of_16 = ts.Target.named("skylake-avx512").with_cores(1)  # a row is written out
    assert ts.build(sch, lanes_of_16).source.count("call void @llvm.prefetch") == 4
    lanes_of_4 = ts.Target.named("neoverse-n1").with_cores(
        1
    )  # a row is a loop of strips, of a line
    assert ts.build(sch, lanes_of_4).source.count("call void @llvm.prefetch") == 1
    a = np.random.default_rng(0).integers(-4, 4, (40, 64)).astype(np.float32)
    assert ts.build(sch, ts.cpu(1))(a) == a.sum()


def test_two_rows_ahead() -> None:
    sch = rows(9, 256)
    sch.apply(AutoPrefetch(2))
    done = spread_prefetches(lower(sch.func), ts.cpu(1))
    asked = {n.buffer: n.start for notes in loops_of(done.body).values() for n in notes}
    assert asked == {"x": 2 * 256, "y": 0}  # what comes in two turns, and what this one writes


def test_a_copy_of_the_loop_without_the_ones_around_it_asks_for_nothing() -> None:
    """The rest of a row that tiles do not divide has the inner loop once more, by itself."""
    x = ts.placeholder((3, 17, 400), name="x")
    y = ts.compute((3, 17, 400), lambda i, j, k: ts.exp(x[i, j, k]), name="y")
    sch = ts.Schedule(ts.function([x, y]))
    i, j, k = sch.loops("y")
    j0, j1 = sch.split(j, [None, 3])
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(i, j0, k0, j1, k1)
    sch.unroll(j1)
    sch.vectorize(k1)
    sch.prefetch(i, "x", 1)
    found = spread_prefetches(lower(sch.func), ts.cpu(1))
    inner = [s for s in statements(found.body) if isinstance(s, For) and s.name == k0]
    assert [bool(s.notes) for s in inner] == [True, False]
    a = np.random.default_rng(0).random((3, 17, 400), np.float32)
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(a), np.exp(a), rtol=1e-5)
