"""Spaces: the programs of a task to search, as sketches (traces with open decisions). A sketch
whose structural decisions are made is a variant; only numbers are open in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from itertools import product
from math import gcd, prod
from typing import Protocol, runtime_checkable

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import a, checks_given
from tilesmith.base.target import Target
from tilesmith.schedule.sample import SampleLocation, SamplePermutation
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.space.derive import MOST_SKETCHES, Rule, derive
from tilesmith.space.instructions import TileByInstruction
from tilesmith.space.sets import default_rules, usable
from tilesmith.space.template import TemplateSchedule
from tilesmith.space.variant import Variant, lower, structural_samples
from tilesmith.task.task import Task, require_accuracy

_MOST_STRUCTURES = 4096
_MOST_CHECKED = 1 << 14  # rows of a structure that are all checked; larger ones are sampled


def structures(task: Task, template: Callable[[TemplateSchedule], None]) -> Iterator[Trace]:
    """One open trace for every combination of structural decisions, except for refused ones."""
    pending: list[tuple[int, ...]] = [()]
    runs = yielded = 0
    first: ScheduleError | None = None
    while pending:
        picks = pending.pop(0)
        runs += 1
        if runs > _MOST_STRUCTURES:
            raise ScheduleError(
                f"the template {_name(template)} has more than {_MOST_STRUCTURES} structures; "
                "sample fewer locations or orders, or branch on fewer numbers"
            )
        sch = TemplateSchedule(task, picks)
        refused = False
        try:
            template(sch)
        except ScheduleError as e:
            if not sch.options:
                raise ScheduleError(f"the template {_name(template)}: {e}") from None
            first = first or e
            refused = True
        # decisions beyond the given picks took their first choice; their other choices are next
        full = [*picks, *([0] * (len(sch.options) - len(picks)))]
        for at in range(len(picks), len(sch.options)):
            for other in range(1, sch.options[at]):
                pending.append((*full[:at], other))
        if not refused and (not sch.branched or _has_rows(task, sch.trace)):
            yielded += 1
            yield sch.trace
    if not yielded:
        raise ScheduleError(
            f"the template {_name(template)} refuses every structure of {task.func.name}; the "
            f"first: {first or 'no numbers agree with its branches'}"
        )


def _has_rows(task: Task, trace: Trace) -> bool:
    """Whether any row satisfies the bounds that the template's branches have set."""
    try:
        v = lower(task, trace)
    except ScheduleError:
        return True  # the error is raised again when the trace is lowered
    if v.size <= _MOST_CHECKED:
        return bool(v.valid(v.rows(0, v.size)).any())
    return len(v.sample(np.random.default_rng(0), 1)) > 0


def _name(template: object) -> str:
    return str(getattr(template, "__name__", template))


class Space(Protocol):
    def sketches(self, task: Task) -> tuple[Trace, ...]:
        """Open traces, in a stable order."""
        ...


@dataclass(frozen=True)
class Sketches:
    """The sketches of a space. `left_out` counts branches that were not followed because there are
    too many; each stands for one sketch or more.
    """

    traces: tuple[Trace, ...]
    left_out: int = 0

    @property
    def warning(self) -> str:
        """A text for the user if sketches were left out, else empty."""
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
        derived = space.derive(task)
        if not isinstance(derived, Sketches):
            raise ScheduleError(f"derive of {name} returns {a(derived)}; it returns Sketches")
        return Sketches(require_sketches(derived.traces, task, name), derived.left_out)
    return Sketches(require_sketches(space.sketches(task), task, name))


def require_space(space: object) -> None:
    if isinstance(space, type) or not callable(getattr(space, "sketches", None)):
        raise ScheduleError(
            f"a space is an object with sketches(task), such as ts.SketchSpace(), not {a(space)}"
        )


_WANTED = "sketches(task) of a space returns a tuple of Traces"


def require_sketches(returned: object, task: Task, space: str) -> tuple[Trace, ...]:
    """The traces that a space returned; raises unless there is at least one."""
    traces = require_traces(returned, space)
    if not traces:
        raise ScheduleError(f"{space} has no sketch of {task.func.name}; {_WANTED}, one at least")
    return traces


def require_traces(returned: object, space: str = "the space") -> tuple[Trace, ...]:
    """The traces that a space returned; raises unless it is a sequence of Traces."""
    if not isinstance(returned, tuple | list):
        raise ScheduleError(f"{space} returns {a(returned)}; {_WANTED}")
    for trace in returned:
        if not isinstance(trace, Trace):
            raise ScheduleError(f"{space} returns {a(trace)} as a sketch; {_WANTED}")
    return tuple(returned)


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class SketchSpace:
    """Programs that rules derive from what a computation reads and writes: no template is needed.

    - `rules`: None stands for `ts.default_rules` of the task's target.
    - `most`: at most so many sketches are derived, fewer for computations with many blocks, so that
      it takes seconds at most. `derive` returns how many branches were left out; `sketches` warns
      about them.
    - `accuracy`: the relative error allowed where sums are computed otherwise than as stated.

    Example:

        task = ts.Task(func, ts.cpu())
        for sketch in ts.SketchSpace(rules=ts.ansor_rules(task.target)).sketches(task):
            print(sketch)
    """

    rules: tuple[Rule, ...] | None = None
    most: int = MOST_SKETCHES
    accuracy: float | None = None

    def __post_init__(self) -> None:
        require_accuracy(self.accuracy)
        if self.most < 1:
            raise ScheduleError(f"a space has at least one sketch; most={self.most} is too few")

    def derive(self, task: Task) -> Sketches:
        """The sketches of a task, and how many branches were left out."""
        if self.rules is not None:  # the user's, which may depend on more than their arguments
            return _derived(task, self.rules, self.most)
        return _derived_once(task, default_rules(task.target, self.accuracy), self.most)

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        """The sketches of a task, in a stable order."""
        return _warned(self.derive(task), task)


