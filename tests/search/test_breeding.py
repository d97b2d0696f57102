"""Children: none is lost on the way to another structure, and variants of different sketches cross
where their decisions agree.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.search.breeding import breed, move
from tilesmith.search.population import Catalogue, Population, sample
from tilesmith.testing.landscape import FEW, MANY, NONE, matmul_task

OPERATORS = {
    "conv2d-bn-relu": (28, 16, 32, 3, 1, 1),
    "matmul-relu": (64, 48, 80),
    "softmax": (64, 96),
    "gelu": (32, 96),  # no structure but one in each sketch
}


def catalogue_of(name: str) -> Catalogue:
    task = ts.Task(operator(name, OPERATORS[name]), ts.Target.named("neoverse-n1"))
    return Catalogue(task, ts.SketchSpace().sketches(task))


def members(groups: object) -> int:
    return sum(len(rows) for _, rows in groups)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", OPERATORS)
def test_every_row_that_moves_arrives(name: str) -> None:
    catalogue = catalogue_of(name)
    rng = np.random.default_rng(0)
    elsewhere = siblings = 0
    for number in catalogue.some(rng, 4):
        rows = catalogue.lowered(number).sample(rng, 20)
        groups = list(move(catalogue, rng, number, rows, lower=True))
        assert members(groups) == len(rows)
        for k, arrived in groups:
            v = catalogue.lowered(k)
            assert v.valid(arrived).all()
            assert v.contains(arrived).all()
        siblings += len(rows) if catalogue.siblings(number) else 0
        elsewhere += sum(len(arrived) for k, arrived in groups if k != number)
    assert elsewhere >= 0.7 * siblings
    assert (siblings > 0) == (name != "gelu")


def test_a_moved_row_keeps_its_numbers() -> None:
    catalogue = catalogue_of("matmul-relu")
    rng = np.random.default_rng(1)
    number = next(k for k in catalogue.some(rng, 8) if catalogue.siblings(k))
    v = catalogue.lowered(number)
    rows = v.sample(rng, 30)
    tiles = [k for k, c in enumerate(v.columns) if not c.endswith("unroll")]
    kept = 0
    for k, arrived in move(catalogue, rng, number, rows, lower=True):
        there = catalogue.lowered(k)
        at = [there.columns.index(v.columns[t]) for t in tiles if v.columns[t] in there.columns]
        known = {tuple(r[tiles]) for r in rows}
        if len(at) == len(tiles):
            kept += sum(tuple(r[at]) in known for r in arrived)
    assert kept >= 15


def test_a_structure_without_programs_is_left_alone() -> None:
    """Where no row of the other structures satisfies its limits, rows stay."""
    task = matmul_task()
    rng = np.random.default_rng(0)
    catalogue = Catalogue(task, (*FEW.sketches(task), *NONE.sketches(task)))
    empty = [k for k in range(len(catalogue)) if not len(catalogue.lowered(k).sample(rng, 1))]
    full = next(k for k in range(len(catalogue)) if k not in empty)
    rows = catalogue.lowered(full).sample(rng, 8)
    catalogue.siblings = lambda number: empty  # type: ignore[method-assign]
    ((number, stayed),) = move(catalogue, rng, full, rows, lower=True)
    assert number == full
    np.testing.assert_array_equal(stayed, rows)


def test_siblings_differ_in_one_decision() -> None:
    catalogue = catalogue_of("conv2d-bn-relu")
    for number in range(0, len(catalogue), 17):
        steps = catalogue.trace(number).steps
        for k in catalogue.siblings(number):
            others = catalogue.trace(k).steps
            assert sum(a != b for a, b in zip(steps, others, strict=True)) == 1


def blocked(sch: ts.TemplateSchedule) -> None:
    """Tiles of i and j as in the other sketch; k and the unrolled depth are its own."""
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, sch.sample_tile(i, 2, max_innermost=8))
    j0, j1 = sch.split(j, sch.sample_tile(j, 2, max_innermost=16))
    sch.reorder(i0, j0, k, i1, j1)


def blocked_further(sch: ts.TemplateSchedule) -> None:
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, sch.sample_tile(i, 2, max_innermost=8))
    j0, j1 = sch.split(j, sch.sample_tile(j, 2, max_innermost=8))
    k0, k1 = sch.split(k, sch.sample_tile(k, 2))
    sch.reorder(k0, i0, j0, k1, i1, j1)


def test_variants_of_two_sketches_cross_where_they_agree() -> None:
    task = matmul_task()
    (one,) = ts.variants(task, ts.TemplateSpace(blocked).sketches(task)[0])
    (two,) = ts.variants(task, ts.TemplateSpace(blocked_further).sketches(task)[0])
    rng = np.random.default_rng(0)
    rows, mates = two.sample(rng, 200), one.sample(rng, 200)
    children = two.cross_from(rng, rows, one, mates)
    assert two.contains(children).all()
    assert two.valid(children).all()
    here, there = two.columns, one.columns
    for axis in "ij":
        at, of = here.index(f"#C.{axis}.1"), there.index(f"#C.{axis}.1")
        taken = (children[:, at] == mates[:, of]) & (rows[:, at] != mates[:, of])
        assert 20 < taken.sum() < 120
        strange = mates[:, of] > (8 if axis == "j" else 16)  # no choice of the other sketch
        assert (children[strange, at] == rows[strange, at]).all()
    k = [here.index("#C.k.0"), here.index("#C.k.1")]
    assert (children[:, k] == rows[:, k]).all()


def test_breeding_crosses_sketches() -> None:
    """All parents of the second sketch have tiles of 1 along i, those of the first have 4."""
    task = matmul_task()
    sketches = [ts.TemplateSpace(x).sketches(task)[0] for x in (blocked, blocked_further)]
    catalogue = Catalogue(task, sketches)
    at = [catalogue.lowered(k).columns.index("#C.i.1") for k in (0, 1)]
    parents = Population(
        tuple(
            (k, rows[rows[:, at[k]] == width])
            for k, width in ((0, 4), (1, 1))
            for rows in [catalogue.lowered(k).sample(np.random.default_rng(0), 400)]
        )
    )
    for across, widths in ((0.0, {1}), (1.0, {1, 4})):
        rng = np.random.default_rng(1)
        children = dict(breed(catalogue, rng, parents, 1.0, (), 0.0, across).groups)
        assert set(children[1][:, at[1]].tolist()) == widths


def test_a_population_of_one_variant_has_no_strangers() -> None:
    task = matmul_task()
    catalogue = Catalogue(task, MANY.sketches(task))
    parents = sample(catalogue, np.random.default_rng(0), [0], 50)
    children = breed(catalogue, np.random.default_rng(0), parents, 0.5, (), 0.0, across=1.0)
    assert len(children)
    assert [number for number, _ in children.groups] == [0]


def test_what_only_one_of_the_variants_has_is_drawn() -> None:
    task = matmul_task()
    (one,) = ts.variants(task, ts.TemplateSpace(blocked).sketches(task)[0])
    (two,) = ts.variants(task, ts.TemplateSpace(blocked_further).sketches(task)[0])
    rng = np.random.default_rng(0)
    rows = one.sample(rng, 100)
    carried = two.carried(rng, one, rows)
    assert two.contains(carried).all()
    i = one.columns.index("#C.i.1"), two.columns.index("#C.i.1")
    assert (carried[:, i[1]] == rows[:, i[0]]).all()
    assert len(np.unique(carried[:, two.columns.index("#C.k.1")])) > 3
