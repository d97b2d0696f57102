"""Templates: schedule functions with decisions left open, and spaces that join them."""

from __future__ import annotations

import numpy as np
import pytest
from suite import FOUR_CORES, sketches_of

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.schedule.sample import Require, SamplePermutation


def matmul_relu(n: int = 12, m: int = 10, k: int = 9) -> ts.Function:
    a, b = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    return ts.function([a, b, ts.ops.relu(ts.ops.matmul(a, b, name="C"), name="D")], name="mm")


TASK = ts.Task(matmul_relu(), ts.cpu(num_cores=2))


def blocked(sch: ts.TemplateSchedule) -> None:
    """Every kind of decision that there is."""
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, sch.sample_tile(i, parts=2, policy="both"))
    j0, j1 = sch.split(j, sch.sample_tile(j, parts=2, max_innermost=5), exact=True)
    k0, k1 = sch.split(k, [None, sch.sample_choice([1, 2, 4], name="depth")])
    sch.reorder(i0, j0, k0, k1, i1, j1)
    sch.sample_permutation([k0, k1, i1])
    sch.require("#C.i.1 * #C.j.1", most=20)
    sch.unroll(k1, sch.sample_choice([0, 16]))
    sch.vectorize(j1)
    sch.reverse_compute_at("D", sch.sample_location("D", ["root", i0, j0]))


def made(template: object, task: ts.Task = TASK) -> list[ts.Variant]:
    space = ts.TemplateSpace(template)  # type: ignore[arg-type]
    return [v for s in space.sketches(task) for v in ts.variants(task, s)]


def test_every_structure_is_a_sketch() -> None:
    sketches = ts.TemplateSpace(blocked).sketches(TASK)
    assert len(sketches) == 6 * 3  # orders of three loops, places for D
    orders = {s.decision for t in sketches for s in t if isinstance(s, SamplePermutation)}
    assert len(orders) == 6


def test_candidates_are_right_and_go_through_json() -> None:
    rng = np.random.default_rng(0)
    arrays = random_inputs(TASK.func, rng)
    want = ts.evaluate(TASK.func, *arrays)
    for v in made(blocked)[::4]:
        a = v.sample(rng, 20)
        rows = np.concatenate([a, v.mutate(rng, a), v.cross(rng, a, a[::-1])])
        assert v.valid(rows).all()
        row = rows[rng.integers(len(rows))]
        decided = ts.Trace.from_json(v.decided(row).to_json())
        assert decided == v.decided(row)
        assert decided.apply(TASK.func) == v.function(row)
        assert_close(ts.build(v.function(row), TASK.target)(*arrays), want, f"{decided}")


