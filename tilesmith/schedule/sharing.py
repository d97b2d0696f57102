"""The primitive that runs a block in a loop of its consumers which counts the same things, such as
tiles: whole iterations are joined, so that the block may be of any kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import var
from tilesmith.ir.dependence import check_kinds, check_reads
from tilesmith.ir.function import (
    Function,
    find_block,
    find_loop,
    readers,
    require_only_writer,
)
from tilesmith.ir.nodes import Block, For, Iter, Stmt, rewrite, walk
from tilesmith.schedule.iterators import without_divisions
from tilesmith.schedule.loops import drop, require_no_notes
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class ShareLoop(Step):
    """Runs the outer loops of a block as those around and of a loop of its consumers, if each of
    their iterations is read in the same iteration only. Unlike compute_at, it takes blocks that
    keep partial results, and all of an iteration.

    for t in 8:                             for t in 8:
      for i in 16: P[t, i] = ...              for i in 16: P[t, i] = ...
    for t in 8:                       ->      for i in 16: C[t, i] = P[t, 15 - i]
      for i in 16: C[t, i] = P[t, 15 - i]
    """

    name: ClassVar[str] = "share_loop"
    block: str
    loop: str

    def apply(self, func: Function) -> Function:
        path, b = find_block(func, self.block)
        around, loop = find_loop(func, self.loop)
        require_only_writer(func, b, "share a loop with")
        alone = path and sum(1 for _ in walk((path[0],))) == 1
        if b.tile or not alone or any(f.owner != b.name for f in path):
            raise self._refuse("it does not stand in loops of its own")
        shared = (*around, loop)
        own = path[: len(shared)]
        if len(own) < len(shared) or {f.name for f in own} & {f.name for f in shared}:
            raise self._refuse("it has no loops of its own in place of those")
        if any(f.extent != g.extent for f, g in zip(own, shared, strict=True)):
            raise self._refuse("its loops have other numbers of iterations")
        for f in own:
            require_no_notes(f, "share")
        moved = {f.name: var(g.name) for f, g in zip(own, shared, strict=True)}
        its = {self._iterator(b, f).name: g.name for f, g in zip(own, shared, strict=True)}
        rest = drop(func, self.block)
        at = self._position(rest, b, its)

        def put(s: Stmt) -> tuple[Stmt, ...]:
            if not isinstance(s, Block):
                return (s,)
            iters = tuple(replace(i, bind=i.bind.substitute(moved)) for i in s.iters)
            return (replace(s, iters=iters, where=frozenset(p.substitute(moved) for p in s.where)),)

        body = rewrite(own[-1].body, put)

        def insert(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, For) and s.name == loop.name:
                return (replace(s, body=(*s.body[:at], *body, *s.body[at:])),)
            return (s,)

        placed = replace(rest, body=rewrite(rest.body, insert))
        doing = f"share_loop {self.loop} with {b.name}"
        check_reads(placed, b.name, doing)
        check_kinds(placed, doing)
        return placed

    def _iterator(self, b: Block, own: For) -> Iter:
        """The one that the loop counts."""
        found = [i for i in b.iters if own.name in i.bind.names]
        if len(found) != 1 or found[0].bind.name != own.name or found[0].kind != "S":
            raise self._refuse(f"{own.name} counts no spatial iterator of it alone")
        return found[0]

    def _position(self, rest: Function, b: Block, its: dict[str, str]) -> int:
        """The statement of the loop before which the block runs. Raises if anybody reads another
        iteration's results. `its` are iterators of the block and the loops they are to share.
        """
        loop = find_loop(rest, self.loop)[1]
        inside = {o.name: k for k, s in enumerate(loop.body) for _, o in walk((s,))}
        first = len(loop.body)
        for w in b.writes:
            dims = {n: [d for d, p in enumerate(w.index) if n in p.names] for n in its}
            if any(len(at) != 1 or w.index[at[0]].name != n for n, at in dims.items()):
                raise self._refuse(f"{w.buffer} has no dimension for each of {', '.join(its)}")
            for o in readers(rest, w.buffer):
                if o.name not in inside:
                    raise self._refuse(f"{o.name} reads {w.buffer} outside of it")
                first = min(first, inside[o.name])
                ranges = {f.name: f.extent for f in find_block(rest, o.name)[0]}
                for x in (x for x in o.loads if x.buffer == w.buffer):
                    for n, (d,) in dims.items():
                        p = without_divisions(x.index[d].substitute(o.binding), ranges)
                        only = p.const == 0 and ranges[its[n]].const == 1
                        if p.name != its[n] and not only:
                            raise self._refuse(f"{o.name} reads {w.buffer} at {p}")
        if first == len(loop.body):
            raise self._refuse("nothing in it reads the block")
        return first

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot run {self.block} in loop {self.loop}: {why}")
