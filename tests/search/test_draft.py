"""What the analytic score knows of memory: measured on a machine, stated here as an order."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.search.draft import Draft, estimates
from tilesmith.search.features.nest import shared_nests
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.space.variant import Variant
from tilesmith.task.task import Task

TARGET = Target.named("cascadelake").with_cores(1)
Tiles = dict[str, tuple[int, ...]]


def matmul(n: int, packed: bool) -> Variant:
    """B as it lies, or copied in the order of the tile; the columns outermost in both."""
    task = Task(operator("matmul", (n, n, n)), TARGET)
    sketch = SketchSpace().sketches(task)[3 if packed else 2]
    return next(variants(task, sketch))


def score(v: Variant, tiles: Tiles) -> float:
    row = np.array([[tiles[c.split(".")[-2]][int(c[-1])] for c in v.columns]], np.int32)
    assert v.valid(row)[0]
    return float(Draft().score(v, row)[0])


def panels(n: int, rows: int, columns: int) -> Tiles:
    """A panel of B stays in the second cache while all rows of A go by."""
    return {
        "i": (1, 1, -(-n // rows), rows), "j": (n // columns, 1, 1, columns), "k": (1, n // 2, 2)
    }  # fmt: skip


def test_short_pieces_of_rows_far_apart_are_worth_a_packed_copy() -> None:
    tiles = panels(1024, 6, 64)
    assert score(matmul(1024, packed=True), tiles) > 2 * score(matmul(1024, packed=False), tiles)


def test_no_more_rows_a_page_apart_than_the_first_cache_has_ways() -> None:
    """As many rows of A as there are ways, and each pushes the others out; at another distance
    they do not.
    """
    apart, near = matmul(1024, packed=True), matmul(1008, packed=True)
    assert score(apart, panels(1024, 4, 32)) > score(apart, panels(1024, 8, 32))
    assert score(near, panels(1008, 4, 48)) < score(near, panels(1008, 8, 48))


def test_what_is_computed_row_by_row_is_still_in_the_cache() -> None:
    task = ts.Task(operator("softmax", (2048, 2048)), TARGET)
    (sketch,) = SketchSpace().sketches(task)
    found = {len(v.func.body): v for v in variants(task, sketch)}
    rows = {n: v.sample(np.random.default_rng(0), 1) for n, v in found.items()}
    by_row, apart = (float(Draft().score(found[n], rows[n])[0]) for n in (1, max(found)))
    assert by_row > 1.2 * apart


def test_a_packed_operand_is_read_along_its_tile() -> None:
    """The vector's axis is not the last one of K, but it is that of the copy."""
    task = Task(operator("transpose-batch-matmul", (128, 12, 64)), TARGET)
    v = next(variants(task, SketchSpace().sketches(task)[1]))
    fixed: Tiles = {"b": (1, 1, 1, 1), "h": (12, 1, 1, 1), "k": (1, 16, 4)}
    wide = score(v, fixed | {"i": (1, 1, 22, 6), "j": (2, 1, 1, 64)})
    narrow = score(v, fixed | {"i": (1, 1, 5, 26), "j": (8, 1, 1, 16)})
    assert wide > 1.2 * narrow


def test_what_is_divided_once_for_a_row_costs_nothing() -> None:
    """Rows that are found by dividing come as fast as others; lanes that divide do not."""
    x = ts.placeholder((64, 64), name="X")

    def cycles(row: int, lane: int) -> float:
        y = ts.compute((64, 64), lambda i, j: x[i // row, j // lane] + 1.0, name="Y")
        task = Task(ts.function([x, y]), TARGET)
        v = next(variants(task, SketchSpace().sketches(task)[0]))
        graph, (nest,) = shared_nests(v)
        computing = graph.compile([estimates(Draft(), nest)[0]])
        return float(computing(v.sample(np.random.default_rng(0), 1))[0, 0])

    assert cycles(2, 1) == cycles(1, 1) < cycles(1, 2)


NARROW, WIDE = (Target.named(n).with_cores(1) for n in ("neoverse-n1", "skylake-avx512"))


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


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["neon", "avx512"])
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
        said[axis] = Draft().predict(v, rows[wide])
    assert said["i"].max() < np.median(said["j"])


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["neon", "avx512"])
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
        computing = graph.compile([estimates(Draft(), nest)[0]])
        cycles[axis] = float(computing(v.sample(np.random.default_rng(0), 1))[0, 0])
    assert cycles["i"] > 2 * cycles["j"]
