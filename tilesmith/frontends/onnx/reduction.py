"""Reductions, positions of extremes, running sums, and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.onnx.signature import Since
from tilesmith.frontends.shared.building import scanned, shaped
from tilesmith.graph.graph import Operator, Value
from tilesmith.ops import reduce, scan, search
from tilesmith.ops.norm import log_softmax, softmax


def reduction(function: Operator) -> Importer:
    def read(
        call: Call, x: Value, axes: list[int] | None = None, *, keepdims: bool = True,
        noop_with_empty_axes: bool = False,
    ) -> Value:  # fmt: skip
        rank = len(x.shape)
        settled = tuple(sorted({call.axis(a, rank) for a in axes or ()}))
        if len(settled) != len(axes or ()):
            call.refuse(f"axes {axes} name an axis twice")
        if not settled and not noop_with_empty_axes:
            settled = tuple(range(rank))
        return call.add(function, x, axes=settled, keepdims=keepdims)

    return read


def position(function: Operator) -> Importer:
    def read(
        call: Call, x: Value, *, axis: int = 0, keepdims: bool = True,
        select_last_index: bool = False,
    ) -> Value:  # fmt: skip
        axis = call.axis(axis, len(x.shape))
        return call.add(function, x, axis=axis, keepdims=keepdims, last=select_last_index)

    return read


def running(function: Operator) -> Importer:
    def read(
        call: Call, x: Value, axis: list[int], *, exclusive: bool = False, reverse: bool = False
    ) -> Value:
        if len(axis) != 1:
            call.refuse(f"its axis holds {len(axis)} numbers; it must be one")
        at = call.axis(axis[0], len(x.shape))
        return scanned(call, function, x, at, exclusive=exclusive, reverse=reverse)

    return read


def along_axis(function: Operator) -> Since:
    """Before opset 13 the default axis is 1, and all dimensions from the axis on are one row."""

    def read(call: Call, x: Value, *, axis: int = -1) -> Value:
        return call.add(function, x, axis=call.axis(axis, len(x.shape)))

    def read_rows(call: Call, x: Value, *, axis: int = 1) -> Value:
        rank = len(x.shape)
        axis = call.axis(axis, rank + 1 if axis == rank else rank)  # rows of one element
        if axis == rank - 1:
            return read(call, x)
        rows = shaped(call, x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
        return shaped(call, call.add(function, rows, axis=1), x.shape)

    return Since({1: read_rows, 13: read})


IMPORTERS: Mapping[str, Importer | Since] = {
    "ArgMax": position(search.argmax),
    "ArgMin": position(search.argmin),
    "CumProd": running(scan.cumprod),
    "CumSum": running(scan.cumsum),
    "Hardmax": along_axis(search.hardmax),
    "LogSoftmax": along_axis(log_softmax),
    "ReduceL1": reduction(reduce.reduce_l1),
    "ReduceL2": reduction(reduce.reduce_l2),
    "ReduceLogSum": reduction(reduce.reduce_log_sum),
    "ReduceLogSumExp": reduction(reduce.reduce_log_sum_exp),
    "ReduceMax": reduction(reduce.reduce_max),
    "ReduceMean": reduction(reduce.reduce_mean),
    "ReduceMin": reduction(reduce.reduce_min),
    "ReduceProd": reduction(reduce.reduce_prod),
    "ReduceSum": reduction(reduce.reduce_sum),
    "ReduceSumSquare": reduction(reduce.reduce_sum_square),
    "Softmax": along_axis(softmax),
}
