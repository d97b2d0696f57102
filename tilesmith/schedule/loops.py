"""Primitives that split, fuse and permute loops, and what primitives that move or add blocks need
to build and edit loop nests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError, TraceError
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import ZERO, Int, Size, as_int, is_size, nonnegative, of, product, var
from tilesmith.ir.dependence import check_kinds, check_sums, has_atomic_updates
from tilesmith.ir.function import Function, all_loops, find_block, find_loop, is_own_loop
from tilesmith.ir.nodes import (
    Block,
    Fact,
    For,
    Stmt,
    map_bindings,
    nested,
    rewrite,
    rewrite_blocks,
    walk,
)
from tilesmith.schedule.step import Step

Span = tuple[Int, Int]  # first value, number of values


def loop_names(func: Function) -> set[str]:
    """The names that a new loop must not have."""
    return {f.name for f in all_loops(func.body)} | {
        n for _, b in walk(func.body) for n, _ in b.tile
    }


def fresh(name: str, taken: set[str]) -> str:
    """`name`, or `name_1`, `name_2`, ... if it is taken."""
    unique, n = name, 1
    while unique in taken:
        unique, n = f"{name}_{n}", n + 1
    taken.add(unique)
    return unique


def nest(func: Function, b: Block, spans: Mapping[str, Span] | None = None) -> Stmt:
    """The block in a new loop nest of its own. A loop runs over the span given for its iterator,
    or over the whole extent.
    """
    spans = spans or {}
    taken = loop_names(func)
    loops, iters = [], []
    for i in b.iters:
        first, count = spans.get(i.name, (ZERO, i.extent))
        name = fresh(f"{b.name}.{i.name}", taken)
        loops.append((name, count))
        iters.append(replace(i, bind=first + var(name)))
    stmt: Stmt = replace(b, iters=tuple(iters))
    for name, count in reversed(loops):
        stmt = For(name, count, (stmt,), owner=b.name)
    return stmt


def drop(func: Function, name: str) -> Function:
    """Removes a block, and the loops that contained nothing else."""
    return replace(
        func,
        body=rewrite(func.body, lambda s: () if isinstance(s, Block) and s.name == name else (s,)),
    )


def trivial_index(b: Block, why: str) -> tuple[str, ...]:
    """The iterators that index the block's writes, one per dimension."""
    spatial = {i.name for i in b.spatial}
    out = []
    for p in b.writes[0].index:
        if p.name is None or p.name not in spatial:
            raise ScheduleError(
                f"cannot {why} {b.name}: it writes at {p}, which is not one of its iterators"
            )
        out.append(p.name)
    if len(set(out)) != len(out) or any(w.index != b.writes[0].index for w in b.writes):
        raise ScheduleError(f"cannot {why} {b.name}: its writes do not share one plain index")
    return tuple(out)


