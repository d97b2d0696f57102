"""A trace of one Function in, the same trace of a Function that differs from it in names alone out.

Nothing here knows how primitives name what they make. The steps are applied to both Functions side
by side, and what stands at the same place in both corresponds; so it holds for any primitive, a
user's too, and for names that look like derived ones. A step says by the names of its fields what
they refer to: `loop`, `loops`, `block`, `buffer`, `iterator` and so on, as the built-in ones do.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tilesmith.base.errors import ScheduleError, TraceError
from tilesmith.expr.ints import Int, is_size
from tilesmith.ir.function import Function, with_sizes
from tilesmith.ir.nodes import Block, For, If, Stmt
from tilesmith.ir.rename import Names, structure_of
from tilesmith.schedule.sample import NumericSample, SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace

_LOOPS = frozenset({"loop", "loops", "places", "orders", "decision"})
_ITERATORS = frozenset({"iterator", "taps", "multiples"})  # of the step's `block`
_EXPRESSIONS = frozenset({"layout", "expression"})  # text over size variables
_BUFFERS = frozenset({"buffer", "value"})
_SIZE = re.compile(r"#[\w.+]+")


class Translation:
    """From the names of `old` to those of `new`. Traces that differ in what they decide, but not in
    their steps, are walked through once.
    """

    def __init__(self, old: Function, new: Function) -> None:
        self.old, self.new = old, new
        self._known: dict[Trace, Trace | TraceError] = {}

    def trace(self, trace: Trace) -> Trace:
        """Raises a TraceError where it does not give the same program under the new names."""
        shape = Trace(tuple(map(_undecided, trace.steps)))
        if shape not in self._known:
            try:
                self._known[shape] = self._walk(trace)
            except (TraceError, ScheduleError) as e:
                self._known[shape] = TraceError(
                    f"this trace of {self.old.name} cannot be applied to {self.new.name}: {e}"
                )
        found = self._known[shape]
        if isinstance(found, TraceError):
            raise found
        return Trace(tuple(map(_decided_like, found.steps, trace.steps)))

    def _walk(self, trace: Trace) -> Trace:
        pairs = _Pairs(self.old)
        old, new = self.old, self.new
        decided: dict[str, int] = {}
        steps: list[Step] = []
        applies = True  # one that failed to be scheduled ends here, and its rest is only renamed
        for step, real in zip(trace.steps, trace.resolved.steps, strict=True):
            if applies:
                pairs.add(old, new)
            steps.append(pairs.step(step))
            if isinstance(same := steps[-1], NumericSample):
                decided |= zip(same.columns, same.decided, strict=False)
            if applies:
                try:
                    old = real.apply(old)
                except ScheduleError:
                    applies = False
                    continue
                new = same.decide(decided).apply(new)
        if applies:
            pairs.add(old, new)
            pairs.check(old, new)
        return Trace(tuple(steps))


class _Pairs:
    """What corresponds, as far as it was ever seen: a step may name what is gone."""

    def __init__(self, func: Function) -> None:
        self.names = Names()
        self.sizes = {n: n for n in func.sizes}

    def add(self, old: Function, new: Function) -> None:
        buffers = [*old.params, *old.buffers], [*new.params, *new.buffers]
        _same_length(*buffers)
        for a, b in zip(*buffers, strict=True):
            self.names.buffers[a.name] = b.name
        self._body(old.body, new.body)

    def _body(self, old: tuple[Stmt, ...], new: tuple[Stmt, ...]) -> None:
        _same_length(old, new)
        for a, b in zip(old, new, strict=True):
            match a, b:
                case For(), For():
                    self._loop(a.name, b.name, a.extent, b.extent)
                    self._body(a.body, b.body)
                case If(), If():
                    self._body(a.body, b.body)
                case Block(), Block():
                    self.names.blocks[a.name] = b.name
                    _same_length(a.iters, b.iters)
                    own = self.names.iters.setdefault(a.name, {})
                    own |= {i.name: j.name for i, j in zip(a.iters, b.iters, strict=True)}
                    _same_length(a.tile, b.tile)
                    for (m, p), (n, q) in zip(a.tile, b.tile, strict=True):
                        self._loop(m, n, p, q)
                case _:
                    if type(a) is not type(b):
                        raise TraceError("it gives another program there")

    def _loop(self, old: str, new: str, extent: Int, other: Int) -> None:
        self.names.loops[old] = new
        a, b = extent.name, other.name
        if a is not None and b is not None and is_size(a) and is_size(b):
            self._size(a, b)

    def _size(self, old: str, new: str) -> None:
        if self.sizes.setdefault(old, new) != new:
            raise TraceError(f"the size {old} is two there")

    def check(self, old: Function, new: Function) -> None:
        """That they are one program. Open sizes are called after loops, and have names in the
        structure: each pair gets a number of its own.
        """
        numbers = {a: 1000 + k for k, a in enumerate(self.sizes)}
        theirs = {self.sizes[a]: n for a, n in numbers.items()}
        if structure_of(with_sizes(old, numbers)) != structure_of(with_sizes(new, theirs)):
            raise TraceError("it gives another program there")

    # steps
    def step(self, step: Step) -> Step:
        if isinstance(step, SampleChoice):
            column = self._derived(step.column[1:])
            self._size(step.column, f"#{column}")
        old = step.values_by_name
        new = {name: self._field(step, name, value) for name, value in old.items()}
        out = replace(step, **new) if new != old else step
        if isinstance(step, SampleTile) and isinstance(out, SampleTile):
            for a, b in zip(step.columns, out.columns, strict=True):
                self._size(a, b)
        return out

    def _field(self, step: Step, name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._field(step, name, v) for v in value)
        if not isinstance(value, str):
            return value
        if name in _EXPRESSIONS or "#" in value:
            return _SIZE.sub(lambda m: self._of_size(m.group()), value)
        known: dict[str, str] = {}
        if name in _LOOPS:
            known = self.names.loops
        elif name == "block":
            known = self.names.blocks
        elif name in _BUFFERS:
            known = self.names.buffers
        elif name in _ITERATORS:
            known = self.names.iters.get(getattr(step, "block", ""), {})
            return known.get(value, value)
        else:
            return value
        return known[value] if value in known else self._derived(value)

    def _of_size(self, name: str) -> str:
        return self.sizes[name] if name in self.sizes else f"#{self._derived(name[1:])}"

    def _derived(self, name: str) -> str:
        """A name that nothing had, such as that of a block which is only there in other variants,
        follows the longest name that it begins with.
        """
        end = len(name)
        while (end := name.rfind(".", 0, end)) > 0:
            for known in (self.names.loops, self.names.blocks, self.names.buffers):
                if name[:end] in known:
                    return known[name[:end]] + name[end:]
        return name


def _same_length(old: Any, new: Any) -> None:
    if len(old) != len(new):
        raise TraceError("it gives another program there")


def _undecided(step: Step) -> Step:
    return replace(step, decision=None) if isinstance(step, NumericSample) else step


def _decided_like(step: Step, other: Step) -> Step:
    if isinstance(step, NumericSample) and isinstance(other, NumericSample):
        return replace(step, decision=other.decision)  # type: ignore[arg-type]
    return step
