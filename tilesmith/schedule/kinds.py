"""Primitives that set how a loop runs: on threads, in vector lanes, unrolled, bound to a GPU axis.
They never change a result: each is refused if it could.

Those at the end find their loops by the structure of the program instead of by name. Sketches end
with them, because earlier decisions may have moved their blocks anywhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Size
from tilesmith.ir.dependence import (
    ONE_BY_ONE,
    check_concurrent,
    check_kinds,
    check_scopes,
    users_of,
)
from tilesmith.ir.function import Function, find_loop
from tilesmith.ir.nodes import Block, For, Path, Stmt, walk
from tilesmith.ir.notes import (
    Cluster,
    FetchAhead,
    FetchStream,
    Note,
    ParallelDepth,
    PassNote,
    PipelineStages,
    Prefetch,
    ReduceAcross,
    UnrollDepth,
    note_of,
)
from tilesmith.ir.verify import THREAD_AXES
from tilesmith.schedule.loops import require_serial
from tilesmith.schedule.step import Step


def _change(func: Function, loop: str, **changes: object) -> Function:
    path, old = find_loop(func, loop)
    new = replace(old, **changes)  # type: ignore[arg-type]
    for outer in reversed(path):
        body = tuple(new if s is old else s for s in outer.body)
        old, new = outer, replace(outer, body=body)
    return replace(func, body=tuple(new if s is old else s for s in func.body))


@dataclass(frozen=True, slots=True)
class _Kind(Step):
    """Sets the kind of a loop, which is the step's name."""

    verb: ClassVar[str]
    loop: str

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        require_serial(loop, self.verb)
        done = _change(func, self.loop, kind=self.name)
        if self.name not in ONE_BY_ONE:
            check_kinds(done, f"{self.verb} loop {self.loop}", within=self.loop)
        return done


@dataclass(frozen=True, slots=True)
class Parallel(_Kind):
    """Runs the iterations on several threads.

    Perfectly nested parallel loops run as a single one, like a fuse that needs no division.

    for i in 64:      ->    for i in 64:  # parallel
    """

    name: ClassVar[str] = "parallel"
    verb: ClassVar[str] = "parallelize"


@dataclass(frozen=True, slots=True)
class Vectorize(_Kind):
    """Runs the iterations in the lanes of vector registers.

    A reduction over the loop becomes a horizontal one.

    for j in 16:      ->    for j in 16:  # vectorize
    """

    name: ClassVar[str] = "vectorize"
    verb: ClassVar[str] = "vectorize"


@dataclass(frozen=True, slots=True)
class Unroll(_Kind):
    """Writes the body out once per iteration, so that the elements it uses can stay in registers.

    for i in 4:       ->    for i in 4:  # unroll
    """

    name: ClassVar[str] = "unroll"
    verb: ClassVar[str] = "unroll"


@dataclass(frozen=True, slots=True)
class Bind(Step):
    """Runs the iterations on the threads of a GPU axis: blockIdx.x, threadIdx.y, vthread ...

    for i in 128:     ->    for i in 128:  # threadIdx.x
    """

    name: ClassVar[str] = "bind"
    loop: str
    axis: str

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        require_serial(loop, "bind")
        if self.axis not in THREAD_AXES:
            raise ScheduleError(
                f"cannot bind loop {self.loop}: there is no thread axis {self.axis!r}; "
                f"known are {', '.join(THREAD_AXES)}"
            )
        done = _change(func, self.loop, kind=self.axis)
        doing = f"bind loop {self.loop} to {self.axis}"
        check_kinds(done, doing, only=self.loop)
        check_scopes(done, doing)
        return done


_OF_PASSES = "a note whose key begins with a dot is left by a pass"


@dataclass(frozen=True, slots=True)
class Annotate(Step):
    """Attaches a note (ir/notes.py) for the code generator to a loop. It takes the place of another
    one of its kind; only prefetches of different buffers may stand side by side.

    for k in 256:     ->    for k in 256:  # prefetch=('A', 8)
    """

    name: ClassVar[str] = "annotate"
    loop: str
    note: Note

    @staticmethod
    def by_key(loop: str, key: str, value: Any) -> Annotate:
        """With one of the notes of this library."""
        if str(key)[:1] == ".":
            raise ScheduleError(f"{key} on loop {loop}: {_OF_PASSES}")
        return Annotate(loop, note_of(key, value, where=f" on loop {loop}"))

    @property
    def values_by_name(self) -> dict[str, Any]:
        return {"loop": self.loop, "key": self.note.key, "value": self.note.value}

    def with_values(self, values: dict[str, Any]) -> Self:
        return replace(self, loop=values["loop"], note=type(self.note).of(values["value"]))

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        self._check(func, loop)
        rest = tuple(n for n in loop.notes if not self._replaces(n))
        done = _change(func, self.loop, notes=(*rest, self.note))
        if isinstance(self.note, ParallelDepth):
            check_kinds(done, f"parallelize loop {self.loop}", within=self.loop)
        return done

    def _check(self, func: Function, loop: For) -> None:
        match self.note:
            case PassNote():
                raise self._refuse(_OF_PASSES)
            case Prefetch(buffer=buffer) if buffer not in func.all_buffers:
                there = ", ".join(func.all_buffers)
                raise self._refuse(f"there is no buffer {buffer!r}; there are {there}")
            case ReduceAcross() | Cluster():
                for _, b in walk(loop.body):
                    if b.combiner is not None and self.loop not in b.reducing_loops:
                        raise self._refuse(f"{b.name} does not reduce over the loop")

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"{self.note.key} on loop {self.loop} is {self.note.value!r}: {why}")

    def _replaces(self, old: Note) -> bool:
        if isinstance(self.note, Prefetch) and isinstance(old, Prefetch):
            return old.buffer == self.note.buffer
        return old.key == self.note.key


@dataclass(frozen=True, slots=True)
class Pipeline(Step):
    """Software pipelining: runs the copies at the head of the body `stages` - 1 iterations ahead of
    the rest, with `stages` versions of their buffers.

    GPU code generators overlap copies and arithmetic this way. CPUs execute out of order, so their
    code generator ignores the note.

    for k.0 in 8:     ->    for k.0 in 8:  # pipeline=2
    """

    name: ClassVar[str] = "pipeline"
    loop: str
    stages: int

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        if self.stages < 2:
            raise ScheduleError(
                f"pipeline of loop {self.loop} with {self.stages} stages; it takes 2 or more"
            )
        blocks = [b for _, b in walk(loop.body)]
        produced = {w.buffer for b in blocks for w in b.writes}
        if len(loop.body) < 2 or not any(
            load.buffer in produced for b in blocks for load in b.loads
        ):
            raise ScheduleError(
                f"cannot pipeline loop {self.loop}: nothing inside it is copied first and used "
                "later; cache_read and compute_at there first"
            )
        notes = loop.without(PipelineStages).notes
        return _change(func, self.loop, notes=(*notes, PipelineStages(self.stages)))


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
    outer = next((f for f in path if f.owner == block), path[-1])
    return _change(func, outer.name, notes=(*outer.notes, note))


def _first(func: Function, name: str) -> tuple[Path, Block | None]:
    """The loops around a block and the block; nothing if it is gone, such as when inlined."""
    return next(((path, b) for path, b in walk(func.body) if b.name == name), ((), None))
