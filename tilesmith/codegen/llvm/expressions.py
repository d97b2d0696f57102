"""Emits expressions: the value of an Expr or an Int. It is a scalar if it is the same for all
lanes, or a vector with one element per lane.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from tilesmith.base.dtype import FLOAT16, FLOAT32, INT32, INT64, DType
from tilesmith.codegen.artifact import Check
from tilesmith.codegen.expressions import Scopes, Unconditional
from tilesmith.codegen.llvm.addressing import Addressing
from tilesmith.codegen.llvm.builder import I64, PTR, Type, V
from tilesmith.codegen.llvm.lane_tests import LaneTests
from tilesmith.codegen.llvm.loads import Loads
from tilesmith.codegen.llvm.operations import (
    binary,
    cast,
    compute_type,
    limited_by_number,
    rounded_to_int32,
    rounded_within_int32,
    rounds_to,
    unary,
)
from tilesmith.codegen.llvm.position import Lane, Position
from tilesmith.codegen.llvm.register_cache import RegisterCache
from tilesmith.codegen.llvm.run_time_sizes import opaque_value
from tilesmith.codegen.llvm.vectors import Vectors
from tilesmith.codegen.llvm.widening import LEAST_LANES, widened_halves, widening_fma
from tilesmith.codegen.passes.check_indices import number_of
from tilesmith.codegen.value_bounds import bounds_of
from tilesmith.expr.dynamic import Dynamic, condition_parts, is_zero
from tilesmith.expr.ints import FloorDiv, Int, Maximum, Opaque
from tilesmith.expr.nodes import (
    COMPARISONS,
    Binary,
    Cast,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
)
from tilesmith.expr.semantics import constant
from tilesmith.expr.walk import run_deep

Steps = Generator[Expr, V, V]


class Expressions:
    def __init__(
        self,
        position: Position,
        addressing: Addressing,
        cache: RegisterCache,
        vectors: Vectors,
        checks: Sequence[Check],
    ) -> None:
        self.position, self.builder, self.env = position, position.builder, position.env
        self.vectors, self.match = vectors, vectors.match
        self.lane_tests = LaneTests(position, addressing.sizes)
        self.loads = Loads(position, addressing, cache, vectors, self.integer, self.expr)
        self.checks = checks
        self._memo: dict[int, tuple[tuple[str, V], ...]] = {}  # by id; (mask, value) pairs
        self._root: Expr | None = None  # the expression being emitted
        self._scopes: Scopes | None = None  # set once it contains a select
        self._certain: dict[int, Unconditional] = {}
        self._masks: dict[str, V | None] = {}

    def forget(self) -> None:
        """Drops the values of shared nodes, before another statement or for other lanes."""
        self._memo = {}

    # integers
    def number(self, p: Int) -> int | None:
        """The value, if it is constant here because all its loops are unrolled."""
        total = 0
        for m, c in p.terms.items():
            v = c
            for a in m:
                k = self.env.get(a) if isinstance(a, str) else None
                if not isinstance(k, int):
                    return None
                v *= k
            total += v
        return total

    def varies(self, p: Int) -> bool:
        """Whether its value differs between lanes."""
        return any(isinstance(self.env.get(n), Lane) for n in p.names)

    def integer(self, p: Int) -> V:
        total: V | None = None
        const = 0
        for m, c in p.terms.items():
            factors: list[V] = []
            k = c
            for a in m:
                v = self.env[a] if isinstance(a, str) else self._opaque(a)
                if isinstance(v, int):
                    k *= v
                elif isinstance(v, Lane):
                    factors.append(self._iota(v))
                else:
                    factors.append(v)
            if not factors:
                const += k
                continue
            term = factors[0]
            for f in factors[1:]:
                term = self._int_op("mul", term, f)
            if k != 1:
                term = self._int_op("mul", term, V(str(k), I64))
            total = term if total is None else self._int_op("add", total, term)
        if total is None:
            return V(str(const), I64)
        return total if const == 0 else self._int_op("add", total, V(str(const), I64))

    def mask(self, p: Int) -> V:
        """The lanes in which p >= 0, which differs between them."""
        if (mask := self.lane_tests.mask(p)) is not None:
            return mask
        value = self.integer(p)
        return self.builder.compare("sge", value, self.builder.const(value.type, 0))

    def _int_op(self, op: str, x: V, y: V) -> V:
        x, y = self.match(x, y)
        return self.builder.op(op, x, y)

    def _iota(self, v: Lane) -> V:
        numbers = ", ".join(f"i64 {v.start + k}" for k in range(v.lanes))
        return V(f"<{numbers}>", Type("i64", v.lanes)) if v.lanes > 1 else V(str(v.start), I64)

    def _opaque(self, a: Opaque) -> V:
        if isinstance(a, FloorDiv | Maximum):
            return opaque_value(self.builder, a, *self.match(self.integer(a.a), self.integer(a.b)))
        assert isinstance(a, Dynamic)
        v = self.expr(a.expr)
        if v.type.elem == "i64":
            return v
        return self.builder.cast("sext" if a.expr.dtype.kind == "i" else "zext", v, "i64")

    # expressions
    def expr(self, e: Expr) -> V:
        """Each node is computed once, even if it is used several times. An expression may be deeper
        than Python's stack, so nothing is recursive: see run_deep.
        """
        outermost = self._root is None
        if outermost:
            self._root = e
        started = self._start(e)
        v = started if isinstance(started, V) else run_deep(started, self._start)
        if outermost:
            self._root = self._scopes = None
        return v

    def _start(self, e: Expr) -> V | Steps:
        """The value, if it is known or needs no operands; else the steps that compute it."""
        if isinstance(e, Const):
            return self.builder.const(compute_type(self.builder, e.dtype), _rounded(e))
        scopes = self._scopes
        for mask, v in self._memo.get(id(e), ()):
            if mask == _name(self.position.mask) if scopes is None else scopes.open(mask):
                return v
        if scopes is not None and (k := scopes.outermost(e)) < len(scopes) - 1:
            return self._further_out(k, e)
        if isinstance(e, Load):
            return self._keep(e, self.loads.load(e))
        if isinstance(e, IntValue):
            return self._keep(e, cast(self.builder, self.integer(e.value), INT64, e.dtype))
        return self._steps(e)

    def _keep(self, e: Expr, v: V) -> V:
        self._memo[id(e)] = ((_name(self.position.mask), v), *self._memo.get(id(e), ()))
        return v

    def _certain_of(self, root: Expr) -> Unconditional:
        if id(root) not in self._certain:
            self._certain[id(root)] = Unconditional(root)
        return self._certain[id(root)]

    def _further_out(self, k: int, e: Expr) -> Steps:
        """Computes a value that scope k needs unconditionally, under the mask of that scope."""
        mask, scopes = self.position.mask, self._scopes
        assert scopes is not None
        self._scopes = scopes.up_to(k)
        self.position.mask = self._masks[scopes.names[k]]
        v = yield e
        self.position.mask, self._scopes = mask, scopes
        return v

    def _steps(self, e: Expr) -> Steps:
        match e:
            case Unary(op=op, x=x) if (check := number_of(op)) is not None:
                v = self._checked(check, (yield x))
            case Unary(op=op, x=x):
                v = unary(self.builder, op, (yield x), e.dtype)
            case Binary(op=("add" | "sub") as op, a=a, b=b) if e.dtype.is_float:
                v = yield from self._sum(op, a, b)
            case Binary(op=op, a=IntValue(), b=IntValue()) if (
                op in COMPARISONS and (mask := self._compared(e)) is not None
            ):
                v = mask
            case Binary(op=("max" | "min") as op, a=a, b=b) if self._bounded_by_number(e):
                v, limit = self.match((yield a), (yield b))
                if not bounds_of(b).number:
                    v, limit = limit, v
                v = limited_by_number(self.builder, op, v, limit)
            case Binary(op=op, a=a, b=b):
                v = binary(self.builder, op, *self.match((yield a), (yield b)), a.dtype)
            case Select(cond=c, a=a, b=b):
                v = yield from self._select(c, a, b)
            case Cast(x=Unary(op="round", x=x)) if rounds_to(self.builder, x.dtype, e.dtype):
                v = rounded_to_int32(self.builder, (yield x))
            case Cast(x=Unary(op="round", x=x)) if self._rounds_within_int32(x, e.dtype):
                v = rounded_within_int32(self.builder, (yield x), bounds_of(x).number)
            case Cast(x=x):
                v = cast(self.builder, (yield x), x.dtype, e.dtype)
            case _:
                raise AssertionError(e)
        return self._keep(e, v)

    def _bounded_by_number(self, e: Binary) -> bool:
        """Whether it is a maximum or minimum of floats of which one is never NaN, on processors
        whose instruction does not propagate NaN from both.
        """
        if not e.dtype.is_float or self.builder.machine.propagates_nan:
            return False
        return bounds_of(e.a).number or bounds_of(e.b).number

    def _rounds_within_int32(self, x: Expr, want: DType) -> bool:
        if not self.builder.machine.rounds_within_int32:
            return False
        fits = x.dtype is FLOAT32 and want is INT32
        return fits and bounds_of(x).is_within(-(2.0**30), 2.0**30)

    def _sum(self, op: str, a: Expr, b: Expr) -> Steps:
        """A sum; with a product on either side, a fused multiply-add."""
        fused = self.builder.fuses
        for product, other in ((b, a), (a, b)):
            if (halves := widened_halves(self.builder, product)) is not None:
                x, y, z = (yield halves[0]), (yield halves[1]), (yield other)
                if op == "sub":
                    x, z = (self.builder.fneg(x), z) if product is b else (x, self.builder.fneg(z))
                return self._widening_sum(x, y, z)
        if fused and isinstance(b, Binary) and b.op == "mul":
            x, y, z = (yield b.a), (yield b.b), (yield a)
            if op == "sub":
                x = self.builder.fneg(x)
        elif fused and isinstance(a, Binary) and a.op == "mul":
            x, y, z = (yield a.a), (yield a.b), (yield b)
            if op == "sub":
                z = self.builder.fneg(z)
        else:
            return self.builder.op(
                "fadd" if op == "add" else "fsub", *self.match((yield a), (yield b))
            )
        lanes = max(v.type.lanes for v in (x, y, z))
        return self.builder.fma(*(self.vectors.splat(v, lanes) for v in (x, y, z)))

    def _widening_sum(self, x: V, y: V, z: V) -> V:
        """x y + z of two halves and a float, by instructions that widen where lanes fill them."""
        lanes = max(v.type.lanes for v in (x, y, z))
        z = self.vectors.splat(z, lanes)
        if lanes % LEAST_LANES == 0 and x.type.elem == y.type.elem == "half":
            return widening_fma(self.builder, x, y, z)
        x, y = (cast(self.builder, v, FLOAT16, FLOAT32) for v in (x, y))
        return self.builder.fma(*(self.vectors.splat(v, lanes) for v in (x, y, z)))

    def _select(self, cond: Expr, a: Expr, b: Expr) -> Steps:
        """Each side is computed under a mask of its own, so it loads only where it is used."""
        c = yield cond
        bld = self.builder
        if self._scopes is None:
            assert self._root is not None
            self._scopes = Scopes(self._certain_of(self._root), _name(self.position.mask))
        scopes = self._scopes
        if scopes.needs_mask(a):
            x = yield from self._side(a, c)
        else:
            x = yield a
        if scopes.needs_mask(b):
            y = yield from self._side(b, bld.op("xor", c, bld.const(c.type, True)))
        else:
            y = yield b
        if is_zero(b) and self.loads.zeroed.get(x.name) == c.name and self.position.mask is None:
            return x  # it was loaded under this mask
        x, y = self.match(x, y)
        if c.type.lanes > 1:
            x, y = self.vectors.splat(x, c.type.lanes), self.vectors.splat(y, c.type.lanes)
        return bld.select(c, x, y)

    def _compared(self, e: Expr) -> V | None:
        """The mask of a comparison with the number of a lane."""
        parts, rest = condition_parts(e)
        return self.lane_tests.mask(parts[0]) if len(parts) == 1 and not rest else None

    def _side(self, e: Expr, cond: V) -> Steps:
        outer = self.position.mask
        scopes = self._scopes
        assert scopes is not None
        self._masks.setdefault(_name(outer), outer)
        self.position.mask = (
            cond if outer is None else self.builder.op("and", *self.match(outer, cond))
        )
        self._masks[self.position.mask.name] = self.position.mask
        scopes.push(self.position.mask.name, e)
        v = yield e
        scopes.pop()
        self.position.mask = outer
        return v

    def _checked(self, check: int, at: V) -> V:
        """An index, clamped to its table. If it was out of range and not masked, the workspace gets
        the index. There is no branch: in all other cases that store goes to a scratch address.
        """
        b, last = self.builder, max(0, self.checks[check].extent - 1)
        zero, top = b.const(at.type, 0), b.const(at.type, last)
        below, above = b.compare("slt", at, zero), b.compare("sgt", at, top)
        bad, mask = b.op("or", below, above), self.position.mask
        if mask is not None:
            if at.type.lanes == 1 and mask.type.lanes > 1:
                mask = b.call("llvm.vector.reduce.or", Type("i1"), mask)
            bad = b.op("and", *self.match(bad, mask))
        scrap = b.fresh("scrap")
        self.position.entry_lines.append(f"  {scrap} = alloca [16 x i8], align 8")
        slot = b.value(PTR, f"getelementptr i8, ptr {self.position.workspace}, i64 {16 * check}")
        for k in range(at.type.lanes):
            one, failed = at, bad
            if at.type.lanes > 1:
                one = b.value(I64, f"extractelement {at}, i64 {k}")
                failed = b.value(Type("i1"), f"extractelement {bad}, i64 {k}")
            p = b.value(PTR, f"select {failed}, {slot}, ptr {scrap}")
            beside = b.value(PTR, f"getelementptr i8, {p}, i64 8")
            b.emit(f"  store i64 1, {p}, align 8")
            b.emit(f"  store {one}, {beside}, align 8")
        return b.select(below, zero, b.select(above, top, at))


def _rounded(e: Const) -> float | int | bool:
    """The constant rounded to its dtype, even if that is computed in float."""
    return float(constant(e.value, e.dtype)) if e.dtype.bits == 16 and e.dtype.is_float else e.value


def _name(mask: V | None) -> str:
    return mask.name if mask else ""
