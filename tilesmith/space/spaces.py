"""Spaces: which programs of a task to search, as sketches (traces with open decisions). A sketch
whose structural decisions are made is a variant; its open decisions are numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import product
from math import gcd, prod
from typing import Protocol, runtime_checkable

from tilesmith.base.errors import ScheduleError
from tilesmith.schedule.sample import SampleLocation, SamplePermutation
from tilesmith.schedule.trace import Trace
from tilesmith.space.derive import MOST_SKETCHES, derive, described
from tilesmith.space.sets import default_rules
from tilesmith.space.state import Rule
from tilesmith.space.template import TemplateSchedule, structures
from tilesmith.space.variant import Variant, lower, structural_samples
from tilesmith.task.task import Task


class Space(Protocol):
    def sketches(self, task: Task) -> tuple[Trace, ...]:
        """Open traces, in a stable order."""
        ...


@dataclass(frozen=True)
class Sketches:
    """What a space derived. `left_out` counts branches that were not followed because there are too
    many; each stands for one sketch or more.
    """

    traces: tuple[Trace, ...]
    left_out: int = 0

    @property
    def warning(self) -> str:
        """A message for the user if sketches were left out, else empty."""
        if not self.left_out:
            return ""
        return (
            f"{len(self.traces)} sketches are searched; {self.left_out} branches or more were left "
            "out, those furthest from what the rules prefer"
        )


@runtime_checkable
class Bounded(Protocol):
    """A space that may leave out sketches and reports how many."""

    def derive(self, task: Task) -> Sketches: ...


class SketchWarning(UserWarning):
    """A space has more sketches than are searched."""


def sketches_of(space: Space, task: Task) -> Sketches:
    """The sketches of a space. The result is checked, since a space may be a user's own."""
    require_space(space)
    name = type(space).__name__
    if isinstance(space, Bounded):
        found = space.derive(task)
        if not isinstance(found, Sketches):
            raise ScheduleError(f"derive of {name} returns {described(found)}; it returns Sketches")
        return Sketches(require_sketches(found.traces, task, name), found.left_out)
    return Sketches(require_sketches(space.sketches(task), task, name))


def require_space(space: object) -> None:
    if isinstance(space, type) or not callable(getattr(space, "sketches", None)):
        raise ScheduleError(
            f"a space is an object with sketches(task), such as ts.SketchSpace(), not "
            f"{described(space)}"
        )


_WANTED = "sketches(task) of a space returns a tuple of Traces"


def require_sketches(found: object, task: Task, space: str) -> tuple[Trace, ...]:
    """What a space returned: one Trace or more."""
    traces = require_traces(found, space)
    if not traces:
        raise ScheduleError(f"{space} has no sketch of {task.func.name}; {_WANTED}, one at least")
    return traces


def require_traces(found: object, space: str = "the space") -> tuple[Trace, ...]:
    """A sequence of Traces, which may be empty."""
    if not isinstance(found, tuple | list):
        raise ScheduleError(f"{space} returns {described(found)}; {_WANTED}")
    for trace in found:
        if not isinstance(trace, Trace):
            raise ScheduleError(f"{space} returns {described(trace)} as a sketch; {_WANTED}")
    return tuple(found)


@dataclass(frozen=True)
class SketchSpace:
    """Sketches derived by `rules`; None stands for `default_rules` of the task's target.

    At most `most` are derived, fewer for computations with many blocks, so that it takes seconds at
    most. `derive` returns how many branches were left out; `sketches` warns about them.
    """

    rules: tuple[Rule, ...] | None = None
    most: int = MOST_SKETCHES

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ScheduleError(f"a space has at least one sketch; most={self.most} is too few")

    def derive(self, task: Task) -> Sketches:
        rules = default_rules(task.target) if self.rules is None else self.rules
        derived = derive(task, rules, self.most)
        traces = dict.fromkeys(Trace(state.steps) for state in derived.finished)
        return Sketches(tuple(traces), derived.left_out)

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        return _warned(self.derive(task), task)


