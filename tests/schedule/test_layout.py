"""transform_layout and pad: where elements lie, and blocks that are rounded up."""

from __future__ import annotations

import numpy as np
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
from tests.support.thorough import drawn
from tilesmith.expr.intervals import _Proof, is_injective
from tilesmith.expr.ints import Int, evaluate_int, of, var
from tilesmith.ir.function import Function
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.schedule import Schedule


# transform_layout
def test_transform_layout(golden):
    sch = Schedule(matmul_relu())
    sch.cache_read("C", "B", "local")
    sch.transform_layout("B.local", lambda k, j: (j // 4, k, j % 4))
    golden(sch.func)
    (buffer,) = (b for b in sch.func.buffers if b.name == "B.local")
    assert [n.const for n in buffer.physical_shape] == [2, 5, 4]
    assert buffer.size.const == 40
    assert_kept(sch)


@pytest.mark.parametrize(
    "layout",
    [
        lambda i, j: (j, i),
        lambda i, j: (i, j),
        lambda i, j: i * 7 + j,
        lambda i, j: (i // 2, j // 3, i % 2, j % 3),
        ["d1", "d0"],
        ["(d0*7 + d1) // 4", "(d0*7 + d1) % 4"],
    ],
)
def test_transform_layout_of_an_intermediate_buffer(layout):
    sch = Schedule(matmul_relu())
    sch.transform_layout("C", layout)
    assert_kept(sch)


def test_transform_layout_of_an_input():
    sch = Schedule(matmul_relu())
    sch.transform_layout("B", lambda k, j: (j, k))
    assert_kept(sch)


def test_transform_layout_with_a_size_variable():
    sch = Schedule(matmul_relu())
    sch.split("C.j", [None, "#v"])
    sch.transform_layout("C", ["d1 // #v", "d0", "d1 % #v"])
    done = ts.instantiate(sch.func, {"#v": 4, "#C.j.0": 2})
    (buffer,) = done.buffers
    assert [n.const for n in buffer.physical_shape] == [2, 6, 4]
    assert sch.trace.decide({"#v": 4}).apply(sch.origin) == done


def test_a_layout_without_open_sizes_stays_as_it_was_written():
    step = TransformLayout("C", ("d1 // #v", "d0", "d1 % #v", "d0 % 2"))
    assert step.decide({"#w": 4}) == step
    assert step.decide({"#v": 4}).layout[3] == "d0 % 2"


def test_transform_layout_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.transform_layout("Z", ["d0"]), "no buffer 'Z'")
    refuse(f, lambda s: s.transform_layout("D", ["d1", "d0"]), "layout of D", "an output")
    refuse(f, lambda s: s.transform_layout("C", lambda i: i), "layout of C takes 1 ind", "has 2")
    refuse(f, lambda s: s.transform_layout("C", ["d0", "d2"]), "layout of C uses 'd2'", "d0, d1")
    refuse(
        f, lambda s: s.transform_layout("C", ["d0"]), "layout of C leaves out d1", "fall on each"
    )
    refuse(f, lambda s: s.transform_layout("C", ["d0 +", "d1"]), "layout of C", "'d0 +'")
    refuse(f, lambda s: s.transform_layout("C", ["d0 // 0", "d1"]), "layout of C", "// 0")
    refuse(f, lambda s: s.transform_layout("C", ["d0 ** 2", "d1"]), "layout of C", "d0 ** 2")
    refuse(f, lambda s: s.transform_layout("C", ["d0 - 3", "d1"]), "layout of C", "goes down to -3")
    refuse(f, lambda s: s.transform_layout("C", ["d0 * d1"]), "layout of C", "not affine")


@pytest.mark.parametrize(
    "layout", [["d0 // 2", "d1"], ["d0 + d1"], ["d0 % 4", "d1"], ["d0", "d1 % 6"]]
)
def test_transform_layout_refuses_two_elements_on_one_place(layout):
    refuse(matmul_relu(), lambda s: s.transform_layout("C", layout), "layout of C", "two elements")


def test_transform_layout_looks_at_large_buffers_whole():
    """The first hundred rows lie apart; the last one falls on the first."""
    refuse(
        matmul_relu(m=1001, n=3),
        lambda s: s.transform_layout("C", ["d0 % 1000", "d1"]),
        "layout of C",
        "two elements",
    )


LARGE_AND_WRONG = {
    "a remainder below the extent": ((100_000,), ["d0 % 65536"]),
    "a stride below the row": ((512, 512), ["d0*300 + d1"]),
    "a stride one too small": ((4096, 4096), ["d0*4095 + d1"]),
    "a tile above its stride": ((4096, 4096), ["d1 // 64", "d0 // 8", "(d1 % 64)*4 + d0 % 8"]),
    "digits that leave some out": ((4096, 4096), ["d1 // 64", "d0", "(d1 % 64) // 16", "d1 % 8"]),
    "another axis' remainder": ((4096, 4096), ["d1 // 64", "d0 // 32", "d0 % 32", "d0 % 64"]),
    "steps that are not coprime": ((4096, 32), ["d0", "(d0 + 2*d1) % 32"]),
    "a sum": ((70_000, 2), ["d0 + d1"]),
}  # fmt: skip
LARGE_AND_RIGHT = {
    "a transpose": ((4096, 4096), ["d1", "d0"]),
    "one dimension": ((512, 512), ["d0*512 + d1"]),
    "one dimension with gaps": ((512, 512), ["d0*700 + d1"]),
    "tiles": ((4096, 4096), ["d1 // 16", "d0", "d1 % 16"]),
    "tiles that do not divide": ((4095, 777), ["d1 // 16", "d0 // 6", "d0 % 6", "d1 % 16"]),
    "tiles of tiles": ((4096, 4096), ["d1 // 64", "d0", "(d1 // 4) % 16", "d1 % 4"]),
    "tiles in one dimension": ((4096, 4096), ["(d1 // 16)*65536 + d0*16 + d1 % 16"]),
    "a skewed row": ((4096, 32), ["d0", "(d0 + 3*d1) % 32"]),
    "the last first": ((4096, 3000), ["4095 - d0", "d1"]),
    "a unit dimension left out": ((1, 70_000), ["d1"]),
}


def buffer_of(shape: tuple[int, ...]) -> Function:
    x = ts.placeholder(shape, name="X")
    c = ts.compute(shape, lambda *i: x[i] + 1, name="C", axes=[f"i{k}" for k in range(len(shape))])
    return ts.function([x, c])


@pytest.mark.parametrize("name", LARGE_AND_WRONG)
def test_two_elements_of_a_large_buffer_on_one_place_are_refused(name):
    shape, layout = LARGE_AND_WRONG[name]
    refuse(buffer_of(shape), lambda s: s.transform_layout("X", layout), "layout of X", "two elem")


@pytest.mark.parametrize("name", LARGE_AND_RIGHT)
def test_one_to_one_layouts_of_large_buffers_are_taken(name):
    shape, layout = LARGE_AND_RIGHT[name]
    Schedule(buffer_of(shape)).transform_layout("X", layout)


def test_open_sizes_are_proven_for_all_of_them():
    sch = Schedule(buffer_of((4096, 4096)))
    sch.transform_layout("X", ["d1 // #v", "d0 // #w", "d0 % #w", "d1 % #v"])
    wrong = ["d1 // #v", "d0 // #w", "d0 % #w", "d1 % #w"]
    refuse(buffer_of((4096, 4096)), lambda s: s.transform_layout("X", wrong), "two elements")
    n = var("#n")
    x = ts.placeholder((8, n), name="X")
    func = ts.function([x, ts.compute((8, n), lambda i, j: x[i, j] + 1, name="C")])
    Schedule(func).transform_layout("X", ["#n*d0 + d1"])
    refuse(func, lambda s: s.transform_layout("X", ["d0", "d1 % 8"]), "two elements")
    refuse(func, lambda s: s.transform_layout("X", ["d0", "d1 + 5 - #n"]), "goes down to")


def test_what_is_proven_holds():
    """Random maps of small buffers, where all elements can be looked at."""
    rng = np.random.default_rng(0)
    proven = 0
    for _ in range(drawn(600, 1500)):
        shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 3)))
        ranges = {f"d{k}": of(n) for k, n in enumerate(shape)}
        values = [random_index(rng, list(ranges)) for _ in range(int(rng.integers(1, 4)))]
        grid = np.indices(shape).reshape(len(shape), -1)
        env = dict(zip(ranges, grid, strict=True))
        places = [np.broadcast_to(evaluate_int(p, env, None), grid.shape[1:]) for p in values]
        right = len(set(zip(*(p.tolist() for p in places), strict=True))) == grid.shape[1]
        assert is_injective(values, ranges) == right, f"{values} of {shape}"
        found = _Proof(values, {n: e for n, e in ranges.items() if e.const != 1}).succeeds()
        proven += found
        assert right or not found, f"{values} of {shape}"
    assert proven > 100


