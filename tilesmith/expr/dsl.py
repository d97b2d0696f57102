"""The language a user writes a computation in: tensors, axes and values with operators; Stages come
out.

`Value` wraps an expression node and gives it Python's operators; the nodes themselves know nothing
of that, and compare by
structure. Arithmetic among axes stays an `Int` polynomial, everything else becomes value nodes.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Union

from tilesmith.base.dtype import BOOL, FLOAT32, INT64, DType, promote
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError
from tilesmith.expr import nodes
from tilesmith.expr.ints import Int, IntLike, Unknown, bounds, is_size, nonnegative, of, var
from tilesmith.expr.nodes import (
    FLOAT_FUNCTIONS,
    Arg,
    Binary,
    Cast,
    Combiner,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
    as_index,
    binary_dtype,
    plain_combiner,
)

Number = int | float | bool
Operand = Union["Value", Int, int, float, bool]
_fresh = itertools.count()


class Value:
    """An expression with Python's operators on it."""

    __slots__ = ("node",)

    def __init__(self, node: Expr) -> None:
        self.node = node

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    def __add__(self, o: Operand) -> Value:
        return binary("add", self, o)

    def __radd__(self, o: Operand) -> Value:
        return binary("add", o, self)

    def __sub__(self, o: Operand) -> Value:
        return binary("sub", self, o)

    def __rsub__(self, o: Operand) -> Value:
        return binary("sub", o, self)

    def __mul__(self, o: Operand) -> Value:
        return binary("mul", self, o)

    def __rmul__(self, o: Operand) -> Value:
        return binary("mul", o, self)

    def __truediv__(self, o: Operand) -> Value:
        return binary("div", self, o)

    def __rtruediv__(self, o: Operand) -> Value:
        return binary("div", o, self)

    def __floordiv__(self, o: Operand) -> Value:
        return binary("floordiv", self, o)

    def __rfloordiv__(self, o: Operand) -> Value:
        return binary("floordiv", o, self)

    def __mod__(self, o: Operand) -> Value:
        return binary("mod", self, o)

    def __rmod__(self, o: Operand) -> Value:
        return binary("mod", o, self)

    def __pow__(self, o: Operand) -> Value:
        return power(self, o)

    def __rpow__(self, o: Operand) -> Value:
        return power(o, self)

    def __neg__(self) -> Value:
        if isinstance(self.node, IntValue):
            return Value(IntValue(-self.node.value, self.node.dtype))
        return unary("neg", self)

    def __lt__(self, o: Operand) -> Value:
        return binary("lt", self, o)

    def __le__(self, o: Operand) -> Value:
        return binary("le", self, o)

    def __gt__(self, o: Operand) -> Value:
        return binary("gt", self, o)

    def __ge__(self, o: Operand) -> Value:
        return binary("ge", self, o)

    def __eq__(self, o: Operand) -> Value:  # type: ignore[override]
        return binary("eq", self, o)

    def __ne__(self, o: Operand) -> Value:  # type: ignore[override]
        return binary("ne", self, o)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, o: Operand) -> Value:
        return binary("and", self, o)

    __rand__ = __and__

    def __or__(self, o: Operand) -> Value:
        return binary("or", self, o)

    __ror__ = __or__

    def __invert__(self) -> Value:
        return unary("not", self)

    def __abs__(self) -> Value:
        return unary("abs", self)

    def __bool__(self) -> bool:
        raise ExpressionError(
            f"the truth of {nodes.show(self.node)} is not known while the computation is being "
            "stated; use ts.where(cond, a, b), and & | ~ instead of and, or, not"
        )

    def __iter__(self) -> Any:
        raise ExpressionError(f"{nodes.show(self.node)} is a single value and cannot be unpacked")

    def __repr__(self) -> str:
        return f"Value({nodes.show(self.node)}: {self.dtype})"


class Axis(Value):
    """A reduction axis."""

    __slots__ = ("extent", "label", "uid")

    def __init__(self, extent: Int, label: str) -> None:
        self.extent, self.label = extent, label
        self.uid = f"{label}@{next(_fresh)}"
        super().__init__(IntValue(var(self.uid), INT64))

    def __repr__(self) -> str:
        return f"reduce_axis({self.extent}, name={self.label!r})"


