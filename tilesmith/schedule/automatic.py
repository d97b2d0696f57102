"""Primitives that find their loops by the structure of the program instead of by name. Sketches end
with them, because earlier decisions may have moved their blocks anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.dependence import check_concurrent, users_of
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Path, Stmt, rewrite, walk
from tilesmith.ir.notes import FetchAhead, FetchStream, Note, ParallelDepth, UnrollDepth
from tilesmith.ir.parse import Size
from tilesmith.schedule.kinds import Vectorize
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class AutoParallel(Step):
    """Runs the `depth` outermost loops of every loop nest in parallel, as far as that is legal; at
    most `most` of them.

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
            notes = (*loop.notes, ParallelDepth(self.depth, k))
            body = (replace(loop, body=body, notes=notes),)
        return body[0]


@dataclass(frozen=True, slots=True)
class AutoPrefetch(Step):
    """Prefetches, in a loop over rows that makes several passes over each row, the inputs of the
    iteration `turns` ahead and the outputs of this one (0: no prefetch).

    Code generation emits the prefetches of each buffer that one iteration accesses contiguously.
    In a perfect loop nest the note stands at the outermost loop, and code generation chooses the
    innermost loop whose iterations are long enough.

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
        if len(s.body) == 1 and self._has_several_passes(s.body[0]):
            return replace(s, body=(self._nest(s.body[0]),))
        if not isinstance(s.body[0], For) and len(s.body) == 1:
            return s
        return replace(s, notes=(*s.notes, FetchAhead(self.turns)))

    def _has_several_passes(self, s: Stmt) -> bool:
        """Whether the perfect loop nest that `s` begins ends in a loop with several statements."""
        while isinstance(s, For) and s.kind in ("serial", "parallel"):
            if len(s.body) > 1:
                return True
            s = s.body[0]
        return False


@dataclass(frozen=True, slots=True)
class PrefetchStreams(Step):
    """Prefetches, in the innermost loop around a block, the buffers of which each iteration reads
    the next contiguous piece, `nbytes` ahead. Code generation finds the loop and the buffers; the
    note stands at the outermost loop of the block's own.

    for k.0 in 6:           for k.0 in 6:  # fetch_stream=1024
      for k.1 in 128: ->      for k.1 in 128:
    """

    name: ClassVar[str] = "prefetch_streams"
    block: str
    nbytes: Size

    def apply(self, func: Function) -> Function:
        return _with_note(func, self.block, FetchStream(self.nbytes))


@dataclass(frozen=True, slots=True)
class AutoVectorize(Step):
    """Vectorizes the innermost loop of a block, if the block exists and that is legal and useful.
    It is useful if consecutive iterations write consecutive elements, or if the loop is reduced
    over.
    """

    name: ClassVar[str] = "auto_vectorize"
    block: str

    def apply(self, func: Function) -> Function:
        path, b = _first(func, self.block)
        if b is None or not path:
            return func
        loop = path[-1]
        if not self._is_useful(b, loop):
            return func
        try:
            return Vectorize(loop.name).apply(func)
        except ScheduleError:
            return func

    def _is_useful(self, b: Block, loop: For) -> bool:
        if loop.name in b.reducing_loops:
            return True
        w = b.writes[0]
        return bool(w.index) and loop.name in w.index[-1].substitute(b.binding).names


@dataclass(frozen=True, slots=True)
class AutoUnroll(Step):
    """Unrolls the innermost loops around a block, as many as make at most `depth` copies of it.
    Code generation counts the copies; the note stands at the outermost loop of the block's own.

    for k in 8    ->    for k in 8:  # unroll_depth=16
    """

    name: ClassVar[str] = "auto_unroll"
    block: str
    depth: Size

    def apply(self, func: Function) -> Function:
        return _with_note(func, self.block, UnrollDepth(self.depth))


def _with_note(func: Function, block: str, note: Note) -> Function:
    """The note at the outermost loop of the block's own; nothing if the block is gone."""
    path, _ = _first(func, block)
    if not path:
        return func
    outer = next((f for f in path if f.owner == block), path[-1]).name

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.name == outer:
            return (replace(s, notes=(*s.notes, note)),)
        return (s,)

    return replace(func, body=rewrite(func.body, go))


def _first(func: Function, name: str) -> tuple[Path, Block | None]:
    """The loops around a block and the block; nothing if it is gone, such as when inlined."""
    return next(((path, b) for path, b in walk(func.body) if b.name == name), ((), None))
