"""Primitives that find their loops themselves, by structure alone: what a sketch ends with, when
it no longer matters where its blocks have gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.dependence import check_concurrent, users_of
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Stmt, rewrite, walk
from tilesmith.schedule.kinds import Vectorize
from tilesmith.schedule.step import Size, Step


@dataclass(frozen=True, slots=True)
class AutoParallel(Step):
    """The leading loops of every outermost nest may run in parallel; `depth` says how many do.

    for i.0 in 8:                 for i.0 in 8:  # parallel_depth=(2, 0)
      for j.0 in 8:        ->       for j.0 in 8:  # parallel_depth=(2, 1)
        ...                           ...
    """

    name: ClassVar[str] = "auto_parallel"
    depth: Size
    most: int = 4

    def apply(self, func: Function) -> Function:
        users = users_of(func)
        return replace(func, body=tuple(self._nest(func, s, users) for s in func.body))

    def _nest(self, func: Function, s: Stmt, users: dict[str, set[str]]) -> Stmt:
        chain: list[For] = []
        cur = s
        while isinstance(cur, For) and cur.kind == "serial" and len(chain) < self.most:
            try:
                check_concurrent(func, cur, "parallelize", users)
            except ScheduleError:
                break
            chain.append(cur)
            if len(cur.body) != 1:
                break
            cur = cur.body[0]
        if not chain:
            return s
        body = chain[-1].body
        for k, loop in reversed(list(enumerate(chain))):
            note = ("parallel_depth", (self.depth, k))
            body = (replace(loop, body=body, notes=(*loop.notes, note)),)
        return body[0]


@dataclass(frozen=True, slots=True)
class AutoPrefetch(Step):
    """A loop whose body is several loops, as one over rows that are gone through a few times, asks
    for what comes so many `turns` later, if any: the inputs of that iteration, and the outputs of
    this one. Code generation does it where it is one piece of memory. Where loops are directly
    inside each other the first has the note, and the last whose iterations are worth it does it.

    for i in 8:                 for i in 8:  # fetch_ahead=1
      for k in 64: ...     ->     for k in 64: ...
      for j in 64: ...            for j in 64: ...
    """

    name: ClassVar[str] = "auto_prefetch"
    turns: Size

    def apply(self, func: Function) -> Function:
        return replace(func, body=tuple(map(self._nest, func.body)))

    def _nest(self, s: Stmt) -> Stmt:
        if not isinstance(s, For) or s.kind not in ("serial", "parallel"):
            return s
        if len(s.body) == 1 and self._several(s.body[0]):
            return replace(s, body=(self._nest(s.body[0]),))
        if not isinstance(s.body[0], For) and len(s.body) == 1:
            return s
        return replace(s, notes=(*s.notes, ("fetch_ahead", self.turns)))

    def _several(self, s: Stmt) -> bool:
        """Whether there is a loop of several at the end of those inside each other."""
        while isinstance(s, For) and s.kind in ("serial", "parallel"):
            if len(s.body) > 1:
                return True
            s = s.body[0]
        return False


@dataclass(frozen=True, slots=True)
class AutoVectorize(Step):
    """The innermost loop of a block runs in vectors, if the block is there and that is legal and
    of use: what it writes moves by one element along it, or a plain sum goes over it.
    """

    name: ClassVar[str] = "auto_vectorize"
    block: str

    def apply(self, func: Function) -> Function:
        found = [(p, b) for p, b in walk(func.body) if b.name == self.block]
        if not found or not found[0][0]:
            return func
        path, b = found[0]
        loop = path[-1]
        if not self._of_use(func, b, loop):
            return func
        try:
            return Vectorize(loop.name).apply(func)
        except ScheduleError:
            return func

    def _of_use(self, func: Function, b: Block, loop: For) -> bool:
        if loop.name in b.reducing_loops:
            return True
        w = b.writes[0]
        return bool(w.index) and loop.name in w.index[-1].substitute(b.binding).names


@dataclass(frozen=True, slots=True)
class AutoUnroll(Step):
    """The innermost loops around a block are written out as long as that makes at most `depth`
    copies of it; code generation counts.

    for k in 8    ->    for k in 8:  # unroll_depth=16
    """

    name: ClassVar[str] = "auto_unroll"
    block: str
    depth: Size

    def apply(self, func: Function) -> Function:
        found = [p for p, b in walk(func.body) if b.name == self.block]
        if not found or not found[0]:
            return func
        path = found[0]
        note = ("unroll_depth", self.depth)
        outer = next((f.name for f in path if f.name.startswith(f"{self.block}.")), path[-1].name)

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, For) and s.name == outer:
                return (replace(s, notes=(*s.notes, note)),)
            return (s,)

        return replace(func, body=rewrite(func.body, go))
