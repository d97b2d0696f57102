"""Expressions: every value is a scalar, the same for all lanes, or a vector with one element per
lane.
"""

from __future__ import annotations

from collections.abc import Generator

from tilesmith.base.dtype import INT64
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Check
from tilesmith.codegen.llvm.arithmetic import Arithmetic
from tilesmith.codegen.llvm.builder import I64, PTR, Builder, Type, V, storage_type
from tilesmith.codegen.llvm.cells import Address, Lane
from tilesmith.codegen.llvm.certain import Certain, Scopes
from tilesmith.codegen.llvm.copies import Operand
from tilesmith.codegen.llvm.frames import Cell, Memory
from tilesmith.codegen.passes.checks import number_of
from tilesmith.expr.ints import FloorDiv, Int, Maximum, Opaque, Unknown, bounds
from tilesmith.expr.nodes import (
    Binary,
    Cast,
    Const,
    Dynamic,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
)
from tilesmith.expr.semantics import constant
from tilesmith.expr.walk import run_deep
from tilesmith.ir.nodes import For, Store

Steps = Generator[Expr, V, V]


class Values(Arithmetic):
    def __init__(self, target: Target, builder: Builder) -> None:
        super().__init__(target, builder)
        self.lanes = 1
        self.mask: V | None = None  # lanes, or the one scalar, that are wanted
        self.dummy: str | None = None
        self._memo: dict[int, tuple[tuple[str, V], ...]] = {}  # by id, each under its mask
        self._root: Expr | None = None  # what is being written
        self._scopes: Scopes | None = None  # once there is a choice in it
        self._certain: dict[int, Certain] = {}
        self._masks: dict[str, V | None] = {}
        self._repeating: dict[int, tuple[Store, bool]] = {}
        self._pieces: dict[int, tuple[For, list[tuple[int, int]]]] = {}
        self.entry_lines: list[str] = []
        self.workspace = "%workspace"
        self.checks: tuple[Check, ...] = ()

    # integers
    def number(self, p: Int) -> int | None:
        """The value, if it is known while writing."""
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
        """Whether it differs between lanes."""
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

    def _int_op(self, op: str, x: V, y: V) -> V:
        x, y = self.match(x, y)
        return self.builder.op(op, x, y)

    def _iota(self, v: Lane) -> V:
        numbers = ", ".join(f"i64 {v.start + k}" for k in range(v.lanes))
        return V(f"<{numbers}>", Type("i64", v.lanes)) if v.lanes > 1 else V(str(v.start), I64)

    def _opaque(self, a: Opaque) -> V:
        if isinstance(a, FloorDiv):
            x, y = self.match(self.integer(a.a), self.integer(a.b))
            return self._floordiv(x, y, signed=True)
        if isinstance(a, Maximum):
            x, y = self.match(self.integer(a.a), self.integer(a.b))
            return self.builder.select(self.builder.compare("sgt", x, y), x, y)
        assert isinstance(a, Dynamic)
        v = self.expr(a.expr)
        if v.type.elem == "i64":
            return v
        return self.builder.cast("sext" if a.expr.dtype.kind == "i" else "zext", v, "i64")

    # expressions
    def expr(self, e: Expr) -> V:
        """Each node is computed once: what is shared is one value. An expression may be deeper than
        Python's stack, so nothing calls itself: see run_deep.
        """
        outermost = self._root is None
        if outermost:
            self._root = e
        found = self._start(e)
        v = found if isinstance(found, V) else run_deep(found, self._start)
        if outermost:
            self._root = self._scopes = None
        return v

    def _start(self, e: Expr) -> V | Steps:
        """The value, if it is known or needs no other one; else the steps to it."""
        if isinstance(e, Const):
            return self.builder.const(self.compute_type(e.dtype), _rounded(e))
        scopes = self._scopes
        for mask, v in self._memo.get(id(e), ()):
            if mask == _name(self.mask) if scopes is None else scopes.open(mask):
                return v
        if scopes is not None and (k := scopes.outermost(e)) < len(scopes) - 1:
            return self._further_out(k, e)
        if isinstance(e, Load):
            return self._keep(e, self.load(e))
        if isinstance(e, IntValue):
            return self._keep(e, self._cast(self.integer(e.value), INT64, e.dtype))
        return self._steps(e)

    def _keep(self, e: Expr, v: V) -> V:
        self._memo[id(e)] = ((_name(self.mask), v), *self._memo.get(id(e), ()))
        return v

    def _certain_of(self, root: Expr) -> Certain:
        if id(root) not in self._certain:
            self._certain[id(root)] = Certain(root)
        return self._certain[id(root)]

    def _further_out(self, k: int, e: Expr) -> Steps:
        """A value that scope k needs in any case is computed under the mask of that scope."""
        mask, scopes = self.mask, self._scopes
        assert scopes is not None
        self._scopes = scopes.up_to(k)
        self.mask = self._masks[scopes.names[k]]
        v = yield e
        self.mask, self._scopes = mask, scopes
        return v

    def _steps(self, e: Expr) -> Steps:
        match e:
            case Unary(op=op, x=x) if (check := number_of(op)) is not None:
                v = self._checked(check, (yield x))
            case Unary(op=op, x=x):
                v = self.unary(op, (yield x), e.dtype)
            case Binary(op=("add" | "sub") as op, a=a, b=b) if e.dtype.is_float:
                v = yield from self._sum(op, a, b)
            case Binary(op=op, a=a, b=b):
                v = self.binary(op, *self.match((yield a), (yield b)), a.dtype)
            case Select(cond=c, a=a, b=b):
                v = yield from self._select(c, a, b)
            case Cast(x=x):
                v = self._cast((yield x), x.dtype, e.dtype)
            case _:
                raise AssertionError(e)
        return self._keep(e, v)

    def _sum(self, op: str, a: Expr, b: Expr) -> Steps:
        """A product on either side makes it one fused multiply-add."""
        fused = self.builder.fuses
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
        return self.builder.fma(*(self.splat(v, lanes) for v in (x, y, z)))

    def _select(self, cond: Expr, a: Expr, b: Expr) -> Steps:
        """Each side is computed under a mask of its own: it reads only where it is wanted."""
        c = yield cond
        bld = self.builder
        if self._scopes is None:
            assert self._root is not None
            self._scopes = Scopes(self._certain_of(self._root), _name(self.mask))
        scopes = self._scopes
        if scopes.needs_mask(a):
            x = yield from self._side(a, c)
        else:
            x = yield a
        if scopes.needs_mask(b):
            y = yield from self._side(b, bld.op("xor", c, bld.const(c.type, True)))
        else:
            y = yield b
        x, y = self.match(x, y)
        if c.type.lanes > 1:
            x, y = self.splat(x, c.type.lanes), self.splat(y, c.type.lanes)
        return bld.select(c, x, y)

    def _side(self, e: Expr, cond: V) -> Steps:
        outer = self.mask
        scopes = self._scopes
        assert scopes is not None
        self._masks.setdefault(_name(outer), outer)
        self.mask = self._and(outer, cond)
        self._masks[self.mask.name] = self.mask
        scopes.push(self.mask.name, e)
        v = yield e
        scopes.pop()
        self.mask = outer
        return v

    def _checked(self, check: int, at: V) -> V:
        """An index moved into its table. Where that was wanted and outside, the workspace says so:
        the stores of all others go to scrap, so that there is no branch.
        """
        b, last = self.builder, max(0, self.checks[check].extent - 1)
        zero, top = b.const(at.type, 0), b.const(at.type, last)
        below, above = b.compare("slt", at, zero), b.compare("sgt", at, top)
        bad, mask = b.op("or", below, above), self.mask
        if mask is not None:
            if at.type.lanes == 1 and mask.type.lanes > 1:
                mask = b.call("llvm.vector.reduce.or", Type("i1"), mask)
            bad = b.op("and", *self.match(bad, mask))
        scrap = b.fresh("scrap")
        self.entry_lines.append(f"  {scrap} = alloca [16 x i8], align 8")
        slot = b.value(PTR, f"getelementptr i8, ptr {self.workspace}, i64 {16 * check}")
        for k in range(at.type.lanes):
            one, found = at, bad
            if at.type.lanes > 1:
                one = b.value(I64, f"extractelement {at}, i64 {k}")
                found = b.value(Type("i1"), f"extractelement {bad}, i64 {k}")
            p = b.value(PTR, f"select {found}, {slot}, ptr {scrap}")
            beside = b.value(PTR, f"getelementptr i8, {p}, i64 8")
            b.emit(f"  store i64 1, {p}, align 8")
            b.emit(f"  store {one}, {beside}, align 8")
        return b.select(below, zero, b.select(above, top, at))

    # reads
    def load(self, e: Load) -> V:
        a = self.address(e.buffer, e.index)
        m = a.memory
        lanes = self.lanes if a.stride else 1
        guarded = self.mask is not None and not self._in_bounds(e, m)
        rec = self.recording
        if not a.opaque and a.stride in (0, 1) and not guarded:
            cell = Cell(m.serial, a.terms, a.offset, lanes)
            if rec is None:
                return self.read(m, cell)
            self.builder.lines = rec.around
            v = self.read(m, cell)
            self.builder.lines = rec.lines
            rec.add(v, Operand(self.place(e.buffer, e.index, lanes)))
            return v
        if rec is not None:
            rec.unlike = True
        self.flush_memory(m.serial, drop=False)
        if a.opaque:
            return self._gather(a, e)
        mask = self.mask if guarded else None
        if a.stride == 0:
            return self._guarded_scalar(m, self.pointer(m, a.terms, a.offset), mask)
        if a.stride == 1 and mask is not None:
            return self._masked_load(m, self.pointer(m, a.terms, a.offset), lanes, mask)
        if a.stride == 2 and mask is None:
            return self._every_second(a, lanes)
        if a.stride == -1 and mask is None:
            return self._backwards(a, lanes)
        pointers = [self.pointer(m, a.terms, a.offset + k * a.stride) for k in range(lanes)]
        return self._collect(m, pointers, mask)

    def _in_bounds(self, e: Load, m: Memory) -> bool:
        for p, n in zip(e.index, m.shape, strict=True):
            try:
                low, high = bounds(p, self.ranges)
            except Unknown:
                return False
            lo, hi = low.const, high.const
            if lo is None or hi is None or lo < 0 or hi >= n:
                return False
        return True

    def _safe_place(self) -> str:
        """Somewhere that may always be read."""
        if self.dummy is None:
            self.dummy = self.builder.fresh("safe")
            self.entry_lines.append(f"  {self.dummy} = alloca [64 x i8], align 64")
            self.entry_lines.append(
                f"  store <64 x i8> zeroinitializer, ptr {self.dummy}, align 64"
            )
        return self.dummy

    def _guarded_scalar(self, m: Memory, pointer: str, mask: V | None) -> V:
        b = self.builder
        if mask is not None:
            if mask.type.lanes > 1:
                mask = b.call("llvm.vector.reduce.or", Type("i1"), mask)
            pointer = b.value(
                Type("ptr"), f"select {mask}, ptr {pointer}, ptr {self._safe_place()}"
            ).name
        t = storage_type(m.dtype)
        raw = b.value(t, f"load {t}, ptr {pointer}, align {m.dtype.nbytes}")
        return self.widen(raw, m.dtype)

    def _masked_load(self, m: Memory, pointer: str, lanes: int, mask: V) -> V:
        b = self.builder
        if mask.type.lanes == 1:  # all lanes or none
            mask = self.splat(mask, lanes)
        t = storage_type(m.dtype, lanes)
        name = f"@llvm.masked.load.{t.suffix}.p0"
        b.declarations.setdefault(name, f"declare {t} {name}(ptr, i32, {mask.type}, {t})")
        raw = b.value(
            t, f"call {t} {name}(ptr {pointer}, i32 {m.dtype.nbytes}, {mask}, {t} zeroinitializer)"
        )
        return self.widen(raw, m.dtype)

    def _every_second(self, a: Address, lanes: int) -> V:
        """Two overlapping loads that stay within what is asked for, and a shuffle."""
        b, m = self.builder, a.memory
        t = storage_type(m.dtype, lanes)
        if lanes < 4:
            pointers = [self.pointer(m, a.terms, a.offset + 2 * k) for k in range(lanes)]
            return self._collect(m, pointers, None)
        size = m.dtype.nbytes
        low, high = (
            b.value(t, f"load {t}, ptr {self.pointer(m, a.terms, a.offset + k)}, align {size}")
            for k in (0, lanes - 1)
        )
        picks = [2 * k if 2 * k < lanes else lanes + 2 * k - (lanes - 1) for k in range(lanes)]
        order = ", ".join(f"i32 {k}" for k in picks)
        raw = b.value(t, f"shufflevector {low}, {high}, <{lanes} x i32> <{order}>")
        return self.widen(raw, m.dtype)

    def _backwards(self, a: Address, lanes: int) -> V:
        b, m = self.builder, a.memory
        t = storage_type(m.dtype, lanes)
        p = self.pointer(m, a.terms, a.offset - (lanes - 1))
        raw = b.value(t, f"load {t}, ptr {p}, align {m.dtype.nbytes}")
        order = ", ".join(f"i32 {lanes - 1 - k}" for k in range(lanes))
        raw = b.value(t, f"shufflevector {raw}, {t} poison, <{lanes} x i32> <{order}>")
        return self.widen(raw, m.dtype)

    def _collect(self, m: Memory, pointers: list[str], mask: V | None) -> V:
        """One element after the other."""
        b = self.builder
        lanes = len(pointers)
        if mask is not None and mask.type.lanes == 1:
            mask = self.splat(mask, lanes)
        t = storage_type(m.dtype, lanes)
        scalar = storage_type(m.dtype)
        whole = V("poison", t)
        for k, p in enumerate(pointers):
            if mask is not None:
                ok = b.value(Type("i1"), f"extractelement {mask}, i64 {k}")
                p = b.value(Type("ptr"), f"select {ok}, ptr {p}, ptr {self._safe_place()}").name
            x = b.value(scalar, f"load {scalar}, ptr {p}, align {m.dtype.nbytes}")
            whole = b.value(t, f"insertelement {whole}, {x}, i64 {k}")
        return self.widen(whole, m.dtype)

    def _opaque_offset(self, a: Address) -> V:
        """The part of an address that is computed at run time, in elements."""
        return self.integer(Int(dict(a.opaque)))

    def _gather(self, a: Address, e: Load) -> V:
        b, m = self.builder, a.memory
        mask = self.mask if self.mask is not None and not self._in_bounds(e, m) else None
        at = self._opaque_offset(a)
        base = self.pointer(m, a.terms, a.offset)
        elem = storage_type(m.dtype)
        if at.type.lanes == 1:
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {at}").name
            if a.stride == 0:
                return self._guarded_scalar(m, p, mask)
            if a.stride == 1:
                if mask is not None:
                    return self._masked_load(m, p, self.lanes, mask)
                t = storage_type(m.dtype, self.lanes)
                return self.widen(b.value(t, f"load {t}, ptr {p}, align {m.dtype.nbytes}"), m.dtype)
        lanes = self.lanes
        pointers = []
        for k in range(lanes):
            i = at if at.type.lanes == 1 else b.value(I64, f"extractelement {at}, i64 {k}")
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {i}").name
            if a.stride:
                p = b.value(
                    Type("ptr"), f"getelementptr inbounds {elem}, ptr {p}, i64 {k * a.stride}"
                ).name
            pointers.append(p)
        return self._collect(m, pointers, mask)


def _rounded(e: Const) -> float | int | bool:
    """The value as its dtype holds it, which matters where halves are computed with in float."""
    return float(constant(e.value, e.dtype)) if e.dtype.bits == 16 and e.dtype.is_float else e.value


def _name(mask: V | None) -> str:
    return mask.name if mask else ""
