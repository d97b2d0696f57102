"""cache_read, cache_write, set_scope and storage_align: copies of buffers and where they live."""

from __future__ import annotations

import pytest
from cases import (
    argmax,
    assert_kept,
    bytes_matmul,
    chain,
    conv,
    gather,
    matmul_relu,
    refuse,
    row_sum,
    softmax,
    total,
)

import tilesmith as ts
from tilesmith.ir.intrinsics import NEON_DOT_S8S8
from tilesmith.schedule.schedule import Schedule


# cache_read
def test_cache_read(golden):
    sch = Schedule(matmul_relu())
    assert sch.cache_read("C", "B", "shared") == "B.shared"
    sch.split("C.k", [None, 2])
    sch.reorder("C.k.0", "C.i")
    sch.compute_at("B.shared", "C.k.0")
    golden(sch.func)
    assert_kept(sch)


def test_cache_read_of_what_another_block_makes():
    sch = Schedule(matmul_relu())
    sch.cache_read("D", "C", "local")
    sch.compute_at("C.local", "D.i")
    assert_kept(sch)


def test_cache_read_of_an_index_and_of_what_it_indexes():
    sch = Schedule(gather())
    sch.cache_read("G", "ids", "local")
    sch.cache_read("G", "P", "shared")
    sch.compute_at("ids.local", "G.i")
    sch.compute_at("P.shared", "G.i")
    assert_kept(sch)


def test_cache_read_for_one_of_two_readers():
    sch = Schedule(softmax())
    sch.cache_read("top", "X")
    reads = {
        line.strip().split(" ")[0] for line in str(sch.func).splitlines() if "X.local[i" in line
    }
    assert reads == {"top[i]"}
    assert_kept(sch)


def test_cache_read_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.cache_read("Z", "A"), "no block 'Z'")
    refuse(f, lambda s: s.cache_read("C", "Z"), "no buffer 'Z' in matmul_relu", "A, B, D, C")
    refuse(f, lambda s: s.cache_read("D", "A"), "cache_read A for D", "does not read it, but C")
    refuse(
        f,
        lambda s: s.cache_read("C", "A", "texture"),
        "cache_read A",
        "no scope 'texture'",
        "shared",
    )

    def twice(s):
        s.cache_read("C", "A")
        s.cache_read("C", "A.local")
        s.cache_read("A.local", "A")

    refuse(f, twice, "there is a A.local already")

    def inside(s):
        s.compute_at("C", "D.i")
        s.cache_read("D", "C")

    refuse(f, inside, "cache_read C for D", "computed inside the same loops", "before compute_at")

    def tensorized(s):
        s.cache_read("C", "B", "local")
        s.split("C.j", [None, 4])
        s.split("C.k", [None, 4])
        s.reorder("C.j.0", "C.k.0", "C.j.1", "C.k.1")
        s.tensorize("C.j.1", NEON_DOT_S8S8)
        s.cache_read("C", "A", "local")

    refuse(bytes_matmul(), tensorized, "cache_read A for C", "before tensorize")


# cache_write
def test_cache_write(golden):
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, 4])
    assert sch.cache_write("C", "local") == "C.local"
    sch.reverse_compute_at("C", "C.local.i.0")
    golden(sch.func)
    assert sch.loops("C.local")[0] == "C.local.i.0"
    assert_kept(sch)


@pytest.mark.parametrize("func", [argmax(), total(), row_sum(), matmul_relu(), conv(), gather()])
def test_cache_write_of_every_block(func):
    sch = Schedule(func)
    for block in sch.blocks:
        sch.cache_write(block, "shared")
        sch.cache_write(f"{block}.shared", "local")
    assert_kept(sch)


def test_cache_write_of_two_outputs():
    sch = Schedule(argmax())
    sch.cache_write("M")
    assert [b.name for b in sch.func.buffers] == ["M_0.local", "M_1.local"]
    sch.reverse_compute_at("M", "M.local.i")
    assert_kept(sch)


def test_cache_write_of_a_unit_renames_its_tile():
    sch = Schedule(chain())
    sch.blockize("A.j")
    sch.cache_write("A", "shared")
    sch.cache_write("A", "local")
    assert_kept(sch)