def place(
    func: Function, b: Block, spans: dict[str, Span], guards: frozenset[Int], loop: str, at: int
) -> Function:
    """Puts `b` in a new loop nest over the spans, as statement number `at` of the loop's body."""
    for name, (_, count) in spans.items():
        if not all(map(is_size, count.names)):
            raise ScheduleError(
                f"cannot place {b.name} at loop {loop}: how much of {name} it needs, {count}, "
                "differs from one iteration to the next"
            )
    stmt = nest(func, replace(b, where=frozenset()), spans)
    (placed,) = (o for _, o in walk((stmt,)))
    inside = {p for i in placed.iters if i.name in spans for p in (i.bind, i.extent - 1 - i.bind)}

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Block) and s is placed:
            return (replace(placed, where=guards | inside),)
        return (s,)

    guarded = rewrite((stmt,), go)

    def insert(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.name == loop:
            return (replace(s, body=(*s.body[:at], *guarded, *s.body[at:])),)
        return (s,)

    return replace(func, body=rewrite(func.body, insert))


def require_serial(loop: For, why: str) -> None:
    if loop.kind != "serial":
        raise ScheduleError(f"cannot {why} loop {loop.name}: it is already {loop.kind}")


def require_no_notes(loop: For, why: str) -> None:
    """Refuses loops with notes: a note refers to iterations that would no longer exist."""
    require_serial(loop, why)
    if loop.notes:
        raise ScheduleError(
            f"cannot {why} loop {loop.name}: it has the note {loop.notes[0].key!r}; "
            f"{why} it before it is annotated"
        )


def _decided(factor: str, sizes: Mapping[str, int]) -> Size:
    if factor in sizes:
        return sizes[factor]
    p = as_int(factor)
    if p.name is not None or p.names.isdisjoint(sizes):
        return factor
    p = p.substitute({n: of(v) for n, v in sizes.items()})
    return str(p) if p.const is None else p.const


@dataclass(frozen=True, slots=True)
class Split(Step):
    """Replaces one loop by several nested ones, the first outermost.

    `factors` are the extents of the new loops. At most one of them is None, which stands for the
    smallest extent that covers the loop. If the product exceeds the extent, the blocks inside get a
    guard. `exact` promises that it does not: with size variables that becomes a fact. Where the
    extent is the product of the very same sizes, nothing needs to be promised.

        for i in 100:            for i.0 in 13:
          B(i=i)         ->        for i.1 in 8:
                                     B(i=8*i.0 + i.1) if 99 - 8*i.0 - i.1 >= 0
    """

    name: ClassVar[str] = "split"
    loop: str
    factors: tuple[Size | None, ...]
    exact: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(f"{self.loop}.{k}" for k in range(len(self.factors)))

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        require_no_notes(loop, "split")
        taken = sorted(set(self.parts) & loop_names(func))
        if taken:
            raise ScheduleError(
                f"cannot split loop {self.loop}: there is a loop {taken[0]} already"
            )
        extents, facts = self._extents(loop.extent, func)
        index = linear(map(var, self.parts), row_major(extents))
        env = {self.loop: index}
        guard = loop.extent - 1 - index

        def inner(b: Block) -> Block:
            b = map_bindings(b, lambda p: p.substitute(env))
            return replace(b, where=b.where | {guard})

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if s is not loop and not (isinstance(s, For) and s.name == self.loop):
                return (s,)
            assert isinstance(s, For)
            body = rewrite_blocks(s.body, inner)
            for part, e in zip(reversed(self.parts), reversed(extents), strict=True):
                body = (For(part, e, body, owner=s.owner),)
            return body

        return replace(func, body=rewrite(func.body, go), facts=(*func.facts, *facts))

    def _extents(self, total: Int, func: Function) -> tuple[list[Int], list[Fact]]:
        if not self.factors:
            raise ScheduleError(f"split of loop {self.loop} needs at least one factor")
        # a loop of extent 0 gets an outermost part of extent 0
        empty = total.const == 0 and None not in self.factors
        for k, f in enumerate(self.factors):
            if f is not None and (not isinstance(f, int | str) or isinstance(f, bool)):
                raise ScheduleError(
                    f"split of loop {self.loop} by {f!r}: a factor is a whole number, None, or the "
                    "name of a size variable"
                )
            if isinstance(f, int) and f < (0 if empty and k == 0 else 1):
                raise ScheduleError(f"split of loop {self.loop} by {f}: a factor is at least 1")
            if isinstance(f, str):
                self._check_expression(f)
        holes = [k for k, f in enumerate(self.factors) if f is None]
        if len(holes) > 1:
            raise ScheduleError(f"split of loop {self.loop}: only one factor may be None")
        extents = [of(1) if f is None else as_int(f) for f in self.factors]
        given = product(extents)
        n, m = total.const, given.const
        open_sizes = n is None or m is None
        if holes:
            if n is None and m is not None and total // m * m == total:
                extents[holes[0]] = total // m
                return extents, []
            if open_sizes:  # the None part is a size variable, tied to the others by a fact
                used = {n for f in func.facts for s in f.sizes for n in s.names}
                extents[holes[0]] = var(fresh(f"#{self.parts[holes[0]]}", used))
            else:
                assert n is not None
                assert m is not None
                extents[holes[0]] = of(-(-n // m))
        if open_sizes and not holes and given == total:
            return extents, []  # whatever the sizes are
        if open_sizes:
            if not holes and not self.exact:
                self._check_outermost()
            order = holes or [0]
            sizes = [extents[order[0]], *(e for k, e in enumerate(extents) if k != order[0])]
            self._check_sizes(sizes, func)
            return extents, [Fact(tuple(sizes), total, self.exact)]
        assert n is not None
        covered = product(extents).const
        assert covered is not None
        if covered < n:
            raise ScheduleError(
                f"split of loop {self.loop}: the factors {list(self.factors)} cover {covered} of "
                f"its {n} iterations; put None for the part that is to be as large as needed"
            )
        if self.exact and covered != n:
            raise ScheduleError(
                f"split of loop {self.loop} is to be exact, but {list(self.factors)} multiply to "
                f"{covered}, not {n}"
            )
        return extents, []

    def decide(self, sizes: Mapping[str, int]) -> Self:
        """Factors may be expressions over size variables: "2*#x"."""
        new = tuple(_decided(f, sizes) if isinstance(f, str) else f for f in self.factors)
        return replace(self, factors=new) if new != self.factors else self

    def _check_expression(self, text: str) -> None:
        try:
            p = as_int(text)
        except TraceError:
            p = ZERO
        if not p.names or not all(map(is_size, p.names)):
            raise ScheduleError(
                f"split of loop {self.loop} by {text!r}: a size variable begins with #"
            )
        if p.name is None and (self.exact or not nonnegative(p - 1)):
            raise ScheduleError(
                f"split of loop {self.loop} by {text}: a factor that is computed is at least 1 for "
                "all sizes, and its split is not exact"
            )

    def _check_sizes(self, sizes: list[Int], func: Function) -> None:
        """Refuses a size variable that two splits would determine."""
        used = {n for f in func.facts for s in f.sizes for n in s.names}
        decided = [n for s in (sizes if self.exact else sizes[:1]) for n in sorted(s.names)]
        for n in decided:
            if n in used or decided.count(n) > 1:
                raise ScheduleError(
                    f"split of loop {self.loop}: the size {n} is decided by another split too; "
                    "give each its own name"
                )

    def _check_outermost(self) -> None:
        if not isinstance(self.factors[0], str):
            raise ScheduleError(
                f"split of loop {self.loop} with open sizes: "
                "let the outermost factor be None or a size variable"
            )


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """Replaces perfectly nested loops by one.

    Indices then contain divisions. To run nested loops as one parallel loop or one thread axis,
    mark each of them instead (`parallel(i, j)`): the code generator flattens them without
    divisions in the program.

        for i in 4:              for i+j in 24:
          for j in 6:     ->       B(i=(i+j) // 6, j=(i+j) - 6*((i+j) // 6))
            B(i=i, j=j)
    """

    name: ClassVar[str] = "fuse"
    loops: tuple[str, ...]

    @property
    def fused(self) -> str:
        """C.i.0 and C.j.0 become C.i.0+j.0: a common prefix is stated once."""
        split = [n.split(".") for n in self.loops]
        common = 0
        while all(len(n) > common + 1 and n[common] == split[0][common] for n in split) and not any(
            n[common + 1].isdigit() for n in split
        ):
            common += 1
        return "+".join([self.loops[0], *(".".join(n[common:]) for n in split[1:])])

    def apply(self, func: Function) -> Function:
        if len(self.loops) < 2:
            named = ", ".join(self.loops) or "none"
            raise ScheduleError(f"fuse needs two loops or more; it is given {named}")
        _, top = find_loop(func, self.loops[0])
        chain = [top]
        for name in self.loops[1:]:
            find_loop(func, name)
            inner = chain[-1].body
            if len(inner) != 1 or not isinstance(inner[0], For) or inner[0].name != name:
                raise ScheduleError(
                    f"cannot fuse loop {name}: it is not directly inside {chain[-1].name}"
                )
            chain.append(inner[0])
        for loop in chain:
            require_no_notes(loop, "fuse")
        taken = loop_names(func) - {*self.loops}
        if self.fused in taken:
            names = ", ".join(self.loops)
            raise ScheduleError(f"cannot fuse {names}: there is a {self.fused} already")
        for _, b in walk(chain[-1].body):
            self._check_block(b, chain)
        whole = product(loop.extent for loop in chain)
        env: dict[str, Int] = {}
        rest = var(self.fused)
        steps = row_major([loop.extent for loop in chain])
        for loop, below in zip(chain[:-1], steps, strict=False):
            env[loop.name] = rest // below
            rest = rest - below * env[loop.name]
        env[chain[-1].name] = rest
        body = rewrite_blocks(
            chain[-1].body, lambda b: map_bindings(b, lambda p: p.substitute(env))
        )
        owners = {loop.owner for loop in chain}
        fused = For(self.fused, whole, body, owner=owners.pop() if len(owners) == 1 else "")
        return replace(
            func, body=rewrite(func.body, lambda s: (fused,) if _is(s, top.name) else (s,))
        )

    def _check_block(self, b: Block, chain: list[For]) -> None:
        reduced = [n for n in self.loops if n in b.reducing_loops]
        if reduced and len(reduced) < len(self.loops) and not has_atomic_updates(b):
            other = next(n for n in self.loops if n not in reduced)
            raise ScheduleError(
                f"cannot fuse loops {reduced[0]} and {other}: {b.name} reduces over "
                f"{reduced[0]} only"
            )
        own = [f.name for f in chain if is_own_loop(b, f)]
        if own and len(own) < len(self.loops):
            other = next(n for n in self.loops if n not in own)
            raise ScheduleError(
                f"cannot fuse loops {own[0]} and {other}: the first was made for {b.name}, "
                "the other was not"
            )


def _is(s: Stmt, name: str) -> bool:
    return isinstance(s, For) and s.name == name


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """Permutes loops of one perfect nest in place. Loops that are not named stay where they are.

    for i in 4:              for j in 6:
      for j in 6:     ->       for i in 4:
        B(i=i, j=j)              B(i=i, j=j)
    """

    name: ClassVar[str] = "reorder"
    loops: tuple[str, ...]

    def apply(self, func: Function) -> Function:
        if len(set(self.loops)) != len(self.loops):
            twice = next(n for n in self.loops if self.loops.count(n) > 1)
            raise ScheduleError(f"cannot reorder: loop {twice} is named twice")
        if not self.loops:
            raise ScheduleError("reorder needs the loops, in the order they are to have")
        wanted = set(self.loops)
        depth = {}
        for name in self.loops:
            path, _ = find_loop(func, name)
            depth[name] = len(path)
        top = min(self.loops, key=depth.__getitem__)
        _, cur = find_loop(func, top)
        chain = [cur]
        seen = {cur.name} & wanted
        while seen != wanted:
            if len(cur.body) != 1 or not isinstance(cur.body[0], For):
                missing = sorted(wanted - seen)[0]
                raise ScheduleError(
                    f"cannot reorder {missing} with {top}: the body of {cur.name} is not a single "
                    "loop, so they are not one nest"
                )
            cur = cur.body[0]
            chain.append(cur)
            seen |= {cur.name} & wanted
        by_name = {c.name: c for c in chain}
        order = iter(self.loops)
        new = [by_name[next(order)] if c.name in wanted else c for c in chain]
        body = nested(new, chain[-1].body)
        done = replace(func, body=rewrite(func.body, lambda s: body if _is(s, top) else (s,)))
        why = f"reorder {', '.join(self.loops)}"
        for _, b in walk(body):
            check_sums(find_block(done, b.name)[0], b, why)
            if b.scatters or b.is_running:
                self._check_order(b, chain, new, why)
        check_kinds(done, why)
        return done

    def _check_order(self, b: Block, before: list[For], after: list[For], why: str) -> None:
        """Where the last update of an element or every partial result remains, loops stay in
        their order.
        """
        if has_atomic_updates(b) or (b.combiner is not None and b.combiner.op is not None):
            return
        reducing = b.reducing_loops
        old, new = ([f.name for f in loops if f.name in reducing] for loops in (before, after))
        if old != new:
            raise ScheduleError(
                f"cannot {why}: {b.name} keeps the last update of each element, or every partial "
                f"result, so that {', '.join(old)} stay in this order"
            )
