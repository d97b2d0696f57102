"""Chunk-based accumulation: sums of products of narrow floats are added up in their own type for a
chunk of terms, and the chunks in float32. Vectors of float16 have twice the lanes of float32 ones.

The rounding error (`chunk_error`): each addition within a chunk rounds a partial sum to the narrow
type. Take inputs and weights that are independent, of any scale. Then the roundings of the c
additions of a chunk walk at random, and the errors of the chunks add up like the chunks themselves:
relative to the sum, the error is that of one chunk, whatever their number. With u the roundoff of
the narrow type, the largest error of a layer over its largest value is

    error <= u * (1 + sqrt(c)) * max(1, (log2(results) - 4) / 16)

Measured over sums of 64 to 512 terms, for inputs of both signs, positive ones, heavy tails and
channels of very different scales, it is 0.1 to 0.95 of that; it is largest if a sum is one chunk of
positive terms. A chunk of equal terms can round in the same direction each time, c * u / 2 at
worst. The rounding of the results themselves is not part of it. Partial sums must not exceed the
largest number of the type, 65504 for float16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2, prod, sqrt
from typing import ClassVar, Self

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT16, DType
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, Size, loops_of, of, parse_int, product, var
from tilesmith.expr.nodes import Cast, Expr, Load, plain_combiner
from tilesmith.ir.contract import MOST_TERMS, narrow_terms
from tilesmith.ir.dependence import check_kinds
from tilesmith.ir.function import (
    Function,
    find_block,
    num_terms,
    numbers,
    require_only_writer,
)
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    For,
    Iter,
    Stmt,
    Write,
    map_write_loads,
    map_writes,
    rewrite,
)
from tilesmith.schedule.cache import change_buffer, check_fresh
from tilesmith.schedule.loops import fresh, loop_names
from tilesmith.schedule.sample import NumericSample
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class ChunkSums(Step):
    """Adds up the terms of the reducing loops from `loop` inwards in the narrow type of the
    factors. Each chunk is then added to the sum, which keeps its type. `terms` is the number of
    terms of a chunk, the product of these loops.

    for k.0 in 8:                           for k.0 in 8:
      for k.1 in 64:                          for k.1 in 64:
        C[] += f32(A[k]) * f32(B[k])   ->       C.chunk[k.0] += A[k] * B[k]  # float16
                                              C[] += f32(C.chunk[k.0])
    """

    name: ClassVar[str] = "chunk_sums"
    block: str
    loop: str
    terms: Size

    def decide(self, sizes: Mapping[str, int]) -> Self:
        if isinstance(self.terms, int):
            return self
        n = parse_int(self.terms).substitute({k: of(v) for k, v in sizes.items()})
        return replace(self, terms=str(n) if n.const is None else n.const)

    def apply(self, func: Function) -> Function:
        path, b = find_block(func, self.block)
        require_only_writer(func, b, "chunk_sums")
        value, narrow = self._terms(b)
        loops = [f.name for f in path]
        if self.loop not in loops:
            raise self._refuse(f"{self.loop} is not one of its loops, {', '.join(loops)}")
        at = loops.index(self.loop)
        outside = [f for f in path[:at] if f.name in b.reducing_loops]
        inside = [f for f in path[at:] if f.name in b.reducing_loops]
        if not outside or not inside:
            side = "outside of" if not outside else "from"
            raise self._refuse(f"it does not reduce over a loop {side} {self.loop}")
        if product(f.extent for f in inside) != parse_int(str(self.terms)):
            every = " * ".join(str(f.extent) for f in inside)
            raise self._refuse(f"a chunk has {every} terms, not {self.terms}")
        part = f"{b.name}.chunk"
        check_fresh(func, f"chunk_sums of {b.name}", part)
        made = _Chunks(func, b, path[:at], path[at:], part, value)
        buffers = (*func.buffers, made.buffer(narrow))

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, Block) and s.name == b.name:
                return (made.partial(),)
            return (s, made.final()) if isinstance(s, For) and s.name == self.loop else (s,)

        done = replace(func, body=rewrite(func.body, go), buffers=buffers)
        check_kinds(done, f"chunk_sums of {b.name} at {self.loop}")
        return done

    def _terms(self, b: Block) -> tuple[Expr, DType]:
        value = narrow_terms(b)
        if value is None or b.tile:
            raise self._refuse("it is not a sum of products of narrow floats")
        return value, value.dtype

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot chunk_sums {self.block} at {self.loop}: {why}")


class _Chunks:
    """The two blocks of a chunked sum, and the buffer between them."""

    def __init__(
        self, func: Function, b: Block, outer: Sequence[For], inner: Sequence[For], part: str,
        value: Expr,
    ) -> None:  # fmt: skip
        self._b, self._part, self._value = b, part, value
        self._result = func.all_buffers[b.writes[0].buffer]
        self._sums = [f for f in outer if f.name in b.reducing_loops]
        self._inner = inner
        reduced = [f for f in (*outer, *inner) if f.name in b.reducing_loops]
        self._short = {f.name: f.name.removeprefix(f"{b.name}.") for f in reduced}
        clash = {i.name for i in b.spatial} & set(self._short.values())
        if clash:
            raise ScheduleError(f"cannot chunk_sums {b.name}: the name {min(clash)} is taken")
        env: dict[str, Int] = {n: var(s) for n, s in self._short.items()}
        self._iterators = {i.name: i.bind.substitute(env) for i in b.reducing}
        self._index = (*(var(self._short[f.name]) for f in self._sums), *b.writes[0].index)
        self._names = {f.name: f"{f.name}.add" for f in inner if f.name not in b.reducing_loops}
        taken = loop_names(func)
        self._names = {n: fresh(new, taken) for n, new in self._names.items()}

    def buffer(self, narrow: DType) -> Buffer:
        shape, layout = self._result.shape, self._result.layout
        dims = range(len(self._sums))
        if layout is not None:  # that of the result, behind the numbers of the chunk
            moved: dict[str, Int] = {f"d{d}": var(f"d{d + len(dims)}") for d in range(len(shape))}
            layout = (*(var(f"d{d}") for d in dims), *(p.substitute(moved) for p in layout))
        extents = (*(f.extent for f in self._sums), *shape)
        return Buffer(self._part, extents, narrow, "local", layout)

    def _domain(self) -> frozenset[Int]:
        return frozenset(p.substitute(self._iterators) for p in self._b.domain)

    def partial(self) -> Block:
        """The sum of a chunk, in the loops of the old block."""
        b = self._b
        kept = {f.name for f in self._sums}
        loops = {f.name: f for f in (*self._sums, *self._inner) if f.name in self._short}
        numbers = tuple(
            Iter(self._short[n], "S" if n in kept else "R", f.extent, var(n))
            for n, f in loops.items()
        )
        iters = (
            *(i for i in numbers if i.kind == "S"), *b.spatial,
            *(i for i in numbers if i.kind == "R"),
        )  # fmt: skip
        old = (replace(b.writes[0], value=self._value),)
        (write,) = map_writes(old, lambda p: p.substitute(self._iterators))
        write = Write(self._part, self._index, write.value)
        combiner = plain_combiner("add", self._value.dtype)
        return replace(
            b, name=self._part, iters=iters, writes=(write,), combiner=combiner,
            domain=self._domain(),
        )  # fmt: skip

    def final(self) -> Stmt:
        """Adds the tile of chunks to the sums."""
        b = self._b
        env: dict[str, Int] = {n: var(new) for n, new in self._names.items()}
        gone = {f.name for f in self._inner if f.name in self._short}
        known = {i.name for i in b.spatial} | {self._short[f.name] for f in self._sums}
        spatial = tuple(replace(i, bind=i.bind.substitute(env)) for i in b.spatial)
        numbers = tuple(Iter(self._short[f.name], "R", f.extent, var(f.name)) for f in self._sums)
        old = b.writes[0]
        chunk = Load(self._part, self._index, self._value.dtype)
        stmt: Stmt = Block(
            b.name, (*spatial, *numbers),
            (replace(old, value=Cast(chunk, old.value.dtype)),), b.combiner, True,
            # a chunk that a guard leaves out as a whole was never initialised
            frozenset(p.substitute(env) for p in b.where if not p.names & gone),
            frozenset(p for p in self._domain() if loops_of(p) <= known),
        )  # fmt: skip
        for f in reversed(self._inner):
            if f.name in self._names:
                stmt = For(self._names[f.name], f.extent, (stmt,), f.kind, owner=b.name)
        return stmt


@dataclass(frozen=True, slots=True)
class NarrowSums(Step):
    """Adds up all terms of a short sum in the narrow type of its factors: one chunk.

    S = float32[64]                                       S = float16[64]
    for i in 64: for k in 9:                              for i in 64: for k in 9:
      S[i] += f32(A[i + k]) * f32(B[k])            ->       S[i] += A[i + k] * B[k]
    for i in 64: C[i] = f16(S[i])                         for i in 64: C[i] = f16(f32(S[i]))
    """

    name: ClassVar[str] = "narrow_sums"
    block: str

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        require_only_writer(func, b, "narrow_sums")
        value, buffer = narrow_terms(b), b.writes[0].buffer
        if value is None or b.tile:
            raise self._refuse("it is not a sum of products of narrow floats")
        if all(p.name != buffer for p in func.buffers):
            raise self._refuse(f"{buffer} is a parameter, which keeps its type")
        narrow, old = value.dtype, b.writes[0].value.dtype

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if not isinstance(s, Block):
                return (s,)
            if s.name == b.name:
                write = replace(s.writes[0], value=value)
                return (replace(s, writes=(write,), combiner=plain_combiner("add", narrow)),)
            return (_read_as(s, buffer, narrow, old),)

        done = replace(func, body=rewrite(func.body, go))
        return change_buffer(done, buffer, dtype=narrow)

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot narrow_sums {self.block}: {why}")


def _read_as(b: Block, buffer: str, narrow: DType, wide: DType) -> Block:
    """The block with loads of the buffer, which is narrow now, widened to what it was."""

    def put(load: Load) -> Expr:
        return Cast(replace(load, dtype=narrow), wide) if load.buffer == buffer else load

    if all(load.buffer != buffer for load in b.loads):
        return b
    return replace(b, writes=map_write_loads(b.writes, put))


def chunk_error(func: Function, steps: Sequence[Step]) -> float:
    """The relative error that sums in a narrow type cause, of the block with the longest chunk; 0
    without them. Open sizes count as the largest.
    """
    narrowed = [s for s in steps if isinstance(s, ChunkSums | NarrowSums)]
    if not narrowed:
        return 0.0
    sizes: dict[str, int] = {}
    for s in steps:
        if isinstance(s, NumericSample):
            sizes |= zip(s.columns, s.decided, strict=False)
    chunks = [_length(func, s.decide(sizes)) for s in narrowed]
    results = max(prod(numbers(b.shape)) for b in func.outputs)
    return error_of_chunk(max(chunks), results, FLOAT16)


def _length(func: Function, step: ChunkSums | NarrowSums) -> int:
    if isinstance(step, ChunkSums):
        return step.terms if isinstance(step.terms, int) else MOST_TERMS
    # The block has this name from the start: sums are narrowed before anything else.
    return num_terms(find_block(func, step.block)[1])


def error_of_chunk(terms: int, results: int, narrow: DType) -> float:
    """The largest error of a layer over its largest value, see above."""
    many = max(1.0, (log2(max(results, 1)) - 4) / 16)  # above 1 from a million on
    return narrow.roundoff * (1 + sqrt(terms)) * many


def most_terms(accuracy: float, results: int, narrow: DType) -> int:
    """The longest chunk whose error is at most `accuracy`; 0 if none is."""
    many = max(1.0, (log2(max(results, 1)) - 4) / 16)
    root = accuracy / many / narrow.roundoff - 1
    return min(int(root * root), MOST_TERMS) if root >= 1 else 0
