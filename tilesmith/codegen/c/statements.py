"""Emits statements: loops, guards, stores, barriers, local buffers."""

from __future__ import annotations

from tilesmith.base.dtype import DType
from tilesmith.base.errors import BuildError
from tilesmith.codegen.c.expressions import Expressions
from tilesmith.codegen.c.integers import Integers
from tilesmith.codegen.c.joins import Joins
from tilesmith.codegen.c.position import ROLL, UNROLL, Position
from tilesmith.codegen.c.vectors import Vectors
from tilesmith.codegen.c.warp_products import WarpProducts, product_of
from tilesmith.codegen.passes.accesses import counted, substitute_body
from tilesmith.expr.dynamic import is_loaded
from tilesmith.expr.ints import ZERO, Int
from tilesmith.expr.nodes import Binary, Expr
from tilesmith.ir.nests import unguarded
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Join, Stmt, Store, Sync, Write, statements
from tilesmith.ir.notes import KeepSteps

# A serial loop of at most so many statements, once unrolled, is the compiler's own choice. Longer
# ones are unrolled a little, so that several loads are under way at once: unrolling all of them
# would cost seconds of compiling, and registers.
_FREE_STATEMENTS = 32
_MOST_COPIES = 8


class Statements:
    def __init__(self, position: Position) -> None:
        self.position = position
        self.integers = Integers(position)
        self.expressions = Expressions(position, self.integers)
        self.products = WarpProducts(position, self.integers)
        self.joins = Joins(position, self.integers, self.expressions)
        self.vectors = Vectors(position, self.integers, self.expressions, self._store)

    def body(self, body: tuple[Stmt, ...]) -> None:
        # A statement that declares variables needs braces unless it stands alone in its block.
        alone = len(body) == 1 and len(self.position.scopes) > 1
        for s in body:
            self._statement(s, alone)

    def _statement(self, s: Stmt, alone: bool) -> None:
        match s:
            case For():
                self._loop(s, alone)
            case If():
                self._guarded(s)
            case Store():
                self._store(s)
            case Alloc():
                self._local(s)
            case Sync(scope=scope):
                self.position.write(self.position.dialect.barriers[scope])
                self.joins.synced()
            case Join():
                self.joins.join(s)
            case _:
                raise BuildError(f"block {s.name!r} is not lowered")

    def _loop(self, s: For, alone: bool) -> None:
        if s.extent.const is None:
            self._open(s)
            return
        extent = s.trips
        if (product := product_of(s)) is not None:
            self.products.emit(*product)
        elif s.kind in ("vectorize", "unroll"):
            if not self._vectorized(s, extent, alone):
                self._plain(s, extent, UNROLL)
        elif s.kind == "serial":
            self._plain(s, extent, _unrolling(s, extent))
        else:
            raise BuildError(
                f"loop {s.name!r} is {s.kind}, which has no meaning inside of a launch"
            )

    def _open(self, s: For) -> None:
        """A loop whose extent depends on open sizes."""
        most = self.integers.range_of(s.extent)
        if s.kind != "serial" or most is None:
            raise BuildError(
                f"loop {s.name!r} is {s.kind} and has {s.extent} iterations, which depends on an "
                "open size"
            )
        end = self.integers.named(
            s.extent, f"{s.name}_end", lambda: self.integers.integer(s.extent), True
        )
        with (
            self.position.loop(s.name, max(1, most[1]), _unrolling(s, 1), end=end),
            self.joins.repeated(s.body),
        ):
            self.body(s.body)

    def _plain(self, s: For, extent: int, pragma: str) -> None:
        with self.position.loop(s.name, extent, pragma), self.joins.repeated(s.body):
            if s.note(KeepSteps) and (fence := self.position.dialect.fence):
                self.position.write(f"{fence}  // a step")
            self.body(s.body)

    def _vectorized(self, s: For, extent: int, alone: bool) -> bool:
        """Emits the loop with vector loads and stores if there are any."""
        body, guards = unguarded(s.body)
        if len(body) != 1 or not isinstance(store := body[0], Store):
            return False
        plan = self.vectors.plan(s.name, extent, store, guards, s.kind == "vectorize")
        if plan is None:
            return False
        self.vectors.emit(s.name, extent, store, plan, alone)
        return True

    def _guarded(self, s: If) -> None:
        head = f"if ({self.integers.conditions(s.conds)})"
        # ptxas up to 13.0 computes (k + 1) % 2 as 0 below a condition k == 0, of `not` and `and` of
        # PTX, so the number is put in here.
        with self.position.braces(head), self.joins.perhaps():
            self.body(substitute_body(s.body, dict.fromkeys(_zeros(s.conds), ZERO)))

    def _local(self, s: Alloc) -> None:
        b, position = s.buffer, self.position
        if b.scope != "local":
            raise BuildError(f"{b.name!r} is allocated inside of the threads in scope {b.scope!r}")
        name, size = position.fresh(b.name), size_of(b)
        position.declare(b, name, single=size == 1)
        kind = position.dialect.type_of(b.dtype)
        if size == 1:
            position.write(f"{kind} {name};")
        else:
            position.write(f"{position.dialect.aligned}{kind} {name}[{size}];")

    def _store(self, s: Store) -> None:
        if (product := product_of(s)) is not None:
            self.products.emit(*product)
            return
        if s.intrinsic is not None:
            raise BuildError(f"{s.intrinsic.name} has no {self.position.dialect.name} code")
        if len(s.writes) == 1:
            self._write(s.writes[0])
            return
        values = []
        for w in s.writes:  # all are computed before any is written
            d = self.position.memories[w.buffer].dtype
            value = self.expressions.stored(w.value, d)
            name = self.position.fresh("t")
            self.position.write(f"const {self.position.dialect.type_of(d)} {name} = {value.text};")
            values.append(name)
        for w, name in zip(s.writes, values, strict=True):
            self.position.write(f"{self._element(w)} = {name};")

    def _write(self, w: Write) -> None:
        d = self.position.memories[w.buffer].dtype
        if w.accumulates and d.bits >= 32 and any(map(is_loaded, w.index)):
            self._update(w, d)
        elif (addend := _addend(w, d)) is not None:
            value = self.expressions.value(addend)
            self.position.write(f"{self._element(w)} += {value.text};")
        else:
            value = self.expressions.stored(w.value, d)
            self.position.write(f"{self._element(w)} = {value.text};")

    def _update(self, w: Write, d: DType) -> None:
        """Joins a value to an element that other threads may update at the same time."""
        e = w.value
        assert isinstance(e, Binary)
        value = self.expressions.value(e.b)
        function = self.expressions.operations.atomic(e.op, d)
        self.position.write(f"{function}(&{self._element(w)}, {value.text});")

    def _element(self, w: Write) -> str:
        return self.expressions.element(w.held)


