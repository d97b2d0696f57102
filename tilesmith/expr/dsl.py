"""The language in which a user states a computation: placeholders, axes and compute, which creates
Stages. `reductions.py` has the reductions that stand in its body.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, overload

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT32, INT64, DType
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError
from tilesmith.base.given import checks_given
from tilesmith.expr import nodes
from tilesmith.expr.dynamic import as_index, fitted, index_loads, loads_of
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import Int, IntLike, is_size, nonnegative, of, var
from tilesmith.expr.nodes import (
    COMBINERS,
    Arg,
    Binary,
    Cast,
    Combiner,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    last_combiner,
    map_args,
    plain_combiner,
)
from tilesmith.expr.reductions import Frame, current_frame
from tilesmith.expr.sizes import open_size
from tilesmith.expr.values import (
    Axis,
    HasValue,
    Operand,
    Value,
    args_of,
    as_value,
    binary,
    fresh,
    power,
)
from tilesmith.expr.walk import brief, preorder


# Tensors, which are read one element at a time, and the stages that compute them.
class TensorName(str):
    """The name by which a Load refers to a tensor until the tensor has its final name."""

    __slots__ = ("tensor",)
    tensor: Tensor


class Tensor(HasValue):
    """A placeholder, or one output of a Stage."""

    def __init__(self, name: str, shape: tuple[Int, ...], dtype: DType, stage: Stage | None = None):
        self.name, self.shape_ints, self.dtype, self.stage = name, shape, dtype, stage
        self.uid = TensorName(f"{name}@{next(fresh)}")
        self.uid.tensor = self

    @property
    def shape(self) -> tuple[IntLike, ...]:
        """Numbers for known extents, Ints for size variables."""
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

    # A tensor stands for all its elements, so only a tensor of rank 0 has arithmetic.
    def _arithmetic(op: str, sign: str, turned: bool = False) -> Callable[..., Value]:  # type: ignore[misc]
        def operator(self: Tensor, other: Operand | Tensor) -> Value:
            if self.ndim:
                raise self._is_tensor(sign, op)
            return binary(op, other, self) if turned else binary(op, self, other)

        return operator

    __add__, __radd__ = _arithmetic("add", "+"), _arithmetic("add", "+", True)
    __sub__, __rsub__ = _arithmetic("sub", "-"), _arithmetic("sub", "-", True)
    __mul__, __rmul__ = _arithmetic("mul", "*"), _arithmetic("mul", "*", True)
    __truediv__, __rtruediv__ = _arithmetic("div", "/"), _arithmetic("div", "/", True)
    __floordiv__, __rfloordiv__ = (
        _arithmetic("floordiv", "//"),
        _arithmetic("floordiv", "//", True),
    )
    __mod__, __rmod__ = _arithmetic("mod", "%"), _arithmetic("mod", "%", True)
    __lt__, __le__ = _arithmetic("lt", "<"), _arithmetic("le", "<=")
    __gt__, __ge__ = _arithmetic("gt", ">"), _arithmetic("ge", ">=")

    def __pow__(self, other: Operand) -> Value:
        if self.ndim:
            raise self._is_tensor("**", "pow")
        return power(self[()], other)

    def __neg__(self) -> Value:
        if self.ndim:
            raise self._is_tensor("-", "neg")
        return -self[()]

    def __abs__(self) -> Value:
        if self.ndim:
            raise self._is_tensor("abs", "abs")
        return abs(self[()])

    def __matmul__(self, other: Any) -> Value:
        raise ExpressionError(
            f"{self.name} @ ...: the product of two tensors is ts.ops.matmul({self.name}, B), or a "
            "ts.compute with a ts.sum over a ts.reduce_axis"
        )

    __rmatmul__ = __matmul__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Value:
        raise self._is_tensor(f"np.{ufunc.__name__}", ufunc.__name__)

    def __bool__(self) -> bool:
        raise ExpressionError(f"the truth of the tensor {self.name} is not known; use ts.where")

    def __len__(self) -> int:
        raise ExpressionError(f"the extents of {self.name} are {self.name}.shape; len() has none")

    def __iter__(self) -> Any:
        raise ExpressionError(
            f"{self.name} cannot be iterated over: a computation is stated for all elements at "
            f"once, as in ts.compute({self.name}.shape, lambda *i: {self.name}[i] * 2)"
        )

    def _is_tensor(self, sign: str, op: str) -> ExpressionError:
        index = ", ".join("ijklmn"[: self.ndim]) if self.ndim <= 6 else "*i"
        named = {
            "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power",
            "neg": "negative", "abs": "absolute", "exp": "exp", "log": "log", "sqrt": "sqrt",
            "tanh": "tanh", "maximum": "maximum", "minimum": "minimum",
        }  # fmt: skip
        whole = f", or use ts.ops.{named[op]}" if op in named else ""
        return ExpressionError(
            f"{sign} of the tensor {self.name}: say what each element is, as in "
            f"ts.compute({self.name}.shape, lambda {index}: {self.name}[{index}] ...){whole}"
        )

    def _index(self, item: Any) -> Int:
        if isinstance(item, slice) or item is None or item is Ellipsis:
            raise ExpressionError(
                f"{self.name} is indexed by {item!r}; a tensor is read one element at a time, "
                "so give one integer for each dimension"
            )
        node = as_value(item).node if not isinstance(item, Int) else IntValue(item, INT64)
        if not node.dtype.is_int:
            raise ExpressionError(
                f"{self.name} is indexed by {brief(node)} of dtype {node.dtype}; "
                "an index is an integer: use ts.cast(x, 'int32')"
            )
        if any(True for _ in args_of(node)):
            raise ExpressionError(
                f"{self.name} is indexed by the result of a reduction; "
                "give that reduction its own ts.compute"
            )
        return as_index(node)

    def as_value(self) -> Value:
        if self.ndim:
            raise ExpressionError(
                f"{self.name} is a tensor; read an element of it: {self.name}[...]"
            )
        return self[()]

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.dtype}{list(self.shape)})"


@dataclass(frozen=True, slots=True)
class Updates:
    """Writes at computed places: at every point of `axes`, in order, `value` is joined to the
    element at `index` if all of `inside` are >= 0.
    """

    axes: tuple[tuple[str, Int], ...]
    index: tuple[Int, ...]
    inside: frozenset[Int]
    value: Expr


@dataclass(frozen=True, slots=True)
class Running:
    """Which of a stage's axes is reduced over in order, and where partial results are kept."""

    axis: str
    index: tuple[Int, ...]
    inside: frozenset[Int]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One step of a computation: the `values` at every point of `axes`, reduced over `reduce` by
    `combiner`. With `updates`, the values are where it begins, and the combiner joins the updates.
    With `running`, every partial result of a reduction over one axis is kept: the first value is
    joined along it, the second is joined to what is kept at `index`, if `inside` are >= 0.
    """

    name: str
    axes: tuple[tuple[str, Int], ...]
    reduce: tuple[tuple[str, Int], ...]
    values: tuple[Expr, ...]
    combiner: Combiner | None
    updates: Updates | None = None
    running: Running | None = None
    tensors: list[Tensor] = field(default_factory=list)

    @property
    def loads(self) -> list[Load]:
        """All reads, also of indices at which is read or written."""
        found = [load for v in self.values for load in loads_of(v)]
        if self.updates is not None:
            found += loads_of(self.updates.value)
            for p in (*self.updates.index, *self.updates.inside):
                found += index_loads(p)
        return found


@checks_given(error=ExpressionError)
def size(
    name: str,
    range: Sequence[int] | None = None,
    samples: Mapping[int, float] | None = None,
) -> Int:
    """An extent that stays open until the kernel is called: the length of a text, a batch.

    - `name`: equal names are one size.
    - `range`: (lowest, highest) value that is expected, by default (1, 1024). Kernels are right for
      sizes outside, too, but tuned for those inside.
    - `samples`: values to tune for, with their weights; by default powers of two in the range, with
      equal weights.

    Example:

        n = ts.size("tokens", range=(1, 512), samples={16: 1, 64: 2, 128: 4})
        X = ts.placeholder((n, 64), name="X")
    """
    return open_size(name, range, samples)


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


@checks_given(error=ExpressionError)
def placeholder(
    shape: Sequence[IntLike] | IntLike, dtype: str | DType = "float32", name: str = "x"
) -> Tensor:
    """An input tensor of a shape and a dtype. `name` is what printed programs and errors call it.

    Example:

        A = ts.placeholder((512, 512), dtype="float16", name="A")
    """
    return Tensor(_check_name(name), _shape(shape, name), dtype_named(dtype))


@checks_given(error=ExpressionError)
def reduce_axis(extent: IntLike, name: str = "k") -> Axis:
    """An axis to reduce over, with values 0 to extent - 1, for `ts.sum(..., axis=k)` and the other
    reductions.

    Example:

        k = ts.reduce_axis(512, name="k")
    """
    return Axis(_extent(extent, f"reduce axis {name}"), _check_name(name))


@overload
def compute(
    shape: Any,
    body: Callable[..., tuple[Value, ...]],
    name: str = "compute",
    axes: Sequence[str] | None = None,
) -> tuple[Tensor, ...]: ...


@overload
def compute(
    shape: Any, body: Callable[..., Any], name: str = "compute", axes: Sequence[str] | None = None
) -> Tensor: ...


@checks_given(error=ExpressionError)
def compute(
    shape: Any, body: Callable[..., Any], name: str = "compute", axes: Sequence[str] | None = None
) -> Any:
    """A tensor whose element at (i, j, ...) is body(i, j, ...); a tuple of tensors if the body
    returns several values.

    - `shape`: the extents, a tuple of whole numbers; () for a single number.
    - `body`: a function that is called once, with symbolic indices. It reads tensors by index, and
      combines what it reads with operators, functions such as `ts.maximum`, and reductions.
    - `name`: what the tensor and its block of loops are called in schedules, programs and errors.
    - `axes`: the names of the axes, by default those of the body's parameters. A body that takes
      `*index` needs them.

    Example:

        A, B = ts.placeholder((64, 32), name="A"), ts.placeholder((32, 48), name="B")
        k = ts.reduce_axis(32, name="k")
        C = ts.compute((64, 48), lambda i, j: ts.sum(A[i, k] * B[k, j], axis=k), name="C")
        D = ts.compute((64, 48), lambda i, j: ts.maximum(C[i, j], 0), name="D")
    """
    _check_name(name)
    extents = _shape(shape, name)
    labels = _labels(body, len(extents), name) if axes is None else [*map(_check_name, axes)]
    if len(labels) != len(extents):
        raise ExpressionError(
            f"{name} has {len(extents)} dimensions but {len(labels)} named axes; they must agree"
        )
    uids = [f"{n}@{next(fresh)}" for n in labels]
    frame = Frame(name)
    token = current_frame.set(frame)
    try:
        result = body(*(Value(IntValue(var(u), INT64)) for u in uids))
    finally:
        current_frame.reset(token)
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
    """The names of the axes: those of the body's parameters."""
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
    values: list[Expr], frame: Frame,
) -> list[Tensor]:  # fmt: skip
    direct = [v.name.split(".")[0] for v in values if isinstance(v, Arg)]
    if len(direct) == len(values) and len(set(direct)) == 1:
        r = frame.reductions[direct[0]]
        if len(r.values) == len(values):
            order = [int(v.name.split(".")[1]) if "." in v.name else 0 for v in values]  # type: ignore[union-attr]
            if order == list(range(len(values))):
                return _finish(name, extents, labels, uids, r.values, r.combiner, r.axes)
    # Reductions inside of a larger expression become stages of their own over the same axes.
    index = tuple(var(u) for u in uids)
    env: dict[str, Expr] = {}
    used = {a.name.split(".")[0] for v in values for a in args_of(v)}
    for count, (uid, r) in enumerate((u, r) for u, r in frame.reductions.items() if u in used):
        suffix = r.op if count == 0 else f"{r.op}{count}"
        hoisted = _finish(f"{name}_{suffix}", extents, labels, uids, r.values, r.combiner, r.axes)
        for k, t in enumerate(hoisted):
            env[uid if k == 0 else f"{uid}.{k}"] = Load(t.uid, index, t.dtype)
    return _finish(name, extents, labels, uids, map_args(tuple(values), env), None, ())


