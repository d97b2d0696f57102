"""GPU: inserts a barrier wherever a thread may read or overwrite what another thread of its block
has accessed since the last one.

Statements run in order, and loops once more with the next value of their variable, which shows what
one iteration leaves to the next. Barriers are never placed below a condition that depends on the
thread. A barrier orders shared memory only, unless global memory is what the threads meet in.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, accesses, are_distinct
from tilesmith.expr.dynamic import is_loaded
from tilesmith.expr.intervals import Unknown, bounds, is_injective, linear
from tilesmith.expr.ints import ONE, ZERO, FloorDiv, Int, atom, of, opaque_atoms, var
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Join, Stmt, Sync, statements


def insert_syncs(func: Function, _: Target) -> Function:
    """Takes launch form."""
    buffers = func.all_buffers | allocated(func.body)
    return replace(func, body=tuple(_launch(s, buffers, ()) for s in func.body))


def _launch(s: Stmt, buffers: dict[str, Buffer], threads: tuple[For, ...]) -> Stmt:
    """Goes through the loops over blocks and threads."""
    if not isinstance(s, For):
        return s
    if s.kind == "threadIdx.x":
        threads = (*threads, s)
        inner = [t for t in s.body if not isinstance(t, Alloc)]
        if not (len(inner) == 1 and isinstance(inner[0], For) and inner[0].kind == "threadIdx.x"):
            return replace(s, body=_Launch(buffers, threads, s.body).body())
    return replace(s, body=tuple(_launch(t, buffers, threads) for t in s.body))


@dataclass(frozen=True, slots=True)
class _Use:
    """An access of memory that threads share. `loops` are the loops around it within the thread's
    code.
    """

    access: Access
    loops: tuple[For, ...]
    shift: tuple[str, ...] = ()  # loops that stand one iteration further


class _Launch:
    def __init__(
        self, buffers: dict[str, Buffer], threads: tuple[For, ...], body: tuple[Stmt, ...]
    ) -> None:
        self.buffers = buffers
        self.threads = {f.name: f.extent for f in threads}
        written = {a.buffer for a in accesses(body) if a.write}
        # Updates at loaded places are atomic, or made in order by the thread that owns them.
        updated = {a.buffer for a in accesses(body) if a.write and any(map(is_loaded, a.index))}
        self.memory = {n for n in written - updated if buffers[n].scope != "local"}
        self.stmts = body
        self.before: dict[int, str] = {}  # the scope of the barrier before a statement, by its id

    def body(self) -> tuple[Stmt, ...]:
        if not self.memory or all(n.const == 1 for n in self.threads.values()):
            return self.stmts
        while True:  # until no further barrier is needed
            known = dict(self.before)
            self._run(self.stmts, [], (), ())
            if self.before == known:
                return self._placed(self.stmts)

    def _placed(self, stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in stmts:
            if id(s) in self.before:
                out.append(Sync(self.before[id(s)]))
            if isinstance(s, For | If) and any(id(t) in self.before for t in statements(s.body)):
                s = replace(s, body=self._placed(s.body))
            out.append(s)
        return tuple(out)

    def _run(
        self, stmts: tuple[Stmt, ...], open_: list[_Use], path: tuple[For, ...],
        shift: tuple[str, ...],
    ) -> list[_Use]:  # fmt: skip
        """The accesses since the last barrier after `stmts`, given those before."""
        for s in stmts:
            if isinstance(s, Sync):  # of a cluster: it is there already
                open_ = [u for u in open_ if self._is_global(u)]
            if isinstance(s, Alloc | Sync | Join):
                continue
            mine = self._uses(s, path, shift)
            if not mine:
                continue
            if isinstance(s, For | If) and self._meets_itself(s, mine):
                if isinstance(s, If):
                    if any(self._by_thread(p) for p in s.conds):
                        raise BuildError(
                            "a barrier is needed below a condition that depends on the thread"
                        )
                    open_ = self._run(s.body, open_, path, shift)
                    continue
                open_ = self._run(s.body, open_, (*path, s), shift)
                if s.extent.const != 1:
                    open_ = self._run(s.body, open_, (*path, s), (*shift, s.name))
                    # what the last iteration leaves
                    open_ = [replace(u, shift=tuple(n for n in u.shift if n != s.name))
                             for u in open_]  # fmt: skip
                continue
            for u in mine:
                self._require_apart(u)
            open_ = self._ordered(s, open_)
            if self._clash(open_, mine):
                wide = self._clash([u for u in open_ if self._is_global(u)], mine)
                self.before[id(s)] = "global" if wide else "shared"
                open_ = self._ordered(s, open_)
            open_ = [*open_, *mine]
        return open_

    def _ordered(self, s: Stmt, open_: list[_Use]) -> list[_Use]:
        """The accesses that the barrier before a statement, if any, leaves unordered."""
        match self.before.get(id(s)):
            case None:
                return open_
            case "global":
                return []
        return [u for u in open_ if self._is_global(u)]

    def _is_global(self, u: _Use) -> bool:
        return self.buffers[u.access.buffer].scope not in ("shared", "cluster")

    def _meets_itself(self, s: For | If, mine: list[_Use]) -> bool:
        """Whether its threads need barriers inside, within an iteration or between two."""
        if self._clash(mine, mine):
            return True
        if isinstance(s, If):
            return False
        following = [replace(u, shift=(*u.shift, s.name)) for u in mine]
        return self._clash(mine, following)

    def _uses(self, s: Stmt, path: tuple[For, ...], shift: tuple[str, ...]) -> list[_Use]:
        found = [a for a in accesses((s,)) if a.buffer in self.memory]
        return [_Use(a, (*path, *a.path), shift) for a in found]

    def _by_thread(self, p: Int) -> bool:
        return bool(p.names & self.threads.keys())

    def _clash(self, first: list[_Use], second: list[_Use]) -> bool:
        return any(
            u.access.buffer == v.access.buffer
            and (u.access.write or v.access.write)
            and u.access is not v.access  # the threads of one statement write different elements
            and not self._slots_differ(u, v)
            and not self._same_thread(u, v)
            for u in first
            for v in second
        )

    def _require_apart(self, u: _Use) -> None:
        """Raises if threads of one statement write the same elements, as far as that is known.

        Dimensions are looked at one by one, or together where only their sum is known: a guard may
        be what keeps an index inside of its dimension.
        """
        if not u.access.write:
            return
        inner = {**self.threads, **{f.name: f.extent for f in u.access.path}}
        shape = self.buffers[u.access.buffer].shape
        digits: list[tuple[int, int, str]] | None = []
        at, size = ZERO, ONE  # of the last dimensions that do not determine their loops
        for p, n in zip(reversed(u.access.index), reversed(shape), strict=True):
            at, size = at + p * size, size * n
            moving = {m: c for m, c in at.terms.items() if any(_names(a) & inner.keys() for a in m)}
            digits = self._digits(Int(moving), inner)
            if digits is not None and are_distinct((c, e) for c, e, _ in digits):
                at, size, digits = ZERO, ONE, []
        if any(name for _, _, name in digits or ()) and not is_injective(u.access.index, inner):
            raise BuildError(
                f"several threads write the same elements of {u.access.buffer}; compute it outside "
                "of the loops over threads, or keep it private to each"
            )

    def _slots_differ(self, u: _Use, v: _Use) -> bool:
        """Whether the first indices are different numbers, or e % n and (e + c) % n with c no
        multiple of n.
        """
        first, other = (_shifted(x.access.index[:1], x.shift) for x in (u, v))
        if first is None or other is None:
            return False
        if first.const is not None and other.const is not None:
            return first.const != other.const
        a, b = _modulo(first), _modulo(other)
        if a is None or b is None or a[1] != b[1]:
            return False
        # The same iteration of all loops around both: those that share their names.
        gap = (a[0] - b[0]).const
        return gap is not None and gap % a[1] != 0

    def _same_thread(self, u: _Use, v: _Use) -> bool:
        """Whether threads meet only at elements of their own."""
        strides = self.buffers[u.access.buffer].strides
        a, b = (linear(x.access.index, strides) for x in (u, v))
        block_a, block_b = self._of_block(a, u), self._of_block(b, v)
        if block_a != block_b:
            return False
        a, b = a - block_a, b - block_b
        return self._by_digits(a, b, u, v) or self._by_reach(a, b, u, v)

    def _of_block(self, p: Int, u: _Use) -> Int:
        """The terms that are the same for all threads of a block."""
        inner = {*self.threads, *(f.name for f in u.loops), *dict(u.access.tile)}
        return Int(
            {m: c for m, c in p.terms.items() if m and not any(_names(a) & inner for a in m)}
        )

    def _by_reach(self, a: Int, b: Int, u: _Use, v: _Use) -> bool:
        """The threads' parts are equal, and lie further apart than the rest reaches."""
        thread_a, rest_a = self._divided(a)
        thread_b, rest_b = self._divided(b)
        if thread_a != thread_b:
            return False
        try:
            low_a, high_a = _range(rest_a, u)
            low_b, high_b = _range(rest_b, v)
        except Unknown:
            return False
        terms = self._terms(thread_a)
        return terms is not None and are_distinct(terms, max(high_a - low_b, high_b - low_a))

    def _by_digits(self, a: Int, b: Int, u: _Use, v: _Use) -> bool:
        """Both are sums of the same digits, which the sum determines; so the threads' are equal."""
        ranges_a = {**self.threads, **{f.name: f.extent for f in u.loops}, **dict(u.access.tile)}
        ranges_b = {**self.threads, **{f.name: f.extent for f in v.loops}, **dict(v.access.tile)}
        digits_a, digits_b = self._digits(a, ranges_a), self._digits(b, ranges_b)
        if digits_a is None or digits_a != digits_b or a.terms.get(()) != b.terms.get(()):
            return False
        threads = {n for n, e in self.threads.items() if e.const != 1}
        if {n for _, _, n in digits_a if n} != threads:
            return False
        return are_distinct((c, e) for c, e, _ in digits_a)

    def _digits(self, p: Int, ranges: dict[str, Int]) -> list[tuple[int, int, str]] | None:
        """Coefficient, extent and, for threads, name of each loop."""
        out = []
        for m, c in p.terms.items():
            if not m:
                continue
            if len(m) != 1 or not isinstance(m[0], str):
                return None
            name = m[0]
            e = ranges[name].const if name in ranges else None
            if e is None or c < 0:
                return None
            if e > 1:
                out.append((c, e, name if name in self.threads else ""))
        return sorted(out)

    def _divided(self, p: Int) -> tuple[Int, Int]:
        mine = {m: c for m, c in p.terms.items() if any(_names(a) & self.threads.keys() for a in m)}
        return Int(mine), Int({m: c for m, c in p.terms.items() if m not in mine})

    def _terms(self, p: Int) -> list[tuple[int, int]] | None:
        """Coefficient and extent of each loop over threads; None if one is missing."""
        digits = self._digits(p, self.threads)
        if digits is None:
            return None
        if {n for _, _, n in digits} != {n for n, e in self.threads.items() if e.const != 1}:
            return None
        return [(c, e) for c, e, _ in digits]


def _names(a: object) -> frozenset[str]:
    return frozenset((a,)) if isinstance(a, str) else a.names()  # type: ignore[attr-defined]


def _range(p: Int, u: _Use) -> tuple[int, int]:
    ranges = {f.name: f.extent for f in u.loops} | dict(u.access.tile)
    low, high = bounds(p, ranges)
    if low.const is None or high.const is None:
        raise Unknown
    return low.const, high.const


def _shifted(index: tuple[Int, ...], shift: tuple[str, ...]) -> Int | None:
    if not index:
        return None
    return index[0].substitute({n: var(n) + 1 for n in shift})


def _modulo(p: Int) -> tuple[Int, int] | None:
    """(e, n) for an index of the form e % n."""
    for a in opaque_atoms(p):
        if isinstance(a, FloorDiv) and (n := a.b.const) is not None:
            whole = p + atom(a) * n
            if whole % of(n) == p:
                return whole, n
    return None
