"""inline and reverse_inline: blocks that go into their neighbours, and those that cannot."""

from __future__ import annotations

from cases import (
    argmax,
    assert_kept,
    bytes_matmul,
    chain,
    conv,
    diamond,
    gather,
    matmul_relu,
    refuse,
    refused,
    softmax,
    stencil,
)

import tilesmith as ts
from tilesmith.ir.intrinsics import NEON_DOT_S8S8
from tilesmith.schedule.schedule import Schedule


# inline
def test_inline(golden):
    sch = Schedule(stencil())
    sch.inline("P")
    golden(sch.func)
    assert sch.blocks == ("C",)
    assert_kept(sch)


def test_inline_into_several_readers():
    sch = Schedule(diamond())
    sch.inline("P")
    sch.inline("R")
    assert sch.blocks == ("L", "O")
    assert_kept(sch)


def test_inline_of_a_guarded_read():
    """The zeros around an image become a condition inside of the sum."""
    sch = Schedule(conv())
    sch.inline("P")
    assert "where(" in str(sch.func)
    assert_kept(sch)


def test_inline_at_an_index_that_comes_from_a_tensor():
    sch = Schedule(gather())
    sch.inline("P")
    sch.inline("G")
    assert sch.blocks == ("H",)
    assert_kept(sch)


def test_inline_of_an_index():
    """What gives an index is itself computed, and goes into the index."""
    ids = ts.placeholder((4,), "int32", name="ids")
    x = ts.placeholder((8,), name="X")
    at = ts.compute((4,), lambda i: (ids[i] + 3) % 8, name="at")
    y = ts.compute((4,), lambda i: x[at[i]] * 2, name="Y")
    sch = Schedule(ts.function([ids, x, y]))
    sch.inline("at")
    assert_kept(sch)


def test_inline_of_several_values():
    x = ts.placeholder((3, 4), name="X")
    a, b = ts.compute((3, 4), lambda i, j: (x[i, j] + 1, x[i, j] * 2), name="P")
    c = ts.compute((4, 3), lambda i, j: a[j, i] - b[2 - j, i], name="C")
    sch = Schedule(ts.function([x, c]))
    sch.inline("P")
    assert [b.name for b in sch.func.buffers] == []
    assert_kept(sch)


def test_inline_after_tiling():
    sch = Schedule(chain())
    sch.split("A.i", [None, 4])
    sch.compute_at("A", "B.j")
    sch.inline("A")
    sch.inline("B")
    sch.inline("C")
    assert sch.blocks == ("D",)
    assert_kept(sch)


def test_inline_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.inline("Z"), "no block 'Z'")
    refuse(f, lambda s: s.inline("D"), "cannot inline D", "D is an output")
    refuse(f, lambda s: s.inline("C"), "cannot inline C", "it is a reduction")

    def unit(s):
        s.blockize("P.i")
        s.inline("P")

    refuse(stencil(), unit, "cannot inline P", "part of a larger rewrite")


def test_inline_refuses_what_an_instruction_reads():
    def act(s):
        s.cache_read("C", "A", "local")
        s.cache_read("C", "B", "local")
        s.split("C.j", [None, 4])
        s.split("C.k", [None, 4])
        s.reorder("C.j.0", "C.k.0", "C.j.1", "C.k.1")
        s.tensorize("C.j.1", NEON_DOT_S8S8)
        s.inline("A.local")

    refuse(bytes_matmul(), act, "cannot inline A.local", "instruction carries out C")


def test_inline_refuses_what_would_share_elements_among_threads():
    """With C gone, P is read outside of the parallel loop that it was private to."""
    x = ts.placeholder((8,), name="X")
    p = ts.compute((8,), lambda i: x[i] * 2, name="P")
    c = ts.compute((7,), lambda i: p[i] + p[i + 1], name="C")
    d = ts.compute((7,), lambda i: c[i] * 2, name="D")

    def act(s):
        s.compute_at("P", "C.i")
        s.parallel("C.i")
        s.inline("C")

    refuse(ts.function([x, d]), act, "inline C", "two iterations of C.i", "P")