def _addend(w: Write, d: DType) -> Expr | None:
    """v of `S = S + v`, if C's += means the same: floats that are computed as they are stored."""
    e = w.value
    plain = d.is_float and d.bits >= 32 and e.dtype is d
    if plain and w.accumulates and isinstance(e, Binary) and e.op == "add":
        return e.b
    return None


def size_of(b: Buffer) -> int:
    n = b.size.const
    if n is None:
        raise BuildError(
            f"{b.name!r} has {b.size} elements, and only arrays in global memory may depend on an "
            "open size"
        )
    return max(1, n)


def _unrolling(s: For, extent: int) -> str:
    """The pragma of a serial loop. One with barriers stays as it is."""
    if any(isinstance(x, Sync | Join) for x in statements(s.body)):
        return ROLL
    each = max(1, counted(s.body, _trips, lambda _: 1))  # once unrolled
    if extent * each <= _FREE_STATEMENTS:
        return ""
    copies = min(_MOST_COPIES, max(1, _FREE_STATEMENTS // each))
    return f"{UNROLL} {1 << copies.bit_length() - 1}"


def _trips(f: For) -> int:
    return _FREE_STATEMENTS if f.extent.const is None else f.trips


def _zeros(conds: tuple[Int, ...]) -> list[str]:
    """The loops that conditions such as -k >= 0 allow one value, 0."""
    lone = (next(iter(p.terms.items())) for p in conds if len(p.terms) == 1)
    return [m[0] for m, c in lone if c < 0 and len(m) == 1 and isinstance(m[0], str)]
