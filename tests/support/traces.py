"""Random legal schedules for property tests.

Primitives are drawn with random arguments; what the Schedule refuses is drawn again. Any exception
other than ScheduleError is a bug and propagates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import of
from tilesmith.ir.function import Function, all_loops, find_block, find_loop
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Block, Iter, walk
from tilesmith.ir.notes import Prefetch
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.chunks import ChunkSums, NarrowSums
from tilesmith.schedule.groups import Ungroup
from tilesmith.schedule.inline import Inline, ReverseInline
from tilesmith.schedule.iterators import MergeIterators, SplitIterator
from tilesmith.schedule.kinds import (
    Annotate,
    AutoParallel,
    AutoPrefetch,
    AutoUnroll,
    AutoVectorize,
    Bind,
    Parallel,
    Pipeline,
    PrefetchStreams,
    Unroll,
    Vectorize,
)
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Fuse, Reorder, Split, fresh
from tilesmith.schedule.reduction import DecomposeReduction, Rfactor, WriteOut
from tilesmith.schedule.roll import Roll
from tilesmith.schedule.roll_parts import RollParts
from tilesmith.schedule.sample import (
    Require,
    SampleChoice,
    SampleLocation,
    SamplePermutation,
    SampleTile,
)
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.sharing import ShareLoop
from tilesmith.schedule.shift import ShiftOperand, factors_of
from tilesmith.schedule.step import Step
from tilesmith.schedule.unfold import MergeTiles, Unfold
from tilesmith.schedule.unit import Blockize, Tensorize
from tilesmith.schedule.winograd import Winograd
from tilesmith.schedule.zeros import InlinePadding, SkipZeros

Rng = np.random.Generator

# Weights of the primitives. Bind is for GPU targets and has no weight by default.
CPU_WEIGHTS: dict[str, float] = {
    "split": 6, "fuse": 1, "reorder": 4, "parallel": 1.5, "vectorize": 1, "unroll": 0.7,
    "annotate": 0.3, "pipeline": 0.3, "compute_at": 6, "reverse_compute_at": 6, "inline": 1.5,
    "reverse_inline": 1.5, "cache_read": 1.5, "cache_write": 1.5, "set_scope": 0.3,
    "storage_align": 0.3, "rfactor": 2, "decompose_reduction": 1.5, "transform_layout": 0.5,
    "pad": 0.7, "blockize": 0.4,
}  # fmt: skip
# Without fuse, which divides by an extent, and pad, which needs one as a number.
SYMBOLIC_WEIGHTS: dict[str, float] = {**CPU_WEIGHTS, "fuse": 0, "pad": 0}
# Blocks that move among each other's loops, where most errors occur.
MOVING_WEIGHTS: dict[str, float] = {
    "split": 1, "reorder": 3, "compute_at": 6, "reverse_compute_at": 6, "inline": 0.7,
    "reverse_inline": 0.5, "decompose_reduction": 1.5, "parallel": 1, "cache_write": 0.5,
}  # fmt: skip
GPU_WEIGHTS: dict[str, float] = {**CPU_WEIGHTS, "bind": 2, "parallel": 0, "vectorize": 0.5}
# Every primitive. Those that need a special program have larger weights.
EVERY_WEIGHTS: dict[str, float] = {
    **CPU_WEIGHTS, "bind": 0.5, "split_iterator": 2, "merge_iterators": 5, "winograd": 4,
    "unfold": 1, "merge_tiles": 1, "ungroup": 1, "share_loop": 4, "skip_zeros": 3,
    "write_out": 2, "tensorize": 3, "shift_operand": 2, "auto_parallel": 1, "auto_prefetch": 0.5,
    "auto_vectorize": 1, "auto_unroll": 1, "prefetch_streams": 0.5, "sample_tile": 0.2,
    "sample_choice": 0.2, "sample_location": 2, "sample_permutation": 1, "require": 0.2,
    "roll": 6, "roll_parts": 3, "chunk_sums": 4, "narrow_sums": 1, "inline_padding": 3,
}  # fmt: skip
MAX_WORK = 4000  # block instances of a schedule; steps that recompute more are left out


def random_trace(
    func: Function,
    rng: Rng,
    steps: int = 8,
    weights: dict[str, float] = CPU_WEIGHTS,
    max_work: int = MAX_WORK,
    symbolic: bool = False,
) -> Schedule:
    """A Schedule of up to `steps` random primitives that were accepted.

    With `symbolic`, loops are split by size variables; `random_sizes` gives them numbers.
    """
    sch = Schedule(func)
    names = list(weights)
    p = np.array([weights[n] for n in names])
    p = p / p.sum()
    for _ in range(10 * steps):
        if len(sch.trace) == steps:
            break
        primitive = names[int(rng.choice(len(names), p=p))]
        step = random_step(sch.func, rng, primitive, symbolic)
        if step is None:
            continue
        try:
            after = step.apply(sch.func)
        except ScheduleError:
            continue
        if work(after) <= max_work:
            sch.apply(step)
    return sch


def places(func: Function, block: str) -> Iterator[Step]:
    """Every compute_at and reverse_compute_at of the block that is legal at present."""
    for loop in all_loops(func.body):
        for step in (ComputeAt(block, loop.name), ReverseComputeAt(block, loop.name)):
            try:
                step.apply(func)
            except ScheduleError:
                continue
            yield step


def work(func: Function) -> int:
    """How many block instances run, which determines the interpreter's time."""
    total = 0
    for path, b in walk(func.body):
        extents = [*(f.extent for f in path), *(e for _, e in b.tile)]
        total += prod(n for n in (e.const for e in extents) if n is not None)
    return total


