"""Reductions, positions of extremes, running sums, and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.graph.graph import Operator, Value
from tilesmith.ops import reduce, scan, search
from tilesmith.ops.norm import log_softmax, softmax
from tilesmith.ops.transform import reshape


def reduction(function: Operator) -> Importer:
    """The axes are an attribute in old opsets and an input in new ones."""

    def read(call: Call) -> Value:
        x = call.value(0)
        axes: tuple[int, ...] | None = call.attribute("axes", None)
        if call.has(1):
            axes = tuple(call.ints(1))
        if axes is not None and not isinstance(axes, tuple):
            call.refuse(f"attribute 'axes' is {axes!r}; it must be a list of integers")
        rank = len(x.shape)
        settled = tuple(sorted({call.axis(a, rank) for a in axes or ()}))
        if len(settled) != len(axes or ()):
            call.refuse(f"axes {list(axes or ())} name an axis twice")
        if not settled and not call.attribute("noop_with_empty_axes", 0):
            settled = tuple(range(rank))
        v: Value = call.add(function, x, axes=settled, keepdims=bool(call.attribute("keepdims", 1)))
        return v

    return read


def position(function: Operator) -> Importer:
    def read(call: Call) -> Value:
        x = call.value(0)
        v: Value = call.add(
            function, x,
            axis=call.axis(call.attribute("axis", 0), len(x.shape)),
            keepdims=bool(call.attribute("keepdims", 1)),
            last=bool(call.attribute("select_last_index", 0)),
        )  # fmt: skip
        return v

    return read


def running(function: Operator) -> Importer:
    def read(call: Call) -> Value:
        x, axes = call.value(0), call.ints(1)
        if len(axes) != 1:
            call.refuse(f"its axis holds {len(axes)} numbers; it must be one")
        v: Value = call.add(
            function, x,
            axis=call.axis(axes[0], len(x.shape)),
            exclusive=bool(call.attribute("exclusive", 0)),
            reverse=bool(call.attribute("reverse", 0)),
        )  # fmt: skip
        return v

    return read


def along_axis(function: Operator) -> Importer:
    """Before opset 13 the default axis is 1, and all dimensions from the axis on are one row."""

    def read(call: Call) -> Value:
        x, old = call.value(0), call.version < 13
        rank = len(x.shape)
        axis = call.attribute("axis", 1 if old else -1)
        if old and axis == rank:  # rows of one element
            axis, rank = rank, rank + 1
        axis = call.axis(axis, rank)
        v: Value
        if not old or axis == len(x.shape) - 1:
            v = call.add(function, x, axis=axis)
            return v
        rows = call.add(reshape, x, shape=(prod(x.shape[:axis]), prod(x.shape[axis:])))
        v = call.add(reshape, call.add(function, rows, axis=1), shape=x.shape)
        return v

    return read


IMPORTERS: Mapping[str, Importer] = {
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
