"""Checks the arguments of operators and expands settings to one value per dimension.

Every error starts with the operator's name, which `@operator` puts in front, then says which
argument is wrong and what is right. Below are broadcasting, as NumPy does it, and
the dtype in which an operator accumulates: half precision is summed in float32 and cast back, small
integers in int32, which is also the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, FLOAT32, INT32, DType, promote
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError
from tilesmith.base.given import checks_given
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.ints import ONE, Int
from tilesmith.expr.values import Value, cast

PerDim = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]

P = ParamSpec("P")
T = TypeVar("T")
# The operator that was called, while it runs; those that it calls itself are parts of it.
_CALLED: ContextVar[str] = ContextVar("_CALLED", default="")


def operator(function: Callable[P, T]) -> Callable[P, T]:
    """An operator of the DSL: what it is given must be what its signature says, and its name stands
    in front of its errors.
    """

    @wraps(function)
    def named(*args: P.args, **kwargs: P.kwargs) -> T:
        before = _CALLED.get()
        token = _CALLED.set(before or function.__name__)
        try:
            return function(*args, **kwargs)
        except ExpressionError as error:
            if before:
                raise
            raise ExpressionError(f"{function.__name__}: {error}") from error.__cause__
        finally:
            _CALLED.reset(token)

    return checks_given(error=ExpressionError)(named)


def stated(function: Callable[P, T], name: str, doc: str) -> Callable[P, T]:
    """A function that is made in a table of similar ones, as an operator of this name."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return operator(function)


def show_shape(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))})"


def need_tensor(what: str, x: Any, dims: str = "") -> None:
    """Raises unless x is a tensor. `dims` names its dimensions, "N C H W"; empty for any rank."""
    if not isinstance(x, Tensor):
        raise ExpressionError(
            f"{what} is of type {type(x).__name__}; it must be a tensor, such as a placeholder"
        )
    words = dims.split()
    if words and x.ndim != len(words):
        raise ExpressionError(
            f"{what} has shape {show_shape(x.shape)}, which is of rank {x.ndim}; "
            f"it must be of rank {len(words)}: ({', '.join(words)})"
        )


def need_equal(what: str, extent: Int, expected: Int, because: str) -> None:
    """Raises unless two extents agree: the same number, or the same size variables."""
    if extent != expected:
        raise ExpressionError(f"{what} is {extent}, but {because} {expected}; they must agree")


def fixed(what: str, extent: Int) -> int:
    """An extent as a number; raises if it is an open size."""
    n = extent.const
    if n is None:
        raise ExpressionError(
            f"{what} is the open size {extent}; it must be a number here, "
            "so state the operator once per size"
        )
    return n


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from 0; negative ones count from the end."""
    if not -rank <= axis < rank:
        raise ExpressionError(
            f"axis {axis!r} does not exist in a tensor of rank {rank}; "
            f"it must be a whole number from {-rank} to {rank - 1}"
        )
    return axis % rank


def _at_least(what: str, n: int, least: int) -> int:
    if n < least:
        raise ExpressionError(f"{what} is {n}; it must be at least {least}")
    return int(n)  # also of NumPy's whole numbers


def per_dim(what: str, value: PerDim, count: int, least: int = 1) -> tuple[int, ...]:
    """One whole number per spatial dimension; a single number stands for all of them."""
    items: Sequence[Any] = value if isinstance(value, Sequence) else (value,) * count
    if len(items) != count:
        raise ExpressionError(
            f"{what} {value!r} has {len(items)} entries for {count} spatial "
            f"dimension{'s' if count > 1 else ''}; give one number, or one for each"
        )
    return tuple(_at_least(what, v, least) for v in items)


def pad_pairs(padding: Padding, count: int) -> tuple[tuple[int, int], ...]:
    """(before, after) per spatial dimension; one number stands for both sides."""
    items: Sequence[Any] = padding if isinstance(padding, Sequence) else (padding,) * count
    if len(items) != count:
        raise ExpressionError(
            f"padding {padding!r} has {len(items)} entries for {count} spatial "
            f"dimension{'s' if count > 1 else ''}; give one number, one for each, "
            "or one (before, after) for each"
        )
    out = []
    for item in items:
        sides: Sequence[Any] = item if isinstance(item, Sequence) else (item, item)
        if len(sides) != 2:
            raise ExpressionError(f"padding {item!r} must be a number or a pair (before, after)")
        before, after = (_at_least("padding", side, 0) for side in sides)
        out.append((before, after))
    return tuple(out)


def layout_axes(layout: str, count: int) -> tuple[int, tuple[int, ...]]:
    """The positions of the channel dimension and of the `count` spatial dimensions."""
    letters = "DHW"[3 - count :]
    first, last = f"NC{letters}", f"N{letters}C"
    if layout == first:
        return 1, tuple(range(2, 2 + count))
    if layout == last:
        return 1 + count, tuple(range(1, 1 + count))
    raise ExpressionError(f"unknown layout {layout!r}; it must be {first!r} or {last!r}")


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """What the dimensions of a batch of images, of any rank, stand for."""

    words: tuple[str, ...]  # one per dimension: N, C, and H, W or others
    channel: int
    spatial: tuple[int, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names for the axes of a stage."""
        return tuple(w.lower() for w in self.words)

    @property
    def window_labels(self) -> tuple[str, ...]:
        """Names for the axes of a window."""
        return tuple(f"r{self.words[d].lower()}" for d in self.spatial)


