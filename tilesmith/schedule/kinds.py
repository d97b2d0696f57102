"""Primitives that set how a loop runs: on threads, in vector lanes, unrolled, bound to a GPU axis.

They never change a result: each is refused if it could.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tilesmith.base.errors import ScheduleError, TraceError
from tilesmith.expr.ints import is_size
from tilesmith.ir.dependence import PARALLEL_DEPTH, check_kinds, check_scopes
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import find_loop
from tilesmith.ir.nodes import For, Stmt, rewrite, walk
from tilesmith.ir.verify import THREAD_AXES
from tilesmith.schedule.loops import require_serial
from tilesmith.schedule.step import Step, as_int


def _change(func: Function, loop: str, **changes: object) -> Function:
    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.name == loop:
            return (replace(s, **changes),)  # type: ignore[arg-type]
        return (s,)

    return replace(func, body=rewrite(func.body, go))


@dataclass(frozen=True, slots=True)
class Parallel(Step):
    """Runs the iterations on several threads.

    Perfectly nested parallel loops run as a single one, like a fuse that needs no division.

    for i in 64:      ->    for i in 64:  # parallel
    """

    name: ClassVar[str] = "parallel"
    loop: str

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        require_serial(loop, "parallelize")
        done = _change(func, self.loop, kind="parallel")
        check_kinds(done, f"parallelize loop {self.loop}")
        return done


@dataclass(frozen=True, slots=True)
class Vectorize(Step):
    """Runs the iterations in the lanes of vector registers.

    A reduction over the loop becomes a horizontal one.

    for j in 16:      ->    for j in 16:  # vectorize
    """

    name: ClassVar[str] = "vectorize"
    loop: str

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        require_serial(loop, "vectorize")
        done = _change(func, self.loop, kind="vectorize")
        check_kinds(done, f"vectorize loop {self.loop}")
        return done


@dataclass(frozen=True, slots=True)
class Unroll(Step):
    """Writes the body out once per iteration, so that the elements it uses can stay in registers.

    for i in 4:       ->    for i in 4:  # unroll
    """

    name: ClassVar[str] = "unroll"
    loop: str

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        require_serial(loop, "unroll")
        return _change(func, self.loop, kind="unroll")


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


# Notes that are numbers, and those that are axes of threads.
_COUNTS = (
    *("unroll_depth", "fetch_ahead", "fetch_stream", "fetch_width", "pipeline", "hold"),
    *("cluster", "in_flight", "resident"),
)
_ACROSS = ("reduce_across", "cooperative")
_THREADS = tuple(axis for axis in THREAD_AXES if axis.startswith("threadIdx"))


def _is_count(value: Any) -> bool:
    """A number, at least 0, or an expression of size variables."""
    if isinstance(value, str):
        try:
            names = as_int(value).names
        except TraceError:
            return False
        return bool(names) and all(map(is_size, names))
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True)
class Annotate(Step):
    """Attaches a note for the code generator to a loop. Unknown notes have no effect.

    "prefetch": (buffer, distance) prefetches what the loop reads `distance` iterations later.
    "parallel_depth": (p, k) makes the loop parallel if k < p. "unroll_depth", and for GPUs
    "pipeline", "fetch_width", "hold" and others, are numbers; "reduce_across" is a thread axis.

    for k in 256:     ->    for k in 256:  # prefetch=('A', 8)
    """

    name: ClassVar[str] = "annotate"
    loop: str
    key: str
    value: str | int | tuple[str | int, ...]

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        self._check(func, loop)
        rest = tuple(n for n in loop.notes if not self._replaces(*n))
        done = _change(func, self.loop, notes=(*rest, (self.key, self.value)))
        if self.key == PARALLEL_DEPTH:
            check_kinds(done, f"parallelize loop {self.loop}")
        return done

    def _check(self, func: Function, loop: For) -> None:
        if not isinstance(self.key, str) or self.key[:1] == ".":
            raise self._refuse("the key of a note is a word; those that begin with a dot are kept")
        if self.key == "prefetch":
            self._check_prefetch(func)
        elif self.key == PARALLEL_DEPTH:
            match self.value:
                case (p, int(k)) if _is_count(p) and k >= 0:
                    pass
                case _:
                    raise self._refuse("it is (p, k): the k-th loop of a nest runs if k < p")
        elif self.key in _COUNTS and not _is_count(self.value):
            raise self._refuse("it is a number, at least 0, or a size variable")
        elif self.key in _ACROSS and self.value not in _THREADS:
            raise self._refuse(f"it is one of {', '.join(_THREADS)}")
        if self.key in ("reduce_across", "cluster"):
            for _, b in walk(loop.body):
                if b.combiner is not None and self.loop not in b.reducing_loops:
                    raise self._refuse(f"{b.name} does not reduce over the loop")

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"{self.key} on loop {self.loop} is {self.value!r}: {why}")

    def _replaces(self, key: str, value: Any) -> bool:
        """Whether this note takes the place of an old one: only prefetches of different buffers may
        stand side by side.
        """
        if key == self.key == "prefetch" and isinstance(self.value, tuple):
            return bool(value[0] == self.value[0])
        return key == self.key

    def _check_prefetch(self, func: Function) -> None:
        v = self.value
        if not (isinstance(v, tuple) and len(v) == 2 and isinstance(v[1], int) and v[1] >= 0):
            raise ScheduleError(
                f"prefetch on loop {self.loop} is (buffer, distance), such as ('A', 8); got {v!r}"
            )
        if v[0] not in func.all_buffers:
            raise ScheduleError(
                f"prefetch on loop {self.loop} names the buffer {v[0]!r}, which is not there; "
                f"there are {', '.join(func.all_buffers)}"
            )


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
        rest = tuple(n for n in loop.notes if n[0] != "pipeline")
        return _change(func, self.loop, notes=(*rest, ("pipeline", self.stages)))