def random_index(rng: np.random.Generator, names: list[str]) -> Int:
    """A sum of digits: names, or quotients and remainders of such sums, times a stride."""
    total = of(int(rng.integers(0, 3)))
    for _ in range(int(rng.integers(1, 3))):
        p = var(str(rng.choice(names)))
        if rng.random() < 0.3:
            p = p + var(str(rng.choice(names))) * int(rng.integers(1, 3))
        for _ in range(int(rng.integers(0, 3))):
            n = int(rng.integers(2, 5))
            p = p // n if rng.random() < 0.5 else p % n
        total = total + p * int(rng.choice([1, 1, 2, 3, 4, 8, -1]))
    return total


# pad
def test_pad(golden):
    sch = Schedule(matmul_relu())
    assert sch.pad("C", {"i": 4, "j": 4, "k": 2}) == "C.pad"
    golden(sch.func)
    assert_kept(sch)


def test_pad_then_tile():
    sch = Schedule(matmul_relu())
    sch.pad("C", {"j": 4})
    sch.split("C.pad.j", [None, 4], exact=True)
    sch.reverse_compute_at("C", "C.pad.i")
    assert_kept(sch)


def test_pad_of_what_fits_changes_nothing():
    sch = Schedule(matmul_relu())
    assert sch.pad("C", {"i": 3}) == "C"
    assert sch.func == sch.origin


