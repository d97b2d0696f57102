"""Primitives that move a block to where its result is used, or to where its operands are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ZERO, Int, is_size, var
from tilesmith.ir.dependence import (
    check_concurrent,
    find_block,
    find_loop,
    finished_at,
    not_output,
    only_writer,
    readers,
    writers,
    written,
)
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Path, Stmt, rewrite, walk
from tilesmith.ir.regions import Box, box_of, extent, inner_ranges, union
from tilesmith.schedule.step import Step

Span = tuple[Int, Int]  # first value, and how many


def nest(block: Block, loops: list[tuple[str, Int]]) -> Stmt:
    stmt: Stmt = block
    for name, e in reversed(loops):
        stmt = For(name, e, (stmt,))
    return stmt


def drop(func: Function, name: str) -> Function:
    """Without the block, and without loops that held nothing else."""
    return replace(
        func,
        body=rewrite(func.body, lambda s: () if isinstance(s, Block) and s.name == name else (s,)),
    )


def trivial_index(b: Block, why: str) -> tuple[str, ...]:
    """The iterators that index what the block writes, one per dimension."""
    spatial = {i.name for i in b.spatial}
    out = []
    for p in b.writes[0].index:
        if p.name is None or p.name not in spatial:
            raise ScheduleError(f"cannot {why} {b.name}: it writes at {p}, which is not one of its iterators")
        out.append(p.name)
    if len(set(out)) != len(out) or any(w.index != b.writes[0].index for w in b.writes):
        raise ScheduleError(f"cannot {why} {b.name}: its writes do not share one plain index")
    return tuple(out)


def region(func: Function, buffer: str, loop: str, *, writes: bool) -> Box:
    """The box of `buffer` that blocks below `loop` read (or write), over the loops that stay outside."""
    buf = func.all_buffers[buffer]
    box: Box | None = None
    for path, b in walk(func.body):
        if writes:
            found = [w.index for w in b.writes if w.buffer == buffer]
        else:
            found = [load.index for load in b.loads if load.buffer == buffer]
        if not found:
            continue
        if loop not in {f.name for f in path}:
            raise ScheduleError(f"{b.name} uses {buffer} outside of loop {loop}")
        inner = inner_ranges(path, b, loop, buf.scope)
        for index in found:
            at = [p.substitute(b.binding) for p in index]
            box = union(box, box_of(at, buf.shape, inner, func.rules))
    assert box is not None
    return box


def place(func: Function, b: Block, spans: dict[str, Span], loop: str, at: int) -> Function:
    """Give `b` a fresh nest over the spans (the whole extent where there is none), as statement `at` of the loop's body."""
    loops, iters, where = [], [], set()
    for i in b.iters:
        first, count = spans.get(i.name, (ZERO, i.extent))
        if not all(map(is_size, count.names)):
            raise ScheduleError(
                f"cannot place {b.name} at loop {loop}: how much of {i.name} it needs, {count}, "
                "differs from one iteration to the next"
            )
        name = f"{b.name}.{i.name}"
        loops.append((name, count))
        iters.append(replace(i, bind=first + var(name)))
        if i.name in spans:
            where |= {iters[-1].bind, i.extent - 1 - iters[-1].bind}
    stmt = nest(replace(b, iters=tuple(iters), where=frozenset(where)), loops)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.name == loop:
            return (replace(s, body=(*s.body[:at], stmt, *s.body[at:])),)
        return (s,)

    placed = replace(func, body=rewrite(func.body, go))
    path, inner = find_loop(placed, loop)
    for f in (*path, inner):
        if f.kind not in ("serial", "unroll"):
            check_concurrent(placed, f, f"place {b.name} inside the {f.kind}")
    return placed


def _movable(func: Function, b: Block, loop: For, path: Path, why: str) -> None:
    only_writer(func, b, why)
    if b.tile:
        raise ScheduleError(f"cannot {why} {b.name}: it is a unit; move it before blockize")
    for f in (*path, loop):
        if f.kind in ("vectorize",):
            raise ScheduleError(f"cannot {why} {b.name} into the vectorized loop {f.name}")


