"""GPU: gives each thread the registers that hold its part of a fragment which no matrix instruction
fills: the elements that its number picks, as loops bound to threads do.

    for j in 4:                                     for j in 4:
      S[i, 32*j + 2*(t % 16) + 1] = ...      ->       S[i, 2*j + 1] = ...

All accesses must pick elements by the thread's number in the same way; then nobody reads what
another thread holds. An index that the number does not enter is one that all threads have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import map_access
from tilesmith.expr.ints import ZERO, Int, of
from tilesmith.ir.evaluators import axes_over, integer
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Join, Stmt, Store, rewrite, statements


def own_registers(func: Function, _: Target) -> Function:
    """Takes launch form."""
    if not any(b.scope == "fragment" for b in allocated(func.body).values()):
        return func
    return replace(func, body=tuple(_launch(s) for s in func.body))


def _launch(root: Stmt) -> Stmt:
    stores = (s for s in statements((root,)) if isinstance(s, Store))
    if any(s.intrinsic is not None and s.intrinsic.fragment is not None for s in stores):
        return root  # hold_fragments knows the elements of instructions
    held = {n: b for n, b in allocated((root,)).items() if b.scope == "fragment"}
    if not held:
        return root
    loops = [s for s in statements((root,)) if isinstance(s, For)]
    threads = {f.name: f.trips for f in loops if f.kind == "threadIdx.x"}
    parts = _Parts(held, threads, {f.name: f.extent for f in loops})

    def go(s: Stmt) -> tuple[Stmt, ...]:
        return (map_access(s, parts.own),) if isinstance(s, Store | Join | If) else (s,)

    body = rewrite((root,), go)

    def small(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Alloc) and s.buffer.name in held:
            return (Alloc(parts.registers(s.buffer)),)
        return (s,)

    (done,) = rewrite(body, small)
    return done


@dataclass(frozen=True, slots=True)
class _Pick:
    """Of each `lanes * width` neighbouring elements along a dimension, a thread has `width`."""

    lanes: int
    width: int
    by: Int  # the first of them, by the number of the thread


class _Parts:
    def __init__(
        self, held: Mapping[str, Buffer], threads: Mapping[str, int], ranges: Mapping[str, Int]
    ) -> None:
        self.held, self.threads, self.ranges = held, threads, ranges
        self.picks: dict[tuple[str, int], _Pick | None] = {}

    def own(self, name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
        """The register of an element."""
        if name not in self.held:
            return index
        return tuple(self._own(name, d, p) for d, p in enumerate(index))

    def registers(self, b: Buffer) -> Buffer:
        shape = []
        for d, n in enumerate(b.shape):
            pick = self.picks.get((b.name, d))
            runs = -(-n.number // (pick.lanes * pick.width)) if pick else 0
            shape.append(of(runs * pick.width) if pick else n)
        return replace(b, shape=tuple(shape), scope="local", layout=None, align=None)

    def _own(self, name: str, d: int, p: Int) -> Int:
        by = Int({m: c for m, c in p.terms.items() if Int({m: c}).names & self.threads.keys()})
        rest = p - by
        pick = self._pick(by)
        if self.picks.setdefault((name, d), pick) != pick:
            raise BuildError(f"a thread accesses an element of {name} that another one holds")
        return rest if pick is None else self._register(name, pick, rest)

    def _pick(self, by: Int) -> _Pick | None:
        if by == ZERO:
            return None
        names = sorted(by.names & self.threads.keys())
        if by.names != {*names}:
            raise BuildError(f"{by} does not number threads alone")
        points = axes_over({n: range(self.threads[n]) for n in names})
        places = np.unique(integer(by, points))
        width = int(places[1] - places[0]) if len(places) > 1 else 0
        if not np.array_equal(places, np.arange(len(places)) * width):
            raise BuildError(f"threads pick elements {by}, which are not evenly spaced")
        return _Pick(len(places), width, by)

    def _register(self, name: str, pick: _Pick, rest: Int) -> Int:
        run = pick.lanes * pick.width
        register, within = ZERO, 0
        for m, c in rest.terms.items():
            factor = of(1) if not m else Int({m: 1})
            turns, left = divmod(c, run)
            if m and turns and left:
                raise BuildError(f"a thread accesses elements of {name} that others hold")
            register = register + factor * (turns * pick.width + left)
            if left:
                loop = factor.name
                most = 1 if not m else self.ranges[loop].number - 1 if loop else run
                within += left * most
        if within >= pick.width:
            raise BuildError(f"a thread accesses elements of {name} that others hold")
        return register
