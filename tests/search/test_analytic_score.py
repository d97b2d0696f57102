"""What the analytic score knows, as an order that holds for narrow and for wide vectors. It was
measured on machines, and is stated here of named ones.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.schedule.cache import CacheRead
from tilesmith.schedule.loops import Reorder
from tilesmith.search.features.nest import shared_nests
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.space.rules import merge_axes
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.space.variant import Variant
from tilesmith.task.task import Task

NARROW, WIDE = (Target.named(n).with_cores(1) for n in ("neoverse-n1", "skylake-avx512"))
Tiles = dict[str, tuple[int, ...]]
each_target = pytest.mark.parametrize("target", [NARROW, WIDE], ids=["neon", "avx512"])


def matmul(target: Target, n: int, packed: bool) -> Variant:
    """B as it lies, or copied in the order of the tile; the columns outermost in both."""
    task = Task(operator("matmul", (n, n, n)), target)
    for sketch in SketchSpace().sketches(task):
        order = next(s.loops for s in sketch.steps if isinstance(s, Reorder))
        copied = any(isinstance(s, CacheRead) for s in sketch.steps)
        if order[0].endswith(".j.0") and copied == packed:
            return next(variants(task, sketch))
    raise AssertionError("no sketch of that kind")


def score(v: Variant, tiles: Tiles) -> float:
    row = np.array([[tiles[c.split(".")[-2]][int(c[-1])] for c in v.columns]], np.int32)
    assert v.valid(row)[0]
    return float(ScoreByTarget().score(v, row)[0])


def panels(n: int, rows: int, columns: int) -> Tiles:
    """A panel of B stays in the second cache while all rows of A go by."""
    return {
        "i": (1, 1, -(-n // rows), rows), "j": (n // columns, 1, 1, columns), "k": (1, n // 2, 2)
    }  # fmt: skip


@each_target
def test_short_pieces_of_rows_far_apart_are_worth_a_packed_copy(target: Target) -> None:
    tiles = panels(1024, 6, 4 * target.lanes(32))
    apart, packed = (score(matmul(target, 1024, packed=p), tiles) for p in (False, True))
    assert packed > 1.5 * apart


@each_target
def test_no_more_rows_a_page_apart_than_the_first_cache_has_room_for(target: Target) -> None:
    """As many rows of A as it has pages push each other out; at another distance they do not."""
    apart, near = (matmul(target, n, packed=True) for n in (1024, 1008))
    pages = target.l1_nbytes // 4096
    columns = target.lanes(32)

    def gain(v: Variant, n: int) -> float:
        few, many = (score(v, panels(n, rows, columns)) for rows in (pages // 2, pages))
        return many / few

    assert gain(apart, 1024) < 0.9 * gain(near, 1008)


@each_target
def test_what_is_computed_row_by_row_is_still_in_the_cache(target: Target) -> None:
    task = ts.Task(operator("softmax", (2048, 2048)), target)
    (sketch,) = SketchSpace().sketches(task)
    found = {len(v.func.body): v for v in variants(task, sketch)}
    rows = {n: v.sample(np.random.default_rng(0), 1) for n, v in found.items()}
    by_row, apart = (float(ScoreByTarget().score(found[n], rows[n])[0]) for n in (1, max(found)))
    assert by_row > 1.05 * apart


@each_target
def test_a_packed_operand_is_read_along_its_tile(target: Target) -> None:
    """The vector's axis is not the last one of K, but it is that of the copy: a tile of several
    vectors that fills the registers beats one vector by many rows.
    """
    task = Task(operator("transpose-batch-matmul", (128, 12, 64)), target)
    v = next(variants(task, SketchSpace().sketches(task)[1]))
    fixed: Tiles = {"b": (1, 1, 1, 1), "h": (12, 1, 1, 1), "k": (1, 16, 4)}
    lanes = target.lanes(32)
    wide = score(v, fixed | {"i": (1, 1, 22, 6), "j": (32 // lanes, 1, 1, 4 * lanes)})
    narrow = score(v, fixed | {"i": (1, 1, 5, 26), "j": (128 // lanes, 1, 1, lanes)})
    assert wide > 1.2 * narrow


@each_target
def test_what_is_divided_once_for_a_row_costs_nothing(target: Target) -> None:
    """Rows that are found by dividing come as fast as others; lanes that divide do not."""
    x = ts.placeholder((64, 64), name="X")

    def cycles(row: int, lane: int) -> float:
        y = ts.compute((64, 64), lambda i, j: x[i // row, j // lane] + 1.0, name="Y")
        task = Task(ts.function([x, y]), target)
        v = next(variants(task, SketchSpace().sketches(task)[0]))
        graph, (nest,) = shared_nests(v)
        computing = graph.compile([ScoreByTarget().estimates(nest)[0]])
        return float(computing(v.sample(np.random.default_rng(0), 1))[0, 0])

    assert cycles(2, 1) == cycles(1, 1) < cycles(1, 2)


def product(transpose_a: bool, transpose_b: bool, n: int = 256) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    c = ts.ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, name="C")
    return ts.function([a, b, c])


def tiled_along(axis: str) -> ts.TemplateSpace:
    """The register tile's vectors lie along one axis; the other one is written out."""

    def template(sch: ts.TemplateSchedule) -> None:
        i, j, k = sch.loops("C")
        outer = dict[str, object]()
        inner = dict[str, object]()
        for name, loop in (("i", i), ("j", j)):
            tile = sch.sample_tile(loop, parts=2, max_innermost=32)
            outer[name], inner[name] = sch.split(loop, tile)
        other = "j" if axis == "i" else "i"
        sch.reorder(outer["i"], outer["j"], k, inner[other], inner[axis])
        sch.unroll(inner[other])
        sch.vectorize(inner[axis])

    return ts.TemplateSpace(template)