def _order(func: Function) -> dict[str, int]:
    return {b.name: k for k, (_, b) in enumerate(walk(func.body))}


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """A producer is computed inside a loop of its consumers: just the part that one iteration needs, just before it.

        for i in 8:                       for i in 8:
          P(i=i): P[i] = ...                for P.i in 1:
        for i in 8:               ->          P(i=i + P.i): P[i] = ...
          C(i=i): C[i] = P[i] ...           C(i=i): C[i] = P[i] ...
    """

    name: ClassVar[str] = "compute_at"
    block: str
    loop: str

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        path, loop = find_loop(func, self.loop)
        why = "compute_at"
        not_output(func, b, why)
        _movable(func, b, loop, path, why)
        if any(o.name == b.name for _, o in walk((loop,))):
            others = [o for _, o in walk((loop,)) if o.name != b.name]
            if not others or self.loop.startswith(f"{b.name}."):
                raise ScheduleError(f"cannot compute {b.name} at {self.loop}: that is its own loop")
        its = trivial_index(b, why)
        rest = drop(func, self.block)
        if not any(readers(rest, n) for n in written(b)):
            raise ScheduleError(f"cannot compute_at {b.name}: nobody reads it")
        path, loop = find_loop(rest, self.loop)
        box: Box | None = None
        for n in written(b):
            if readers(rest, n):
                box = union(box, region(rest, n, self.loop, writes=False))
        assert box is not None
        at = self._position(loop, b)
        self._check_producers(rest, b, (*path, loop), loop, at)
        rules = func.rules
        spans = {n: (span[0], extent(span, rules)) for n, span in zip(its, box, strict=True)}
        return place(rest, b, spans, self.loop, at)

    def _position(self, loop: For, b: Block) -> int:
        names = set(written(b))
        for k, s in enumerate(loop.body):
            for _, o in walk((s,)):
                if any(load.buffer in names for load in o.loads):
                    return k
        raise AssertionError

    def _check_producers(
        self, rest: Function, b: Block, path: Path, loop: For, at: int
    ) -> None:
        order = _order(rest)
        first = min(order[o.name] for s in loop.body[at:] for _, o in walk((s,)))
        for name in {load.buffer for load in b.loads}:
            for producer in writers(rest, name):
                if order[producer.name] >= first:
                    raise ScheduleError(
                        f"cannot compute {b.name} at {self.loop}: {producer.name}, which it reads, "
                        "is computed later; move that first"
                    )
                at_path, _ = find_block(rest, producer.name)
                shared = tuple(f for f in at_path if f.name in {g.name for g in path})
                finished_at(rest, producer, shared)


@dataclass(frozen=True, slots=True)
class ReverseComputeAt(Step):
    """A consumer is computed inside a loop of its producer: just the part that one iteration has made, just after it.

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
        path, loop = find_loop(func, self.loop)
        why = "reverse_compute_at"
        _movable(func, b, loop, path, why)
        if any(o.name == b.name for _, o in walk((loop,))):
            raise ScheduleError(f"cannot {why} {b.name} at {self.loop}: it is there already")
        rest = drop(func, self.block)
        path, loop = find_loop(rest, self.loop)
        inside = {o.name for _, o in walk((loop,))}
        made = [o for o in (n for _, n in walk((loop,))) if set(written(o)) & {x.buffer for x in b.loads}]
        if not made:
            raise ScheduleError(f"cannot {why} {b.name} at {self.loop}: nothing it reads is made there")
        for o in made:
            at_path, _ = find_block(rest, o.name)
            finished_at(rest, o, tuple(f for f in at_path if f.name in {g.name for g in (*path, loop)}))
            only_writer(rest, o, f"{why} {b.name} behind")
        self._check_order(rest, b, inside, made)
        spans = self._spans(rest, b, made, {f.name for f in (*path, loop)})
        at = 1 + max(
            k for k, s in enumerate(loop.body) if any(o in made for _, o in walk((s,)))
        )
        return place(rest, b, spans, self.loop, at)

    def _check_order(self, rest: Function, b: Block, inside: set[str], made: list[Block]) -> None:
        order = _order(rest)
        first = min(order[n] for n in inside)
        last = max(order[n] for n in inside)
        ours = {o.name for o in made}
        for name in {load.buffer for load in b.loads}:
            for producer in writers(rest, name):
                if producer.name not in ours and order[producer.name] > first:
                    raise ScheduleError(
                        f"cannot reverse_compute_at {b.name} at {self.loop}: {producer.name}, "
                        "which it reads, is computed later"
                    )
        for name in written(b):
            for consumer in readers(rest, name):
                if order[consumer.name] <= last:
                    raise ScheduleError(
                        f"cannot reverse_compute_at {b.name} at {self.loop}: {consumer.name} reads it before"
                    )

    def _spans(
        self, rest: Function, b: Block, made: list[Block], outside: set[str]
    ) -> dict[str, Span]:
        """What of each iterator belongs to one iteration of the loop, from how the made buffers are read."""
        spans: dict[str, Span] = {}
        kinds = {i.name: i.kind for i in b.iters}
        buffers = {n for o in made for n in written(o)}
        for load in b.loads:
            if load.buffer not in buffers:
                continue
            box = region(rest, load.buffer, self.loop, writes=True)
            for d, (p, span) in enumerate(zip(load.index, box, strict=True)):
                partial = (span[0].names | span[1].names) & outside
                its = p.names & kinds.keys()
                if not its:
                    if partial:
                        raise self._refuse(b, f"it reads {load.buffer} at {p} from every iteration")
                    continue
                it = next(iter(its))
                shift = p - var(it)
                if len(its) > 1 or shift.names & kinds.keys():
                    if partial:
                        raise self._refuse(b, f"it reads {load.buffer} at {p}, which is more than one iterator")
                    continue
                if kinds[it] == "R":
                    if partial:
                        raise self._refuse(b, f"it reduces over {it}, of which one iteration has only a part")
                    continue
                if not partial and it not in spans:
                    continue
                whole = rest.all_buffers[load.buffer].shape[d]
                if shift.terms or next(i.extent for i in b.iters if i.name == it) != whole:
                    raise self._refuse(b, f"it reads {load.buffer} at {p}, not element for element")
                new = (span[0] - shift, extent(span, rest.rules))
                if it in spans and spans[it] != new:
                    raise self._refuse(b, f"it reads {load.buffer} at two places that move apart")
                spans[it] = new
        return spans

    def _refuse(self, b: Block, why: str) -> ScheduleError:
        return ScheduleError(f"cannot reverse_compute_at {b.name} at loop {self.loop}: {why}")