def default_space(target: Target, accuracy: float | None, parts: Parts | None) -> SketchSpace:
    """What is searched if no space is given: with the instructions of the user's own, where the
    target has what they need.
    """
    own = () if parts is None else usable(parts.intrinsics, target)
    if not own:
        return SketchSpace(accuracy=accuracy)
    return SketchSpace((TileByInstruction(own), *default_rules(target, accuracy)))


def _derived(task: Task, rules: tuple[Rule, ...], most: int) -> Sketches:
    derived = derive(task, rules, most)
    traces = dict.fromkeys(Trace(state.steps) for state in derived.finished)
    return Sketches(tuple(traces), derived.left_out)


_derived_once = lru_cache(maxsize=256)(_derived)  # a draft and a search ask for the same sketches


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class TemplateSpace:
    """The programs that a schedule function of yours can make. The function gets a
    `ts.TemplateSchedule`, and leaves decisions to the tuner by its `sample_...` methods. Each
    combination of structural decisions is one sketch; those for which the function raises a
    ScheduleError are left out.

    Example:

        def blocked(sch):
            i, j, k = sch.loops("C")
            i0, i1 = sch.split(i, sch.sample_tile(i, parts=2, max_innermost=8))
            j0, j1 = sch.split(j, sch.sample_tile(j, parts=2, max_innermost=32))
            sch.reorder(i0, j0, k, i1, j1)
            sch.unroll(i1)
            sch.vectorize(j1)

        result = ts.tune(func, space=ts.TemplateSpace(blocked))
    """

    template: Callable[[TemplateSchedule], None]

    def __post_init__(self) -> None:
        if not callable(self.template):
            raise ScheduleError(
                f"a template is a function that takes a TemplateSchedule, not {a(self.template)}"
            )

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        """The sketches of a task, in a stable order."""
        return tuple(dict.fromkeys(structures(task, self._checked)))

    @property
    def _checked(self) -> Callable[[TemplateSchedule], None]:
        @wraps(self.template)
        def checked(sch: TemplateSchedule) -> None:
            returned: object = self.template(sch)  # type: ignore[func-returns-value]
            if returned is not None:
                raise ScheduleError(
                    f"it returns {a(returned)}; a template changes the schedule that it is "
                    "given and returns nothing"
                )

        return checked


@checks_given(error=ScheduleError)
class UnionSpace:
    """The union of the sketches of several spaces, as derived ones and those of a template. A run
    of tuning begins with the best of each by the analytic score, and shares its trials among them
    by how fast what it finds in each is.
    """

    def __init__(self, *spaces: Space) -> None:
        if not spaces:
            raise ScheduleError("a UnionSpace is made of one space or more, not of none")
        self.spaces = spaces

    def derive(self, task: Task) -> Sketches:
        """The sketches of a task, and how many branches were left out."""
        parts = self.parts(task)
        traces = tuple(t for f in parts for t in f.traces)
        return Sketches(traces, sum(f.left_out for f in parts))

    def parts(self, task: Task) -> list[Sketches]:
        """The sketches of each space that no space before it has, without spaces that have none
        left.
        """
        seen: set[Trace] = set()
        out = []
        for space in self.spaces:
            for own in (
                space.parts(task) if isinstance(space, UnionSpace) else [sketches_of(space, task)]
            ):
                traces = tuple(t for t in dict.fromkeys(own.traces) if t not in seen)
                seen.update(traces)
                if traces or own.left_out:
                    out.append(Sketches(traces, own.left_out))
        return out

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        """The sketches of a task, in a stable order."""
        return _warned(self.derive(task), task)


def _warned(derived: Sketches, task: Task) -> tuple[Trace, ...]:
    if derived.warning:
        warnings.warn(f"{task.func.name}: {derived.warning}", SketchWarning, stacklevel=3)
    return derived.traces


@checks_given(error=ScheduleError)
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
    """Picks for `structural_counts`: all of them in order, if there are no more than `most`.

    Otherwise a sample that favours no decision. First come those that take the same choice in every
    decision: the k-th from the front, or the k-th from the back (a location far outside, or close
    to the use). The rest are spread evenly over all combinations.
    """
    total = prod(counts)
    if total <= most:
        return list(product(*map(range, counts)))
    picks: dict[tuple[int, ...], None] = {}
    for k in range(max(counts)):
        picks[tuple(min(k, n - 1) for n in counts)] = None
        picks[tuple(max(n - 1 - k, 0) for n in counts)] = None
    # Multiples of total / golden ratio, modulo total, are spread evenly. They visit every number if
    # the two are coprime.
    step = round(total * 0.6180339887)
    while gcd(step, total) != 1:
        step += 1
    at = 0
    while len(picks) < most:
        digits, rest = [], at
        for n in reversed(counts):
            rest, digit = divmod(rest, n)
            digits.append(digit)
        picks[tuple(reversed(digits))] = None
        at = (at + step) % total
    return sorted(picks)[:most] if len(picks) > most else sorted(picks)


def _choices(sketch: Trace, at: int) -> Sequence[object]:
    step = sketch.steps[at]
    assert isinstance(step, SampleLocation | SamplePermutation)
    return step.choices