def test_cache_write_leaves_loops_of_others_alone():
    """C lies in a loop named after C.local, which is not one of C's own."""
    sch = Schedule(matmul_relu())
    sch.cache_write("C", "local")
    sch.reverse_compute_at("C", "C.local.i")
    sch.cache_write("C", "shared")
    assert sch.loops("C.local")[0] == "C.local.i"
    assert sch.loops("C.shared") == ("C.local.i", "C.shared.i", "C.shared.j")
    assert_kept(sch)


def test_cache_write_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.cache_write("Z"), "no block 'Z'")
    refuse(f, lambda s: s.cache_write("C", "disk"), "cache_write C", "no scope 'disk'")

    def twice(s):
        s.cache_write("C")
        s.cache_write("C")

    refuse(f, twice, "there is a C.local already")

    def inside(s):
        s.compute_at("C", "D.i")
        s.cache_write("C")

    refuse(f, inside, "cache_write C", "read inside the same loops", "before compute_at")

    def decomposed(s):
        s.decompose_reduction("C", "C.k")
        s.cache_write("C")

    refuse(f, decomposed, "cache_write C", "also written by C.init")

    def two_outputs(s):
        s.cache_write("M")
        s.cache_read("M", "M_0.local", "shared")
        s.cache_write("M.local", "shared")

    refuse(argmax(), two_outputs, "there is a M_0.local.shared already")


# set_scope
def test_set_scope(golden):
    sch = Schedule(matmul_relu())
    sch.compute_at("C", "D.i")
    sch.set_scope("C", "local")
    golden(sch.func)
    assert_kept(sch)


def test_set_scope_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.set_scope("Z", "local"), "no buffer 'Z'")
    refuse(f, lambda s: s.set_scope("A", "local"), "scope of A", "a parameter")
    refuse(f, lambda s: s.set_scope("D", "local"), "scope of D", "a parameter")
    refuse(
        f, lambda s: s.set_scope("C", "L1"), "scope of C", "no scope 'L1'", "global, local, shared"
    )


# storage_align
def test_storage_align(golden):
    sch = Schedule(matmul_relu())
    sch.cache_read("C", "A", "shared")
    sch.storage_align("A.shared", 0, 8, 3)
    golden(sch.func)
    (buffer,) = (b for b in sch.func.buffers if b.name == "A.shared")
    assert [s.const for s in buffer.strides] == [11, 1]
    assert buffer.size.const == 66
    assert_kept(sch)


def test_storage_align_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.storage_align("Z", 0, 8), "no buffer 'Z'")
    refuse(f, lambda s: s.storage_align("A", 0, 8), "cannot align A", "a parameter")
    refuse(f, lambda s: s.storage_align("C", 2, 8), "dimension 2 of C", "2 dimensions")
    refuse(f, lambda s: s.storage_align("C", -1, 8), "dimension -1 of C")
    refuse(f, lambda s: s.storage_align("C", 0, 8, 8), "align C to 8 modulo 8", "between 0 and")
    refuse(f, lambda s: s.storage_align("C", 0, 0), "align C to 0 modulo 0")


def test_a_copy_of_a_rank_0_buffer():
    v = ts.placeholder((), name="V")
    o = ts.compute((3,), lambda i: v[()] * i, name="O")
    sch = Schedule(ts.function([v, o]))
    sch.cache_read("O", "V")
    sch.compute_at("V.local", "O.i")
    assert_kept(sch)


def test_a_cached_block_keeps_the_end_of_its_domain() -> None:
    """Tiles of 2 rows do not divide 3; neither the block nor its copy touches a fourth row."""
    x = ts.placeholder((3, 8), name="X")
    y = ts.compute((3, 8), lambda i, j: x[i, j] * 2, name="Y")
    sch = Schedule(ts.function([x, ts.compute((3, 8), lambda i, j: y[i, j] + 1, name="Z")]))
    sch.merge_tiles("Y", {"i": 2})
    sch.cache_write("Y")
    assert_kept(sch)