def _finish(
    name: str, extents: tuple[Int, ...], labels: list[str], uids: list[str],
    values: tuple[Expr, ...], combiner: Combiner | None, axes: tuple[Axis, ...],
) -> list[Tensor]:  # fmt: skip
    """Gives axes their final names, which are unique within the stage."""
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
    ranges = dict(named)
    plain = tuple(fitted(nodes.substitute(v, rename), ranges) for v in values)
    for v in plain:
        _check_scope(name, v, set(ranges))
        _check_reads(name, v, ranges)
    stage = Stage(name, tuple(named[:rank]), tuple(named[rank:]), plain, combiner)
    for k, v in enumerate(plain):
        label = name if len(plain) == 1 else f"{name}_{k}"
        stage.tensors.append(Tensor(label, extents, v.dtype, stage))
    return stage.tensors


# Writes at places that are known at run time.
@checks_given(error=ExpressionError)
def updated(
    X: Tensor,
    shape: Any,
    body: Callable[..., tuple[Sequence[Operand], Operand]],
    reduction: str = "last",
    name: str = "updated",
) -> Tensor:
    """X with elements replaced, or joined with others, at computed places.

    - `shape`: the extents of the updates; they are made in the order of their indices.
    - `body`: called once with symbolic indices, it returns where an update is made (an index for
      each dimension of X) and its value. An update outside of X is dropped.
    - `reduction`: "add", "mul", "max" or "min" joins an update to the element; "last" replaces it.

    Example:

        X, U = ts.placeholder((100, 8), name="X"), ts.placeholder((5, 8), name="U")
        rows = ts.placeholder((5,), dtype="int64", name="rows")
        Y = ts.updated(X, (5, 8), lambda i, j: ((rows[i], j), U[i, j]), "add", name="Y")
    """
    _check_name(name)
    extents = _shape(shape, name)
    labels = _labels(body, len(extents), name)
    named = tuple(zip(labels, extents, strict=True))
    if len(set(labels)) != len(labels):
        raise ExpressionError(f"{name} has two axes of one name: {', '.join(labels)}")
    if reduction not in (*COMBINERS, "last"):
        raise ExpressionError(
            f"{name} joins updates by {reduction!r}; it is one of {', '.join(COMBINERS)}, last"
        )
    places, result = body(*(Value(IntValue(var(n), INT64)) for n in labels))
    if len(places) != X.ndim:
        raise ExpressionError(
            f"{name} updates {X.name} with {len(places)} indices; it has {X.ndim} dimensions"
        )
    ranges = dict(named)
    value = fitted(_bring_to_values((result,))[0].node, ranges)
    if value.dtype is not X.dtype:
        raise ExpressionError(f"{name} writes {value.dtype} into {X.name}, which is {X.dtype}")
    _check_reads(name, value, ranges)
    index = tuple(_place(X, p, ranges) for p in places)
    inside = frozenset(
        q
        for p, n in zip(index, X.shape_ints, strict=True)
        for q in (p, n - 1 - p)
        if not _is_proven(q, ranges)
    )
    start = Load(X.uid, tuple(var(f"i{d}") for d in range(X.ndim)), X.dtype)
    axes = tuple((f"i{d}", n) for d, n in enumerate(X.shape_ints))
    combiner = last_combiner(X.dtype) if reduction == "last" else plain_combiner(reduction, X.dtype)
    updates = Updates(named, index, inside, value)
    stage = Stage(name, axes, (), (start,), combiner, updates)
    stage.tensors.append(Tensor(name, X.shape_ints, X.dtype, stage))
    return stage.tensors[0]