def image_layout(X: Tensor, layout: str | None, count: int | None = None) -> ImageLayout:
    """The layout that a name means; without one, channels first at the rank of X. `count` is the
    number of spatial dimensions, where an operator has just one.
    """
    if layout is None:
        n = count or X.ndim - 2
        if n < 1:
            raise ExpressionError(
                f"X has shape {show_shape(X.shape)}; it must be (N, C, ...), with at least "
                "one spatial dimension"
            )
        letters = list("DHW"[3 - n :]) if n <= 3 else [f"S{k}" for k in range(n)]
        out = ImageLayout(("N", "C", *letters), 1, tuple(range(2, 2 + n)))
    else:
        n = count or min(max(len(layout) - 2, 1), 3)
        channel, spatial = layout_axes(layout, n)
        out = ImageLayout(tuple(layout), channel, spatial)
    need_tensor("X", X, " ".join(out.words))
    return out


def broadcast_shape(*shapes: Sequence[Int]) -> tuple[Int, ...]:
    """The shapes are aligned at their ends; an extent of 1 expands. Open sizes must be the same."""
    rank = max(map(len, shapes))
    out = []
    for d in range(-rank, 0):
        extents = [s[d] for s in shapes if len(s) >= -d]
        wide = [e for e in extents if e != ONE]
        if any(e != wide[0] for e in wide):
            raise ExpressionError(
                f"shapes {' and '.join(map(show_shape, shapes))} do not broadcast: "
                f"dimension {d} is {' and '.join(map(str, wide))}; they must be equal, or 1"
            )
        out.append(wide[0] if wide else ONE)
    return tuple(out)


def read_broadcast(
    x: Tensor, index: Sequence[Value], plain: int = 0, joint: Sequence[Int] = ()
) -> Value:
    """The element of x at `index` of the joint shape; the last `plain` indices stay as given.

    Where the `joint` shape has an extent of 1 too, x is read at the index instead of at 0. Both are
    the same element, but only the first is element for element, and so fused by schedules.
    """
    first = len(index) - x.ndim
    at: list[Value | int] = []
    for d, extent in enumerate(x.shape_ints):
        expands = extent == ONE and not (joint and joint[first + d] == ONE)
        at.append(0 if d < x.ndim - plain and expands else index[first + d])
    return x[tuple(at)]


def accumulator(d: DType) -> DType:
    """The dtype to sum values of dtype d in."""
    if d.bits < 32:
        return FLOAT32 if d.is_float else INT32
    return d


def widen(x: Value) -> Value:
    """x cast to the dtype in which sums and functions of it are computed."""
    return cast(x, accumulator(x.dtype)) if x.dtype.is_float else x


def sum_dtypes(a: DType, b: DType, out: str | DType | None) -> tuple[DType, DType]:
    """(dtype of the sum, dtype of the result) for a sum of products."""
    for d in (a, b):
        if d is BOOL:
            raise ExpressionError("an operand is bool; cast it to a number first")
    both = promote(a, b)
    acc = accumulator(both)
    if out is None:
        return acc, (both if both.is_float else acc)
    result = dtype_named(out)
    if result is BOOL:
        raise ExpressionError("out_dtype is bool; a sum of products is a number")
    if result.kind == acc.kind and result.bits > acc.bits:
        acc = result
    return acc, result
