"""Translates a trace of one Function to a Function that differs from it in names only.

How primitives derive the names of what they add does not matter here: the steps are applied to both
Functions side by side, and what stands at the same position corresponds. That covers a user's
primitives, too. The name of a step's field tells what its value refers to: `loop`, `loops`,
`block`, `buffer`, `iterator` and so on, as in the built-in steps.
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
_ITERATORS = frozenset({"iterator", "iterators", "taps", "multiples"})  # of the step's `block`
_EXPRESSIONS = frozenset({"layout", "expression"})  # expressions over size variables, as text
_BUFFERS = frozenset({"buffer", "value"})
_SIZE = re.compile(r"#[\w.+]+")


class Translation:
    """Translates traces of `old` to the names of `new`. Traces with the same steps but different
    decisions are analysed once.
    """

    def __init__(self, old: Function, new: Function) -> None:
        self.old, self.new = old, new
        self._translated: dict[Trace, Trace | TraceError] = {}

    def trace(self, trace: Trace) -> Trace:
        """Raises a TraceError if the result would not be the same program under new names."""
        shape = Trace(tuple(map(_undecided, trace.steps)))
        if shape not in self._translated:
            try:
                self._translated[shape] = self._walk(trace)
            except (TraceError, ScheduleError) as e:
                self._translated[shape] = TraceError(
                    f"this trace of {self.old.name} cannot be applied to {self.new.name}: {e}"
                )
        translated = self._translated[shape]
        if isinstance(translated, TraceError):
            raise translated
        return Trace(tuple(map(_decided_like, translated.steps, trace.steps)))

    def _walk(self, trace: Trace) -> Trace:
        pairs = _Pairs(self.old)
        old, new = self.old, self.new
        decided: dict[str, int] = {}
        steps: list[Step] = []
        applies = True  # after a step that cannot be applied, the rest is only renamed
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
    """Corresponding names. None is ever removed, because a step may name what no longer exists."""

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
        """That both are the same program. The names of open sizes derive from those of loops, and
        are part of the structure; so each pair of sizes is compared under a common number.
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
        out = step.with_values(new) if new != old else step
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
        translated: dict[str, str] = {}
        if name in _LOOPS:
            translated = self.names.loops
        elif name == "block":
            translated = self.names.blocks
        elif name in _BUFFERS:
            translated = self.names.buffers
        elif name in _ITERATORS:
            translated = self.names.iters.get(getattr(step, "block", ""), {})
            return translated.get(value, value)
        else:
            return value
        return translated[value] if value in translated else self._derived(value)

    def _of_size(self, name: str) -> str:
        return self.sizes[name] if name in self.sizes else f"#{self._derived(name[1:])}"

    def _derived(self, name: str) -> str:
        """Translates a name that was never seen, such as that of a block that exists in other
        variants only, by the longest prefix that was.
        """
        end = len(name)
        while (end := name.rfind(".", 0, end)) > 0:
            for translated in (self.names.loops, self.names.blocks, self.names.buffers):
                if name[:end] in translated:
                    return translated[name[:end]] + name[end:]
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
