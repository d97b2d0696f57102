"""Primitives that move a block into the loops of its consumers (compute_at), or of its producers
(reverse_compute_at).
"""

from __future__ import annotations

from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, loops_of, nonnegative, product
from tilesmith.expr.nodes import Load
from tilesmith.ir.dependence import check_kinds, check_reads, require_finished
from tilesmith.ir.function import (
    Function,
    all_loops,
    find_block,
    find_loop,
    is_own_loop,
    program_order,
    readers,
    require_not_output,
    require_only_writer,
    writers,
    written,
)
from tilesmith.ir.nodes import Block, For, Path, walk
from tilesmith.ir.regions import Box, box_of, extent, inner_ranges, union, written_box
from tilesmith.schedule.loops import Span, drop, place, trivial_index
from tilesmith.schedule.step import Step


def _check_movable(func: Function, b: Block, why: str) -> None:
    require_only_writer(func, b, why)
    if b.tile:
        raise ScheduleError(f"cannot {why} {b.name}: it is a unit; move it before blockize")


def _check_target(path: Path, b: Block, loop: str, why: str) -> None:
    for f in path:
        if f.kind == "vectorize":
            raise ScheduleError(
                f"cannot {why} {b.name} at loop {loop}: {f.name} is vectorized; "
                "vectorize after blocks are placed"
            )
        if is_own_loop(b, f):
            raise ScheduleError(
                f"cannot {why} {b.name} at loop {loop}: {f.name} is a loop that it left behind"
            )


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """Computes a producer inside a loop of its consumers: only the part that one iteration needs,
    directly before its use.

    for i in 8:                       for i in 8:
      P(i=i): P[i] = ...                for P.i in 1:
    for i in 8:               ->          P(i=i + P.i): P[i] = ...
      C(i=i): C[i] = P[i] ...           C(i=i): C[i] = P[i] ...
    """

    name: ClassVar[str] = "compute_at"
    block: str
    loop: str

    def apply(self, func: Function) -> Function:
        at_path, b = find_block(func, self.block)
        find_loop(func, self.loop)
        why = "compute_at"
        require_not_output(func, b, why)
        _check_movable(func, b, why)
        its = trivial_index(b, why)
        if self.loop in {f.name for f in at_path if is_own_loop(b, f)}:
            raise ScheduleError(
                f"cannot compute_at {b.name} at loop {self.loop}: that is its own loop"
            )
        rest = drop(func, self.block)
        if not any(readers(rest, n) for n in written(b)):
            raise ScheduleError(f"cannot compute_at {b.name}: nobody reads it")
        if not any(f.name == self.loop for f in all_loops(rest.body)):
            raise ScheduleError(
                f"cannot compute_at {b.name} at loop {self.loop}: nothing else is inside it"
            )
        path, loop = find_loop(rest, self.loop)
        _check_target((*path, loop), b, self.loop, why)
        box: Box | None = None
        for n in written(b):
            box = self._needed(rest, n, b, box)
        assert box is not None
        rules = func.rules
        spans = {n: (span[0], extent(span, rules)) for n, span in zip(its, box, strict=True)}
        placed = place(rest, b, spans, frozenset(), self.loop, self._position(loop, b))
        doing = f"compute_at {b.name} at loop {self.loop}"
        check_reads(placed, b.name, doing)
        check_kinds(placed, doing)
        return placed

    def _needed(self, rest: Function, buffer: str, b: Block, box: Box | None) -> Box | None:
        """The box of the buffer that one iteration of the loop reads."""
        buf = rest.all_buffers[buffer]
        for path, o in walk(rest.body):
            indices = [load.index for load in o.loads if load.buffer == buffer]
            if not indices:
                continue
            if self.loop not in {f.name for f in path}:
                raise ScheduleError(
                    f"cannot compute_at {b.name} at loop {self.loop}: {o.name} reads {buffer} "
                    "outside of it; choose a loop around all readers"
                )
            inner = inner_ranges(path, o, self.loop, buf.scope)
            for index in indices:
                at = [p.substitute(o.binding) for p in index]
                box = union(box, box_of(at, buf.shape, inner, rest.rules))
        return box

    def _position(self, loop: For, b: Block) -> int:
        names = set(written(b))
        for k, s in enumerate(loop.body):
            for _, o in walk((s,)):
                if any(load.buffer in names for load in o.loads):
                    return k
        raise AssertionError(loop.name)


