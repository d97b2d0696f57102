"""Notes (annotations) on loops: what a schedule tells the code generator besides kinds of loops,
and what passes leave to one another. A note never changes a result.

Each note is a frozen dataclass that says who writes it and who reads it. `For.note(kind)` finds it.
Stored traces and Functions hold its `key` and its `value`, which is its field, or the tuple of its
fields. To be read again, a note of a user's own stands in `ts.Parts(notes=(MyNote,))`:

    @dataclass(frozen=True, slots=True)
    class Swizzle(ts.Note):
        key: ClassVar[str] = "swizzle"
        bits: int
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError, TraceError
from tilesmith.base.given import checks_given
from tilesmith.expr.ints import Int, Size, as_int, is_size

AXES_ACROSS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@checks_given
@dataclass(frozen=True, slots=True)
class Note:
    """A note on a loop. Fields hold numbers, text or tuples of these; a text that begins with #
    is a size variable, and the field `buffer` the name of a buffer.
    """

    key: ClassVar[str]
    form: ClassVar[str] = ""  # what its value is, for the error about another one

    def __post_init__(self) -> None:
        if not self.is_valid():
            raise ScheduleError(self.mistake(self.value))

    def is_valid(self) -> bool:
        """Whether the fields mean something."""
        return True

    @classmethod
    def of(cls, value: Any) -> Self:
        """The note with that `value`. Raises a ScheduleError that says what is right."""
        names: tuple[str, ...] = cls.__match_args__
        parts = (value,) if len(names) == 1 else () if not names else value
        if not isinstance(parts, tuple | list) or len(parts) != len(names):
            raise ScheduleError(cls.mistake(value))
        return cls(*map(freeze, parts))

    @classmethod
    def mistake(cls, value: Any, where: str = "") -> str:
        """Says what the value of such a note is; `where` as " on loop i"."""
        form = cls.form or f"({', '.join(cls.__match_args__)})"
        return f"{cls.key}{where} is {form}; got {value!r}"

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the fields, in order."""
        names: tuple[str, ...] = self.__match_args__
        return tuple(getattr(self, name) for name in names)

    @property
    def value(self) -> Any:
        """What is stored and printed: the field, the tuple of several fields, or 1 for none."""
        values = self.values
        return values[0] if len(values) == 1 else values or 1

    @property
    def sizes(self) -> frozenset[str]:
        """The size variables that are still open."""
        return frozenset(v for v in self.values if isinstance(v, str) and v[:1] == "#")

    def decided(self, sizes: Mapping[str, int]) -> Self:
        """The same note with numbers in place of size variables."""
        if not self.sizes:
            return self
        return type(self)(*(sizes.get(v, v) if isinstance(v, str) else v for v in self.values))

    def renamed(self, buffers: Mapping[str, str]) -> Self:
        """The same note with new names of buffers, by old ones."""
        changes: dict[str, Any] = {"buffer": buffers.get(getattr(self, "buffer", ""))}
        return replace(self, **changes) if changes["buffer"] is not None else self


