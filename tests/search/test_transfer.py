"""What was fast for another shape is where a search begins; what a global model says fades."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.search.classic.transfer import Faded
from tilesmith.search.population import Catalogue
from tilesmith.space.domains import domain_of
from tilesmith.task.task import Candidate, Measurement


def task_of(*shape: int) -> ts.Task:
    return ts.Task(operator("matmul", shape), ts.cpu(1))


def drawn(task: ts.Task, count: int, seed: int = 0) -> list[Candidate]:
    catalogue, rng = Catalogue(task, ts.SketchSpace().sketches(task)), np.random.default_rng(seed)
    out = []
    for k in catalogue.some(rng, 4):
        v = catalogue.lowered(k)
        out += [v.candidate(row) for row in v.sample(rng, count // 4)]
    return out


def told(candidates: list[Candidate]) -> list[Measurement]:
    """Speed is a matter of the innermost tile of j: near 32 is good."""
    out = []
    for c in candidates:
        tile = next(s.decision for s in c.trace if getattr(s, "loop", "") == "C.j")
        seconds = 1e-3 * (1 + abs(np.log2(tile[-1] / 32)))
        out.append(Measurement(c, (float(seconds),) * 3, when=0.0))
    return out


def test_the_nearest_tile_keeps_its_inner_factors() -> None:
    here = domain_of(SampleTile("C.i", 3, "any", 64), 100)
    wanted = np.array([[8, 5, 10], [1000, 1, 6], [1, 1, 1]], np.int32)
    found = here.nearest(wanted)
    assert here.contains(found).all()
    assert found.tolist() == [[2, 5, 10], [17, 1, 6], [100, 1, 1]]
    own = here.sample(np.random.default_rng(0), 50)
    assert (here.nearest(own) == own).all()  # what is there is nearest to itself


def test_the_nearest_choice_is_the_same_one_where_it_is_there() -> None:
    domain = domain_of(SampleChoice("#C.unroll", (0, 16, 64, 512)), None)
    assert domain.nearest(np.array([[64], [500], [0]], np.int32)).ravel().tolist() == [64, 512, 0]


def test_programs_of_another_shape_are_had_here() -> None:
    there, here = task_of(96, 64, 160), task_of(56, 200, 72)
    catalogue = Catalogue(here, ts.SketchSpace().sketches(here))
    found = list(catalogue.like(drawn(there, 40)))
    assert sum(len(rows) for _, rows in found) >= 20
    for number, rows in found:
        v = catalogue.lowered(number)
        assert v.valid(rows).all()
        for d, span in zip(v.domains, v.spans, strict=True):
            assert d.contains(rows[:, span]).all()


def test_programs_of_another_operator_are_not() -> None:
    softmax = ts.Task(operator("softmax", (64, 64)), ts.cpu(1))
    catalogue = Catalogue(softmax, ts.SketchSpace().sketches(softmax))
    assert list(catalogue.like(drawn(task_of(64, 64, 64), 8))) == []


def test_a_search_begins_with_the_like_of_what_was_fast() -> None:
    records = told(drawn(task_of(96, 96, 96), 80))
    model = ts.Transfer(records, fastest=4)
    fast = model.familiar()
    cost = {m.candidate: m.cost for m in records}
    assert sorted(cost[c] for c in fast) == sorted(cost.values())[:4]
    here = task_of(120, 80, 144)
    search = ts.Evolution(cost_model=model).start(
        here, ts.SketchSpace().sketches(here), np.random.default_rng(0)
    )
    like = {(k, tuple(map(int, r))) for k, rows in search.catalogue.like(fast) for r in rows}
    assert like
    found = [search.catalogue.individual(c) for c in search.ask(8)]
    assert sum((w.variant, w.row) in like for w in found if w) >= min(3, len(like))
    search.ask(32)  # the rest of them
    search.ask(8)
    assert not len(search._familiar)  # they are not scored for ever


def test_a_search_takes_suggestions_while_it_runs() -> None:
    here = task_of(120, 80, 144)
    search = ts.Evolution().start(
        here, ts.SketchSpace().sketches(here), np.random.default_rng(0)
    )  # fmt: skip
    search.tell(told(search.ask(8)))
    fast = drawn(task_of(96, 96, 96), 4)
    search.suggest(fast)
    like = {(k, tuple(map(int, r))) for k, rows in search.catalogue.like(fast) for r in rows}
    assert like
    found = [search.catalogue.individual(c) for c in search.ask(16)]
    assert sum((w.variant, w.row) in like for w in found if w) >= min(3, len(like))
    search.suggest(drawn(ts.Task(operator("softmax", (64, 64)), ts.cpu(1)), 2))
    assert len(search.ask(8)) == 8


def test_what_others_teach_fades() -> None:
    model = ts.Transfer(told(drawn(task_of(96, 96, 96), 80)), share=0.5, fading=10.0)
    here = told(drawn(task_of(64, 64, 64), 12))
    found = [model.fit(here[:n]) for n in (0, 10, 12)]
    assert all(isinstance(p, Faded) for p in found)
    assert [p.share for p in found] == pytest.approx([0.5, 0.25, 0.5 * 10 / 22])
    task = here[0].candidate.task
    v = Catalogue(task, ts.SketchSpace().sketches(task)).lowered(0)
    rows = v.sample(np.random.default_rng(0), 20)
    full, base = found[0].model.with_base([(v, rows)])
    assert abs(full - base).max() > 0.1
    assert Faded(found[0].model, 0.0).predict(v, rows) == pytest.approx(base)
    assert Faded(found[0].model, 1.0).predict(v, rows) == pytest.approx(full)