@dataclass(frozen=True)
class TemplateSpace:
    """A schedule function with open decisions. Each combination of its structural decisions is one
    sketch; those for which it raises a ScheduleError are left out.
    """

    template: Callable[[TemplateSchedule], None]

    def __post_init__(self) -> None:
        if not callable(self.template):
            raise ScheduleError(
                f"a template is a function that takes a TemplateSchedule, not "
                f"{described(self.template)}"
            )

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        return tuple(dict.fromkeys(structures(task, self._checked)))

    @property
    def _checked(self) -> Callable[[TemplateSchedule], None]:
        @wraps(self.template)
        def checked(sch: TemplateSchedule) -> None:
            made: object = self.template(sch)  # type: ignore[func-returns-value]
            if made is not None:
                raise ScheduleError(
                    f"it returns {described(made)}; a template changes the schedule that it is "
                    "given and returns nothing"
                )

        return checked


class UnionSpace:
    """The union of the sketches of several spaces."""

    def __init__(self, *spaces: Space) -> None:
        if not spaces:
            raise ScheduleError("a UnionSpace is made of one space or more, not of none")
        self.spaces = spaces

    def derive(self, task: Task) -> Sketches:
        found = [sketches_of(s, task) for s in self.spaces]
        traces = dict.fromkeys(t for f in found for t in f.traces)
        return Sketches(tuple(traces), sum(f.left_out for f in found))

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        return _warned(self.derive(task), task)


def _warned(found: Sketches, task: Task) -> tuple[Trace, ...]:
    if found.warning:
        warnings.warn(f"{task.func.name}: {found.warning}", SketchWarning, stacklevel=3)
    return found.traces


def variants(task: Task, sketch: Trace) -> Iterator[Variant]:
    """Every legal combination of structural decisions, lowered lazily."""
    for trace in structured(sketch):
        try:
            yield lower(task, trace)
        except ScheduleError:
            continue


def structured(sketch: Trace) -> Iterator[Trace]:
    """The sketch with every combination of structural decisions, legal or not."""
    for picked in product(*map(range, structural_counts(sketch))):
        yield with_structure(sketch, picked)


def structural_counts(sketch: Trace) -> tuple[int, ...]:
    """The number of choices of each structural decision, in the order of the steps."""
    return tuple(len(_choices(sketch, k)) for k in structural_samples(sketch))


def with_structure(sketch: Trace, picked: Sequence[int]) -> Trace:
    """The sketch with each structural decision set to the choice at the picked position."""
    steps = list(sketch.steps)
    for k, at in zip(structural_samples(sketch), picked, strict=True):
        steps[k] = replace(steps[k], decision=_choices(sketch, k)[at])  # type: ignore[call-arg]
    return Trace(tuple(steps))


def some_structures(counts: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Picks for `structural_counts`: all of them where there are no more than `most`, in order.

    Otherwise a sample that does not favour any decision. First those that take the same kind of
    choice everywhere: the k-th from the front, the k-th from the back (a place far outside, a place
    close to where it is used). The rest are spread evenly over all combinations.
    """
    total = prod(counts)
    if total <= most:
        return list(product(*map(range, counts)))
    found: dict[tuple[int, ...], None] = {}
    for k in range(max(counts)):
        found[tuple(min(k, n - 1) for n in counts)] = None
        found[tuple(max(n - 1 - k, 0) for n in counts)] = None
    # Multiples of the golden ratio's share of the total, modulo the total, are spread evenly, and
    # visit every number where the two have no common divisor.
    step = round(total * 0.6180339887)
    while gcd(step, total) != 1:
        step += 1
    at = 0
    while len(found) < most:
        digits, rest = [], at
        for n in reversed(counts):
            rest, digit = divmod(rest, n)
            digits.append(digit)
        found[tuple(reversed(digits))] = None
        at = (at + step) % total
    return sorted(found)[:most] if len(found) > most else sorted(found)


def _choices(sketch: Trace, at: int) -> Sequence[object]:
    step = sketch.steps[at]
    assert isinstance(step, SampleLocation | SamplePermutation)
    return step.choices
