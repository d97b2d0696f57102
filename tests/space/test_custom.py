"""Rules and primitives of a user's own are used exactly like the built-in ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from suite import FOUR_CORES, task_of

import tilesmith as ts
from tilesmith.schedule.loops import Reorder
from tilesmith.space.rules import skip
from tilesmith.space.show import show_sketch


@dataclass(frozen=True, slots=True)
class Swap(ts.Step):
    """The two outermost loops of a block change places."""

    name: ClassVar[str] = "swap"
    block: str

    def apply(self, func: ts.Function) -> ts.Function:
        first, second = ts.Schedule(func).loops(self.block)[:2]
        return Reorder((second, first)).apply(func)


def swapped(state: ts.State) -> ts.Derived | None:
    b = state.block
    if len(b.spatial) < 2:
        return None
    return ts.Derived((state.then(Swap(b.name), done=[b.name]),), final=False)


def only_swapped(state: ts.State) -> ts.Derived | None:
    made = swapped(state)
    return None if made is None else ts.Derived(made.states, final=True)


def test_a_rule_adds_to_the_others_where_it_stands() -> None:
    task = task_of("matmul", FOUR_CORES)
    built_in = ts.ansor_rules(task.target)
    plain = ts.SketchSpace(built_in).sketches(task)
    first = ts.SketchSpace((swapped, *built_in)).sketches(task)
    assert [s.steps[0].name for s in first].count("swap") == 1
    assert first[0].steps[0] == Swap("C")
    assert set(plain) < set(first)


def test_a_rule_can_replace_what_follows() -> None:
    task = task_of("matmul", FOUR_CORES)
    (sketch,) = ts.SketchSpace((only_swapped, *ts.ansor_rules(task.target))).sketches(task)
    assert sketch.steps[0] == Swap("C")
    assert "for C.j in 512, C.i in 512" in show_sketch(task, sketch)


def test_its_steps_go_through_json_and_stay_right() -> None:
    task = task_of("matmul", ts.cpu(2), small=True)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((13, 11), np.float32), rng.standard_normal((11, 17), np.float32)
    (sketch,) = ts.SketchSpace((only_swapped, *ts.default_rules(task.target))).sketches(task)
    for v in ts.variants(task, sketch):
        row = v.sample(rng, 1)[0]
        text = v.decided(row).to_json()
        with pytest.raises(ts.TraceError, match="unknown primitive 'swap'"):
            ts.Trace.from_json(text)
        trace = ts.Trace.from_json(text, parts=ts.Parts(primitives=(Swap,)))
        assert trace.apply(task.func) == v.function(row)
        np.testing.assert_allclose(ts.build(v.function(row), task.target)(x, y), x @ y, rtol=1e-4)


def test_settings_of_a_rule_are_its_fields() -> None:
    task = task_of("matmul", FOUR_CORES)

    def flat(state: ts.State) -> ts.Derived | None:
        return ts.Derived((ts.Tiling("SRS", max_innermost=4).apply(state),), final=True)

    (sketch,) = ts.SketchSpace((flat,)).sketches(task)
    (v,) = ts.variants(task, sketch)
    assert v.columns == ("#C.i.0", "#C.i.1", "#C.j.0", "#C.j.1", "#C.k.0")
    assert v.sample(np.random.default_rng(0), 100)[:, [1, 3]].max() == 4
    with pytest.raises(ValueError, match="a tile structure is made of S and R"):
        ts.Tiling("SXR")


def test_a_rule_that_never_finishes_its_node_is_stopped() -> None:
    task = task_of("matmul", FOUR_CORES)

    def endless(state: ts.State) -> ts.Derived | None:
        return ts.Derived((state,), final=True)

    with pytest.raises(ts.ScheduleError, match="may never finish its node"):
        ts.SketchSpace((endless, skip)).sketches(task)
