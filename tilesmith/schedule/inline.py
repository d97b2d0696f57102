"""Primitives that merge a block into its consumers (inline) or its producer (reverse_inline)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.dynamic import fitted, map_dynamic
from tilesmith.expr.nodes import Expr, Load, substitute
from tilesmith.ir.dependence import check_kinds, check_reads
from tilesmith.ir.function import (
    Function,
    find_block,
    readers,
    require_not_output,
    require_only_writer,
    written,
)
from tilesmith.ir.nodes import Block, Stmt, Write, map_write_loads, rewrite, rewrite_blocks, walk
from tilesmith.schedule.loops import trivial_index
from tilesmith.schedule.step import Step


def _plain_block(b: Block, why: str) -> None:
    if b.combiner is not None:
        raise ScheduleError(f"cannot {why} {b.name}: it is a reduction")
    if b.domain or b.tile:
        raise ScheduleError(f"cannot {why} {b.name}: it is a part of a larger rewrite already")


def _without(func: Function, b: Block, body: tuple[Stmt, ...]) -> Function:
    """The Function with `body`, in which the block no longer occurs, and without its buffers."""
    unused = set(written(b))
    body = rewrite(body, lambda s: () if isinstance(s, Block) and s.name == b.name else (s,))
    return replace(func, body=body, buffers=tuple(x for x in func.buffers if x.name not in unused))


def _with_values(b: Block, writes: tuple[Write, ...], put: Callable[[Load], Expr]) -> Block:
    """The block with `writes`, in which loads are replaced by the values that `put` gives.

    A value used in an index keeps its own integer arithmetic, which may wrap around. If the ranges
    of the iterators exclude that, it becomes an index expression like any other.
    """
    ranges = {i.name: i.extent for i in b.iters}
    new = map_write_loads(writes, put)
    if b.scatters:
        b = replace(b, domain=frozenset(map_dynamic(p, put) for p in b.domain))
    return replace(b, writes=tuple(replace(w, value=fitted(w.value, ranges)) for w in new))


@dataclass(frozen=True, slots=True)
class Inline(Step):
    """Computes a producer's element wherever it is read, instead of storing it.

    P[i] = f(X[i])
    C[i] = g(P[i], P[i + 1])    ->    C[i] = g(f(X[i]), f(X[i + 1]))
    """

    name: ClassVar[str] = "inline"
    block: str

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        require_not_output(func, b, "inline")
        require_only_writer(func, b, "inline")
        _plain_block(b, "inline")
        its = trivial_index(b, "inline")
        values = {w.buffer: w.value for w in b.writes}
        if not any(readers(func, n) for n in values):
            raise ScheduleError(f"cannot inline {b.name}: nobody reads it")
        for o in (o for n in values for o in readers(func, n)):
            if o.intrinsic is not None:
                raise ScheduleError(
                    f"cannot inline {b.name}: an instruction carries out {o.name}, which reads it"
                )

        inlined: dict[Load, Expr] = {}  # loads of the same element share one expression

        def put(load: Load) -> Expr:
            if load.buffer not in values:
                return load
            if load not in inlined:
                moved = {n: p for n, p in zip(its, load.index, strict=True) if p.name != n}
                inlined[load] = substitute(values[load.buffer], moved)
            return inlined[load]

        names = dict.fromkeys(o.name for n in values for o in readers(func, n))
        body = rewrite_blocks(
            func.body, lambda o: _with_values(o, o.writes, put) if o.name in names else o
        )
        done = _without(func, b, body)
        for name in names:
            check_reads(done, name, f"inline {b.name}")
        check_kinds(done, f"inline {b.name}")
        return done


@dataclass(frozen=True, slots=True)
class ReverseInline(Step):
    """Computes an element-wise consumer within its producer, which then writes the consumer's
    buffer.

    P[i] = f(X[i])
    C[i] = g(P[i])    ->    C[i] = g(f(X[i]))
    """

    name: ClassVar[str] = "reverse_inline"
    block: str

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        why = "reverse_inline"
        _plain_block(b, why)
        require_only_writer(func, b, why)
        its = trivial_index(b, why)
        producer = self._producer(func, b)
        _plain_block(producer, f"{why} {b.name} into")
        require_not_output(func, producer, f"{why} {b.name} into")
        require_only_writer(func, producer, f"{why} {b.name} into")
        p_its = trivial_index(producer, f"{why} {b.name} into")
        buffer = producer.writes[0].buffer
        others = [o.name for o in readers(func, buffer) if o.name != b.name]
        if len(producer.writes) != 1 or others:
            reason = f"{', '.join(others)} reads it too" if others else "it writes several buffers"
            raise ScheduleError(f"cannot {why} {b.name} into {producer.name}: {reason}")
        reads = [load for load in b.loads if load.buffer == buffer]
        order = tuple(p.name for p in reads[0].index)
        extents = {i.name: i.extent for i in b.spatial}
        p_extents = {i.name: i.extent for i in producer.spatial}
        same = all(r.index == reads[0].index for r in reads)
        same = same and sorted(map(str, order)) == sorted(its)
        if not same or [extents[str(n)] for n in order] != [p_extents[n] for n in p_its]:
            raise ScheduleError(
                f"cannot {why} {b.name} into {producer.name}: it does not read {buffer} "
                "element for element"
            )
        back = dict(zip((str(n) for n in order), producer.writes[0].index, strict=True))
        value = producer.writes[0].value

        def put(load: Load) -> Expr:
            return value if load.buffer == buffer else load

        writes = tuple(
            replace(
                w,
                index=tuple(p.substitute(back) for p in w.index),
                value=substitute(w.value, back),
            )
            for w in b.writes
        )
        merged = _with_values(replace(producer, name=b.name), writes, put)

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, Block) and s.name == b.name:
                return ()
            return (merged,) if isinstance(s, Block) and s.name == producer.name else (s,)

        done = replace(
            func,
            body=rewrite(func.body, go),
            buffers=tuple(x for x in func.buffers if x.name != buffer),
        )
        doing = f"{why} {b.name} into {producer.name}"
        check_reads(done, b.name, doing)
        for name in dict.fromkeys(o.name for n in written(b) for o in readers(done, n)):
            check_reads(done, name, doing)
        check_kinds(done, doing)
        return done

    def _producer(self, func: Function, b: Block) -> Block:
        """The block whose buffer this one reads at its own iterators. A buffer that is read in no
        other way is preferred.
        """
        rank = len(b.spatial)
        producers = []
        for name in dict.fromkeys(load.buffer for load in b.loads):
            indices = [x.index for x in b.loads if x.buffer == name and len(x.index) == rank]
            plain = all(len({p.name for p in ix} - {None}) == rank for ix in indices)
            producers += [
                (not plain, o) for _, o in walk(func.body) if indices and name in written(o)
            ]
        if not producers:
            raise ScheduleError(
                f"cannot reverse_inline {b.name}: it reads no computed buffer element for element"
            )
        return min(producers, key=lambda f: f[0])[1]