@pytest.mark.parametrize("func", [row_sum(), total(), bytes_matmul(), conv(dtype="int32")])
def test_pad_of_a_sum(func):
    sch = Schedule(func)
    block = next(b for b in sch.blocks if b in ("S", "C", "Y"))
    names = [n.rsplit(".", 1)[1] for n in sch.loops(block)]
    sch.pad(block, dict.fromkeys(names, 4))
    assert_kept(sch)


def test_taps_beside_elements_that_may_be_infinite_are_not_padded():
    """A zero behind the weights would meet the next element of the image."""
    refuse(conv(), lambda s: s.pad("Y", {"r": 4}), "cannot pad r of Y", "change the result")
    sch = Schedule(conv())
    sch.pad("Y", {"o": 4, "h": 4, "v": 2, "c": 3})
    assert_kept(sch)


def test_pad_after_a_reorder():
    sch = Schedule(row_sum())
    sch.reorder("S.k", "S.i")
    sch.pad("S", {"k": 4})
    assert sch.loops("S.pad") == ("S.pad.k", "S.pad.i")
    assert_kept(sch)


def test_pad_of_several_outputs():
    sch = Schedule(argmax())
    sch.pad("M", {"i": 4})
    assert_kept(sch)


def test_pad_of_a_gather():
    """Zeros behind the indices point at the first element."""
    sch = Schedule(gather())
    sch.pad("G", {"i": 4, "j": 3})
    assert_kept(sch)