# reverse_inline
def test_reverse_inline(golden):
    sch = Schedule(chain())
    sch.split("C.i", [None, 4])
    sch.reverse_inline("D")
    golden(sch.func)
    assert sch.blocks == ("A", "B", "D")
    assert_kept(sch)


def test_reverse_inline_of_a_transposed_read():
    x = ts.placeholder((3, 4), name="X")
    p = ts.compute((3, 4), lambda i, j: x[i, j] + i, name="P")
    c = ts.compute((4, 3), lambda a, b: p[b, a] * a + b, name="C")
    sch = Schedule(ts.function([x, c]))
    sch.reverse_inline("C")
    assert sch.blocks == ("C",)
    assert sch.loops("C") == ("P.i", "P.j")
    assert_kept(sch)


def test_reverse_inline_into_a_copy():
    """After cache_write the copy takes what comes behind it."""
    sch = Schedule(matmul_relu())
    sch.cache_write("C", "local")
    sch.reverse_inline("D")
    assert sch.blocks == ("C.local", "D")
    assert_kept(sch)


def test_reverse_inline_reads_other_operands_too():
    sch = Schedule(diamond())
    sch.reverse_inline("O")
    assert sch.blocks == ("P", "L", "O")
    assert_kept(sch)


def test_reverse_inline_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.reverse_inline("Z"), "no block 'Z'")
    refuse(f, lambda s: s.reverse_inline("C"), "cannot reverse_inline C", "it is a reduction")
    refuse(f, lambda s: s.reverse_inline("D"), "reverse_inline D into C", "it is a reduction")
    refuse(chain(), lambda s: s.reverse_inline("A"), "reverse_inline A", "reads no computed buffer")
    refuse(
        stencil(), lambda s: s.reverse_inline("C"), "reverse_inline C into P", "element for element"
    )
    refuse(diamond(), lambda s: s.reverse_inline("R"), "reverse_inline R into P", "L reads it too")
    refuse(softmax(), lambda s: s.reverse_inline("out"), "reverse_inline out into E", "total reads")


def test_reverse_inline_refuses_several_buffers_and_outputs():
    x = ts.placeholder((3,), name="X")
    a, _ = ts.compute((3,), lambda i: (x[i] + 1, x[i] * 2), name="P")
    c = ts.compute((3,), lambda i: a[i] - 1, name="C")
    refuse(
        ts.function([x, c]),
        lambda s: s.reverse_inline("C"),
        "reverse_inline C into P",
        "writes several buffers",
    )
    p = ts.compute((3,), lambda i: x[i] + 1, name="P")
    d = ts.compute((3,), lambda i: p[i] * 2, name="D")
    refuse(
        ts.function([x, p, d]),
        lambda s: s.reverse_inline("D"),
        "reverse_inline D into P",
        "P is an output",
    )


def test_reverse_inline_refuses_operands_that_are_not_ready():
    x = ts.placeholder((4,), name="X")
    a = ts.compute((4,), lambda i: x[i] + 1, name="A")
    b = ts.compute((4,), lambda i: x[i] * 2, name="B")
    c = ts.compute((4,), lambda i: a[3 - i] * b[i], name="C")
    sch = Schedule(ts.function([x, c]))
    assert sch.blocks == ("B", "A", "C")
    with refused("reverse_inline C into B", "C reads A, which A computes later", "move A first"):
        sch.reverse_inline("C")
    sch = Schedule(ts.function([x, a, c]))
    assert sch.blocks == ("A", "B", "C")
    sch.reverse_inline("C")
    assert sch.blocks == ("A", "C")
    assert_kept(sch)


def test_argmax_is_not_inlined():
    refuse(argmax(), lambda s: s.inline("M"), "cannot inline M", "M_0 is an output")