@each_target
@pytest.mark.parametrize("transposed", [(True, False), (True, True), (False, False)])
def test_vectors_across_the_rows_of_the_output_are_slow(
    target: Target, transposed: tuple[bool, bool]
) -> None:
    """No register holds their sums: the best tile of them is slower than the median of others."""
    task = Task(product(*transposed), target)
    said = {}
    for axis in "ij":
        (sketch,) = tiled_along(axis).sketches(task)
        v = next(variants(task, sketch))
        rows = v.sample(np.random.default_rng(0), 300)
        # a vector of one element lies along nothing
        wide = rows[:, v.columns.index(f"#C.{axis}.1")] >= target.lanes(32)
        said[axis] = ScoreByTarget().predict(v, rows[wide])
    assert said["i"].max() < np.median(said["j"])


@each_target
def test_a_copy_that_stores_across_rows_is_slower(target: Target) -> None:
    x = ts.placeholder((64, 64), name="X")
    y = ts.compute((64, 64), lambda i, j: x[i, j] + 1.0, name="Y")
    cycles = {}
    for axis in "ij":

        def template(sch: ts.TemplateSchedule, axis: str = axis) -> None:
            i, j = sch.loops("Y")
            inner = i if axis == "i" else j
            sch.reorder(*(loop for loop in (i, j) if loop != inner), inner)
            sch.vectorize(inner)

        task = Task(ts.function([x, y]), target)
        v = next(variants(task, ts.TemplateSpace(template).sketches(task)[0]))
        graph, (nest,) = shared_nests(v)
        computing = graph.compile([ScoreByTarget().estimates(nest)[0]])
        cycles[axis] = float(computing(v.sample(np.random.default_rng(0), 1))[0, 0])
    assert cycles["i"] > 2 * cycles["j"]


@each_target
def test_every_second_element_comes_faster_than_every_third(target: Target) -> None:
    """Two loads and a shuffle make a vector of every second one; others come one by one."""

    def cycles(step: int) -> float:
        x = ts.placeholder((64, 64 * step), name="X")
        y = ts.compute((64, 64), lambda i, j: x[i, step * j] + 1.0, name="Y")
        task = Task(ts.function([x, y]), target)
        v = next(variants(task, SketchSpace().sketches(task)[0]))
        graph, (nest,) = shared_nests(v)
        computing = graph.compile([ScoreByTarget().estimates(nest)[0]])
        return float(computing(v.sample(np.random.default_rng(0), 1))[0, 0])

    assert cycles(1) < cycles(2) < cycles(3) == cycles(4)