def test_a_bound_across_decisions_is_honoured_without_enumerating() -> None:
    def template(sch: ts.TemplateSchedule) -> None:
        i, j, _ = sch.loops("C")
        parts = [sch.sample_tile(loop, parts=4) for loop in (i, j)]
        sch.split(i, parts[0], exact=True)
        sch.split(j, parts[1], exact=True)
        sch.require(f"{parts[0][3]} * {parts[1][3]}", most=64, least=16)
        sch.require(f"{parts[0][3]} // {parts[1][3]} + {parts[0][2]} % 2", most=2)

    task = ts.Task(matmul_relu(4096, 4096, 8), FOUR_CORES)
    (v,) = made(template, task)
    assert v.size == 455**2
    rows = v.sample(np.random.default_rng(0), 500)
    at = {c: rows[:, k].astype(int) for k, c in enumerate(v.columns)}
    tile = at["#C.i.3"] * at["#C.j.3"]
    assert len(rows) == 500
    assert tile.min() >= 16
    assert tile.max() <= 64
    assert (at["#C.i.3"] // at["#C.j.3"] + at["#C.i.2"] % 2).max() <= 2


def test_a_decided_trace_checks_its_own_bounds() -> None:
    (v, *_) = made(blocked)
    bad = next(r for r in map(v.row, range(v.size)) if not v.valid(r[None])[0])
    decided = v.decided(bad)
    assert any(isinstance(s, Require) and s.value.const is not None for s in decided.resolved)
    with pytest.raises(ts.ScheduleError, match=r"require: \d+ must lie in 0\.\.20"):
        decided.apply(TASK.func)


def test_require_takes_decisions_only() -> None:
    with pytest.raises(ts.ScheduleError, match="uses k; it takes size variables"):
        Require("k * 2", most=4).apply(TASK.func)

    def template(sch: ts.TemplateSchedule) -> None:
        sch.sample_tile("C.i", parts=2)
        sch.require("#C.i.1 * #C.j.1", most=4)

    with pytest.raises(ts.ScheduleError, match=r"#C\.j\.1 is no decision; so far there are #C\.i"):
        made(template)


def test_a_filter_and_a_list_of_candidates() -> None:
    def template(sch: ts.TemplateSchedule) -> None:
        i, j, _ = sch.loops("C")
        sch.split(i, sch.sample_tile(i, parts=3, where=lambda t: t[1] == t[2]))
        sch.split(j, sch.sample_tile(j, parts=2, candidates=[(2, 5), (3, 4), (1, 10)]))

    (v,) = made(template)
    tiles, listed = v.domains
    assert sorted(map(tuple, tiles.table.tolist())) == [(3, 2, 2), (12, 1, 1)]
    assert listed.table.tolist() == [[2, 5], [3, 4], [1, 10]]
    row = v.row(v.size - 1)
    assert v.function(row) == v.decided(row).apply(TASK.func)


def test_a_filter_that_accepts_nothing_says_so() -> None:
    def template(sch: ts.TemplateSchedule) -> None:
        sch.sample_tile("C.i", parts=2, where=lambda t: t[0] > 100)

    with pytest.raises(ts.ScheduleError, match=r"template: sample_tile of C.i: the filter accepts"):
        made(template)


def test_what_a_template_refuses_is_left_out() -> None:
    def template(sch: ts.TemplateSchedule) -> None:
        k = sch.loops("C")[2]
        place = sch.sample_location("D", ["root", "C.i", "C.j", k])  # D cannot be inside the sum
        sch.reverse_compute_at("D", place)

    assert len(ts.TemplateSpace(template).sketches(TASK)) == 3


def test_legal_places_are_found() -> None:
    def template(sch: ts.TemplateSchedule) -> None:
        sch.reverse_compute_at("D", sch.sample_location("D"))

    assert len(ts.TemplateSpace(template).sketches(TASK)) == 3


def test_a_template_that_refuses_everything_is_an_error() -> None:
    def hopeless(sch: ts.TemplateSchedule) -> None:
        sch.parallel(sch.sample_location("C", ["C.k", "C.nothing"]))

    with pytest.raises(
        ts.ScheduleError, match=r"hopeless refuses every structure of mm; the first: .*C\.k"
    ):
        made(hopeless)

    def broken(sch: ts.TemplateSchedule) -> None:
        sch.split("C.q", [None, 2])

    with pytest.raises(ts.ScheduleError, match=r"the template broken: .*C\.q"):
        made(broken)


def test_an_unknown_policy_is_named() -> None:
    def template(sch: ts.TemplateSchedule) -> None:
        sch.sample_tile("C.i", parts=2, policy="primes")

    with pytest.raises(ts.ScheduleError, match="unknown policy 'primes'; known are divisors"):
        made(template)


def test_a_union_has_each_sketch_once() -> None:
    space = ts.SketchSpace(ts.ansor_rules(TASK.target))
    template = ts.TemplateSpace(blocked)
    union = ts.UnionSpace(space, template, ts.UnionSpace(template, space))
    assert union.sketches(TASK) == (*space.sketches(TASK), *template.sketches(TASK))


def test_sketches_templates_and_hand_schedules_are_the_same_kind_of_trace() -> None:
    sch = ts.Schedule(TASK.func)
    sch.split("C.i", [None, 4])
    traces = [sch.trace, *ts.TemplateSpace(blocked).sketches(TASK), *sketches_of(TASK, "default")]
    for trace in traces:
        assert ts.Trace.from_json(trace.to_json()) == trace
    (v,) = ts.variants(TASK, sch.trace)
    assert (v.size, v.columns) == (1, ())
    assert v.function(v.row(0)) == sch.func
    assert len(v.sample(np.random.default_rng(0), 3)) == 3
