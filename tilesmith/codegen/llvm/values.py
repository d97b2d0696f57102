"""Expressions and stores: every value is a scalar, the same for all lanes, or a vector with one
element per lane.
"""

from __future__ import annotations

from typing import Any

from tilesmith.base.dtype import BOOL, INT64, DType
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.llvm import vecmath
from tilesmith.codegen.llvm.builder import I64, Builder, Type, V, storage_type
from tilesmith.codegen.llvm.cells import Address, Cells, Lane
from tilesmith.codegen.llvm.frames import Cell, Memory
from tilesmith.codegen.passes.strips import lanes_of
from tilesmith.expr.ints import FloorDiv, Int, Maximum, Opaque, Unknown, bounds
from tilesmith.expr.nodes import (
    COMPARISONS,
    Binary,
    Cast,
    Const,
    Dynamic,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
    children,
    plain_combiner,
)
from tilesmith.ir.nodes import For, Store, Write, walk


class Values(Cells):
    def __init__(self, target: Target, builder: Builder) -> None:
        super().__init__(target, builder)
        self.lanes = 1
        self.mask: V | None = None  # lanes, or the one scalar, that are wanted
        self.dummy: str | None = None
        self._memo: dict[tuple[int, str], V] = {}
        self._pieces: dict[int, tuple[For, list[tuple[int, int]]]] = {}
        self.entry_lines: list[str] = []

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

    def match(self, x: V, y: V) -> tuple[V, V]:
        """Both with as many lanes."""
        if x.type.lanes == y.type.lanes:
            return x, y
        return (
            (self.splat(x, y.type.lanes), y)
            if x.type.lanes == 1
            else (x, self.splat(y, x.type.lanes))
        )

    def splat(self, v: V, lanes: int) -> V:
        if v.type.lanes == lanes:
            return v
        if v.name[0] != "%":
            return self.builder.splat(v, lanes)
        key = (v.name, lanes)
        for frame in reversed(self.frames):
            if key in frame.splats:
                return frame.splats[key]
        out = self.builder.splat(v, lanes)
        self.frames[-1].splats[key] = out
        return out

    # expressions
    def expr(self, e: Expr) -> V:
        if isinstance(e, Const):
            return self.builder.const(self.compute_type(e.dtype), e.value)
        key = (id(e), self.mask.name if self.mask else "")
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._expr(e)
        return found

    def _expr(self, e: Expr) -> V:
        match e:
            case IntValue(value=p):
                return self._cast(self.integer(p), INT64, e.dtype)
            case Load():
                return self.load(e)
            case Unary(op=op, x=x):
                return self.unary(op, self.expr(x), e.dtype)
            case Binary(op=("add" | "sub") as op, a=a, b=b) if e.dtype.is_float:
                return self._sum(op, a, b)
            case Binary(op=op, a=a, b=b):
                return self.binary(op, *self.match(self.expr(a), self.expr(b)), a.dtype)
            case Select(cond=c, a=a, b=b):
                return self._select(c, a, b)
            case Cast(x=x):
                return self._cast(self.expr(x), x.dtype, e.dtype)
        raise AssertionError(e)

    def _sum(self, op: str, a: Expr, b: Expr) -> V:
        """A product on either side makes it one fused multiply-add."""
        fused = self.builder.fuses
        if fused and isinstance(b, Binary) and b.op == "mul":
            x, y, z = self.expr(b.a), self.expr(b.b), self.expr(a)
            if op == "sub":
                x = self.builder.fneg(x)
        elif fused and isinstance(a, Binary) and a.op == "mul":
            x, y, z = self.expr(a.a), self.expr(a.b), self.expr(b)
            if op == "sub":
                z = self.builder.fneg(z)
        else:
            return self.builder.op(
                "fadd" if op == "add" else "fsub", *self.match(self.expr(a), self.expr(b))
            )
        lanes = max(v.type.lanes for v in (x, y, z))
        return self.builder.fma(*(self.splat(v, lanes) for v in (x, y, z)))

    def _select(self, cond: Expr, a: Expr, b: Expr) -> V:
        """Each side is computed under a mask of its own: it reads only where it is wanted."""
        c = self.expr(cond)
        outer = self.mask
        bld = self.builder
        self.mask = self._and(outer, c)
        x = self.expr(a)
        if any(isinstance(n, Load) for n in _nodes(b)):
            inverted = bld.op("xor", c, bld.const(c.type, True))
            self.mask = self._and(outer, inverted)
        y = self.expr(b)
        self.mask = outer
        x, y = self.match(x, y)
        if c.type.lanes > 1:
            x, y = self.splat(x, c.type.lanes), self.splat(y, c.type.lanes)
        return bld.select(c, x, y)

    def _and(self, outer: V | None, c: V) -> V:
        if outer is None:
            return c
        return self.builder.op("and", *self.match(outer, c))

    def unary(self, op: str, x: V, d: DType) -> V:
        b = self.builder
        match op:
            case "neg":
                return b.fneg(x) if x.type.is_float else b.op("sub", b.const(x.type, 0), x)
            case "not":
                return b.op("xor", x, b.const(x.type, True))
            case "abs":
                if x.type.is_float:
                    return b.call("llvm.fabs", x.type, x)
                if d.kind == "u":
                    return x
                return b.select(
                    b.compare("slt", x, b.const(x.type, 0)), b.op("sub", b.const(x.type, 0), x), x
                )
        if x.type.elem == "half":  # the polynomials are for float and double
            wide = vecmath.emit(b, op, b.cast("fpext", x, "float"))
            return b.cast("fptrunc", wide, "half")
        return vecmath.emit(b, op, x)

    def binary(self, op: str, x: V, y: V, d: DType) -> V:
        b = self.builder
        if op in COMPARISONS:
            if d.is_float:
                return b.compare({"ne": "une"}.get(op, f"o{op}"), x, y)
            sign = "" if op in ("eq", "ne") else "s" if d.kind == "i" else "u"
            return b.compare(f"{sign}{op}", x, y)
        match op:
            case "and" | "or":
                return b.op(op, x, y)
            case "max" | "min":
                return self._extreme(op, x, y, d)
        if d.is_float:
            match op:
                case "add" | "sub" | "mul" | "div":
                    return b.op(f"f{op}", x, y)
                case "floordiv":
                    return self.unary("floor", b.op("fdiv", x, y), d)
                case "mod":
                    whole = self.unary("floor", b.op("fdiv", x, y), d)
                    return b.op("fsub", x, b.op("fmul", whole, y))
                case "pow":
                    if x.type.elem == "half":
                        wide = vecmath.pow(
                            b, b.cast("fpext", x, "float"), b.cast("fpext", y, "float")
                        )
                        return b.cast("fptrunc", wide, "half")
                    return vecmath.pow(b, x, y)
        match op:
            case "add" | "sub" | "mul":
                return b.op(op, x, y)
            case "floordiv":
                return self._floordiv(x, y, signed=d.kind == "i")
            case "mod":
                return self._mod(x, y, signed=d.kind == "i")
        raise BuildError(f"{op} of {d} has no code")

    def _extreme(self, op: str, x: V, y: V, d: DType) -> V:
        b = self.builder
        if not d.is_float:
            if d is BOOL:
                return b.op("or" if op == "max" else "and", x, y)
            sign = "s" if d.kind == "i" else "u"
            return b.select(b.compare(f"{sign}{'gt' if op == 'max' else 'lt'}", x, y), x, y)
        if self.target.arch == "aarch64":  # one instruction, and it hands a NaN on
            return b.call("llvm.maximum" if op == "max" else "llvm.minimum", x.type, x, y)
        # An x86 maximum gives its second operand when either is NaN. A constant comes first, and a
        # NaN comes through by itself. Else x does so, and what is done about a NaN in y does not
        # lengthen the chain of maxima into an accumulator, which is x.
        if y.name[0] != "%":
            x, y = y, x
        test = "ogt" if op == "max" else "olt"
        if x.name[0] != "%":
            return b.select(b.compare(test, x, y), x, y)
        picked = b.select(b.compare(test, y, x), y, x)
        return b.select(b.compare("ord", y, y), picked, y)

    def _safe_divisor(self, x: V, y: V, signed: bool) -> tuple[V, V | None]:
        """A divisor that never traps, and where it was zero."""
        b, t = self.builder, y.type
        if y.name[0] != "%" and "x i" not in y.name:
            n = y.name if t.lanes == 1 else y.name.split()[-1].rstrip(")")
            if n not in ("0", "-1", "zeroinitializer"):
                return y, None
        zero = b.compare("eq", y, b.const(t, 0))
        bad = zero
        if signed:
            least = b.compare("eq", x, b.const(t, -(1 << t.bits - 1)))
            minus = b.compare("eq", y, b.const(t, -1))
            bad = b.op("or", zero, b.op("and", least, minus))
        return b.select(bad, b.const(t, 1), y), zero

    def _floordiv(self, x: V, y: V, *, signed: bool) -> V:
        b, t = self.builder, x.type
        safe, zero = self._safe_divisor(x, y, signed)
        if not signed:
            q = b.op("udiv", x, safe)
        else:
            q = b.op("sdiv", x, safe)
            r = b.op("sub", x, b.op("mul", q, safe))
            apart = b.compare("slt", b.op("xor", r, safe), b.const(t, 0))
            off = b.op("and", b.compare("ne", r, b.const(t, 0)), apart)
            q = b.select(off, b.op("sub", q, b.const(t, 1)), q)
        return q if zero is None else b.select(zero, b.const(t, 0), q)

    def _mod(self, x: V, y: V, *, signed: bool) -> V:
        b, t = self.builder, x.type
        safe, zero = self._safe_divisor(x, y, signed)
        if not signed:
            r = b.op("urem", x, safe)
        else:
            r = b.op("srem", x, safe)
            apart = b.compare("slt", b.op("xor", r, safe), b.const(t, 0))
            off = b.op("and", b.compare("ne", r, b.const(t, 0)), apart)
            r = b.select(off, b.op("add", r, safe), r)
        return r if zero is None else b.select(zero, b.const(t, 0), r)

    def _cast(self, v: V, have: DType, want: DType) -> V:
        b = self.builder
        if have is want:
            return v
        t = self.compute_type(want).elem
        if want is BOOL:
            zero = b.const(v.type, 0)
            return b.compare("une" if v.type.is_float else "ne", v, zero)
        if (
            v.name[0] not in "%<"
            and v.type.lanes == 1
            and not v.type.is_float
            and not want.is_float
        ):
            return V(
                str(want.wrap(int(v.name))) if v.name.lstrip("-").isdigit() else v.name, Type(t)
            )
        if v.type.is_float and want.is_float:
            v = self._round_to(v, have, want)
            bits = Type(t).bits
            if bits == v.type.bits:
                return v
            return b.cast("fpext" if bits > v.type.bits else "fptrunc", v, t)
        if v.type.is_float:
            # out of a narrow range is wrapped, not undefined
            wide = t if int(t[1:]) >= 32 else "i32"
            out = b.cast("fptoui" if want.kind == "u" and wide == t else "fptosi", v, wide)
            return out if wide == t else b.cast("trunc", out, t)
        if want.is_float:
            return b.cast("sitofp" if have.kind == "i" else "uitofp", v, t)
        bits = int(t[1:])
        if bits == v.type.bits:
            return v
        return b.cast(
            "trunc" if bits < v.type.bits else "sext" if have.kind == "i" else "zext", v, t
        )

    def _round_to(self, v: V, have: DType, want: DType) -> V:
        """A cast to a half type rounds even where that type is computed with in float."""
        if want.bits == 16 and self.compute_type(want).elem == "float":
            if v.type.elem == "double":
                v = self.builder.cast("fptrunc", v, "float")
            return self.widen(self.narrow(v, want), want)
        return v

    # reads
    def load(self, e: Load) -> V:
        a = self.address(e.buffer, e.index)
        m = a.memory
        lanes = self.lanes if a.stride else 1
        guarded = self.mask is not None and not self._in_bounds(e, m)
        if not a.opaque and a.stride in (0, 1) and not guarded:
            return self.read(m, Cell(m.serial, a.terms, a.offset, lanes))
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

    # writes
    def store(self, s: Store) -> None:
        self._memo = {}
        if s.intrinsic is not None:
            self._intrinsic(s)
            return
        values = [self._horizontal(w) or self.expr(w.value) for w in s.writes]
        for w, v in zip(s.writes, values, strict=True):
            self._put(w, v)

    def _put(self, w: Write, v: V) -> None:
        a = self.address(w.buffer, w.index)
        m = a.memory
        if a.opaque:
            self._scatter(a, v)
            return
        lanes = self.lanes if a.stride else 1
        uniform_mask = self.mask is not None and a.stride == 0
        v = self.splat(v, lanes) if lanes > 1 else v
        if v.type.lanes != lanes:
            raise BuildError(f"{w.buffer} is written by all lanes of a vector at once")
        if a.stride in (0, 1) and (self.mask is None or uniform_mask):
            self.write(Cell(m.serial, a.terms, a.offset, lanes), v)
            return
        self.flush_memory(m.serial, drop=True)
        b = self.builder
        raw = self.narrow(v, m.dtype)
        if a.stride == 1 and self.mask is not None:
            p = self.pointer(m, a.terms, a.offset)
            t = raw.type
            name = f"@llvm.masked.store.{t.suffix}.p0"
            b.declarations.setdefault(name, f"declare void {name}({t}, ptr, i32, {self.mask.type})")
            b.emit(f"  call void {name}({raw}, ptr {p}, i32 {m.dtype.nbytes}, {self.mask})")
            return
        pointers = [self.pointer(m, a.terms, a.offset + k * a.stride) for k in range(lanes)]
        self._spread(m, raw, pointers)

    def _scatter(self, a: Address, v: V) -> None:
        b, m = self.builder, a.memory
        self.flush_memory(m.serial, drop=True)
        at = self._opaque_offset(a)
        base = self.pointer(m, a.terms, a.offset)
        elem = storage_type(m.dtype)
        if at.type.lanes == 1 and a.stride == 0:
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {at}").name
            b.emit(f"  store {self.narrow(v, m.dtype)}, ptr {p}, align {m.dtype.nbytes}")
            return
        raw = self.narrow(self.splat(v, self.lanes), m.dtype)
        pointers = []
        for k in range(self.lanes):
            i = at if at.type.lanes == 1 else b.value(I64, f"extractelement {at}, i64 {k}")
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {i}").name
            p = b.value(
                Type("ptr"), f"getelementptr inbounds {elem}, ptr {p}, i64 {k * a.stride}"
            ).name
            pointers.append(p)
        self._spread(m, raw, pointers)

    def _spread(self, m: Memory, raw: V, pointers: list[str]) -> None:
        b = self.builder
        scalar = storage_type(m.dtype)
        scrap = None
        if self.mask is not None:
            scrap = b.fresh("scrap")
            self.entry_lines.append(f"  {scrap} = alloca [8 x i8], align 8")
        for k, p in enumerate(pointers):
            x = b.value(scalar, f"extractelement {raw}, i64 {k}") if raw.type.lanes > 1 else raw
            if self.mask is not None:
                ok = self.mask
                if ok.type.lanes > 1:
                    ok = b.value(Type("i1"), f"extractelement {ok}, i64 {k}")
                p = b.value(Type("ptr"), f"select {ok}, ptr {p}, ptr {scrap}").name
            b.emit(f"  store {x}, ptr {p}, align {m.dtype.nbytes}")

    def _horizontal(self, w: Write) -> V | None:
        """`S[] = S[] + v` in all lanes at once: the lanes of v are joined first."""
        if self.lanes == 1 or not self._joins_lanes(w):
            return None
        e = w.value
        assert isinstance(e, Binary)
        return self.binary(e.op, self.expr(e.a), self._across(self._partial(e), e), e.dtype)

    def _joins_lanes(self, w: Write) -> bool:
        a, e = self.address(w.buffer, w.index), w.value
        if a.stride or a.opaque or not isinstance(e, Binary):
            return False
        return isinstance(e.a, Load) and e.a.buffer == w.buffer and e.a.index == w.index

    def _partial(self, e: Binary) -> V:
        """What each lane adds; lanes that are masked out add nothing."""
        v = self.splat(self.expr(e.b), self.lanes)
        if self.mask is not None:
            neutral = plain_combiner(e.op, e.dtype).identity[0].value
            mask = self.splat(self.mask, self.lanes)
            v = self.builder.select(mask, v, self.builder.const(v.type, neutral))
        return v

    def _across(self, v: V, e: Binary) -> V:
        while v.type.lanes > 1:
            half = v.type.lanes // 2
            low, high = (self._half(v, half, k) for k in (0, half))
            v = self.binary(e.op, low, high, e.dtype)
        return v

    def reduce_pieces(self, s: Store, loop: str, pieces: list[tuple[int, int]]) -> None:
        """A horizontal reduction over several vectors: they are joined lane by lane, in pairs so
        that no join waits for all before it, then once across.
        """
        (w,) = s.writes
        e = w.value
        assert isinstance(e, Binary)
        parts: list[V] = []
        for start, lanes in pieces:
            self.env[loop], self.lanes = Lane(start, lanes), lanes
            self._memo = {}
            parts.append(self._partial(e))
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            last = parts[len(parts) & ~1 :]
            parts = [*(self.binary(e.op, x, y, e.dtype) for x, y in pairs), *last]
        total = self.binary(e.op, self.expr(e.a), self._across(parts[0], e), e.dtype)
        self._put(w, total)

    def _half(self, v: V, half: int, start: int) -> V:
        t = Type(v.type.elem, half)
        if half == 1:
            return self.builder.value(t, f"extractelement {v}, i64 {start}")
        order = ", ".join(f"i32 {start + k}" for k in range(half))
        return self.builder.value(
            t, f"shufflevector {v}, {v.type} poison, <{half} x i32> <{order}>"
        )

    # instructions
    def operand_size(self, s: Store, name: str) -> int:
        assert s.intrinsic is not None
        size: int = 1
        for n in s.intrinsic.description.all_buffers[name].shape:
            size *= n.const or 1
        return size

    def _intrinsic(self, s: Store) -> None:
        unit = s.intrinsic
        assert unit is not None
        missing = unit.features - self.target.features
        if missing:
            raise BuildError(
                f"{unit.name} needs {', '.join(sorted(missing))}, which this target lacks"
            )
        if self.mask is not None:
            raise BuildError(f"{unit.name} cannot be done in some lanes only")
        operands: dict[str, Any] = {}
        cells: dict[str, Cell] = {}
        ((_, block),) = walk(unit.description.body)
        its = [i.name for i in block.iters]
        accesses = {w.buffer: w.index for w in block.writes}
        accesses |= {load.buffer: load.index for load in block.loads}
        for n, _ in s.tile:
            self.env[n] = 0
        for name, load in s.operands:
            self._check_dense(s, name, load, its, accesses[name])
            a = self.address(load.buffer, load.index)
            cells[name] = Cell(a.memory.serial, a.terms, a.offset, self.operand_size(s, name))
            operands[name] = self.read(a.memory, cells[name])
        for n, _ in s.tile:
            del self.env[n]
        out = unit.description.outputs[0].name
        self.write(cells[out], unit.emit(self.builder, operands))

    def _check_dense(
        self, s: Store, name: str, load: Load, its: list[str], wanted: tuple[Int, ...]
    ) -> None:
        """The operand lies in memory as the instruction wants it: its strides along the tile are
        those of the description.
        """
        assert s.intrinsic is not None
        m = self.memories[load.buffer]
        buf = s.intrinsic.description.all_buffers[name]
        for (loop, extent), it in zip(s.tile, its, strict=True):
            have = sum(
                (p.coefficient(loop).const or 0) * k
                for p, k in zip(load.index, m.strides, strict=True)
            )
            need = sum(
                (p.coefficient(it).const or 0) * (k.const or 0)
                for p, k in zip(wanted, buf.strides, strict=True)
            )
            if have != need and extent.const != 1:
                raise BuildError(
                    f"{s.intrinsic.name}: {load.buffer} moves by {have} elements along {loop}, "
                    f"the instruction wants {need}; give it another layout"
                )

    # vectors
    def pieces_of(self, s: For) -> list[tuple[int, int]]:
        """A vectorized loop as (start, lanes): whole registers, then smaller powers of two."""
        if (known := self._pieces.get(id(s))) is not None:
            return known[1]
        n, width, at = s.extent.const or 0, lanes_of(s.body, self.target), 0
        out: list[tuple[int, int]] = []
        self._pieces[id(s)] = s, out  # with the loop, so that its identity is not another's
        while at < n:
            while width > n - at:
                width //= 2
            out.append((at, width))
            at += width
        return out


def _nodes(e: Expr) -> list[Expr]:
    return [e, *(n for x in children(e) for n in _nodes(x))]
