"""Grid counts without listing, Random gives a space to its last candidate, Genetic breeds."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.classic.genetic import mutated
from tilesmith.search.population import Catalogue
from tilesmith.testing.landscape import FEW, MANY, NONE, all_candidates, matmul_task, measured
from tilesmith.testing.strategies import rounds, started


def variant(space: ts.TemplateSpace, task: ts.Task | None = None) -> ts.Variant:
    task = task or matmul_task()
    return next(ts.variants(task, space.sketches(task)[0]))


def large() -> ts.Variant:
    """More rows than 64 bits can count."""
    x = ts.placeholder((720720,) * 5, name="X")
    y = ts.compute((720720,) * 5, lambda a, b, c, d, e: x[a, b, c, d, e] + 1, name="Y")
    task = ts.Task(ts.function([x, y], name="huge"), ts.cpu(1))

    def tiles(sch: ts.TemplateSchedule) -> None:
        for loop in sch.loops("Y"):
            sch.split(loop, sch.sample_tile(loop, parts=4))

    return variant(ts.TemplateSpace(tiles), task)


def test_rows_are_the_rows_one_by_one() -> None:
    v = variant(FEW)
    every = np.stack([v.row(k) for k in range(v.size)])
    np.testing.assert_array_equal(v.rows(0, v.size + 5), every)
    np.testing.assert_array_equal(v.rows(7, 6), every[7:13])
    assert len({tuple(r) for r in every}) == v.size
    assert v.rows(v.size, 3).shape == (0, len(v.columns))


def test_rows_beyond_64_bits() -> None:
    v = large()
    assert v.size > 1 << 64
    rows = v.rows(v.size - 3, 10)
    assert len(rows) == 3
    np.testing.assert_array_equal(rows[-1], v.row(v.size - 1))
    for d, span in zip(v.domains, v.spans, strict=True):
        np.testing.assert_array_equal(rows[-1, span], d.table[-1])


def test_a_grid_has_the_order_of_the_rows() -> None:
    task = matmul_task()
    found = rounds(started(ts.Grid(), FEW, task=task), 100, 4)
    every = all_candidates(task, FEW.sketches(task))
    assert [m.candidate.key for m in found] == [c.key for c in every]
    v = variant(FEW)
    rows = [v.row(k) for k in range(v.size)]
    kept = [v.candidate(r).key for r in rows if v.valid(r[None])[0]]
    assert [c.key for c in every][: len(kept)] == kept
    assert len(kept) < v.size


def test_a_grid_loses_patience_where_nothing_is_valid() -> None:
    v = variant(NONE)
    assert list(v.valid_rows()) == []
    assert len(list(islice(large().valid_rows(patience=100), 500))) == 500
    task = matmul_task()
    search = ts.Grid(patience=10).start(task, MANY.sketches(task), np.random.default_rng(0))
    assert len(search.ask(500)) == 500


def test_random_gives_as_many_as_asked_from_one_variant() -> None:
    task = matmul_task()
    search = ts.Random().start(task, MANY.sketches(task)[:1], np.random.default_rng(0))
    assert len(search.ask(300)) == 300


def test_a_mutation_changes_decisions_at_its_probability() -> None:
    rng, v = np.random.default_rng(0), variant(MANY)
    rows = v.sample(rng, 4000)
    np.testing.assert_array_equal(mutated(v, rng, rows, 0.0), rows)
    new = mutated(v, rng, rows, 0.25)
    assert v.valid(new).all()
    for d, span in zip(v.domains, v.spans, strict=True):
        assert d.contains(new[:, span]).all()
        changed = (new[:, span] != rows[:, span]).any(axis=1).mean()
        assert changed == pytest.approx(0.25, abs=0.03)


def test_children_come_of_fast_parents() -> None:
    """A generation in which one program is far ahead: the next one is of its kind."""
    task = matmul_task()
    search = ts.Genetic(population=40, mutation=0.05).start(
        task, MANY.sketches(task), np.random.default_rng(0)
    )
    first = search.ask(40)
    search.tell(measured(first, lambda c: 1e-9 if c == first[7] else 1e-3))
    catalogue: Catalogue = search.catalogue
    parent = catalogue.individual(first[7])
    assert parent is not None
    shared = []
    for c in search.ask(30):
        child = catalogue.individual(c)
        assert child is not None
        v = catalogue.variant(child.variant)
        assert v is not None
        assert child.variant == parent.variant
        shared.append(sum(child.row[s] == parent.row[s] for s in v.spans))
    assert np.mean(shared) > 1.2  # of three decisions; unrelated rows share next to none


def test_a_generation_of_failures_breeds_nothing() -> None:
    task = matmul_task()
    search = ts.Genetic(population=10).start(task, MANY.sketches(task), np.random.default_rng(0))
    search.tell(measured(search.ask(10), lambda c: ts.Failure("crash")))
    assert not search._parents
    assert len(search.ask(10)) == 10
