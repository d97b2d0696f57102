"""Derivation of many sketches: it is bounded, keeps what the rules prefer, and says what it left
out; what a user's rule or space returns is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from suite import FOUR_CORES, RULES, task_of

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.ir.nodes import walk
from tilesmith.schedule.cache import CacheRead
from tilesmith.schedule.loops import Reorder
from tilesmith.schedule.sample import SampleTile
from tilesmith.search.population import Catalogue
from tilesmith.space.derive import derive
from tilesmith.space.rules import skip
from tilesmith.space.show import show_sketches
from tilesmith.space.spaces import (
    SketchSpace,
    SketchWarning,
    sketches_of,
    some_structures,
    structural_counts,
    structured,
    with_structure,
)


def chain(count: int, size: int = 64) -> ts.Function:
    """X @ W0 @ W1 @ ..."""
    x = ts.placeholder((size, size), name="X")
    weights = [ts.placeholder((size, size), name=f"W{n}") for n in range(count)]
    value = x
    for n, w in enumerate(weights):
        value = ts.ops.matmul(value, w, name=f"M{n}")
    return ts.function([x, *weights, value], name=f"chain{count}")


def perceptron(layers: int, size: int = 64) -> ts.Function:
    x = ts.placeholder((16, size), name="X")
    params, value = [x], x
    for n in range(layers):
        w, b = ts.placeholder((size, size), name=f"W{n}"), ts.placeholder((size,), name=f"B{n}")
        params += [w, b]
        y = ts.ops.matmul(value, w, name=f"Y{n}")

        def activated(i: Any, j: Any, y: Any = y, b: Any = b) -> Any:
            return ts.maximum(y[i, j] + b[j], 0)

        value = ts.compute((16, size), activated, name=f"R{n}")
    return ts.function([*params, value], name="perceptron")


def attention(heads: int = 4, rows: int = 24, depth: int = 16) -> ts.Function:
    q, k, v = (ts.placeholder((heads, rows, depth), name=n) for n in "QKV")
    d, r = ts.reduce_axis(depth, name="d"), ts.reduce_axis(rows, name="r")
    scores = ts.compute(
        (heads, rows, rows), lambda h, i, j: ts.sum(q[h, i, d] * k[h, j, d], axis=d), name="S"
    )
    scaled = ts.compute((heads, rows, rows), lambda h, i, j: scores[h, i, j] * 0.25, name="T")
    p = ts.ops.softmax(scaled, name="P")
    out = ts.compute(
        (heads, rows, depth), lambda h, i, j: ts.sum(p[h, i, r] * v[h, r, j], axis=r), name="O"
    )
    return ts.function([q, k, v, out], name="attention")


def tiled_blocks(sketch: ts.Trace) -> set[str]:
    return {s.loop.split(".")[0] for s in sketch if isinstance(s, SampleTile)}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("count", [6, 20])
def test_a_long_chain_derives_with_bounded_work(count: int, rules: str) -> None:
    task = ts.Task(chain(count), FOUR_CORES)
    found = SketchSpace(RULES[rules](task.target)).derive(task)
    assert 0 < len(found.traces) <= 256
    assert found.left_out > 0
    assert f"{len(found.traces)} sketches are searched" in found.warning
    assert str(found.left_out) in found.warning
    for sketch in found.traces:
        assert tiled_blocks(sketch) == {f"M{n}" for n in range(count)}


def test_every_stage_of_a_long_chain_has_its_preferred_choice() -> None:
    """Of a large operand a packed copy is preferred, of a small one none; the first sketches that
    are kept differ from that in one stage.
    """
    for size, packed in ((16, 0), (512, 12)):
        task = ts.Task(chain(12, size), FOUR_CORES)
        kept = SketchSpace().derive(task).traces
        copies = [sum(isinstance(s, CacheRead) for s in sketch) for sketch in kept]
        assert packed in copies
        assert {abs(n - packed) for n in copies} <= {0, 1, 2}
        (one,) = SketchSpace(most=1).derive(task).traces
        assert sum(isinstance(s, CacheRead) for s in one) == packed
        orders = [s.loops[:2] for s in one if isinstance(s, Reorder)]
        assert orders == [(f"M{n}.i.0", f"M{n}.j.0") for n in reversed(range(12))]


@pytest.mark.parametrize("func", [chain(3), perceptron(8), attention()], ids=lambda f: f.name)
def test_fewer_sketches_are_some_of_all(func: ts.Function) -> None:
    task = ts.Task(func, FOUR_CORES)
    everything = SketchSpace().derive(task)
    few = SketchSpace(most=3).derive(task)
    assert len(few.traces) == 3
    assert few.left_out > 0
    order = [everything.traces.index(t) for t in few.traces]
    assert order == sorted(order)
    assert few == SketchSpace(most=3).derive(task)


def test_what_is_left_out_is_warned_of() -> None:
    task = ts.Task(chain(3), FOUR_CORES)
    found = SketchSpace(most=2).derive(task)
    with pytest.warns(SketchWarning, match=f"chain3: 2 sketches .*; {found.left_out} branches"):
        assert SketchSpace(most=2).sketches(task) == found.traces
    with pytest.warns(SketchWarning, match="chain3: 2 sketches"):
        ts.UnionSpace(SketchSpace(most=2)).sketches(task)


def test_where_all_are_derived_nothing_is_said() -> None:
    found = SketchSpace().derive(task_of("matmul", FOUR_CORES))
    assert (found.left_out, found.warning) == (0, "")
    assert found.traces == SketchSpace().sketches(task_of("matmul", FOUR_CORES))


@pytest.mark.parametrize("func", [chain(7, 9), perceptron(8, 10)], ids=lambda f: f.name)
def test_sketches_of_long_graphs_keep_the_meaning(func: ts.Function) -> None:
    rng = np.random.default_rng(0)
    task = ts.Task(func, ts.cpu(2))
    arrays = random_inputs(func, rng)
    want = ts.evaluate(func, *arrays)
    sketches = SketchSpace(most=24).derive(task).traces
    for k in rng.choice(len(sketches), 3, replace=False):
        search = ts.Random().start(task, (sketches[k],), rng)
        (c,) = search.ask(1)
        assert_close(ts.build(c.trace.apply(func), task.target)(*arrays), want, str(c.trace))


def test_a_union_adds_up_what_its_spaces_left_out() -> None:
    task = ts.Task(chain(3), FOUR_CORES)
    one, two = SketchSpace(most=1), SketchSpace(most=2)
    both = ts.UnionSpace(one, two).derive(task)
    assert both.traces == tuple(dict.fromkeys((*one.derive(task).traces, *two.derive(task).traces)))
    assert both.left_out == one.derive(task).left_out + two.derive(task).left_out


def test_what_was_left_out_is_shown() -> None:
    task = ts.Task(chain(3), FOUR_CORES)
    found = SketchSpace(most=2).derive(task)
    text = show_sketches(task, found.traces, found.warning)
    assert text.splitlines()[0] == "chain3: 2 sketches"
    assert text.splitlines()[1] == found.warning


# structures of a sketch


def test_few_structures_are_all_kept_in_order() -> None:
    assert some_structures((2, 3), 6) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert some_structures((), 5) == [()]


@pytest.mark.parametrize("counts", [(4,) * 12, (2,) * 30, (7, 1, 3, 5, 6, 4, 4)])
def test_many_structures_are_sampled_from_all_decisions(counts: tuple[int, ...]) -> None:
    picked = some_structures(counts, 512)
    assert len(picked) == len(set(picked)) == 512
    assert picked == some_structures(counts, 512)
    every = np.array(picked)
    assert (0,) * len(counts) in picked
    assert tuple(n - 1 for n in counts) in picked
    for column, count in zip(every.T, counts, strict=True):
        # no decision is nearly always the same, as it would be for the first ones in order
        assert np.bincount(column, minlength=count).min() >= 512 / count / 2


def test_a_catalogue_says_what_it_left_out() -> None:
    x = ts.placeholder((8, 8), name="X")
    value = x
    for n in range(10):
        value = ts.compute((8, 8), lambda i, j, v=value: ts.exp(v[i, j]), name=f"E{n}")
    task = ts.Task(ts.function([x, value], name="exps"), FOUR_CORES)
    (sketch,) = SketchSpace().sketches(task)
    counts = structural_counts(sketch)
    found = Catalogue(task, (sketch,))
    assert len(found) == 512
    assert found.left_out == int(np.prod(counts)) - 512 > 0
    traces = [found.trace(k) for k in range(len(found))]
    inlined = [sum(s.decision == "inline" for s in t if hasattr(s, "places")) for t in traces]
    assert min(inlined) == 0
    assert max(inlined) == 9
    few = task_of("softmax", FOUR_CORES)
    assert Catalogue(few, SketchSpace().sketches(few)).left_out == 0


def test_a_structure_by_its_picks() -> None:
    (sketch,) = SketchSpace().sketches(task_of("softmax", FOUR_CORES))
    every = list(structured(sketch))
    picks = some_structures(structural_counts(sketch), 10**6)
    assert [with_structure(sketch, p) for p in picks] == every


# what users give


def not_derived(state: ts.State) -> Any:
    return (state.skip(),)


def a_trace(state: ts.State) -> Any:
    return ts.Trace(state.steps)


def a_string(state: ts.State) -> Any:
    return "skip"


def a_generator(state: ts.State) -> Any:
    yield state.skip()


def of_a_generator(state: ts.State) -> Any:
    return ts.Derived(s for s in [state.skip()])  # type: ignore[arg-type]


def of_one_state(state: ts.State) -> Any:
    return ts.Derived(state.skip())  # type: ignore[arg-type]


def of_traces(state: ts.State) -> Any:
    return ts.Derived((ts.Trace(state.steps),))  # type: ignore[arg-type]


def of_another_task(state: ts.State) -> Any:
    other = task_of("norm", FOUR_CORES)
    return ts.Derived((ts.State(other, other.func),), final=True)


def prefers_too_much(state: ts.State) -> Any:
    return ts.Derived((state.skip(),), preferred=1)


def raises(state: ts.State) -> Any:
    raise ZeroDivisionError("nothing left")


def refuses(state: ts.State) -> Any:
    return ts.Derived((state.then(Reorder(("a", "b"))),))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (not_derived, "returns a tuple; a rule returns Derived"),
        (a_trace, "returns the Trace Trace(steps=()); a rule returns Derived"),
        (a_string, "returns the text 'skip'; a rule returns Derived"),
        (a_generator, "returns a generator; a rule returns Derived"),
        (
            of_a_generator,
            "Derived(states=...) is given a generator; it takes a tuple, each a State",
        ),
        (of_one_state, "Derived(states=...) is given a State; it takes a tuple, each a State"),
        (of_traces, "with the Trace Trace(steps=()); it takes a tuple, each a State"),
        (of_another_task, "returns a state of another task, norm"),
        (prefers_too_much, "prefers state 1 of 1"),
        (raises, "raises ZeroDivisionError: nothing left"),
        (refuses, "raises ScheduleError"),
    ],
)
def test_a_rule_that_returns_the_wrong_thing_is_named(rule: Any, said: str) -> None:
    task = task_of("matmul", FOUR_CORES)
    with pytest.raises(ts.ScheduleError) as caught:
        SketchSpace((rule, *ts.default_rules(task.target))).sketches(task)
    assert f"the rule {rule.__name__}, asked about the block C of matmul" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((), "there are no rules"),
        ((lambda state: None,), "derive no sketch of matmul"),
        (("skip",), "with the text 'skip'; it takes a tuple, each a function of a State"),
        ((ts.Tiling,), "a rule is a callable .*, not the class Tiling"),
        (skip, "is given a function; it takes a tuple, each a function of a State"),
        ("abc", "is given the text 'abc'; it takes a tuple, each a function of a State"),
    ],
)
def test_rules_that_are_none(rules: Any, said: str) -> None:
    with pytest.raises(ts.ScheduleError, match=said):
        SketchSpace(rules).sketches(task_of("matmul", FOUR_CORES))


def test_a_finish_that_returns_nothing_is_named() -> None:
    class Careless:
        def __call__(self, state: ts.State) -> ts.Derived | None:
            return None

        def finish(self, state: ts.State) -> Any:
            return None

    with pytest.raises(ts.ScheduleError, match="finish of the rule Careless returns"):
        SketchSpace((skip, Careless())).sketches(task_of("matmul", FOUR_CORES))


class Returning:
    def __init__(self, what: object) -> None:
        self.what = what

    def sketches(self, task: ts.Task) -> Any:
        return self.what


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (None, "Returning returns None; sketches"),
        ("abc", "Returning returns the text 'abc'; sketches"),
        (ts.Trace(()), r"Returning returns the Trace Trace\(steps=\(\)\); sketches"),
        ((None,), "Returning returns None as a sketch"),
        ((), "Returning has no sketch of matmul"),
    ],
)
def test_a_space_that_returns_the_wrong_thing_is_named(what: object, said: str) -> None:
    task = task_of("matmul", FOUR_CORES)
    with pytest.raises(ts.ScheduleError, match=said):
        sketches_of(Returning(what), task)
    with pytest.raises(ts.ScheduleError, match=said):
        ts.UnionSpace(Returning(what), SketchSpace()).sketches(task)
    with pytest.raises(ts.ScheduleError, match=said):
        ts.tune(task.func, space=Returning(what), budget=ts.Budget(trials=1), quiet=True)
    if what == ():  # a search of no sketches proposes nothing
        return
    with pytest.raises(ts.TuneError, match="it takes a list, each a trace"):
        ts.Evolution().start(task, Returning(what).sketches(task), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ts.UnionSpace(), "one space or more"),
        (lambda: SketchSpace(most=0), "at least one sketch"),
        (
            lambda: ts.TemplateSpace("abc"),
            "given the text 'abc'; it takes a function of a TemplateSchedule",
        ),  # type: ignore[arg-type]
        (
            lambda: ts.TemplateSpace(None),
            "is given None; it takes a function of a TemplateSchedule",
        ),  # type: ignore[arg-type]
    ],
)
def test_spaces_of_nothing(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ts.ScheduleError, match=said):
        make()


@pytest.mark.parametrize("space", [SketchSpace, "abc", None])
def test_what_is_no_space_is_refused(space: Any) -> None:
    """By a union; tests/tune/test_inputs.py has what tune says."""
    task = task_of("matmul", FOUR_CORES)
    with pytest.raises(ts.ScheduleError, match=r"it takes a space, .* with sketches"):
        ts.UnionSpace(space).sketches(task)


def test_a_template_returns_nothing() -> None:
    def returning(sch: ts.TemplateSchedule) -> Any:
        sch.split(sch.loops("C")[0], sch.sample_tile(sch.loops("C")[0], parts=2))
        return sch

    with pytest.raises(ts.ScheduleError, match="the template returning: it returns a Template"):
        ts.TemplateSpace(returning).sketches(task_of("matmul", FOUR_CORES))


def test_a_template_without_decisions_is_one_candidate() -> None:
    def fixed(sch: ts.TemplateSchedule) -> None:
        sch.vectorize(sch.loops("C")[1])

    task = task_of("matmul", FOUR_CORES)
    sketches: Sequence[ts.Trace] = ts.TemplateSpace(fixed).sketches(task)
    assert len(sketches) == 1
    search = ts.Evolution().start(task, sketches, np.random.default_rng(0))
    assert len(search.ask(4)) == 1


def test_a_state_that_ends_early_is_no_loop() -> None:
    """A rule that makes no state of a block, and is final, ends that branch only."""

    def sometimes(state: ts.State) -> ts.Derived | None:
        return ts.Derived((), final=True) if state.steps else None

    task = task_of("matmul", FOUR_CORES)
    found = derive(task, (sometimes, *ts.ansor_rules(task.target)))
    assert all(len(list(walk(s.func.body))) >= 1 for s in found.finished)