@each_target
def test_rows_of_an_image_that_all_filters_share_take_registers(target: Target) -> None:
    """Two rows by fifteen filters are 30 sums, and the two rows and a weight make 33: one too many
    for 32 registers. One row by 30 filters is as many sums, with a row and a weight beside them;
    where instructions read no memory operands, these need more registers than that. The image and
    its results stay in L1, so that registers alone tell.
    """
    x, w = ts.placeholder((1, 16, 2, 32), name="X"), ts.placeholder((60, 16, 1, 1), name="W")
    task = Task(ts.function([x, w, ts.ops.conv2d(x, w, name="Y")]), target)
    apart = tuple(r for r in ts.default_rules(target) if r is not merge_axes)  # rows and columns
    v = next(variants(task, SketchSpace(apart).sketches(task)[0]))
    lanes = target.lanes(32)
    fixed: Tiles = {"n": (1,) * 4, "rc": (1, 16, 1), "rh": (1,) * 3, "rw": (1,) * 3}
    fixed["w"] = (32 // lanes, 1, 1, lanes)
    two_rows = score(v, fixed | {"f": (4, 1, 1, 15), "h": (1, 1, 1, 2)})
    one_row = score(v, fixed | {"f": (2, 1, 1, 30), "h": (2, 1, 1, 1)})
    fewer = score(v, fixed | {"f": (5, 1, 1, 12), "h": (1, 1, 1, 2)})
    assert two_rows < 0.7 * fewer
    if target.arch == "x86-64":
        assert two_rows < 0.7 * one_row
    else:
        assert one_row < 0.7 * fewer


def test_elements_that_strided_windows_share_take_registers() -> None:
    """Two rows by fourteen pixels, two apart both ways: the third tap of a pixel is the first of
    the next one, whose element a register then holds beside the 28 sums. Rows that are passed over
    do not hide that.
    """
    x, w = ts.placeholder((1, 57, 57, 16), name="X"), ts.placeholder((3, 3, 16, 32), name="W")
    y = ts.ops.conv2d(x, w, stride=2, layout="NHWC", name="Y")
    task = Task(ts.function([x, w, y]), WIDE)
    v = next(variants(task, SketchSpace().sketches(task)[0]))
    fixed: Tiles = {
        "n": (1,) * 4, "f": (2, 1, 1, 16), "h": (14, 1, 1, 2), "w": (2, 1, 1, 14),
        "rh": (1, 3, 1), "rc": (1, 16, 1),
    }  # fmt: skip
    together = score(v, fixed | {"rw": (1, 1, 3)})
    assert together < score(v, fixed | {"rw": (1, 3, 1)})


@each_target
def test_vectors_over_several_groups_are_gathered(target: Target) -> None:
    """A channel divided by the size of its group is where the sums read: one element per lane."""
    x, w = ts.placeholder((2, 14, 14, 32), name="X"), ts.placeholder((1, 1, 8, 100), name="W")
    y = ts.ops.conv2d(x, w, groups=4, layout="NHWC", name="Y")
    z = ts.compute(y.shape, lambda n, h, w, f: ts.maximum(y[n, h, w, f], 0), name="Z")
    task = Task(ts.function([x, w, z]), target)
    best = {True: -99.0, False: -99.0}
    for sketch in SketchSpace().sketches(task):
        apart = any(s.name == "split_iterator" for s in sketch.steps)
        for v in islice(variants(task, sketch), 4):
            rows = v.sample(np.random.default_rng(0), 64)
            best[apart] = max(best[apart], float(ScoreByTarget().score(v, rows).max()))
    assert best[True] > best[False]


@pytest.mark.parametrize("size", [7, 14])
@each_target
def test_ends_of_rows_that_fill_no_vector_are_slow(target: Target, size: int) -> None:
    """They are computed in pieces: 3 lanes as 2 + 1, each as slow as a whole vector. So the first
    candidate of an image with such rows has vectors along the filters.
    """
    task = Task(operator("conv2d", (size, 32, 64, 3, 1, 1), "NCHW"), target)
    v, row = max(
        (
            (v, rows[[ScoreByTarget().score(v, rows).argmax()]])
            for sketch in SketchSpace().sketches(task)
            for v in islice(variants(task, sketch), 2)
            for rows in [v.sample(np.random.default_rng(0), 300)]
        ),
        key=lambda pair: float(ScoreByTarget().score(*pair)[0]),
    )
    assert "vectorize(loop='Y.local.f.3')" in str(v.trace)
    assert v.valid(row)[0]


@each_target
def test_a_row_costs_as_many_vectors_as_it_has_pieces(target: Target) -> None:
    """With 16 lanes and without masks, 64 columns are 4 vectors, and 63 are 3 + 4 pieces of 8, 4, 2
    and 1. With masks the end is one piece. Four lanes have 15 vectors and 2 + 1.
    """

    def cycles(columns: int) -> float:
        task = Task(operator("matmul", (64, columns, 64)), target)  # what it reads stays in L1
        along = (s for s in SketchSpace().sketches(task) if "loop='C.j.3'" in str(s))
        v = next(variants(task, next(along)))
        tiles: Tiles = {"i": (16, 1, 1, 4), "j": (4, 1, 1, 16), "k": (1, 64, 1)}
        return columns / score(v, tiles)

    pieces = 1.0 if target.masks_vectors else 17 / 16
    assert 0.85 * pieces < cycles(63) / cycles(64) < 1.15 * pieces
    target = replace(target, features=target.features - {"avx512vl"})
    pieces = {16: 7 / 4, 4: 17 / 16}[target.lanes(32)]
    assert 0.85 * pieces < cycles(63) / cycles(64) < 1.15 * pieces