def running(
    shape: Sequence[Int],
    extents: Sequence[Int],
    axis: int,
    body: Callable[..., tuple[Sequence[Value], Value, Value | None]],
    op: str,
    exclusive: bool,
    name: str,
    dtype: DType | None = None,
) -> Tensor:
    """A tensor of every partial result of a reduction in order.

    - `shape`: of the tensor; `extents`: of the loops, of which number `axis` is reduced over.
    - `body`: called with the indices of the loops, it returns where a partial result is kept, the
      value that is joined, and what is joined to the partial result, but not to later ones, if
      anything.
    - `exclusive`: partial results are kept before the value is joined.
    - `dtype`: of the tensor, if it is not that of the values; nothing may be added then.
    """
    labels = [f"i{d}" for d in range(len(extents))]
    places, joined, added = body(*(Value(IntValue(var(n), INT64)) for n in labels))
    ranges = dict(zip(labels, extents, strict=True))
    first_value = fitted(joined.node, ranges)
    d = first_value.dtype
    to = dtype or d
    assert added is None or to is d
    second = first_value if added is None else fitted(added.node, ranges)
    values = (first_value, second if second.dtype is to else Cast(second, to))
    index = tuple(as_index(p.node) for p in places)
    inside = frozenset(
        n - 1 - p for p, n in zip(index, shape, strict=True) if not _is_proven(n - 1 - p, ranges)
    )
    first = plain_combiner(op, d)
    total: Expr = Arg("x0", d) if exclusive else first.values[0]
    kept = total if added is None else Binary(op, total, Arg("y1", d), d)
    neutral = first.identity[0]
    combiner = Combiner(
        (first.values[0], kept if to is d else Cast(kept, to)), (neutral, Const(neutral.value, to))
    )
    named = tuple(zip(labels, extents, strict=True))
    stage = Stage(name, named, (), values, combiner, None, Running(labels[axis], index, inside))
    stage.tensors.append(Tensor(name, tuple(shape), to, stage))
    return stage.tensors[0]