@dataclass(frozen=True, slots=True)
class ReverseComputeAt(Step):
    """Computes a consumer inside a loop of its producer: only the part that one iteration has
    produced, directly after it.

    for i in 8:                       for i in 8:
      P(i=i): P[i] = ...                P(i=i): P[i] = ...
    for i in 8:               ->        for C.i in 1:
      C(i=i): C[i] = P[i] ...             C(i=i + C.i): C[i] = P[i] ...
    """

    name: ClassVar[str] = "reverse_compute_at"
    block: str
    loop: str

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        _, loop = find_loop(func, self.loop)
        _check_movable(func, b, "reverse_compute_at")
        if any(o.name == b.name for _, o in walk((loop,))):
            raise self._refuse(b, "it is there already")
        rest = drop(func, self.block)
        path, loop = find_loop(rest, self.loop)
        _check_target((*path, loop), b, self.loop, "reverse_compute_at")
        read = {x.buffer for x in b.loads}
        producers = [o for _, o in walk((loop,)) if set(written(o)) & read]
        if not producers:
            raise self._refuse(b, "nothing it reads is produced there")
        doing = f"reverse_compute_at {b.name} at loop {self.loop}"
        outside = {f.name for f in (*path, loop)}
        guards: set[Int] = set()
        for o in producers:
            require_finished(o, (*path, loop), doing)
            require_only_writer(rest, o, f"{doing}, behind")
            guards |= {g for g in o.where if loops_of(g) <= outside}
        self._check_order(rest, b, {o.name for _, o in walk((loop,))}, producers)
        spans = self._spans(rest, b, producers, outside)
        at = 1 + max(
            k for k, s in enumerate(loop.body) if any(o in producers for _, o in walk((s,)))
        )
        placed = place(rest, b, spans, frozenset(guards), self.loop, at)
        check_reads(placed, b.name, doing)
        for name in dict.fromkeys(o.name for n in written(b) for o in readers(placed, n)):
            check_reads(placed, name, doing)
        check_kinds(placed, doing)
        return placed

    def _check_order(
        self, rest: Function, b: Block, inside: set[str], producers: list[Block]
    ) -> None:
        order = program_order(rest)
        first = min(order[n] for n in inside)
        last = max(order[n] for n in inside)
        ours = {o.name for o in producers}
        for name in dict.fromkeys(load.buffer for load in b.loads):
            for producer in writers(rest, name):
                if producer.name not in ours and order[producer.name] > first:
                    raise self._refuse(b, f"{producer.name}, which it reads, is computed later")
        for name in written(b):
            for consumer in readers(rest, name):
                if order[consumer.name] <= last:
                    raise self._refuse(b, f"{consumer.name} reads it before")

    def _spans(
        self, rest: Function, b: Block, producers: list[Block], outside: set[str]
    ) -> dict[str, Span]:
        """The span of each iterator that belongs to one iteration of the loop, derived from how the
        producers' buffers are read.
        """
        spans: dict[str, Span] = {}
        boxes: dict[str, Box] = {}
        for o in producers:
            path, _ = find_block(rest, o.name)
            partial = any(i.bind.names & outside for i in o.spatial)
            for n in written(o) if partial else ():
                box = written_box(o, path, n, self.loop, rest.rules)
                if box is None:
                    raise self._refuse(
                        b, f"{o.name} does not make a box of {n} without holes there"
                    )
                boxes[n] = box
        for load in b.loads:
            shape = rest.all_buffers[load.buffer].shape
            for d, span in enumerate(boxes.get(load.buffer, ())):
                if shape[d].const == 1 and load.index[d].const == 0:
                    continue  # the only element there is
                if (span[0].names | span[1].names) & outside:
                    it = self._iterator(rest, b, load, d)
                    new = (span[0], extent(span, rest.rules))
                    shared = any(
                        self._loops(span) & self._loops(new) & outside
                        for n, span in spans.items()
                        if n != it
                    )
                    if spans.setdefault(it, new) != new or shared:
                        raise self._refuse(
                            b, f"it reads {load.buffer} at two places that move apart"
                        )
        return spans

    def _loops(self, span: Span) -> frozenset[str]:
        return span[0].names | span[1].names

    def _iterator(self, rest: Function, b: Block, load: Load, d: int) -> str:
        """The iterator that indexes dimension `d` of the load."""
        p = load.index[d]
        kinds = {i.name: i.kind for i in b.iters}
        its = sorted(p.names & kinds.keys())
        if not its:
            raise self._refuse(b, f"it reads {load.buffer} at {p} from every iteration")
        if any(kinds[n] == "R" for n in its):
            raise self._refuse(
                b, f"it reduces over {its[0]}, of which one iteration has only a part"
            )
        whole = rest.all_buffers[load.buffer].shape[d]
        own = next(i.extent for i in b.iters if i.name == its[0])
        # A crop reads only the first elements; guards skip the iterations behind them.
        crops = nonnegative(whole - 1 - own) or _is_rounded_up(rest, own, whole)
        if p.name is None or (own != whole and not crops):
            raise self._refuse(b, f"it reads {load.buffer} at {p}, not element for element")
        return p.name

    def _refuse(self, b: Block, why: str) -> ScheduleError:
        return ScheduleError(f"cannot reverse_compute_at {b.name} at loop {self.loop}: {why}")


def _is_rounded_up(func: Function, n: Int, whole: Int) -> bool:
    """Whether an extent is an open one, rounded up to a multiple."""
    return any(f.extent == n and product(f.sizes) == whole for f in func.facts)