def test_pad_of_elements():
    sch = Schedule(chain(5, 3))
    sch.pad("B", {"i": 2, "j": 2})
    assert_kept(sch)


def test_pad_refuses():
    f = matmul_relu()
    refuse(f, lambda s: s.pad("Z", {"i": 4}), "no block 'Z'")
    refuse(f, lambda s: s.pad("C", {"x": 4}), "cannot pad x of C", "i, j, k")
    refuse(f, lambda s: s.pad("C", {"i": 0}), "cannot pad i of C", "multiple of 0")
    refuse(softmax(), lambda s: s.pad("top", {"r": 4}), "cannot pad r of top", "change the result")
    refuse(argmax(), lambda s: s.pad("M", {"k": 4}), "cannot pad k of M", "change the result")

    def split_first(s):
        s.split("C.i", [None, 4])
        s.pad("C", {"i": 4})

    refuse(f, split_first, "cannot pad C", "before its loops are scheduled")

    def others_inside(s):
        s.reverse_compute_at("D", "C.i")
        s.pad("C", {"i": 4})

    refuse(f, others_inside, "cannot pad C", "before its loops are scheduled")

    def marked(s):
        s.parallel("C.i")
        s.pad("C", {"i": 4})

    refuse(f, marked, "cannot pad C over loop C.i", "already parallel")

    def decomposed(s):
        s.decompose_reduction("C", "C.i")
        s.pad("C", {"i": 4})

    refuse(f, decomposed, "cannot pad C", "C.init")

    def twice(s):
        s.pad("C", {"i": 4})
        s.pad("C.pad", {"i": 3})
        s.cache_read("C", "C.pad", "global")
        s.pad("C", {"i": 4})

    refuse(f, twice, "there is a C.pad already")


def test_pad_refuses_a_read_before_the_first_element():
    x = ts.placeholder((5,), name="X")
    c = ts.compute((5,), lambda i: x[4 - i], name="C")
    refuse(
        ts.function([x, c]),
        lambda s: s.pad("C", {"i": 4}),
        "pad C",
        "X at -i + 4",
        "before its first",
    )


def test_pad_refuses_a_sum_of_what_is_not_zero():
    x = ts.placeholder((5,), name="X")
    k = ts.reduce_axis(5, name="k")
    s = ts.compute((), lambda: ts.sum(x[k] + 1, axis=k), name="S")
    refuse(ts.function([x, s]), lambda s: s.pad("S", {"k": 4}), "pad k of S", "zeros")


def test_pad_refuses_a_window_that_would_grow():
    """Behind its last place lie elements of the image, not zeros."""
    x, r = ts.placeholder((6,), name="X"), ts.reduce_axis(3, name="r")
    y = ts.compute((4,), lambda i: ts.sum(x[i + r], axis=r), name="Y", axes=["i"])
    refuse(ts.function([x, y]), lambda s: s.pad("Y", {"r": 4}), "would change the result")


def test_pad_of_partial_sums():
    sch = Schedule(matmul_relu(m=6, k=8))
    loops = sch.split("C.k", (2, None))
    sch.rfactor(loops[0])
    assert sch.pad("C.rf", {"i": 4}) == "C.rf.pad"
    assert_kept(sch)
    # the next part lies behind the end of one
    late = Schedule(matmul_relu(m=6, k=8))
    late.rfactor(late.split("C.k", (2, None))[0])
    refuse(late.func, lambda s: s.pad("C.rf", {"k.1": 3}), "would change the result")


def test_pad_of_an_open_extent():
    n = ts.size("n")
    x = ts.placeholder((n,), name="X")
    c = ts.compute((n,), lambda i: x[i] * 2, name="C")
    sch = Schedule(ts.function([x, c]))
    sch.pad("C", {"i": 4})
    kernel = ts.build(sch, ts.cpu(1))
    for length in (1, 3, 4, 5, 1000):
        a = np.arange(length, dtype=np.float32)
        np.testing.assert_array_equal(kernel(a), 2 * a)
