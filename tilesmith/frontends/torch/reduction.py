"""Reductions, positions of extremes, running sums, norms of vectors and softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

from tilesmith.base.dtype import BOOL, DType
from tilesmith.frontends.shared.building import scanned, shaped
from tilesmith.frontends.torch.call import Call, Importer, Number, named
from tilesmith.graph.graph import Operator, Value
from tilesmith.ops import elementwise as e
from tilesmith.ops import reduce as r
from tilesmith.ops import scan, search
from tilesmith.ops.arguments import accumulator
from tilesmith.ops.norm import log_softmax, softmax

Dims = int | Sequence[int] | None


def axes_of(x: Value, dim: Dims) -> tuple[int, ...]:
    """The axes, from 0 on; None and an empty list mean all."""
    rank = len(x.shape)
    given = [dim] if isinstance(dim, int) else list(dim or ())
    if not given:
        return tuple(range(rank))
    return tuple(sorted({d % max(rank, 1) for d in given})) if rank else ()


def reduced(call: Call, function: Operator, x: Value, dim: Dims, keepdim: bool) -> Value:
    axes = axes_of(x, dim)
    if not axes:  # rank 0
        return x
    return call.add(function, x, axes=axes, keepdims=keepdim)


def reduction(function: Operator) -> Importer:
    """In the dtype of the result: sums of integers are int64."""

    def read(
        call: Call, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
    ) -> Value:
        if not x.size and function in (r.reduce_max, r.reduce_min):
            call.leave("its operand is empty")
        if function is r.reduce_mean and not prod(x.shape[d] for d in axes_of(x, dim)):
            call.leave("its operand is empty")
        return reduced(call, function, call.cast(x, call.dtype), dim, keepdim)

    return read


def any_of(call: Call, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return reduced(call, r.reduce_max, call.cast(x, BOOL), dim, keepdim)


def all_of(call: Call, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return reduced(call, r.reduce_min, call.cast(x, BOOL), dim, keepdim)


def position(function: Operator) -> Importer:
    def read(call: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if not x.shape or not x.size:
            call.leave("its operand is a scalar or empty")
        if x.dtype is BOOL:
            call.leave("its operand is bool")
        axis = None if dim is None else dim % len(x.shape)
        return call.add(function, x, axis=axis, keepdims=keepdim)

    return read


def extreme(value: Operator, place: Operator) -> Importer:
    """The values and where they are."""

    def read(call: Call, x: Value, dim: int, keepdim: bool = False) -> tuple[Value | None, ...]:
        d = call.dim(x, dim)
        return (
            reduced(call, value, x, d, keepdim) if call.wants(0) else None,
            call.add(place, x, axis=d, keepdims=keepdim) if call.wants(1) else None,
        )

    return read


def running(function: Operator) -> Importer:
    def read(call: Call, x: Value, dim: int, *, dtype: DType | None = None) -> Value:
        if not x.shape:
            return call.cast(x, call.dtype)
        return scanned(call, function, call.cast(x, call.dtype), dim % len(x.shape))

    return read


def var_mean(
    call: Call, x: Value, dim: Dims = None, *, correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    axes = axes_of(x, dim)
    count = prod(x.shape[d] for d in axes)
    left = count - (1 if correction is None else correction)
    if left <= 0:
        call.leave(f"a variance of {count} elements with a correction of {correction}")
    wide = call.cast(x, accumulator(x.dtype))  # the sum of squares overflows halves
    mean = call.add(r.reduce_mean, wide, axes=axes, keepdims=True)
    squares = reduced(call, r.reduce_sum_square, call.add(e.subtract, wide, mean), axes, keepdim)
    variance = call.cast(call.add(e.multiply, squares, B=1 / left), x.dtype)
    return variance, call.cast(shaped(call, mean, variance.shape), x.dtype)


def var(
    call: Call, x: Value, dim: Dims = None, *, correction: Number | None = None,
    keepdim: bool = False,
) -> Value:  # fmt: skip
    return var_mean(call, x, dim, correction=correction, keepdim=keepdim)[0]


def vector_norm(
    call: Call, x: Value, ord: Number = 2, dim: Dims = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Value:  # fmt: skip
    x = call.cast(x, call.dtype)
    if ord in (1, 2):
        return reduced(call, r.reduce_l1 if ord == 1 else r.reduce_l2, x, dim, keepdim)
    if abs(ord) == inf:
        function = r.reduce_max if ord > 0 else r.reduce_min
        return reduced(call, function, call.add(e.absolute, x), dim, keepdim)
    if ord == 0:
        call.leave("it counts what is not 0")
    wide = call.cast(x, accumulator(x.dtype))
    powers = call.add(e.power, call.add(e.absolute, wide), B=float(ord))
    total = reduced(call, r.reduce_sum, powers, dim, keepdim)
    return call.cast(call.add(e.power, total, B=1 / ord), x.dtype)


def along(function: Operator) -> Importer:
    def read(call: Call, x: Value, dim: int, half_to_float: bool = False) -> Value:
        return call.add(function, call.cast(x, call.dtype), axis=call.dim(x, dim))

    return read


IMPORTERS: Mapping[str, Importer] = {
    "aten._log_softmax.default": along(log_softmax),
    "aten._softmax.default": along(softmax),
    **named("all", all_of, "default", "dim", "dims"),
    "aten.amax.default": reduction(r.reduce_max),
    "aten.amin.default": reduction(r.reduce_min),
    **named("any", any_of, "default", "dim", "dims"),
    "aten.argmax.default": position(search.argmax),
    "aten.argmin.default": position(search.argmin),
    "aten.cumprod.default": running(scan.cumprod),
    "aten.cumsum.default": running(scan.cumsum),
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.logsumexp.default": reduction(r.reduce_log_sum_exp),
    "aten.max.default": reduction(r.reduce_max),
    "aten.max.dim": extreme(r.reduce_max, search.argmax),
    **named("mean", reduction(r.reduce_mean), "default", "dim"),
    "aten.min.default": reduction(r.reduce_min),
    "aten.min.dim": extreme(r.reduce_min, search.argmin),
    **named("prod", reduction(r.reduce_prod), "default", "dim_int"),
    **named("sum", reduction(r.reduce_sum), "default", "dim_IntList"),
    "aten.var.correction": var,
    "aten.var_mean.correction": var_mean,
}