class _TensorName(str):
    """The name under which a Load refers to a tensor before the tensor has its final name."""

    __slots__ = ("tensor",)
    tensor: Tensor


class Tensor:
    """A placeholder, or one output of a Stage."""

    def __init__(self, name: str, shape: tuple[Int, ...], dtype: DType, stage: Stage | None = None):
        self.name, self.shape_ints, self.dtype, self.stage = name, shape, dtype, stage
        self.uid = _TensorName(f"{name}@{next(_fresh)}")
        self.uid.tensor = self

    @property
    def shape(self) -> tuple[IntLike, ...]:
        """Numbers where the extent is known, Ints where it is a size variable."""
        return tuple(e if (n := e.const) is None else n for e in self.shape_ints)

    @property
    def ndim(self) -> int:
        return len(self.shape_ints)

    def __getitem__(self, index: Any) -> Value:
        items: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
        if len(items) != self.ndim:
            raise ExpressionError(
                f"{self.name} has {self.ndim} dimensions but is read with {len(items)} "
                f"ind{'ex' if len(items) == 1 else 'ices'}"
            )
        return Value(Load(self.uid, tuple(map(self._index, items)), self.dtype))

    def _index(self, item: Any) -> Int:
        node = as_value(item).node if not isinstance(item, Int) else IntValue(item, INT64)
        if not node.dtype.is_int:
            raise ExpressionError(
                f"{self.name} is indexed by {nodes.show(node)} of dtype {node.dtype}; "
                "an index is an integer: use ts.cast(x, 'int32')"
            )
        if any(True for _ in _args_of(node)):
            raise ExpressionError(
                f"{self.name} is indexed by the result of a reduction; "
                "give that reduction its own ts.compute"
            )
        return as_index(node)

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.dtype}{list(self.shape)})"


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One step of a computation: for every point of `axes`, the `values`, joined over `reduce` by
    `combiner`.
    """

    name: str
    axes: tuple[tuple[str, Int], ...]
    reduce: tuple[tuple[str, Int], ...]
    values: tuple[Expr, ...]
    combiner: Combiner | None
    tensors: list[Tensor] = field(default_factory=list)


# making values
def as_value(x: Any, like: DType | None = None) -> Value:
    """A Python number as a Value, of the dtype it meets."""
    if isinstance(x, Value):
        return x
    if isinstance(x, Tensor):
        if x.ndim == 0:
            return x[()]
        raise ExpressionError(f"{x.name} is a tensor; read an element of it: {x.name}[...]")
    if isinstance(x, Int):
        return Value(IntValue(x, INT64))
    if isinstance(x, bool) or type(x).__name__ in ("bool_", "bool"):
        return Value(Const(bool(x), BOOL) if like is None else Const(like.wrap(bool(x)), like))
    if hasattr(x, "item") and not isinstance(x, int | float):
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
        return Value(Const(float(x), d))  # a NumPy float64 is a float, but prints otherwise
    raise ExpressionError(f"{x!r} of type {type(x).__name__} is not a value, a number or an axis")


def cast(x: Operand, to: str | DType) -> Value:
    """x as another dtype. Floats go to integers by truncation; integers wrap."""
    v, d = as_value(x), dtype_named(to)
    if v.dtype is d:
        return v
    if isinstance(v.node, Const):
        return Value(Const(d.wrap(v.node.value), d))
    return Value(Cast(v.node, d))


def _pair(a: Operand, b: Operand, *, to: DType | None = None) -> tuple[Expr, Expr]:
    """Both operands in their common dtype."""
    if not isinstance(a, Value | Tensor | Int):
        vb = as_value(b)
        va = as_value(a, None if isinstance(vb.node, IntValue) else vb.dtype)
    elif not isinstance(b, Value | Tensor | Int):
        va = as_value(a)
        vb = as_value(b, None if isinstance(va.node, IntValue) else va.dtype)
    else:
        va, vb = as_value(a), as_value(b)
    d = to or promote(va.dtype, vb.dtype)
    for v, other in ((va, vb), (vb, va)):  # an axis takes the type of what it meets
        if isinstance(v.node, IntValue) and not isinstance(other.node, IntValue):
            d = to or (other.dtype if other.dtype.kind != "b" else v.dtype)
    return cast(va, d).node, cast(vb, d).node


def binary(op: str, a: Operand, b: Operand) -> Value:
    if op in ("and", "or"):
        x, y = as_value(a).node, as_value(b).node
        for e in (x, y):
            if e.dtype is not BOOL:
                raise ExpressionError(
                    f"{nodes.show(e)} is {e.dtype}, but & and | join conditions; compare it first"
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
                    raise ExpressionError(f"{nodes.show(x)} is divided by zero")
                return Value(IntValue(p // q if op == "floordiv" else p % q, INT64))
    if op == "div" and not x.dtype.is_float:
        x, y = _pair(Value(x), Value(y), to=FLOAT32)
    if x.dtype is BOOL and op not in ("eq", "ne", "max", "min"):
        raise ExpressionError(f"{op} of two conditions; cast them to a number first")
    return Value(Binary(op, x, y, binary_dtype(op, x.dtype, y.dtype)))


def unary(op: str, x: Operand) -> Value:
    v = as_value(x)
    if op in FLOAT_FUNCTIONS and not v.dtype.is_float:
        v = cast(v, FLOAT32)
    if op == "not" and v.dtype is not BOOL:
        raise ExpressionError(f"~ negates a condition, but {nodes.show(v.node)} is {v.dtype}")
    if op in ("floor", "ceil", "round") and not v.dtype.is_float:
        return v
    if v.dtype is BOOL and op != "not":
        raise ExpressionError(f"{op} of a condition; cast it to a number first")
    return Value(Unary(op, v.node, v.dtype))


def where(cond: Operand, a: Operand, b: Operand) -> Value:
    """a where cond holds, else b. Only the branch that is taken is read, so the other may lie out
    of bounds.
    """
    c = as_value(cond)
    if c.dtype is not BOOL:
        raise ExpressionError(f"where() needs a condition, but {nodes.show(c.node)} is {c.dtype}")
    if not isinstance(a, Value | Tensor | Int) and not isinstance(b, Value | Tensor | Int):
        floats = isinstance(a, float) or isinstance(b, float)
        truths = isinstance(a, bool) and isinstance(b, bool)
        like = FLOAT32 if floats else BOOL if truths else INT64
        x, y = (as_value(v, like).node for v in (a, b))
    else:
        x, y = _pair(a, b)
    return Value(Select(c.node, x, y, x.dtype))


def maximum(a: Operand, b: Operand) -> Value:
    """The larger; NaN if one of them is NaN."""
    return binary("max", a, b)


def minimum(a: Operand, b: Operand) -> Value:
    """The smaller; NaN if one of them is NaN."""
    return binary("min", a, b)


def power(a: Operand, b: Operand) -> Value:
    """a ** b. A small whole exponent becomes multiplications."""
    if isinstance(b, int) and not isinstance(b, bool) and 1 <= b <= 8:
        v = as_value(a)
        out = v
        for bit in bin(b)[3:]:
            out = out * out
            if bit == "1":
                out = out * v
        return out
    if isinstance(b, float) and b == 0.5:
        return sqrt(a)
    va = as_value(a)
    if not va.dtype.is_float:
        va = cast(va, FLOAT32)
    return binary("pow", va, b)


def exp(x: Operand) -> Value:
    return unary("exp", x)


def log(x: Operand) -> Value:
    return unary("log", x)


def sqrt(x: Operand) -> Value:
    return unary("sqrt", x)


def rsqrt(x: Operand) -> Value:
    """1 / sqrt(x)."""
    return unary("rsqrt", x)


def tanh(x: Operand) -> Value:
    return unary("tanh", x)


def sigmoid(x: Operand) -> Value:
    return unary("sigmoid", x)


def erf(x: Operand) -> Value:
    return unary("erf", x)


def sin(x: Operand) -> Value:
    return unary("sin", x)


def cos(x: Operand) -> Value:
    return unary("cos", x)


def absolute(x: Operand) -> Value:
    return unary("abs", x)


def floor(x: Operand) -> Value:
    return unary("floor", x)


def ceil(x: Operand) -> Value:
    return unary("ceil", x)


def round_(x: Operand) -> Value:
    """To the nearest whole number, halves to the even one."""
    return unary("round", x)


def isnan(x: Operand) -> Value:
    v = as_value(x)
    return binary("ne", v, v)


# tensors and stages
def size(name: str) -> Int:
    """An extent that stays open: a size variable, at least 1."""
    return var(name if name.startswith("#") else f"#{name}")


def _extent(value: Any, what: str) -> Int:
    if isinstance(value, Value) and isinstance(value.node, IntValue):
        value = value.node.value
    if isinstance(value, Int):
        if not all(is_size(n) for n in value.names):
            raise ExpressionError(f"{what} has extent {value}, which depends on an axis")
        if value.const is None:
            return value
        value = value.const
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ExpressionError(f"{what} has extent {value!r}; an extent is a whole number")
    n = int(value.__index__())
    if n < 0:
        raise ExpressionError(f"{what} has extent {n}; an extent is at least 0")
    return of(n)


def _shape(shape: Any, what: str) -> tuple[Int, ...]:
    items = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    return tuple(_extent(e, f"dimension {d} of {what}") for d, e in enumerate(items))


def _check_name(name: str) -> str:
    if not name or not all(c.isalnum() or c == "_" for c in name) or name[0].isdigit():
        raise ExpressionError(f"{name!r} is not a name; use letters, digits and underscores")
    return name


def placeholder(
    shape: Sequence[IntLike] | IntLike, dtype: str | DType = "float32", name: str = "x"
) -> Tensor:
    """An input."""
    return Tensor(_check_name(name), _shape(shape, name), dtype_named(dtype))


def reduce_axis(extent: IntLike, name: str = "k") -> Axis:
    """An axis to reduce over, in sum(..., axis=k)."""
    return Axis(_extent(extent, f"reduce axis {name}"), _check_name(name))


@dataclass(slots=True)
class _Reduction:
    combiner: Combiner
    values: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    op: str


@dataclass(slots=True)
class _Frame:
    """The compute() that is being stated: its reductions, each standing in the body as an Arg."""

    name: str
    reductions: dict[str, _Reduction] = field(default_factory=dict)


_frame: ContextVar[_Frame | None] = ContextVar("frame", default=None)
Axes = Axis | Sequence[Axis]


def _reduce(op: str, values: tuple[Expr, ...], combiner: Combiner, axis: Axes) -> list[Value]:
    frame = _frame.get()
    if frame is None:
        raise ExpressionError(f"{op}(...) stands outside of ts.compute; state it inside its body")
    axes = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    for a in axes:
        if not isinstance(a, Axis):
            raise ExpressionError(f"{op}(..., axis={a!r}): an axis comes from ts.reduce_axis")
    if len({a.uid for a in axes}) != len(axes):
        raise ExpressionError(f"{op}(...) in {frame.name} reduces over the same axis twice")
    for v in values:
        if any(a.name in frame.reductions for a in _args_of(v)):
            raise ExpressionError(
                f"{op}(...) in {frame.name} contains another reduction; "
                "give the inner one its own ts.compute"
            )
    uid = f"{op}@{next(_fresh)}"
    frame.reductions[uid] = _Reduction(combiner, values, axes, op)
    return [Value(Arg(f"{uid}", values[0].dtype))] + [
        Value(Arg(f"{uid}.{k}", v.dtype)) for k, v in enumerate(values[1:], 1)
    ]


def _args_of(e: Expr) -> list[Arg]:
    return [e] if isinstance(e, Arg) else [a for x in nodes.children(e) for a in _args_of(x)]


def _plain(name: str, op: str, x: Operand, axis: Axes) -> Value:
    node = as_value(x).node
    if node.dtype is BOOL and op in ("add", "mul"):
        raise ExpressionError(f"{name}(...) of conditions; cast them to a number first")
    return _reduce(name, (node,), plain_combiner(op, node.dtype), axis)[0]


def sum(x: Operand, axis: Axes) -> Value:
    """The sum over an axis or several, in the dtype of x."""
    return _plain("sum", "add", x, axis)


def prod(x: Operand, axis: Axes) -> Value:
    return _plain("prod", "mul", x, axis)


def amax(x: Operand, axis: Axes) -> Value:
    return _plain("amax", "max", x, axis)


def amin(x: Operand, axis: Axes) -> Value:
    return _plain("amin", "min", x, axis)


def reduce(
    values: Sequence[Operand],
    combine: Callable[[tuple[Value, ...], tuple[Value, ...]], Sequence[Operand]],
    identity: Sequence[Number],
    axis: Axes,
) -> tuple[Value, ...]:
    """A reduction with several results at once, such as argmax or the running maximum and sum of an
    online softmax.

    `combine(x, y)` joins two partial results; it must be associative and commutative, and
    `identity` neutral.
    """
    exprs = tuple(as_value(v).node for v in values)
    if len(identity) != len(exprs):
        raise ExpressionError(
            f"reduce() has {len(exprs)} values but {len(identity)} identities; give one for each"
        )
    x = tuple(Value(Arg(f"x{k}", e.dtype)) for k, e in enumerate(exprs))
    y = tuple(Value(Arg(f"y{k}", e.dtype)) for k, e in enumerate(exprs))
    joined = tuple(combine(x, y))
    if len(joined) != len(exprs):
        raise ExpressionError(
            f"combine() gave {len(joined)} results for {len(exprs)} values; give one for each"
        )
    outs = []
    for k, (j, e) in enumerate(zip(joined, exprs, strict=True)):
        v = as_value(j, e.dtype)
        if v.dtype is not e.dtype:
            raise ExpressionError(f"combine() gives {v.dtype} for value {k}, which is {e.dtype}")
        outs.append(v.node)
    neutral = tuple(Const(e.dtype.wrap(n), e.dtype) for n, e in zip(identity, exprs, strict=True))
    return tuple(_reduce("reduce", exprs, Combiner(tuple(outs), neutral), axis))


def _arg_extreme(x: Operand, axis: Axis, greater: bool) -> tuple[Value, Value]:
    v = as_value(x)

    def combine(p: tuple[Value, ...], q: tuple[Value, ...]) -> tuple[Value, Value]:
        better = p[1] > q[1] if greater else p[1] < q[1]
        first = better | ((p[1] == q[1]) & (p[0] <= q[0]))  # the first one wins, as in NumPy
        return where(first, p[0], q[0]), where(first, p[1], q[1])

    # The neutral position lies past the end, so that a real element wins a tie with the neutral
    # value.
    far = INT64.highest()
    neutral = v.dtype.lowest() if greater else v.dtype.highest()
    position, extreme = reduce((axis, v), combine, (far, neutral), axis)
    return position, extreme


def argmax(x: Operand, axis: Axis) -> tuple[Value, Value]:
    """Position (int64) and value of the first maximum."""
    return _arg_extreme(x, axis, True)


def argmin(x: Operand, axis: Axis) -> tuple[Value, Value]:
    """Position (int64) and value of the first minimum."""
    return _arg_extreme(x, axis, False)


def compute(
    shape: Any, body: Callable[..., Any], name: str = "compute", axes: Sequence[str] | None = None
) -> Any:
    """A tensor whose element at (i, j, ...) is body(i, j, ...); a tuple of tensors when the body
    gives several values.

    The axes are called like the body's parameters; `axes` names those of a body that takes
    `*index`.
    """
    _check_name(name)
    extents = _shape(shape, name)
    labels = _labels(body, len(extents), name) if axes is None else [*map(_check_name, axes)]
    if len(labels) != len(extents):
        raise ExpressionError(
            f"{name} has {len(extents)} dimensions but {len(labels)} named axes; they must agree"
        )
    uids = [f"{n}@{next(_fresh)}" for n in labels]
    frame = _Frame(name)
    token = _frame.set(frame)
    try:
        result = body(*(Value(IntValue(var(u), INT64)) for u in uids))
    finally:
        _frame.reset(token)
    several = isinstance(result, tuple | list)
    items = tuple(result) if several else (result,)
    values = [v.node for v in _bring_to_values(items)]
    tensors = _stage(name, extents, labels, uids, values, frame)
    return tuple(tensors) if several else tensors[0]


def _bring_to_values(items: tuple[Any, ...]) -> list[Value]:
    out = []
    for x in items:
        like = FLOAT32 if isinstance(x, float) else None
        out.append(as_value(x, like))
    return out


def _labels(body: Callable[..., Any], rank: int, name: str) -> list[str]:
    """Names of the axes: those of the body's parameters."""
    params = list(inspect.signature(body).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in params):
        return [f"i{d}" for d in range(rank)]
    plain = [p for p in params if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
    if len(plain) != rank:
        raise ExpressionError(
            f"{name} has {rank} dimensions but its body takes {len(plain)} axes; they must agree"
        )
    return [p.name if p.name.isidentifier() else f"i{d}" for d, p in enumerate(plain)]


def _stage(
    name: str, extents: tuple[Int, ...], labels: list[str], uids: list[str],
    values: list[Expr], frame: _Frame,
) -> list[Tensor]:  # fmt: skip
    direct = [v.name.split(".")[0] for v in values if isinstance(v, Arg)]
    if len(direct) == len(values) and len(set(direct)) == 1:
        r = frame.reductions[direct[0]]
        if len(r.values) == len(values):
            order = [int(v.name.split(".")[1]) if "." in v.name else 0 for v in values]  # type: ignore[union-attr]
            if order == list(range(len(values))):
                return _finish(name, extents, labels, uids, r.values, r.combiner, r.axes)
    # Reductions inside a larger expression become stages of their own over the same axes.
    index = tuple(var(u) for u in uids)
    env: dict[str, Expr] = {}
    used = {a.name.split(".")[0] for v in values for a in _args_of(v)}
    for count, (uid, r) in enumerate((u, r) for u, r in frame.reductions.items() if u in used):
        suffix = r.op if count == 0 else f"{r.op}{count}"
        hoisted = _finish(f"{name}_{suffix}", extents, labels, uids, r.values, r.combiner, r.axes)
        for k, t in enumerate(hoisted):
            env[uid if k == 0 else f"{uid}.{k}"] = Load(t.uid, index, t.dtype)

    def put(e: Expr) -> Expr:
        return env[e.name] if isinstance(e, Arg) else nodes.map_children(e, put)

    return _finish(name, extents, labels, uids, tuple(map(put, values)), None, ())


def _finish(
    name: str, extents: tuple[Int, ...], labels: list[str], uids: list[str],
    values: tuple[Expr, ...], combiner: Combiner | None, axes: tuple[Axis, ...],
) -> list[Tensor]:  # fmt: skip
    """Give axes their plain names, which are unique within the stage."""
    taken: set[str] = set()
    rename: dict[str, Int] = {}
    named: list[tuple[str, Int]] = []
    spans = [*zip(labels, uids, extents, strict=True), *((a.label, a.uid, a.extent) for a in axes)]
    for label, uid, extent in spans:
        unique, n = label, 1
        while unique in taken:
            n += 1
            unique = f"{label}{n}"
        taken.add(unique)
        rename[uid] = var(unique)
        named.append((unique, extent))
    rank = len(extents)
    plain = tuple(nodes.substitute(v, rename) for v in values)
    ranges = dict(named)
    for v in plain:
        _check_scope(name, v, set(ranges))
        _check_reads(name, v, ranges)
    stage = Stage(name, tuple(named[:rank]), tuple(named[rank:]), plain, combiner)
    for k, v in enumerate(plain):
        label = name if len(plain) == 1 else f"{name}_{k}"
        stage.tensors.append(Tensor(label, extents, v.dtype, stage))
    return stage.tensors


def _check_scope(name: str, e: Expr, known: set[str]) -> None:
    for p in nodes.ints_of(e):
        for n in p.names:
            if n not in known and not is_size(n):
                raise ExpressionError(
                    f"{name} uses the axis {n.split('@')[0]!r}, which is neither one of its own "
                    "nor reduced over; put it into sum(..., axis=...) or make it a parameter"
                )


def _check_reads(name: str, e: Expr, ranges: dict[str, Int]) -> None:
    """A read that certainly leaves its tensor is an error here. Reads under a where() may; they are
    guarded.
    """
    if isinstance(e, Select):
        _check_reads(name, e.cond, ranges)
        return
    if isinstance(e, Load) and isinstance(e.buffer, _TensorName):
        if any(n.const == 0 for n in ranges.values()):
            return
        tensor = e.buffer.tensor
        for d, (p, extent) in enumerate(zip(e.index, tensor.shape_ints, strict=True)):
            try:
                low, high = bounds(p, ranges)
            except Unknown:
                continue
            if nonnegative(-low - 1) or nonnegative(high - extent):
                raise ExpressionError(
                    f"{name} reads {tensor.name} at {low}..{high} in dimension {d}, "
                    f"which has {extent} elements; guard the read with ts.where(cond, ..., 0)"
                )
    for x in nodes.children(e):
        _check_reads(name, x, ranges)
