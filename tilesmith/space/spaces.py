"""Spaces: which programs of a task are worth trying, as open traces. A trace with its structural
decisions made is a variant; the rest is numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from tilesmith.base.errors import ScheduleError
from tilesmith.schedule.sample import SampleLocation, SamplePermutation
from tilesmith.schedule.trace import Trace
from tilesmith.space.sets import default_rules
from tilesmith.space.state import Rule, derive
from tilesmith.space.template import TemplateSchedule, structures
from tilesmith.space.variant import Variant, lower, structural_samples
from tilesmith.task.task import Task


class Space(Protocol):
    def sketches(self, task: Task) -> tuple[Trace, ...]:
        """Open traces, in a stable order."""
        ...


@dataclass(frozen=True)
class SketchSpace:
    """Sketches derived by rules; None stands for the default ones of the task's target."""

    rules: tuple[Rule, ...] | None = None

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        rules = default_rules(task.target) if self.rules is None else tuple(self.rules)
        traces = [Trace(state.steps) for state in derive(task, rules)]
        return tuple(dict.fromkeys(traces))


@dataclass(frozen=True)
class TemplateSpace:
    """A schedule function with decisions left open. Each structure it can take is one sketch; those
    that it refuses are left out.
    """

    template: Callable[[TemplateSchedule], None]

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        return tuple(dict.fromkeys(structures(task, self.template)))


class UnionSpace:
    """All sketches of several spaces, each once."""

    def __init__(self, *spaces: Space) -> None:
        self.spaces = spaces

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        return tuple(dict.fromkeys(t for s in self.spaces for t in s.sketches(task)))


def variants(task: Task, sketch: Trace) -> Iterator[Variant]:
    """Every legal combination of structural decisions, lowered as it is asked for."""
    for trace in structured(sketch):
        try:
            yield lower(task, trace)
        except ScheduleError:
            continue


def structured(sketch: Trace) -> Iterator[Trace]:
    """The sketch with its structural decisions made in all ways, legal or not."""
    at = structural_samples(sketch)
    choices = []
    for k in at:
        step = sketch.steps[k]
        assert isinstance(step, SampleLocation | SamplePermutation)
        choices.append(step.choices)
    for picked in product(*choices):
        steps = list(sketch.steps)
        for k, choice in zip(at, picked, strict=True):
            steps[k] = replace(steps[k], decision=choice)  # type: ignore[call-arg]
        yield Trace(tuple(steps))