def freeze(value: Any) -> Any:
    """Lists as tuples, also inside."""
    return tuple(map(freeze, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Count(Note):
    """A note that is one number, which may still be open."""

    form: ClassVar[str] = "a number, at least 0, or a size variable"
    count: Size

    def is_valid(self) -> bool:
        return _is_count(self.count)

    @property
    def size(self) -> Int:
        """The number as an expression."""
        return as_int(self.count)


def _is_count(value: Any) -> bool:
    """A number, at least 0, or an expression of size variables."""
    if isinstance(value, str):
        try:
            names = as_int(value).names
        except TraceError:
            return False
        return bool(names) and all(map(is_size, names))
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# CPUs and GPUs
@dataclass(frozen=True, slots=True)
class UnrollDepth(Count):
    """Loops inside are unrolled, innermost first, while that makes at most `count` copies.

    Written by auto_unroll and templates; read by passes/resolve_notes, and by the limits and
    features of open programs.
    """

    key: ClassVar[str] = "unroll_depth"


@dataclass(frozen=True, slots=True)
class ParallelDepth(Note):
    """The loop is the one at `position` of a nest, whose `depth` outermost loops run in parallel.

    Written by auto_parallel; read by ir/dependence (`running_kind`, which passes/resolve_notes
    carries out) and by features.
    """

    key: ClassVar[str] = "parallel_depth"
    form: ClassVar[str] = "(p, k): the k-th loop of a nest runs in parallel if k < p"
    depth: Size
    position: int

    def is_valid(self) -> bool:
        return _is_count(self.depth) and isinstance(self.position, int) and self.position >= 0

    @property
    def may_run_parallel(self) -> bool:
        """Whether it does, or may while the depth is open."""
        return isinstance(self.depth, str) or self.position < self.depth


# CPUs
@dataclass(frozen=True, slots=True)
class Prefetch(Note):
    """What the loop accesses of a buffer is prefetched `distance` iterations ahead.

    Written by `Schedule.prefetch`, passes/spread_prefetches and passes/prefetch_streams; read by
    passes/spread_prefetches, and then by the LLVM emitter beside each access.
    """

    key: ClassVar[str] = "prefetch"
    form: ClassVar[str] = "(buffer, distance), such as ('A', 8)"
    buffer: str
    distance: int

    def is_valid(self) -> bool:
        return isinstance(self.distance, int) and self.distance >= 0


@dataclass(frozen=True, slots=True)
class FetchAhead(Count):
    """The inputs of the iteration `count` ahead and the outputs of this one are prefetched (0: no).

    Written by auto_prefetch; read by passes/spread_prefetches and by features.
    """

    key: ClassVar[str] = "fetch_ahead"


@dataclass(frozen=True, slots=True)
class FetchStream(Count):
    """What the innermost loops inside read as a stream is prefetched `count` bytes ahead.

    Written by prefetch_streams; read by passes/prefetch_streams and the CPU score.
    """

    key: ClassVar[str] = "fetch_stream"


# GPUs
@dataclass(frozen=True, slots=True)
class FetchWidth(Count):
    """Elements that a thread copies at once to shared memory, at most.

    Written by the rules for GPUs; read by passes/spread_copies and the GPU score.
    """

    key: ClassVar[str] = "fetch_width"


@dataclass(frozen=True, slots=True)
class PipelineStages(Count):
    """Software pipelining (double buffering): copies at the head of the body run `count` - 1
    iterations ahead, into as many versions of their buffers.

    Written by pipeline and the rules for GPUs; read by passes/pipeline_copies, the emitter of
    tensor-core loops, limits and scores.
    """

    key: ClassVar[str] = "pipeline"


@dataclass(frozen=True, slots=True)
class StagesInFlight(Count):
    """Groups of tensor-core instructions that may be unfinished while the next one is issued.

    Written by the rule for tensor cores; read by the emitter of tensor-core loops and their score.
    """

    key: ClassVar[str] = "in_flight"


@dataclass(frozen=True, slots=True)
class ResidentBlocks(Count):
    """Blocks that are launched at most; each goes on with further tiles (a persistent kernel). From
    `many` on, each takes one tile.

    Written by the rule for tensor cores; read by the emitter of tensor-core loops and their score.
    """

    key: ClassVar[str] = "resident"
    many: ClassVar[int] = 1 << 20


@dataclass(frozen=True, slots=True)
class TakeTurns(Count):
    """1: groups of threads start the matrix instructions of an iteration one group after another
    (ping-pong), so that one's other work hides behind another's instructions; 0: as they come.

    Written by the rule that rolls chains on tensor cores; read by the emitter of rings of tiles.
    """

    key: ClassVar[str] = "turns"


@dataclass(frozen=True, slots=True)
class HoldRow(Count):
    """A thread keeps up to `count` elements of a row, which it reads several times, in registers.

    Written by the rules for rows; read by passes/hold_rows and the GPU score.
    """

    key: ClassVar[str] = "hold"


@dataclass(frozen=True, slots=True)
class VectorTerms(Note):
    """The loop counts terms of a sum that are written out. Operands that are contiguous along it
    are loaded in vectors, before the first term.

    Written by the rule that rolls chains without matrix instructions; read by passes/steps_outside.
    """

    key: ClassVar[str] = "vector_terms"
    form: ClassVar[str] = "1"


@dataclass(frozen=True, slots=True)
class Cluster(Count):
    """The parts of a sum that the loop counts are summed by the blocks of a cluster.

    Written by the tiling rule for clusters; read by passes/join_across_blocks and form_launches,
    then in launch form, by limits and by scores.
    """

    key: ClassVar[str] = "cluster"


@dataclass(frozen=True, slots=True)
class ReduceAcross(Note):
    """The loop is reduced across the threads of an axis.

    Written by the rules for rows and teams of threads; read by passes/join_across_threads, limits,
    features and scores.
    """

    key: ClassVar[str] = "reduce_across"
    form: ClassVar[str] = f"one of {', '.join(AXES_ACROSS)}"
    axis: str

    def is_valid(self) -> bool:
        return self.axis in AXES_ACROSS


# Between passes
@dataclass(frozen=True, slots=True)
class PassNote(Note):
    """What a pass leaves to a later one or to an emitter. Schedules cannot write it; its key begins
    with a dot.
    """


@dataclass(frozen=True, slots=True)
class FetchLines(PassNote):
    """Each iteration prefetches `lines` cache lines on behalf of a loop around it: into that cache
    `level`, from the element `start` plus the sum of loop times stride over `strides`.

    Written by passes/spread_prefetches, read by the LLVM emitter.
    """

    key: ClassVar[str] = ".fetch"
    buffer: str
    write: bool
    level: int
    start: int
    lines: int
    strides: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class HoldResult(PassNote):
    """The result of an instruction stays in its own registers throughout the loop. If `cleared`,
    the first statement sets it to zero.

    Written by passes/hold_results, read by the LLVM emitter.
    """

    key: ClassVar[str] = ".hold_result"
    cleared: bool


@dataclass(frozen=True, slots=True)
class StreamOperand(PassNote):
    """The operand of the held instruction that L1 should not keep.

    Written by passes/hold_results, read by the LLVM emitter.
    """

    key: ClassVar[str] = ".stream"
    operand: str


@dataclass(frozen=True, slots=True)
class KeepSteps(PassNote):
    """The compiler of the C text must not mix the steps of the unrolled loop.

    Written by passes/steps_outside, read by the C emitter.
    """

    key: ClassVar[str] = ".step"


@dataclass(frozen=True, slots=True)
class TransposeSquare(PassNote):
    """The square is transposed in registers: loaded along this loop, stored along the next one.

    Written by passes/transpose_squares, read by the LLVM emitter.
    """

    key: ClassVar[str] = ".transpose"


NOTES: tuple[type[Note], ...] = (
    UnrollDepth, ParallelDepth, Prefetch, FetchAhead, FetchStream, FetchWidth, PipelineStages,
    StagesInFlight, ResidentBlocks, TakeTurns, HoldRow, VectorTerms, Cluster, ReduceAcross,
    FetchLines, HoldResult, StreamOperand, KeepSteps, TransposeSquare,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cooperative(Note):
    """Of traces of earlier versions, on copies to shared memory. Nobody reads it."""

    key: ClassVar[str] = "cooperative"
    axis: str


RETIRED: tuple[type[Note], ...] = (Cooperative,)  # read again from records, never written


def note_of(key: str, value: Any, notes: tuple[type[Note], ...] = NOTES, where: str = "") -> Note:
    """The note that is stored like this. Raises a ScheduleError that says what would be right."""
    for kind in notes:
        if kind.key == key:
            try:
                return kind.of(value)
            except ScheduleError:
                raise ScheduleError(kind.mistake(value, where)) from None
    known = ", ".join(sorted(kind.key for kind in notes if not issubclass(kind, PassNote)))
    raise ScheduleError(
        f"unknown note {key!r}{where}; known are {known}: your own is a subclass of ts.Note, "
        "written as an object and known to readers by ts.Parts(notes=...)"
    )
