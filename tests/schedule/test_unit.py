"""blockize and tensorize: nests that become one unit, and the instructions that carry them out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import assert_kept, bytes_matmul, matmul_relu, refuse, stencil

import tilesmith as ts
from tilesmith.ir.intrinsics import NEON_DOT_S8S8, NEON_DOT_U8U8
from tilesmith.ir.nodes import Intrinsic
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace


def tiled(s: Schedule, lanes: int = 4) -> None:
    """C in tiles of lanes x 4, B copied so that a tile lies together."""
    s.cache_read("C", "B", "local")
    s.split("C.j", [None, lanes])
    s.split("C.k", [None, 4])
    s.reorder("C.i", "C.j.0", "C.k.0", "C.j.1", "C.k.1")


# blockize
def test_blockize(golden):
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, 4])
    sch.reorder("C.i.0", "C.j", "C.i.1", "C.k")
    sch.blockize("C.i.1")
    golden(sch.func)
    assert sch.loops("C") == ("C.i.0", "C.j")
    assert_kept(sch)


def test_blockize_keeps_producers_near():
    sch = Schedule(stencil())
    sch.split("C.i", [None, 3])
    sch.blockize("C.i.1")
    sch.compute_at("P", "C.i.0")
    assert sch.extent("P.i") == 4
    assert_kept(sch)


def test_blockize_of_a_whole_nest():
    sch = Schedule(matmul_relu())
    sch.blockize("C.i")
    sch.blockize("D.i")
    assert sch.loops("C") == ()
    assert_kept(sch)


def test_blockize_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.blockize("C.x"), "no loop 'C.x'")

    def two_blocks(s):
        s.reverse_compute_at("D", "C.i")
        s.blockize("C.i")

    refuse(f, two_blocks, "cannot blockize C.i", "not a single nest")

    def marked(s):
        s.unroll("C.k")
        s.blockize("C.j")

    refuse(f, marked, "cannot blockize C.j over loop C.k", "already unroll")

    def again(s):
        s.blockize("C.k")
        s.blockize("C.j")

    refuse(f, again, "cannot blockize C.j", "C is a unit already")


# tensorize
def test_tensorize(golden):
    sch = Schedule(bytes_matmul())
    tiled(sch)
    sch.tensorize("C.j.1", NEON_DOT_S8S8)
    golden(sch.func)
    assert_kept(sch)


def test_tensorize_finds_factors_either_way_round():
    a = ts.placeholder((8,), "int8", name="A")
    b = ts.placeholder((4, 8), "int8", name="B")
    k = ts.reduce_axis(8, name="k")
    c = ts.compute(
        (4,),
        lambda i: ts.sum(ts.cast(b[i, k], "int32") * ts.cast(a[k], "int32"), axis=k),
        name="C",
    )
    sch = Schedule(ts.function([a, b, c]))
    sch.cache_read("C", "B")
    sch.split("C.k", [None, 4])
    sch.reorder("C.k.0", "C.i", "C.k.1")
    sch.tensorize("C.i", NEON_DOT_S8S8)
    (block,) = (line for line in str(sch.func).splitlines() if "neon.dot_s8s8" in line)
    assert "C(" in block
    assert_kept(sch)


def test_tensorize_needs_strides_that_fit():
    """B lies with rows of 8 bytes, the instruction wants tiles of 4 x 4 in one piece."""

    def act(s):
        s.split("C.j", [None, 4])
        s.split("C.k", [None, 4])
        s.reorder("C.i", "C.j.0", "C.k.0", "C.j.1", "C.k.1")
        s.tensorize("C.j.1", NEON_DOT_S8S8)

    refuse(
        bytes_matmul(),
        act,
        "tensorize loop C.j.1 by neon.dot_s8s8",
        "B moves by 8 elements along C.j.1",
        "wants 4",
        "cache_read it",
    )


def test_tensorize_refuses():
    f = bytes_matmul()

    def with_tile(intrinsic: Intrinsic, lanes: int = 4, loop: str = "C.j.1"):
        def act(s):
            tiled(s, lanes)
            s.tensorize(loop, intrinsic)

        return act

    dot = "by neon.dot_s8s8"
    refuse(f, with_tile(NEON_DOT_S8S8, 2), "tensorize loop C.j.1", dot, "['2', '4']", "['4', '4']")
    refuse(f, with_tile(NEON_DOT_S8S8, loop="C.k.1"), "tensorize loop C.k.1", dot, "run over ['4']")
    refuse(
        f, with_tile(NEON_DOT_U8U8), "tensorize loop C.j.1 by neon.dot_u8u8", "A is int8", "uint8"
    )
    refuse(f, lambda s: s.tensorize("C.x", NEON_DOT_S8S8), "no loop 'C.x'")


def test_tensorize_of_a_tile_that_is_cut():
    """Tiles at the border are guarded; padding makes all of them whole."""
    sch = Schedule(bytes_matmul(n=6, k=7))
    tiled(sch)
    sch.tensorize("C.j.1", NEON_DOT_S8S8)
    assert_kept(sch)
    sch = Schedule(bytes_matmul(n=6, k=7))
    sch.pad("C", {"j": 4, "k": 4})
    sch.cache_read("C.pad", "B.pad", "local")
    sch.split("C.pad.j", [None, 4], exact=True)
    sch.split("C.pad.k", [None, 4], exact=True)
    sch.reorder("C.pad.i", "C.pad.j.0", "C.pad.k.0", "C.pad.j.1", "C.pad.k.1")
    sch.tensorize("C.pad.j.1", NEON_DOT_S8S8)
    assert_kept(sch)


def intrinsic(body, name: str = "test.op", combine=ts.sum) -> Intrinsic:
    a, b = ts.placeholder((4,), "int8", name="A"), ts.placeholder((4, 4), "int8", name="B")
    k = ts.reduce_axis(4, name="k")
    c = ts.compute(
        (4,),
        lambda i: combine(body(ts.cast(a[k], "int32"), ts.cast(b[i, k], "int32")), axis=k),
        name="C",
    )
    return replace(NEON_DOT_S8S8, name=name, description=ts.function([a, b, c]))


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (
            intrinsic(lambda a, b: a + b),
            ("it has (int32(A[i, k]) * int32(B.local[j, k]))", "(int32(A[k]) + int32(B[i, k]))"),
        ),
        (
            intrinsic(lambda a, b: a),
            ("it has (int32(A[i, k]) * int32(B.local[j, k]))", "has int32(A[k])"),
        ),
        (intrinsic(lambda a, b: a * b, combine=ts.amax), ("joins its values in another way",)),
        (intrinsic(lambda a, b: b * b), ("A does not move along C.j.1", "unlike B")),
    ],
)
def test_tensorize_refuses_another_computation(unit, words):
    def act(s):
        tiled(s)
        s.tensorize("C.j.1", unit)

    refuse(bytes_matmul(), act, "tensorize loop C.j.1 by test.op", *words)


def test_tensorize_refuses_several_writes():
    x = ts.placeholder((4,), name="X")
    p = ts.compute((4,), lambda i: x[i] + 1, name="P")
    unit = replace(NEON_DOT_S8S8, name="test.add", description=ts.function([x, p]))
    a, b = ts.compute((4,), lambda i: (x[i] + 1, x[i] + 2), name="Q")
    refuse(
        ts.function([x, a, b]),
        lambda s: s.tensorize("Q.i", unit),
        "tensorize loop Q.i by test.add",
        "Q writes several buffers",
    )


def test_a_users_intrinsic_goes_through_json():
    unit = intrinsic(lambda a, b: a * b, name="my.dot")
    sch = Schedule(bytes_matmul())
    tiled(sch)
    sch.tensorize("C.j.1", unit)
    text = sch.trace.to_json()
    with pytest.raises(ts.TraceError, match=r"unknown intrinsic 'my\.dot'; known are .*avx512"):
        Trace.from_json(text)
    assert Trace.from_json(text, ts.Parts(intrinsics=(unit,))).apply(sch.origin) == sch.func
