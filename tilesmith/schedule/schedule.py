"""`Schedule`: builds a trace call by call.

Each method is one primitive, checked and applied at once. Loops and blocks are given by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.base.html import html_folded, html_text
from tilesmith.expr.ints import Int, Size, product, var
from tilesmith.ir.function import Function, find_block, find_loop
from tilesmith.ir.nodes import Intrinsic, walk
from tilesmith.ir.notes import Note
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.chunks import ChunkSums, NarrowSums
from tilesmith.schedule.groups import Ungroup
from tilesmith.schedule.inline import Inline, ReverseInline
from tilesmith.schedule.iterators import MergeIterators, SplitIterator
from tilesmith.schedule.kinds import Annotate, Bind, Parallel, Pipeline, Unroll, Vectorize
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Fuse, Reorder, Split
from tilesmith.schedule.reduction import DecomposeReduction, Rfactor, WriteOut
from tilesmith.schedule.roll import Roll
from tilesmith.schedule.roll_parts import RollParts
from tilesmith.schedule.sharing import ShareLoop
from tilesmith.schedule.shift import ShiftOperand
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unfold import MergeTiles, Unfold
from tilesmith.schedule.unit import Blockize, Tensorize
from tilesmith.schedule.winograd import Winograd
from tilesmith.schedule.zeros import InlinePadding, SkipZeros

AnyStep = TypeVar("AnyStep", bound=Step)


@checks_given(error=ScheduleError)
class Schedule:
    """A Function and the changes to its loops, made by hand. Every method is one primitive: it is
    checked, applied at once to `func`, and recorded in `trace`. Loops and blocks are given by name;
    a block has the name of the tensor that it computes. An illegal change raises a ScheduleError
    that says why, and leaves the schedule as it was.

    `func` is the current Function; `trace` holds the steps that lead to it from `origin`.

    Example:

        sch = ts.Schedule(func)
        i, j, k = sch.loops("C")
        i0, i1 = sch.split(i, [None, 4])
        j0, j1 = sch.split(j, [None, 16])
        sch.reorder(i0, j0, k, i1, j1)
        sch.unroll(i1)
        sch.vectorize(j1)
        sch.parallel(i0)
        kernel = ts.build(sch)
    """

    def __init__(self, func: Function) -> None:
        self.origin = func
        self.func = func
        self._steps: list[Step] = []

    @property
    def trace(self) -> Trace:
        """The steps so far, as a value that can be stored and replayed."""
        return Trace(tuple(self._steps))

    def apply(self, step: Step) -> None:
        """Applies any primitive, also one of your own.

        An illegal one raises a ScheduleError and leaves the schedule unchanged.
        """
        self.func = step.apply(self.func)
        self._steps.append(step)

    def _done(self, step: AnyStep) -> AnyStep:
        self.apply(step)
        return step

    # queries
    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks, in the order of the program."""
        return tuple(b.name for _, b in walk(self.func.body))

    def loops(self, block: str) -> tuple[str, ...]:
        """The loops around a block, outermost first."""
        path, _ = find_block(self.func, block)
        return tuple(f.name for f in path)

    def extent(self, loop: str) -> int | Int:
        """The extent of a loop: a number, or an Int if it is open."""
        e = find_loop(self.func, loop)[1].extent
        return e if e.const is None else e.const

    # loops
    def split(
        self, loop: str, factors: Sequence[Size | Int | None], *, exact: bool = False
    ) -> tuple[str, ...]:
        """Replaces a loop by several nested ones, outermost first, and returns their names.
        `factors` are their extents; one may be None, which stands for what is left. They need not
        divide the extent: the last tile is then guarded. `exact` promises that they do.
        """
        return self._done(Split(loop, tuple(map(_size, factors)), exact)).parts

    def fuse(self, *loops: str) -> str:
        """Replaces perfectly nested loops by one, and returns its name."""
        return self._done(Fuse(loops)).fused

    def reorder(self, *loops: str) -> None:
        """Puts loops of one perfect nest into this order. Those that are not named stay where they
        are.
        """
        self.apply(Reorder(loops))

    def split_iterator(self, block: str, iterator: str, factor: int) -> tuple[str, str]:
        """Splits an iterator that a block divides by `factor` into two, so that its indices need no
        division. Returns the names of the two loops.
        """
        outer, inner = self._done(SplitIterator(block, iterator, factor)).parts
        return f"{block}.{outer}", f"{block}.{inner}"

    def merge_iterators(self, block: str, first: str, second: str) -> str:
        """Merges two iterators of a block that index neighbouring dimensions of arrays, in all
        blocks that use these arrays, so that the two dimensions are one. Callers pass arrays as
        before. Returns the name of the block's loop.
        """
        return self._done(MergeIterators(block, (first, second))).loop

    def unfold(self, block: str, rows: dict[str, int], terms: dict[str, int]) -> str:
        """Rewrites a sum over windows as a product of matrices, whose rows and terms run over tiles
        of these sizes. Returns the name of the block that computes it; `block` now copies.
        """
        self.apply(Unfold(block, tuple(rows.items()), tuple(terms.items())))
        return f"{block}.rows"

    def merge_tiles(self, block: str, sizes: dict[str, int]) -> str:
        """Makes one iterator of several of an element-wise block, which runs over tiles of these
        sizes. Returns the name of its loop.
        """
        self.apply(MergeTiles(block, tuple(sizes.items())))
        return f"{block}.{'_'.join(sizes)}"

    def share_loop(self, block: str, loop: str) -> None:
        """Runs the outermost loop of a block as this one of its consumers: each of its iterations
        is read in the same iteration only.
        """
        self.apply(ShareLoop(block, loop))

    def ungroup(self, block: str, iterator: str, factor: int) -> str:
        """Gives the groups of a sum, `factor` elements of an iterator each, a dimension of their
        own. Returns the name of the block that computes it; `block` now copies.
        """
        return self._done(Ungroup(block, iterator, factor)).made

    def parallel(self, *loops: str) -> None:
        """Runs the iterations on several threads. Several perfectly nested loops run as a single
        one.
        """
        for loop in loops:
            self.apply(Parallel(loop))

    def vectorize(self, loop: str) -> None:
        """Runs the iterations in the lanes of vector registers."""
        self.apply(Vectorize(loop))

    def unroll(self, *loops: str) -> None:
        """Writes the body out once per iteration, so that what it uses can stay in registers."""
        for loop in loops:
            self.apply(Unroll(loop))

    def bind(self, loop: str, axis: str) -> None:
        """Runs the iterations on an axis of a GPU: "blockIdx.x", "threadIdx.y", "vthread" and so
        on.
        """
        self.apply(Bind(loop, axis))

    def annotate(
        self, loop: str, key: str | Note, value: str | int | Sequence[str | int] = ()
    ) -> None:
        """Attaches a note for the code generator to a loop: by its key and value, or as an object,
        which may be of a class of your own.
        """
        if isinstance(key, Note):
            self.apply(Annotate(loop, key))
        else:
            self.apply(Annotate.by_key(loop, key, value))

    def pipeline(self, loop: str, stages: int = 2) -> None:
        """Software pipelining on GPUs: the copies at the head of the body run `stages` - 1
        iterations ahead of the rest.
        """
        self.apply(Pipeline(loop, stages))

    def prefetch(self, loop: str, buffer: str, distance: int) -> None:
        """Prefetches what the loop reads of the buffer `distance` iterations later."""
        self.annotate(loop, "prefetch", (buffer, distance))

    # blocks
    def compute_at(self, block: str, loop: str) -> None:
        """Computes a producer inside a loop of its consumer: only the part that one iteration
        needs, directly before its use.
        """
        self.apply(ComputeAt(block, loop))

    def reverse_compute_at(self, block: str, loop: str) -> None:
        """Computes a consumer inside a loop of its producer: only the part that one iteration has
        produced, directly after it.
        """
        self.apply(ReverseComputeAt(block, loop))

    def inline(self, block: str) -> None:
        """Computes a producer's element wherever it is read, instead of storing it."""
        self.apply(Inline(block))

    def reverse_inline(self, block: str) -> None:
        """Computes an element-wise consumer within its producer, which then writes the consumer's
        buffer.
        """
        self.apply(ReverseInline(block))

    def cache_read(self, block: str, buffer: str, scope: str = "local") -> str:
        """Makes a block read a buffer through a copy in another scope ("local", "shared", ...).
        Returns the name of the block that copies; compute_at moves it to where a part of it is
        needed.
        """
        return self._done(CacheRead(block, buffer, scope)).copy

    def cache_write(self, block: str, scope: str = "local") -> str:
        """Makes a block compute into a buffer of its own, in another scope. Returns the name of the
        block that computes; `block` now copies.
        """
        return self._done(CacheWrite(block, scope)).copy

    def rfactor(self, loop: str) -> str:
        """Turns a reducing loop into an axis of partial results, which a second block reduces, so
        that they can be computed in parallel. Returns the name of the block of partial results.
        """
        before = set(self.blocks)
        self.apply(Rfactor(loop))
        return next(n for n in self.blocks if n not in before)

    def chunk_sums(self, block: str, loop: str) -> str:
        """Adds up products of float16 in float16 from a loop inwards, and these chunks in float32.
        Returns the name of the block that sums a chunk; `block` now adds chunks.
        """
        path, b = find_block(self.func, block)
        at = next((k for k, f in enumerate(path) if f.name == loop), 0)
        inside = (f.extent for f in path[at:] if f.name in b.reducing_loops)
        terms = product(inside)
        self.apply(ChunkSums(block, loop, str(terms) if terms.const is None else terms.const))
        return f"{block}.chunk"

    def narrow_sums(self, block: str) -> None:
        """Adds up all products of float16 of a short sum in float16."""
        self.apply(NarrowSums(block))

    def decompose_reduction(self, block: str, loop: str) -> str:
        """Sets a reduction to its start value by a block of its own, directly before a loop.
        Returns the name of that block.
        """
        self.apply(DecomposeReduction(block, loop))
        return f"{block}.init"

    def roll(self, block: str, loop: str, slack: float = 0.0) -> None:
        """Computes the reductions that a sum depends on, such as a softmax in front of a product,
        in the sum's own loop over tiles: each from what is known so far, with a repair of what was
        summed before. Factors of a whole row are applied behind the sum. A largest value that grows
        by at most `slack` is not followed, and nothing repaired.
        """
        self.apply(Roll(block, loop, slack))

    def roll_parts(self, block: str, loop: str) -> None:
        """Computes a sum and the reductions that it depends on, such as a softmax in front of a
        product, for each iteration of the loop by itself, with a largest value of its own. Further
        blocks join the parts: `block` sums those of `block.part`.
        """
        self.apply(RollParts(block, loop))

    def winograd(self, block: str, *taps: str, results: int = 2) -> tuple[str, str]:
        """Rewrites a sum over windows of constant weights by Winograd's minimal filtering: fewer
        products, slightly different rounding. Returns the names of the blocks that read the image
        and that sum products.
        """
        self.apply(Winograd(block, taps, results))
        return f"{block}.tiles", f"{block}.products"

    def skip_zeros(self, block: str, *taps: str) -> None:
        """Leaves out the taps of a sum over windows that fall on zeros around an image."""
        self.apply(SkipZeros(block, taps))

    def inline_padding(self, block: str, buffer: str) -> None:
        """Leaves out the products with zeros of a padded operand, and reads what is inside of the
        padding.
        """
        self.apply(InlinePadding(block, buffer))

    def write_out(self, block: str) -> None:
        """Replaces a reduction by an expression of all its terms."""
        self.apply(WriteOut(block))

    def pad(self, block: str, multiples: dict[str, int]) -> str:
        """Rounds the extents of a block's iterators up to multiples, by zeros behind its operands.
        Returns the name of the block that computes; `block` now crops.
        """
        self.apply(Pad(block, tuple(multiples.items())))
        return f"{block}.pad" if f"{block}.pad" in self.blocks else block

    def shift_operand(self, block: str, buffer: str) -> str:
        """Makes a sum of products read a factor of uint8 as int8, or the other way round, and
        corrects the sum. Returns the name of the block that sums; `block` now corrects.
        """
        return self._done(ShiftOperand(block, buffer)).sum

    # buffers
    def set_scope(self, buffer: str, scope: str) -> None:
        """Moves an intermediate buffer to another scope: "local", "shared", "global"."""
        self.apply(SetScope(buffer, scope))

    def storage_align(self, buffer: str, dim: int, multiple: int, offset: int = 0) -> None:
        """Pads the stride of a dimension to `offset` modulo `multiple` elements, so that rows do
        not fall on the same cache sets or shared-memory banks.
        """
        self.apply(StorageAlign(buffer, dim, multiple, offset))

    def transform_layout(self, buffer: str, layout: Callable[..., Any] | Sequence[str]) -> None:
        """Sets where the elements of a buffer lie in memory. `layout` maps indices to a position:
        `lambda k, j: (j // 16, k, j % 16)`. An array in the layout of an input comes from
        `kernel.pack`.
        """
        if callable(layout):
            rank = len(inspect.signature(layout).parameters)
            buf = self.func.all_buffers.get(buffer)
            if buf is not None and rank != len(buf.shape):
                raise ScheduleError(
                    f"the layout of {buffer} takes {rank} indices; the buffer has {len(buf.shape)}"
                )
            dims = layout(*(var(f"d{d}") for d in range(rank)))
            layout = [str(p) for p in (dims if isinstance(dims, tuple | list) else (dims,))]
        self.apply(TransformLayout(buffer, tuple(layout)))

    # units
    def blockize(self, loop: str) -> None:
        """Makes the loops from this one down to the block part of the block. Later primitives leave
        them alone.
        """
        self.apply(Blockize(loop))

    def tensorize(self, loop: str, intrinsic: Intrinsic) -> None:
        """Maps the loop nest from this loop down to a hardware instruction that computes the same.
        `ts.INTRINSICS` has the built-in ones.
        """
        self.apply(Tensorize(loop, intrinsic))

    def __str__(self) -> str:
        return str(self.func)

    def __repr__(self) -> str:
        return f"<Schedule of {self.func.name}, {len(self._steps)} steps>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the program, and the steps that made it."""
        steps = html_folded(f"{len(self._steps)} steps", str(self.trace)) if self._steps else ""
        return html_text(str(self.func)) + steps


def _size(factor: Any) -> Size | None:
    if isinstance(factor, Int):
        return str(factor) if factor.const is None else factor.const
    if hasattr(factor, "__index__") and not isinstance(factor, bool):
        return int(factor.__index__())  # an integer of NumPy, too
    return factor  # type: ignore[no-any-return]