def random_sizes(func: Function, rng: Rng) -> dict[str, int]:
    """Numbers for the open sizes of a Function that satisfy its facts."""
    row: dict[str, int] = {}
    for name in func.sizes:
        if not any(name in s.names for f in func.facts for s in f.sizes):
            row[name] = int(rng.integers(1, 10))  # a dynamic extent
    for f in func.facts:
        extent = f.extent.substitute({k: of(v) for k, v in row.items()}).const
        assert extent is not None, f"{f.extent} is still open"
        first, *inner = f.sizes
        left = extent
        covered = 1
        for size in inner:
            n = row.get(str(size)) if size.const is None else size.const
            if n is None:
                choices = range(1, left + 1) if not f.exact else divisors(left)
                n = int(rng.choice(np.array(choices)[:6]))
                row[str(size)] = n
            left = -(-left // n)
            covered *= n
        if first.const is None:
            row[str(first)] = -(-extent // covered)
    return row


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def random_step(func: Function, rng: Rng, primitive: str, symbolic: bool = False) -> Step | None:
    """One step with random arguments, legal or not; None if the Function has nothing to apply it
    to.
    """
    draw = _Draw(func, rng, symbolic)
    if not draw.blocks or (not draw.loops and primitive in _NEEDS_LOOPS):
        return None
    make = getattr(draw, primitive)
    step: Step | None = make()
    return step


_NEEDS_LOOPS = frozenset({
    "split", "fuse", "reorder", "parallel", "vectorize", "unroll", "bind", "annotate", "pipeline",
    "compute_at", "reverse_compute_at", "rfactor", "decompose_reduction", "blockize", "tensorize",
    "sample_tile", "sample_location", "sample_permutation", "roll", "roll_parts",
})  # fmt: skip


class _Draw:
    def __init__(self, func: Function, rng: Rng, symbolic: bool) -> None:
        self.func, self.rng, self.symbolic = func, rng, symbolic
        self.loops = [f.name for f in all_loops(func.body)]
        self.blocks = [b for _, b in walk(func.body)]

    def one_of(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def loop(self) -> str:
        return str(self.one_of(self.loops))

    def block(self) -> Block:
        b: Block = self.one_of(self.blocks)
        return b

    def nest(self) -> list[str]:
        """The loops around some block."""
        path, _ = find_block(self.func, self.block().name)
        return [f.name for f in path]

    def split(self) -> Step:
        name = self.loop()
        if self.symbolic:
            count = int(self.rng.integers(2, 4))
            exact = bool(self.rng.random() < 0.5)
            used = {n for f in self.func.facts for s in f.sizes for n in s.names}
            parts: list[str | None] = [fresh(f"#{name}.{k}", used) for k in range(count)]
            if not exact and self.rng.random() < 0.5:
                parts[0] = None
            return Split(name, tuple(parts), exact)
        extent = find_loop(self.func, name)[1].extent.const or 1  # any split of an open one is 1
        inner = [int(self.rng.integers(1, max(2, min(extent, 5) + 1)))]
        if self.rng.random() < 0.25:
            inner.append(int(self.rng.integers(1, 4)))
        hole = int(self.rng.integers(len(inner) + 1)) if self.rng.random() < 0.2 else 0
        factors: list[int | None] = [*inner]
        factors.insert(hole, None)
        if self.rng.random() < 0.1:  # without None, and with more iterations than needed
            factors[hole] = -(-extent // prod(inner)) + int(self.rng.integers(0, 2))
        return Split(name, tuple(factors))

    def split_iterator(self) -> Step | None:
        b = self.block()
        if not b.iters:
            return None
        i = self.one_of(b.iters)
        extent = i.extent.const or 1  # an open one is not split
        divisors = [d for d in range(1, extent + 1) if extent % d == 0]
        return SplitIterator(b.name, i.name, self.one_of(divisors))

    def merge_iterators(self) -> Step | None:
        """Of neighbouring iterators, mostly in this order."""
        b = self.block()
        if len(b.iters) < 2:
            return None
        at = int(self.rng.integers(len(b.iters) - 1))
        pair = (b.iters[at].name, b.iters[at + 1].name)
        return MergeIterators(b.name, pair if self.rng.random() < 0.9 else pair[::-1])

    def unfold(self) -> Step | None:
        sums = [b for b in self.blocks if b.reducing]
        if not sums:
            return None
        b = self.one_of(sums)
        return Unfold(b.name, self._tiles(b.spatial), self._tiles(b.reducing))

    def merge_tiles(self) -> Step | None:
        b = self.block()
        return MergeTiles(b.name, self._tiles(b.spatial)) if b.spatial else None

    def ungroup(self) -> Step | None:
        sums = [b for b in self.blocks if b.reducing and b.spatial]
        if not sums:
            return None
        b = self.one_of(sums)
        i = self.one_of(b.spatial)
        extent = i.extent.const or 1
        divisors = [d for d in range(1, extent + 1) if extent % d == 0]
        return Ungroup(b.name, i.name, self.one_of(divisors))

    def share_loop(self) -> Step | None:
        b = self.block()
        users = [
            o for o in self.blocks if {x.buffer for x in o.loads} & {w.buffer for w in b.writes}
        ]
        users = [o for o in users if o.name != b.name]
        if not users:
            return None
        path = find_block(self.func, self.one_of(users).name)[0]
        return ShareLoop(b.name, self.one_of(path).name) if path else None

    def _tiles(self, iters: tuple[Iter, ...]) -> tuple[tuple[str, int], ...]:
        some = [i.name for i in iters if self.rng.random() < 0.7]
        return tuple((n, int(self.rng.integers(1, 4))) for n in some)

    def fuse(self) -> Step | None:
        nest = self.nest()
        if len(nest) < 2:
            return None
        at = int(self.rng.integers(len(nest) - 1))
        count = 2 if self.rng.random() < 0.8 else 3
        return Fuse(tuple(nest[at : at + count]))

    def reorder(self) -> Step | None:
        nest = self.nest()
        if len(nest) < 2:
            return None
        count = int(self.rng.integers(2, len(nest) + 1))
        return Reorder(tuple(self.rng.permutation(nest)[:count].tolist()))

    def chunk_sums(self) -> Step | None:
        sums = [(path, b) for path, b in walk(self.func.body) if b.reducing and path]
        if not sums:
            return None
        path, b = self.one_of(sums)
        at = int(self.rng.integers(len(path)))
        inner = [f.extent.const or 1 for f in path[at:] if f.name in b.reducing_loops]
        return ChunkSums(b.name, path[at].name, prod(inner))

    def narrow_sums(self) -> Step:
        return NarrowSums(self.block().name)

    def parallel(self) -> Step:
        return Parallel(self.loop())

    def vectorize(self) -> Step:
        return Vectorize(self.loop())

    def unroll(self) -> Step:
        return Unroll(self.loop())

    def bind(self) -> Step:
        axes = ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y", "vthread")
        return Bind(self.loop(), self.one_of(axes))

    def annotate(self) -> Step:
        buffer = self.one_of(list(self.func.all_buffers))
        return Annotate(self.loop(), Prefetch(buffer, int(self.rng.integers(1, 9))))

    def pipeline(self) -> Step:
        return Pipeline(self.loop(), int(self.rng.integers(2, 4)))

    def compute_at(self) -> Step:
        """A block that is read, at a loop around a reader; any block and loop if none is read."""
        pairs = [
            (b.name, f.name)
            for b in self.blocks
            for path, o in walk(self.func.body)
            if {w.buffer for w in b.writes} & {load.buffer for load in o.loads}
            for f in path
        ]
        block, loop = self.one_of(pairs) if pairs else (self.block().name, self.loop())
        return ComputeAt(block, loop)

    def reverse_compute_at(self) -> Step:
        """A block that reads what another one writes, at a loop around the other."""
        pairs = [
            (b.name, f.name)
            for b in self.blocks
            for path, o in walk(self.func.body)
            if {load.buffer for load in b.loads} & {w.buffer for w in o.writes}
            for f in path
            if f.name not in o.reducing_loops
        ]
        block, loop = self.one_of(pairs) if pairs else (self.block().name, self.loop())
        return ReverseComputeAt(block, loop)

    def inline(self) -> Step:
        return Inline(self.block().name)

    def reverse_inline(self) -> Step:
        return ReverseInline(self.block().name)

    def cache_read(self) -> Step | None:
        b = self.block()
        read = list(dict.fromkeys(load.buffer for load in b.loads))
        scope = self.one_of(("local", "shared", "global"))
        return CacheRead(b.name, self.one_of(read), scope) if read else None

    def cache_write(self) -> Step:
        return CacheWrite(self.block().name, self.one_of(("local", "shared", "global")))

    def set_scope(self) -> Step | None:
        names = [b.name for b in self.func.buffers]
        scopes = ("global", "local", "shared")
        return SetScope(self.one_of(names), self.one_of(scopes)) if names else None

    def storage_align(self) -> Step | None:
        named = [b for b in self.func.buffers if b.shape]
        if not named:
            return None
        b = self.one_of(named)
        return StorageAlign(
            b.name, int(self.rng.integers(len(b.shape))), 4, int(self.rng.integers(4))
        )

    def rfactor(self) -> Step:
        inner = [n for b in self.blocks for n in b.reducing_loops if n in self.loops]
        return Rfactor(self.one_of(sorted(inner)) if inner else self.loop())

    def decompose_reduction(self) -> Step:
        sums = [b.name for b in self.blocks if b.combiner is not None]
        name = self.one_of(sums) if sums else self.block().name
        path, _ = find_block(self.func, name)
        return DecomposeReduction(name, self.one_of([f.name for f in path] or self.loops))

    def transform_layout(self) -> Step | None:
        named = [b for b in (*self.func.inputs, *self.func.buffers) if b.shape]
        if not named:
            return None
        b = self.one_of(named)
        dims = [f"d{k}" for k in range(len(b.shape))]
        order = [dims[k] for k in self.rng.permutation(len(dims)).tolist()]
        if self.rng.random() < 0.5:
            tile = int(self.rng.integers(2, 5))
            cut = order[-1]
            order = [*order[:-1], f"{cut} // {tile}", f"{cut} % {tile}"]
        return TransformLayout(b.name, tuple(order))

    def pad(self) -> Step:
        b = self.block()
        names = [i.name for i in b.iters if self.rng.random() < 0.6]
        return Pad(b.name, tuple((n, int(self.rng.integers(2, 5))) for n in names))

    def shift_operand(self) -> Step:
        b = self._sum()
        names = [x.buffer for x in factors_of(b)] or [x.buffer for x in b.loads] or [b.name]
        return ShiftOperand(b.name, self.one_of(names))

    def blockize(self) -> Step:
        return Blockize(self.loop())

    def tensorize(self) -> Step:
        """At a loop nest with the extents of an instruction for types that occur, if there is
        one.
        """
        types = {b.dtype for b in self.func.all_buffers.values()}
        units = [u for u in INTRINSICS if {p.dtype for p in u.description.params} <= types]
        sizes = {u: [i.extent for i in next(walk(u.description.body))[1].iters] for u in units}
        fits = [
            (unit, path[-len(extents)].name)
            for unit, extents in sizes.items()
            for path, _ in walk(self.func.body)
            if [f.extent for f in path[-len(extents) :]] == extents
        ]
        unit, loop = self.one_of(fits or [(INTRINSICS[0], self.loop())])
        return Tensorize(loop, unit)

    def winograd(self) -> Step:
        b = self._sum()
        taps = [i.name for i in b.reducing if self.rng.random() < 0.8]
        return Winograd(b.name, tuple(taps), int(self.rng.integers(2, 4)))

    def skip_zeros(self) -> Step:
        b = self._sum()
        return SkipZeros(b.name, tuple(i.name for i in b.reducing if self.rng.random() < 0.8))

    def inline_padding(self) -> Step:
        b = self._sum()
        return InlinePadding(b.name, self.one_of([x.buffer for x in b.loads]))

    def roll(self) -> Step:
        """The last sum, over one of its loops."""
        sums = [b for b in self.blocks if b.reducing]
        b = sums[-1] if sums else self.block()
        return Roll(b.name, self.one_of(sorted(b.reducing_loops) or self.loops))

    def roll_parts(self) -> Step:
        """The same, in parts."""
        sums = [b for b in self.blocks if b.reducing]
        b = sums[-1] if sums else self.block()
        return RollParts(b.name, self.one_of(sorted(b.reducing_loops) or self.loops))

    def write_out(self) -> Step:
        return WriteOut(self._sum().name)

    def _sum(self) -> Block:
        b: Block = self.one_of([b for b in self.blocks if b.reducing] or self.blocks)
        return b

    def auto_parallel(self) -> Step:
        return AutoParallel(int(self.rng.integers(0, 3)))

    def auto_prefetch(self) -> Step:
        return AutoPrefetch(int(self.rng.integers(0, 3)))

    def auto_vectorize(self) -> Step:
        return AutoVectorize(self.block().name)

    def auto_unroll(self) -> Step:
        return AutoUnroll(self.block().name, int(self.rng.integers(0, 20)))

    def prefetch_streams(self) -> Step:
        return PrefetchStreams(self.block().name, int(self.rng.integers(1, 5)) * 256)

    def sample_tile(self) -> Step:
        name = self.loop()
        # an open loop has no decision of its own: any is refused or right
        extent = find_loop(self.func, name)[1].extent.const or 1
        return SampleTile(name, 2, "any", decision=(extent, 1))

    def sample_choice(self) -> Step:
        return SampleChoice("#choice", (1, 2, 4), decision=2)

    def sample_location(self) -> Step:
        block = self.block().name
        step = self.one_of((self.compute_at, self.reverse_compute_at))()
        place = self.one_of(("root", "inline", step.loop, self.loop()))
        block = block if place == "inline" else step.block
        return SampleLocation(block, ("root", "inline", place), place)

    def sample_permutation(self) -> Step | None:
        nest = self.nest()
        if len(nest) < 2:
            return None
        order = tuple(self.rng.permutation(nest).tolist())
        return SamplePermutation((tuple(nest), order), order)

    def require(self) -> Step:
        return Require("4 * 2", 8, int(self.rng.integers(0, 9)))
