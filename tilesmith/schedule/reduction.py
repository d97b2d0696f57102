"""Primitives that divide a reduction into steps: partial results (rfactor, with which a GPU splits
sums over blocks: split-K), a separate start, and all terms written out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, loops_of, of, var
from tilesmith.expr.nodes import Expr, Load, substitute
from tilesmith.ir.dependence import check_kinds
from tilesmith.ir.function import (
    Function,
    find_block,
    find_loop,
    is_own_loop,
    require_only_writer,
    written,
)
from tilesmith.ir.initial import split_init
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    Iter,
    Write,
    map_writes,
    rewrite_blocks,
    walk,
)
from tilesmith.schedule.cache import check_fresh, rename_nest, replaced, top_level
from tilesmith.schedule.loops import loop_names, nest, trivial_index
from tilesmith.schedule.step import Step


def _reduction_of(func: Function, loop: str, why: str) -> Block:
    """The one block that reduces over the loop."""
    _, f = find_loop(func, loop)
    blocks = [b for _, b in walk((f,)) if loop in b.reducing_loops]
    if len(blocks) != 1:
        raise ScheduleError(
            f"cannot {why} loop {loop}: {len(blocks) or 'no'} blocks reduce over it, not one"
        )
    return blocks[0]


@dataclass(frozen=True, slots=True)
class Rfactor(Step):
    """Turns a reducing loop into an axis of partial results, which a second block reduces.

    The partial results can then be computed in parallel, or in the lanes of a vector.

        for k.0 in 8:                            for k.0 in 8:
          for k.1 in 16:                           for k.1 in 16:
            S[] += X[16*k.0 + k.1]        ->         S.rf[k.1] += X[16*k.0 + k.1]
                                                 for k.1 in 16:
                                                   S[] += S.rf[k.1]
    """

    name: ClassVar[str] = "rfactor"
    loop: str

    def apply(self, func: Function) -> Function:
        b = _reduction_of(func, self.loop, "rfactor")
        assert b.combiner is not None
        require_only_writer(func, b, f"rfactor loop {self.loop} of")
        trivial_index(b, f"rfactor loop {self.loop} of")
        if b.is_running:
            raise ScheduleError(
                f"cannot rfactor loop {self.loop} of {b.name}: it keeps every partial result"
            )
        if not b.init or b.tile:
            raise ScheduleError(
                f"cannot rfactor loop {self.loop} of {b.name}: "
                "do this before decompose_reduction and blockize"
            )
        part = f"{b.name}.rf"
        names = {w.buffer: part if len(b.writes) == 1 else f"{w.buffer}.rf" for w in b.writes}
        check_fresh(func, f"rfactor loop {self.loop}", part, *names.values())
        at = top_level(func, b.name)
        if any(load.buffer in written(b) for _, o in walk((func.body[at],)) for load in o.loads):
            raise ScheduleError(
                f"cannot rfactor loop {self.loop} of {b.name}: it is read inside the same loops; "
                "do this before compute_at"
            )
        before = [f.name for f in find_block(func, b.name)[0]]
        func = rename_nest(func, b.name, part)
        path, b2 = find_block(func, part)
        moved = path[before.index(self.loop)].name

        def short(loop: str) -> str:
            return loop[len(part) + 1 :] if loop.startswith(f"{part}.") else loop

        # Every reducing loop becomes an iterator of its own; the chosen one is spatial.
        size = {f.name: f.extent for f in path if f.name in b2.reducing_loops}
        loops = list(size)
        env = {n: var(short(n)) for n in loops}
        fixed = {i.name: i.bind.substitute(env) for i in b2.reducing}
        clash = {short(n) for n in loops} & {i.name for i in b2.spatial}
        if clash:
            raise ScheduleError(
                f"cannot rfactor loop {self.loop} of {b.name}: the name {sorted(clash)[0]} is taken"
            )
        domain, where = {p.substitute(fixed) for p in b2.domain}, set()
        for p in b2.where:
            if not p.names & set(loops):
                where.add(p)
            elif loops_of(p) <= set(loops):
                domain.add(p.substitute(env))
            else:
                raise ScheduleError(
                    f"cannot rfactor loop {self.loop} of {b.name}: its guard {p} >= 0 mixes loops "
                    "that it reduces over with others"
                )
        axis = short(moved)
        iters = (
            Iter(axis, "S", size[moved], var(moved)),
            *b2.spatial,
            *(Iter(short(n), "R", size[n], var(n)) for n in loops if n != moved),
        )
        writes = tuple(
            Write(names[w.buffer], (var(axis), *w.index), w.value)
            for w in map_writes(b2.writes, lambda p: p.substitute(fixed))
        )
        # If nothing is left to reduce over, each partial result is one term joined to the identity.
        partial = replace(
            b2, iters=iters, writes=writes, where=frozenset(where), domain=frozenset(domain)
        )
        body = rewrite_blocks(func.body, lambda o: partial if o.name == part else o)
        iterators = {axis, *(i.name for i in b.spatial)}
        last = Iter(axis, "R", size[moved], var(axis))
        final = Block(
            b.name,
            (*b.spatial, last),
            tuple(
                Write(
                    w.buffer, w.index, Load(names[w.buffer], (var(axis), *w.index), w.value.dtype)
                )
                for w in b.writes
            ),
            b.combiner,
            True,
            # a partial result whose iterations are all guarded off was never initialised
            domain=frozenset(p for p in domain if loops_of(p) <= iterators),
        )
        body = (*body[: at + 1], nest(func, final), *body[at + 1 :])
        old = func.all_buffers
        new = tuple(Buffer(n, (last.extent, *old[w].shape), old[w].dtype) for w, n in names.items())
        done = replace(func, body=body, buffers=(*func.buffers, *new))
        check_kinds(done, f"rfactor loop {self.loop}")
        return done


_MOST_TERMS = 64


@dataclass(frozen=True, slots=True)
class WriteOut(Step):
    """Replaces a reduction by an expression of all its terms, in the order of its loops. Its result
    needs no memory between the terms, so it can be inlined into its consumer.

    for i in 8:                                       for i in 8:
      for r in 3:                              ->       Y(i=i): Y[i] = X[i]*W[0] + X[i + 1]*W[1]
        Y(i=i, r:R=r): Y[i] += X[i + r]*W[r]                           + X[i + 2]*W[2]
    """

    name: ClassVar[str] = "write_out"
    block: str

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        require_only_writer(func, b, "write_out")
        if b.combiner is None or not b.init:
            raise self._refuse("it is not a whole reduction")
        if any(i.extent.const is None for i in b.reducing):
            raise self._refuse("it has an open number of terms, not 1 to 64")
        terms = prod(i.extent.number for i in b.reducing)
        if not 0 < terms <= _MOST_TERMS:
            raise self._refuse(f"it has {terms} terms, not 1 to 64")
        at = top_level(func, b.name)
        plain = all(i.bind.name is not None for i in b.iters)
        if len(list(walk((func.body[at],)))) > 1 or b.tile or b.where or b.domain or not plain:
            raise self._refuse("it shares its loops, or they were cut; do this first")
        return replaced(func, at, _written_out(b))

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot write_out {self.block}: {why}")


def _written_out(b: Block) -> Block:
    assert b.combiner is not None
    total: tuple[Expr, ...] | None = None
    for taps in product(*(range(i.extent.number) for i in b.reducing)):
        env: dict[str, Int] = {i.name: of(t) for i, t in zip(b.reducing, taps, strict=True)}
        terms = tuple(substitute(w.value, env) for w in b.writes)
        total = terms if total is None else b.combiner.join(total, terms)
    assert total is not None
    writes = tuple(Write(w.buffer, w.index, v) for w, v in zip(b.writes, total, strict=True))
    return Block(b.name, b.spatial, writes)


@dataclass(frozen=True, slots=True)
class DecomposeReduction(Step):
    """Stores the reduction's identity by a block of its own, directly before a loop.

    for i in 8:                          for i in 8:
      for k in 16:                         C.init(i=i): C[i] = 0
        C[i] += A[i, k]  # from 0  ->      for k in 16:
                                             C[i] += A[i, k]
    """

    name: ClassVar[str] = "decompose_reduction"
    block: str
    loop: str

    def apply(self, func: Function) -> Function:
        path, b = find_block(func, self.block)
        names = [f.name for f in path]
        if self.loop not in names:
            raise ScheduleError(
                f"cannot decompose {b.name} at {self.loop}: the loops around it are "
                f"{', '.join(names)}"
            )
        if b.combiner is None or not b.init:
            raise ScheduleError(
                f"cannot decompose {b.name}: it is not a reduction with its start inside"
            )
        at = names.index(self.loop)
        outside = b.reducing_loops & set(names[:at])
        if outside:
            raise ScheduleError(
                f"cannot decompose {b.name} at {self.loop}: it reduces over "
                f"{sorted(outside)[0]} further out; choose that loop"
            )
        for f in path[at:]:
            if not is_own_loop(b, f):
                raise ScheduleError(
                    f"cannot decompose {b.name} at {self.loop}: it is computed anew in each "
                    f"iteration of {f.name}; choose a loop inside that"
                )
        done = replace(func, body=split_init(func.body, b, path, self.loop, loop_names(func)))
        check_kinds(done, f"decompose {b.name} at {self.loop}")
        return done
