"""Values and axes with Python's operators, with which the body of a compute is written.

`Value` wraps an expression node; the nodes themselves have no operators and compare by structure.
Arithmetic among axes stays an `Int` polynomial, everything else becomes value nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from tilesmith.base.dtype import BOOL, FLOAT32, INT64, DType, promote
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError
from tilesmith.base.given import a, checks_given
from tilesmith.expr import nodes
from tilesmith.expr.from_numpy import BINARY_UFUNCS, BITWISE_UFUNCS, UNARY_UFUNCS
from tilesmith.expr.ints import Int, nonnegative, of, var
from tilesmith.expr.nodes import (
    FLOAT_FUNCTIONS,
    Arg,
    Binary,
    Cast,
    Const,
    Expr,
    IntValue,
    Select,
    Unary,
    binary_dtype,
)
from tilesmith.expr.semantics import constant
from tilesmith.expr.walk import brief, preorder

Number = int | float | bool
fresh = itertools.count()


Method = Callable[["Value", "Operand"], "Value"]  # of a sign between two operands


def _both_sides(op: str) -> tuple[Method, Method]:
    """The methods of a sign for a value on its left, and on its right."""
    if op in nodes.BITWISE:
        return lambda v, o: bitwise(op, v, o), lambda v, o: bitwise(op, o, v)
    return lambda v, o: binary(op, v, o), lambda v, o: binary(op, o, v)


class Value:
    """An expression with Python's operators."""

    __slots__ = ("node",)

    def __init__(self, node: Expr) -> None:
        self.node = node

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    __add__, __radd__ = _both_sides("add")
    __sub__, __rsub__ = _both_sides("sub")
    __mul__, __rmul__ = _both_sides("mul")
    __truediv__, __rtruediv__ = _both_sides("div")
    __floordiv__, __rfloordiv__ = _both_sides("floordiv")
    __mod__, __rmod__ = _both_sides("mod")
    __and__, __rand__ = _both_sides("bitand")
    __or__, __ror__ = _both_sides("bitor")
    __xor__, __rxor__ = _both_sides("bitxor")
    __lshift__, __rlshift__ = _both_sides("shl")
    __rshift__, __rrshift__ = _both_sides("shr")
    __lt__, __gt__ = _both_sides("lt")[0], _both_sides("gt")[0]
    __le__, __ge__ = _both_sides("le")[0], _both_sides("ge")[0]
    __eq__, __ne__ = _both_sides("eq")[0], _both_sides("ne")[0]  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __pow__(self, o: Operand) -> Value:
        return power(self, o)

    def __rpow__(self, o: Operand) -> Value:
        return power(o, self)

    def __neg__(self) -> Value:
        if isinstance(self.node, IntValue):
            return Value(IntValue(-self.node.value, self.node.dtype))
        return unary("neg", self)

    def __invert__(self) -> Value:
        return unary("bitnot", self)

    def __abs__(self) -> Value:
        return unary("abs", self)

    def __bool__(self) -> bool:
        raise ExpressionError(
            f"the truth of {brief(self.node)} is not known while the computation is being "
            "stated; use ts.where(cond, a, b), and & | ~ instead of and, or, not"
        )

    def __iter__(self) -> Any:
        raise ExpressionError(f"{brief(self.node)} is a single value and cannot be unpacked")

    def __len__(self) -> int:
        raise ExpressionError(f"{brief(self.node)} is a single value and has no length")

    def __float__(self) -> float:
        raise self._unknown("float", "'float32'")

    def __int__(self) -> int:
        raise self._unknown("int", "'int32'")

    def _unknown(self, kind: str, dtype: str) -> ExpressionError:
        return ExpressionError(
            f"{brief(self.node)} has no number yet, so {kind}() cannot take it; "
            f"use ts.cast(x, {dtype}) for another dtype"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Value:
        """NumPy's functions on values: np.exp(A[i]) is ts.exp(A[i])."""
        name = ufunc.__name__
        for x in inputs:
            if getattr(x, "ndim", 0):
                raise ExpressionError(
                    f"np.{name} of {brief(self.node)} and an array of shape "
                    f"{list(x.shape)}; make the array a ts.placeholder and read an element of it"
                )
        if method == "__call__" and not kwargs:
            if name in UNARY_UFUNCS:
                return unary(UNARY_UFUNCS[name], inputs[0])
            if name in BITWISE_UFUNCS:
                return bitwise(BITWISE_UFUNCS[name], *inputs)
            if name in BINARY_UFUNCS:
                return binary(BINARY_UFUNCS[name], *inputs)
            if name in ("power", "float_power"):
                return power(*inputs)
            if name == "isnan":
                return binary("ne", inputs[0], inputs[0])
        raise ExpressionError(
            f"np.{name} of {brief(self.node)} is not known here; state it with Python's "
            "operators, ts.where, and functions such as ts.exp, ts.sqrt and ts.maximum"
        )

    def __repr__(self) -> str:
        return f"Value({brief(self.node)}: {self.dtype})"


class Axis(Value):
    """A reduction axis."""

    __slots__ = ("extent", "label", "uid")

    def __init__(self, extent: Int, label: str) -> None:
        self.extent, self.label = extent, label
        self.uid = f"{label}@{next(fresh)}"
        super().__init__(IntValue(var(self.uid), INT64))

    def __repr__(self) -> str:
        return f"reduce_axis({self.extent}, name={self.label!r})"


class HasValue:
    """What can stand for a single value among operands: a tensor of rank 0."""

    def as_value(self) -> Value:
        raise NotImplementedError


Operand = Value | HasValue | Int | int | float | bool


# construction of values
def as_value(x: Any, like: DType | None = None) -> Value:
    """A Python number as a Value, in the dtype `like` of the other operand."""
    if isinstance(x, Value):
        return x
    if isinstance(x, HasValue):
        return x.as_value()
    if isinstance(x, Int):
        return Value(IntValue(x, INT64))
    if isinstance(x, bool) or type(x).__name__ in ("bool_", "bool"):
        return Value(Const(bool(x), BOOL) if like is None else Const(like.wrap(bool(x)), like))
    if hasattr(x, "item") and not isinstance(x, int | float) and getattr(x, "size", 1) == 1:
        x = x.item()  # a NumPy scalar
    if isinstance(x, int):
        if like is None:
            return Value(IntValue(of(x), INT64))
        if like.is_int and not like.lowest() <= x <= like.highest():
            raise ExpressionError(
                f"{x} does not fit into {like}, the dtype it meets; cast the other operand first"
            )
        return Value(Const(like.wrap(x), like))
    if isinstance(x, float):
        d = like if like is not None and like.is_float else FLOAT32
        return Value(Const(d.wrap(float(x)), d))  # float(): NumPy's float64 prints differently
    raise ExpressionError(f"{a(x)} is not a value, a number or an axis")


@checks_given(error=ExpressionError)
def cast(x: Operand, to: str | DType) -> Value:
    """x as another dtype. Floats are truncated to integers; integers wrap."""
    d = dtype_named(to)
    if type(x) is int and d.is_int and not INT64.lowest() <= x <= INT64.highest():
        return Value(Const(d.wrap(x), d))  # beyond the range of an axis
    if type(x) is float:
        return Value(Const(d.wrap(x), d))
    v = as_value(x)
    if v.dtype is d:
        return v
    if isinstance(v.node, Const):
        held = constant(v.node.value, v.dtype).item()  # as its own dtype rounds it
        return Value(Const(d.wrap(held), d))
    return Value(Cast(v.node, d))


def _pair(a: Operand, b: Operand, *, to: DType | None = None) -> tuple[Expr, Expr]:
    """Both operands in their common dtype."""
    if not isinstance(a, Value | HasValue | Int):
        vb = as_value(b)
        va = as_value(a, None if isinstance(vb.node, IntValue) else vb.dtype)
    elif not isinstance(b, Value | HasValue | Int):
        va = as_value(a)
        vb = as_value(b, None if isinstance(va.node, IntValue) else va.dtype)
    else:
        va, vb = as_value(a), as_value(b)
    d = to or promote(va.dtype, vb.dtype)
    for v, other in ((va, vb), (vb, va)):  # an axis takes the dtype of the other operand
        if isinstance(v.node, IntValue) and not isinstance(other.node, IntValue):
            d = to or (other.dtype if other.dtype.kind != "b" else v.dtype)
    return cast(va, d).node, cast(vb, d).node


def binary(op: str, a: Operand, b: Operand) -> Value:
    if op in ("and", "or"):
        x, y = as_value(a).node, as_value(b).node
        for e in (x, y):
            if e.dtype is not BOOL:
                raise ExpressionError(
                    f"{brief(e)} is {e.dtype}, but '{op}' joins conditions; compare it first"
                )
        return Value(Binary(op, x, y, BOOL))
    x, y = _pair(a, b)
    if isinstance(x, IntValue) and isinstance(y, IntValue):
        p, q = x.value, y.value
        match op:
            case "add":
                return Value(IntValue(p + q, INT64))
            case "sub":
                return Value(IntValue(p - q, INT64))
            case "mul":
                return Value(IntValue(p * q, INT64))
            case "floordiv" | "mod":
                if q.const == 0:
                    raise ExpressionError(f"{brief(x)} is divided by zero")
                if q.const is not None or nonnegative(q - 1):
                    return Value(IntValue(p // q if op == "floordiv" else p % q, INT64))
                # Division by zero is defined in semantics.py, not for Ints.
                return Value(Binary(op, x, y, INT64))
    if op == "truncdiv" and x.dtype.is_float:
        return unary("trunc", binary("div", Value(x), Value(y)))
    if op == "div" and not x.dtype.is_float:
        x, y = _pair(Value(x), Value(y), to=FLOAT32)
    if x.dtype is BOOL and op not in ("eq", "ne", "max", "min"):
        raise ExpressionError(f"{op} of two conditions; cast them to a number first")
    return Value(Binary(op, x, y, binary_dtype(op, x.dtype, y.dtype)))


def bitwise(op: str, a: Operand, b: Operand) -> Value:
    """One of BITWISE, on two integers or on two conditions."""
    x, y = as_value(a), as_value(b)
    if x.dtype is BOOL and y.dtype is BOOL and op in _OF_CONDITIONS:
        return binary(_OF_CONDITIONS[op], x, y)
    joined = BOOL in (x.dtype, y.dtype) and op in _OF_CONDITIONS
    for v in (x, y):
        if v.dtype is not BOOL if joined else not v.dtype.is_int:
            takes = "two conditions or two integers" if op in _OF_CONDITIONS else "two integers"
            raise ExpressionError(
                f"{brief(v.node)} is {v.dtype}, but {nodes.SIGNS[op]} takes {takes}; "
                "compare it or cast it first"
            )
    if isinstance(x.node, IntValue) and isinstance(y.node, IntValue):
        n = y.node.value.const
        if op in ("shl", "shr") and n is not None and 0 <= n < 63:  # an index stays a polynomial
            return binary("mul" if op == "shl" else "floordiv", x, 1 << n)
        if op == "bitand" and n is not None and n >= 0 and n & (n + 1) == 0:
            return binary("mod", x, n + 1)
    return binary(op, a, b)


_OF_CONDITIONS = {"bitand": "and", "bitor": "or", "bitxor": "ne"}


def unary(op: str, x: Operand) -> Value:
    v = as_value(x)
    if op == "bitnot":
        if v.dtype.is_float:
            raise ExpressionError(
                f"~ turns a condition or the bits of an integer, but {brief(v.node)} is {v.dtype}"
            )
        if isinstance(v.node, IntValue):
            return Value(IntValue(-v.node.value - 1, v.dtype))
        op = "not" if v.dtype is BOOL else op
    if op in FLOAT_FUNCTIONS and not v.dtype.is_float:
        v = cast(v, FLOAT32)
    if op == "not" and v.dtype is not BOOL:
        raise ExpressionError(f"~ negates a condition, but {brief(v.node)} is {v.dtype}")
    if op in ("floor", "ceil", "round", "trunc") and not v.dtype.is_float:
        return v
    if v.dtype is BOOL and op != "not":
        raise ExpressionError(f"{op} of a condition; cast it to a number first")
    return Value(Unary(op, v.node, v.dtype))


def where(cond: Operand, a: Operand, b: Operand) -> Value:
    """a if cond holds, else b. Only the side that is taken is read, so the other may be out of
    bounds.
    """
    c = as_value(cond)
    if c.dtype is not BOOL:
        raise ExpressionError(f"where() needs a condition, but {brief(c.node)} is {c.dtype}")
    if not isinstance(a, Value | HasValue | Int) and not isinstance(b, Value | HasValue | Int):
        floats = isinstance(a, float) or isinstance(b, float)
        truths = isinstance(a, bool) and isinstance(b, bool)
        like = FLOAT32 if floats else BOOL if truths else INT64
        x, y = (as_value(v, like).node for v in (a, b))
    else:
        x, y = _pair(a, b)
    return Value(Select(c.node, x, y, x.dtype))


def power(a: Operand, b: Operand) -> Value:
    """a ** b. A small whole exponent becomes multiplications. An integer to the power of an integer
    is an integer and wraps; only a negative constant exponent makes it float32.
    """
    if isinstance(b, int) and not isinstance(b, bool) and 1 <= b <= 8:
        return _repeated(as_value(a), b)
    va = as_value(a)
    if isinstance(b, float) and abs(b) == 0.5:
        return _root(va if va.dtype.is_float else cast(va, FLOAT32), b)
    if va.dtype.is_int and isinstance(b, int) and not isinstance(b, bool) and b >= 0:
        return _repeated(va, b) if b else as_value(1, va.dtype)
    if va.dtype.is_int and isinstance(b, Value | HasValue | Int) and as_value(b).dtype.is_int:
        exponent = as_value(b)
        typed = isinstance(a, Value | HasValue | Int) or isinstance(exponent.node, IntValue)
        return _whole_power(va if typed else as_value(a, exponent.dtype), exponent)
    if not va.dtype.is_float:
        va = cast(va, FLOAT32)
    return binary("pow", va, b)


def _root(v: Value, exponent: float) -> Value:
    """To the power of 1/2 or -1/2. Where pow differs from sqrt: -0 counts as 0, -inf as inf."""
    op, end = ("sqrt", math.inf) if exponent > 0 else ("rsqrt", 0.0)
    return where(v == -math.inf, end, unary(op, v + 0.0))


def _repeated(v: Value, exponent: int) -> Value:
    """By repeated squaring, from the highest bit of the exponent on."""
    join = Value.__mul__ if exponent <= 8 else _product
    out = v
    for bit in bin(exponent)[3:]:
        out = join(out, out)
        if bit == "1":
            out = join(out, v)
    return out


def _product(x: Value, y: Value) -> Value:
    """A node, even for axes: as a polynomial, a high power of a sum has huge coefficients."""
    return Value(Binary("mul", x.node, y.node, x.dtype))


def _whole_power(v: Value, exponent: Value) -> Value:
    """By six squarings. An exponent beyond 63 counts as 62 or 63, which is right for 0, 1 and -1;
    any other power would overflow. A negative exponent gives 0, except for 1 and -1.
    """
    odd = exponent & 1
    small = where(exponent > 63, odd + 62, exponent)
    if exponent.dtype.kind == "i":
        small = where(exponent < 0, odd, small)
    out = as_value(1, v.dtype)
    square = v
    for k in range(6):
        if k:
            square = _product(square, square)
        out = where(((small >> k) & 1) == 1, _product(out, square), out)
    if exponent.dtype.kind == "u":
        return out
    units = (v == 1) | (v == -1) if v.dtype.kind == "i" else v == 1
    return where((exponent < 0) & ~units, 0, out)


def args_of(e: Expr) -> list[Arg]:
    return [x for x in preorder(e, nodes.children) if isinstance(x, Arg)]
