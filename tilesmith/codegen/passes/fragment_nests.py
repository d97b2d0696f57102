"""GPU: gives each thread its part of loops over fragments, which several threads hold together.

A nest over the rows and columns of a fragment stands in the code of every thread. Each goes through
the elements that it holds itself. A reduction over columns leaves a partial result in each of the
four threads that hold a row; they are joined before the result is read. So sums of a whole loop are
joined once, behind it.

    for i in 64:                            for half in 2:
      for j in 128:                           for chunk in 16:
        M[i] = max(M[i], S[i, j])      ->       for pair in 2:
    ... M[i] ...                                  M[row] = max(M[row], S[row, column])
                                            for half in 2: join M[row] over 4 threads
                                            ... M[row] ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.codegen.passes.accesses import Access, accesses, substitute_body
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.ints import Int, of, var
from tilesmith.expr.nodes import Binary, Const, Load, plain_combiner
from tilesmith.ir.intrinsics import EIGHT, HALVES, PAIR, QUAD, own_column, own_row
from tilesmith.ir.nodes import (
    For,
    Fragment,
    If,
    Join,
    Path,
    Stmt,
    Store,
    Write,
    nested,
    statements,
)


@dataclass(frozen=True, slots=True)
class Roles:
    """Which dimensions of a buffer are the rows and columns of a fragment, and of which. Without
    columns, it has a value for each row.
    """

    rows: int
    columns: int | None
    fragment: Fragment
    size: tuple[int, int]


def roles_of(
    body: tuple[Stmt, ...], known: Mapping[str, Roles], wanted: Collection[str]
) -> dict[str, Roles]:
    """Of all wanted buffers, by the loops that index them together with known ones."""
    found = dict(known)
    stores = [s for s in _stores(body) if s.intrinsic is None]
    while True:
        before = len(found)
        for s in stores:
            used = [a for a in accesses((s,)) if a.buffer in wanted]
            axes = _axes(used, found)
            if axes is None:
                continue
            row, column, whole = axes
            for a in used:
                if a.buffer in found:
                    continue
                at = [d for d, p in enumerate(a.index) if p.name == row]
                across = [d for d, p in enumerate(a.index) if column and p.name == column]
                if len(at) == 1 and len(across) <= 1:
                    columns = across[0] if across else None
                    found[a.buffer] = Roles(at[0], columns, whole.fragment, whole.size)
        if len(found) == before:
            return found


def _stores(body: tuple[Stmt, ...]) -> Iterator[Store]:
    return (s for s in statements(body) if isinstance(s, Store))


def _axes(used: list[Access], known: Mapping[str, Roles]) -> tuple[str, str, Roles] | None:
    """The loops over rows and columns of a statement, the latter "" if there is none."""
    row, column, whole = "", "", None
    for a in used:
        r = known.get(a.buffer)
        if r is None:
            continue
        row = a.index[r.rows].name or row
        if r.columns is not None:
            column, whole = a.index[r.columns].name or column, r
        whole = whole or r
    return (row, column, whole) if row and whole is not None else None


def spread_nests(body: tuple[Stmt, ...], roles: Mapping[str, Roles]) -> tuple[Stmt, ...]:
    """Takes launch form in which fragments are accessed by row and column."""
    return _Spreading(roles).launches(body, ())


class _Spreading:
    def __init__(self, roles: Mapping[str, Roles]) -> None:
        self.roles = roles
        self.partial: dict[str, str] = {}  # by buffer, how the parts of four threads are joined
        self.filled: dict[str, Const] = {}  # by what a buffer was filled, and not changed since
        self.threads: Int = of(0)

    def launches(self, body: tuple[Stmt, ...], path: Path) -> tuple[Stmt, ...]:
        """Goes through the loops over blocks and threads."""
        out: list[Stmt] = []
        for s in body:
            if not isinstance(s, For) or s.kind not in ("blockIdx.x", "threadIdx.x"):
                out.append(s)
                continue
            inner = (*path, s) if s.kind == "threadIdx.x" else path
            own = [
                t for t in s.body if isinstance(t, For) and t.kind in ("blockIdx.x", "threadIdx.x")
            ]
            if own or s.kind != "threadIdx.x":
                out.append(_with(s, self.launches(s.body, inner)))
                continue
            self.partial, self.filled = {}, {}
            self.threads = of(0)
            for f in inner:
                self.threads = self.threads * f.extent + var(f.name)
            out.append(_with(s, self.body(s.body)))
        return tuple(out)

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if self._is_nest(s):
                for part in self._parts(s, (), ()):
                    out += self._joined(part[2])
                    out += self._own(*part)
                    self._note(part[2], part[0])
            elif isinstance(s, For | If) and any(map(self._is_nest, statements(s.body))):
                before = set(self.partial)
                inside = self.body(s.body)
                for name in self.partial.keys() - before:  # the next iteration goes on from it
                    if any(self._reads(w, name) for t in _stores(s.body) for w in t.writes):
                        raise BuildError(f"{name} is read inside of the loop that it is summed in")
                out.append(_with(s, inside))
            else:
                for t in _stores((s,)):
                    out += self._joined(t)
                out.append(s)
        return tuple(out)

    def _is_nest(self, s: Stmt) -> bool:
        """Whether it is a loop over the rows of fragments, which it fills."""
        if not isinstance(s, For):
            return False
        stores = list(_stores((s,)))
        if any(t.intrinsic is not None or len(t.writes) != 1 for t in stores):
            return False
        if not all(t.writes[0].buffer in self.roles for t in stores):
            return False
        (first, *_) = (t.writes[0] for t in stores)
        if isinstance(first.value, Const) and self.roles[first.buffer].columns is not None:
            return False  # hold_fragments fills registers, wherever they belong
        return all(
            any(a.index[self.roles[a.buffer].rows].name == s.name for a in accesses((t,))
                if a.buffer in self.roles)
            for t in stores
        )  # fmt: skip

    def _parts(
        self, s: Stmt, loops: tuple[For, ...], conds: tuple[Int, ...]
    ) -> Iterator[tuple[tuple[For, ...], tuple[Int, ...], Store]]:
        """Every statement of a nest with its own loops: rows do not depend on one another."""
        match s:
            case Store():
                yield loops, conds, s
            case For():
                for t in s.body:
                    yield from self._parts(t, (*loops, s), conds)
            case If():
                for t in s.body:
                    yield from self._parts(t, loops, (*conds, *s.conds))
            case _:
                raise BuildError("a nest over a fragment has more than loops and stores")

    def _own(self, loops: tuple[For, ...], conds: tuple[Int, ...], s: Store) -> tuple[Stmt, ...]:
        """What one thread does of a nest."""
        used = [a for a in accesses((s,)) if a.buffer in self.roles]
        axes = _axes(used, self.roles)
        assert axes is not None
        row, column, r = axes
        thread = self.threads - self.threads // r.fragment.threads * r.fragment.threads
        env: dict[str, Int] = {}
        own: list[For | If] = []
        for f in loops:
            if f.name == row and f.trips == r.size[0]:
                half = f"{f.name}.half"
                env[row] = own_row(thread, var(half))
                own.append(For(half, of(HALVES), (), "unroll"))
            elif f.name == column and f.trips % EIGHT == 0:
                chunk, pair = f"{f.name}.chunk", f"{f.name}.pair"
                env[column] = own_column(thread, var(chunk), var(pair))
                own.append(For(chunk, of(f.trips // EIGHT), (), "unroll"))
                own.append(For(pair, of(PAIR), (), "unroll"))
            else:
                raise BuildError(f"loop {f.name} covers only a part of a fragment")
        (store,) = substitute_body((s,), env)
        if all(a.buffer in self.roles for a in accesses((s,))):
            # Rows do not depend on one another: padded ones are computed like others.
            conds = tuple(p for p in conds if row not in p.names or column in p.names)
        if conds:
            own.append(If(tuple(p.substitute(env) for p in conds), ()))
        return nested(own, (store,))

    def _note(self, s: Store, loops: tuple[For, ...]) -> None:
        """What is known of the result now."""
        (w,) = s.writes
        r = self.roles[w.buffer]
        if r.columns is not None:
            return
        across = {n for a in accesses((s,)) for p in a.index for n in p.names} & {
            f.name for f in loops
        }
        across -= {n for p in w.index for n in p.names}
        if not across:
            if isinstance(w.value, Const):
                self.filled[w.buffer] = w.value
                self.partial.pop(w.buffer, None)
            elif not (_scales(w) and self._is_sum(w.buffer)):
                self.filled.pop(w.buffer, None)
            return
        op = w.value.op if isinstance(w.value, Binary) else ""
        if not w.accumulates:
            raise BuildError(f"{w.buffer} has a value for each row, but is written for each column")
        identity = plain_combiner(op, w.value.dtype).identity[0]
        if w.buffer not in self.partial and self.filled.get(w.buffer) != identity:
            raise BuildError(f"{w.buffer} is reduced further after it was read")
        self.partial[w.buffer] = op

    def _is_sum(self, name: str) -> bool:
        """Whether it is a part of a sum, or nothing was added yet: it may be scaled."""
        if name in self.partial:
            return self.partial[name] == "add"
        return name in self.filled and self.filled[name].value == 0

    def _reads(self, w: Write, name: str) -> bool:
        """Whether a statement needs the whole result."""
        e = w.value
        if w.buffer == name and w.accumulates and isinstance(e, Binary):
            adds = e.op == self.partial[name] or (e.op == "mul" and self._is_sum(name))
            return not adds or any(x.buffer == name for x in loads_of(e.b))
        return any(x.buffer == name for x in loads_of(e))

    def _joined(self, s: Store) -> Iterator[Stmt]:
        """Joins of what the statement reads."""
        for name in list(self.partial):
            if any(self._reads(w, name) for w in s.writes):
                yield self._join(name, s)

    def _join(self, name: str, s: Store) -> Stmt:
        op, r = self.partial.pop(name), self.roles[name]
        self.filled.pop(name, None)
        load = next(x for x in _loads(s) if x.buffer == name)
        thread = self.threads - self.threads // r.fragment.threads * r.fragment.threads
        half = f"{name}.half"
        index = tuple(
            own_row(thread, var(half)) if d == r.rows else p for d, p in enumerate(load.index)
        )
        value = Load(name, index, load.dtype)
        join = Join((value,), plain_combiner(op, load.dtype), QUAD)
        return For(half, of(HALVES), (join,), "unroll")


def _with(s: For | If, body: tuple[Stmt, ...]) -> For | If:
    return nested((s,), body)[0]  # type: ignore[return-value]


def _loads(s: Store) -> Iterator[Load]:
    for w in s.writes:
        yield from loads_of(w.value)


def _scales(w: Write) -> bool:
    return w.accumulates and isinstance(w.value, Binary) and w.value.op == "mul"