def _place(X: Tensor, item: Any, ranges: dict[str, Int]) -> Int:
    p = X._index(item)
    read = fitted(Load(X.uid, (p,), X.dtype), ranges)
    assert isinstance(read, Load)
    return read.index[0]


def _is_proven(p: Int, ranges: dict[str, Int]) -> bool:
    try:
        return nonnegative(bounds(p, ranges)[0])
    except Unknown:
        return False


def _check_scope(name: str, e: Expr, axes: set[str]) -> None:
    for p in nodes.ints_of(e):
        for n in p.names:
            if n not in axes and not is_size(n):
                raise ExpressionError(
                    f"{name} uses the axis {n.split('@')[0]!r}, which is neither one of its own "
                    "nor reduced over; put it into sum(..., axis=...) or make it a parameter"
                )


def _check_reads(name: str, value: Expr, ranges: dict[str, Int]) -> None:
    """Raises for a read that certainly leaves its tensor. Reads under a where() may, because they
    are guarded.
    """
    if any(n.const == 0 for n in ranges.values()):
        return
    for e in preorder(value, _unguarded):
        if not isinstance(e, Load) or not isinstance(e.buffer, TensorName):
            continue
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


def _unguarded(e: Expr) -> tuple[Expr, ...]:
    """The operands that are computed whenever e is."""
    return (e.cond,) if isinstance(e, Select) else nodes.children(e)
