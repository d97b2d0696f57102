"""Templates: a Schedule with decisions left to the tuner. Numbers stay open as size variables.
Structural decisions, and numbers that the template branches on, are enumerated by `structures` of
spaces.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.expr.ints import Int, evaluate_int, nonnegative, var
from tilesmith.ir.function import all_loops
from tilesmith.ir.notes import Note, Prefetch
from tilesmith.schedule.cache import StorageAlign
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Pipeline
from tilesmith.schedule.layout import Pad
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Split
from tilesmith.schedule.sample import (
    NumericSample,
    Require,
    SampleChoice,
    SamplePermutation,
    SampleTile,
)
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.winograd import Winograd
from tilesmith.space.domains import domain_of
from tilesmith.space.knobs import Knob, annotations_of, orders_of
from tilesmith.task.task import Task

_MOST_NUMBERS = 256  # the most values of a knob that a template may branch on
_KNOWN_ONLY = (Pad, Pipeline, SplitIterator, StorageAlign, Winograd)  # steps without open sizes
_POLICIES = {"factors": "divisors", "power2": "powers", "verbose": "both"}  # AutoTVM's names

T = TypeVar("T")


@checks_given(error=ScheduleError)
class TemplateSchedule(Schedule):
    """The argument of a template: a Schedule that can also leave decisions to the tuner.

    Numbers are `Knob`s: arithmetic with them keeps them open. Comparing one, or asking for its
    value, makes the template branch: it is run once per answer, at most 4096 times in all.
    """

    def __init__(self, task: Task, picks: Sequence[int] = ()) -> None:
        super().__init__(task.func)
        self.task = task
        self.target = task.target
        self._picks = list(picks)
        self.options: list[int] = []  # the number of choices at each structural decision
        self._count = 0
        self._tables: dict[str, tuple[tuple[str, ...], np.ndarray[Any, Any]]] = {}
        self._left: dict[str, tuple[int, ...]] = {}  # remaining values of choices branched on
        self.branched = False  # whether on a bound, which may exclude all rows

    @property
    def trace(self) -> Trace:
        """The trace, in which choices branched on hold only values that agree with the answers."""
        steps = []
        for s in self._steps:
            if isinstance(s, SampleChoice) and s.column in self._left:
                s = replace(s, values=self._left[s.column])
            steps.append(s)
        return Trace(tuple(steps))

    # decisions
    def sample_tile(
        self,
        loop: str,
        parts: int,
        *,
        policy: str = "divisors",
        max_innermost: int = 0,
        max_factor: int = 0,
        no_tail: bool = False,
        candidates: Sequence[Sequence[int]] = (),
        where: Callable[[tuple[int, ...]], bool] | None = None,
    ) -> tuple[Knob, ...]:
        """The factors of a split, outermost first, as knobs.

        - `parts`: how many loops the split makes.
        - `policy`: "divisors" of the extent, "powers" of two, "both" of these, or "any" number.
        - `max_innermost`, `max_factor`: bound the innermost factor, and all but the outermost (0:
          no bound).
        - `no_tail`: allows only tuples that multiply to the extent.
        - `candidates`: lists the tuples explicitly instead.
        - `where`: allows only tuples for which it is true.
        """
        listed = tuple(tuple(map(_whole, c)) for c in candidates)
        step = SampleTile(
            loop, parts, _POLICIES.get(policy, policy), max_innermost, candidates=listed
        )
        self.extent(loop)  # raises if there is no such loop
        step.apply(self.func)
        conditions: list[Callable[[tuple[int, ...]], bool]] = []
        if max_factor:
            conditions.append(lambda t: max(t[1:], default=1) <= max_factor)
        if no_tail and not step.exact:
            conditions.append(lambda t: int(np.prod(t)) == self.extent(loop))
        if where is not None:
            conditions.append(where)
        if conditions:
            step = self._filtered(step, conditions)
        self.apply(step)
        extent = self.extent(loop)
        if isinstance(extent, int):
            table = np.asarray(domain_of(step, extent).table)
            for c in step.columns:
                self._tables[c] = (step.columns, table)
        return tuple(Knob(self, var(c)) for c in step.columns)

    def _filtered(
        self, step: SampleTile, conditions: Sequence[Callable[[tuple[int, ...]], bool]]
    ) -> SampleTile:
        extent = self.extent(step.loop)
        if not isinstance(extent, int):
            raise ScheduleError(f"sample_tile of {step.loop} with a filter needs a known extent")
        rows = [tuple(int(x) for x in row) for row in domain_of(step, extent).table]
        kept = tuple(r for r in rows if all(ok(r) for ok in conditions))
        if not kept:
            raise ScheduleError(
                f"sample_tile of {step.loop}: the filter accepts nothing; it was asked about "
                f"{len(rows)} tuples such as {rows[0]} of {extent} iterations"
            )
        return replace(step, candidates=kept)

    def sample_choice(
        self, values: Sequence[T], name: str = "", *, probabilities: Sequence[float] = ()
    ) -> Any:
        """One of some values. Whole numbers stay open, as a Knob. For anything else (text, flags,
        tuples, functions), each value makes a structure of its own and is returned as it is.
        `probabilities`, one for each number, are those of random candidates.
        """
        values, chances = tuple(values), tuple(map(float, probabilities))
        if not values:
            raise ScheduleError(
                f"sample_choice{f' of {name}' if name else ''} has nothing to choose from; "
                "give it a list of values"
            )
        if not all(map(_is_whole, values)):
            if chances:
                raise ScheduleError(
                    "sample_choice: probabilities are for whole numbers; of other values, each "
                    "makes a structure of its own, and structures are drawn evenly"
                )
            return values[self._pick(len(values))]
        column = f"#{name or f'choice.{self._count}'}"
        self._count += 1
        numbers = tuple(map(_whole, values))
        step = SampleChoice(column, numbers, probabilities=chances)
        if len(set(numbers)) < len(numbers):  # a number that is listed twice is one choice
            step.apply(self.func)
            each = dict.fromkeys(numbers, 0.0)
            for n, chance in zip(numbers, chances, strict=False):
                each[n] += chance
            numbers = tuple(each)
            chances = tuple(each.values()) if chances else ()
            step = SampleChoice(column, numbers, probabilities=chances)
        self.apply(step)
        self._tables[column] = ((column,), np.array(numbers)[:, None])
        return Knob(self, var(column))

    def sample_permutation(
        self,
        loops: Sequence[str],
        orders: Sequence[Sequence[str]] | None = None,
        *,
        policy: str = "all",
        interval: tuple[int, int] | None = None,
        spatial: Sequence[Sequence[str]] = (),
        reduce: Sequence[Sequence[str]] = (),
    ) -> tuple[str, ...]:
        """Reorders the loops: by any permutation, those of a policy, or the given `orders`."""
        if not loops:
            raise ScheduleError("sample_permutation is given no loops")
        if orders is None:
            allowed = orders_of(loops, policy, interval, spatial, reduce)
        else:
            allowed = tuple(map(tuple, orders))
        wrong = next((o for o in allowed if sorted(o) != sorted(loops)), None)
        if not allowed or wrong is not None:
            got = "none" if wrong is None else ", ".join(wrong)
            raise ScheduleError(
                f"sample_permutation: an order is all of {', '.join(loops)}, each once; got {got}"
            )
        picked = allowed[self._pick(len(allowed))]
        self.apply(SamplePermutation(allowed, picked))
        return picked

    def sample_annotation(self, loops: Sequence[str], policy: str) -> tuple[str, ...]:
        """Unrolls, vectorizes or binds loops as the policy allows; returns what each one became."""
        allowed = annotations_of(loops, policy)
        picked = allowed[self._pick(len(allowed))]
        for loop, kind in zip(loops, picked, strict=True):
            match kind:
                case "none":
                    pass
                case "unroll":
                    self.unroll(loop)
                case "vec":
                    self.vectorize(loop)
                case _:
                    self.bind(loop, kind)
        return picked

    def sample_location(self, block: str, places: Sequence[str] | None = None) -> str:
        """A loop in which the block can be computed, or "root", for compute_at or
        reverse_compute_at. The choices are all legal ones, or `places`.
        """
        allowed = list(places) if places is not None else ["root", *self._legal(block)]
        if not allowed:
            raise ScheduleError(f"there is no place where {block} can be computed; give some loops")
        return allowed[self._pick(len(allowed))]

    def _legal(self, block: str) -> Iterator[str]:
        for loop in all_loops(self.func.body):
            for step in (ComputeAt(block, loop.name), ReverseComputeAt(block, loop.name)):
                try:
                    step.apply(self.func)
                except ScheduleError:
                    continue
                yield loop.name
                break

    # answers to questions about knobs
    def number_of(self, value: Int) -> int:
        """One of the values of an expression, which it keeps for the rest of this run."""
        if (n := value.const) is not None:
            return n
        outcomes = self._outcomes(value)
        if outcomes is None or len(outcomes) > _MOST_NUMBERS:
            raise ScheduleError(
                f"the template asks for the value of {value}, which has "
                f"{'too many' if outcomes is None else len(outcomes)} of them (at most "
                f"{_MOST_NUMBERS}); "
                "sample a number with sample_choice, or compare it instead"
            )
        number = outcomes[self._pick(len(outcomes))] if len(outcomes) > 1 else outcomes[0]
        self._suppose(value, number, number)
        return number

    def lies_in(self, value: Int, least: int | None, most: int | None) -> bool:
        """Whether a value lies in [least, most] (None: no bound). If both answers are possible, the
        run with each is a structure of its own.
        """
        outcomes = self._outcomes(value)
        pieces = [(True, least, most)]
        pieces += [(False, None, least - 1)] if least is not None else []
        pieces += [(False, most + 1, None)] if most is not None else []
        if outcomes is not None:
            pieces = [p for p in pieces if any(_inside(v, *p[1:]) for v in outcomes)]
        answers = list(dict.fromkeys(answer for answer, _, _ in pieces))
        if len(answers) == 1:
            return answers[0]
        # its remaining values are listed, so no interval is needed
        if self._choice(value) is not None:
            answer = answers[self._pick(2)]
            self._suppose(value, least, most, answer)
            return answer
        answer, low, high = pieces[self._pick(len(pieces))]
        self._suppose(value, low, high)
        return answer

    def _choice(self, value: Int) -> SampleChoice | None:
        """The choice that a value depends on, if it depends on nothing else."""
        for s in self._steps:
            if isinstance(s, SampleChoice) and value.names == {s.column}:
                return s
        return None

    def _outcomes(self, value: Int) -> list[int] | None:
        """The possible values of an expression, ascending; None if they cannot be enumerated."""
        columns = dict.fromkeys(c for n in sorted(value.names) for c in self._group(n))
        tables = {self._tables[c][0]: self._table(c) for c in columns if c in self._tables}
        if not columns or any(c not in self._tables for c in columns):
            return None
        rows = 1
        for t in tables.values():
            rows *= len(t)
        if rows > 1 << 20:
            return None
        env: dict[str, Any] = {}
        grids = np.indices([len(t) for t in tables.values()]).reshape(len(tables), -1)
        for (names, table), at in zip(tables.items(), grids, strict=True):
            env |= {n: table[at, k].astype(np.int64) for k, n in enumerate(names)}
        return sorted({int(v) for v in np.atleast_1d(np.asarray(evaluate_int(value, env, _never)))})

    def _group(self, name: str) -> tuple[str, ...]:
        """The columns that are sampled together with this one."""
        return self._tables[name][0] if name in self._tables else (name,)

    def _table(self, column: str) -> np.ndarray[Any, Any]:
        return self._tables[column][1]

    def _suppose(
        self, value: Int, least: int | None, most: int | None, inside: bool = True
    ) -> None:
        """Assumes for the rest of the run that the value lies in [least, most], or outside of it:
        removes values of a choice, or adds a bound.
        """
        groups = {self._group(n) for n in value.names}
        if len(groups) == 1 and all(n in self._tables for n in value.names):
            (names,) = groups
            table = self._table(names[0])
            env: dict[str, Any] = {n: table[:, k].astype(np.int64) for k, n in enumerate(names)}
            at = np.broadcast_to(np.asarray(evaluate_int(value, env, _never)), len(table))
            keep = np.array([_inside(int(v), least, most) == inside for v in at])
            for n in names:
                self._tables[n] = (names, table[keep])
            if self._choice(value) is not None:
                self._left[names[0]] = tuple(int(v) for v in table[keep, 0])
                return
        self.branched = True
        if least is not None:  # both bounds as expressions that are at least 1
            self.apply(Require(str(value - least + 1), least=1))
        if most is not None:
            self.apply(Require(str(-value + most + 1), least=1))

    # knobs in steps
    def apply(self, step: Step) -> None:
        """Applies a step. Knobs become names of size variables, or numbers if it takes no names."""
        given = step.values_by_name
        if any(map(_has_knob, given.values())):
            step = replace(step, **{n: self._plain(step, v) for n, v in given.items()})
        super().apply(step)

    def _plain(self, step: Step, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._plain(step, v) for v in value)
        if not isinstance(value, Knob):
            return value
        p = value.value
        if isinstance(step, _KNOWN_ONLY):
            return int(value)
        if p.name is None and isinstance(step, Split) and nonnegative(p - 1) and not step.exact:
            return str(p)
        return self._name_of(value)

    def _name_of(self, knob: Knob) -> str | int:
        """The size variable of a knob, or its number if it is computed or always the same."""
        name = knob.value.name
        return int(knob) if name is None else self._only_value(name) or name

    def _only_value(self, column: str) -> int | None:
        """The value of a tile's factor that is always the same: a number in the program, so that a
        hardware instruction of that size fits.
        """
        columns, table = self._tables.get(column, ((), None))
        if table is None:
            return None
        values = np.unique(table[:, columns.index(column)])
        return int(values[0]) if len(values) == 1 else None

    def split(self, loop: str, factors: Sequence[Any], *, exact: bool = False) -> tuple[str, ...]:
        """Factors may be knobs, or computed from knobs: `split(i, [None, 2*x])`."""
        given: tuple[Any, ...] = tuple(Knob(self, f) if isinstance(f, Int) else f for f in factors)
        step = Split(loop, given, exact)
        self.apply(step)
        return step.parts

    def annotate(self, loop: str, key: str | Note, value: Any = ()) -> None:
        """As Schedule.annotate; the value may be a knob."""
        known = key == Prefetch.key  # its distance is a number

        def plain(v: Any) -> Any:
            if isinstance(v, tuple | list):
                return tuple(map(plain, v))
            return v if not isinstance(v, Knob) else int(v) if known else self._name_of(v)

        super().annotate(loop, key, plain(value))

    def require(
        self, expression: str | Knob | Int, most: int | None = None, least: int = 0
    ) -> None:
        """A constraint across decisions, such as i2 * j2: other candidates are never sampled."""
        expression = str(expression)
        step = Require(expression, most, least)
        decisions = {c for s in self._steps if isinstance(s, NumericSample) for c in s.columns}
        unknown = sorted(n for n in step.value.names - decisions if n not in self.func.sizes)
        if unknown:
            raise ScheduleError(
                f"require({expression!r}): {unknown[0]} is no decision; so far there are "
                f"{', '.join(sorted(decisions)) or 'none'}"
            )
        self.apply(step)

    def _pick(self, options: int) -> int:
        at = len(self.options)
        self.options.append(options)
        return self._picks[at] if at < len(self._picks) else 0

    # primitives that accept decisions
    def compute_at(self, block: str, loop: str) -> None:
        """As Schedule.compute_at; at "root" the block stays, and "inline" inlines it."""
        if loop == "inline":
            self.inline(block)
        elif loop != "root":
            super().compute_at(block, loop)

    def reverse_compute_at(self, block: str, loop: str) -> None:
        """As Schedule.reverse_compute_at; at "root" the block stays."""
        if loop != "root":
            super().reverse_compute_at(block, loop)

    def unroll(self, *loops: Any) -> None:
        """unroll(k, 16), or with a sampled number: loops inside of k are unrolled as far as that
        makes at most so many copies.
        """
        depth = loops[1] if len(loops) == 2 else None
        if isinstance(depth, int | Knob) or (isinstance(depth, str) and depth.startswith("#")):
            self.annotate(loops[0], "unroll_depth", depth)
            return
        super().unroll(*loops)


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool | np.bool_)


def _whole(value: Any) -> int:
    if not _is_whole(value):
        raise ScheduleError(f"{value!r} is not a whole number")
    return int(value)


def _has_knob(value: object) -> bool:
    return any(map(_has_knob, value)) if isinstance(value, tuple) else isinstance(value, Knob)


def _inside(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _never(atom: object) -> int:
    raise AssertionError(atom)
