"""Element-wise operators: arithmetic, comparisons, conditions, casts and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tilesmith.frontends.onnx import host_numpy
from tilesmith.frontends.onnx.call import Call, Importer, OnHost, RunOnHost
from tilesmith.frontends.shared.building import shaped
from tilesmith.graph.graph import Array, Operator, Value
from tilesmith.ops import activation, elementwise, integer, logic


def same_types(call: Call, *values: Value) -> None:
    for v in values[1:]:
        if v.dtype is not values[0].dtype:
            call.refuse(f"its inputs are {values[0].dtype} and {v.dtype}; they must be of one type")


def lined_up(call: Call, a: Value, b: Value, axis: int | None, broadcast: bool) -> Value:
    """b for broadcasting to a. Before opset 7 the shape of b began at dimension `axis` of a; since
    then the last dimensions are aligned.
    """
    if call.version >= 7 and (axis is not None or broadcast):
        call.refuse("attributes 'axis' and 'broadcast' are those of opset 6; dimensions are "
                    "aligned at the end")  # fmt: skip
    if not broadcast:
        return b
    rank = len(a.shape)
    first = rank - len(b.shape) if axis is None else axis + rank if axis < 0 else axis
    behind = rank - first - len(b.shape)
    if first < 0 or behind < 0:
        call.refuse(f"{b} does not lie at axis {first} of {a}")
    return shaped(call, b, (*b.shape, *[1] * behind))


def binary(function: Operator) -> Callable[..., Value]:
    def read(
        call: Call, a: Value, b: Value, *, axis: int | None = None, broadcast: bool = False
    ) -> Value:
        same_types(call, a, b)
        return call.add(function, a, lined_up(call, a, b, axis, broadcast))

    return read


def variadic(function: Operator) -> Callable[..., Value]:
    """Of any number of inputs, two by two."""

    def read(call: Call, first: Value, *rest: Value) -> Value:
        same_types(call, first, *rest)
        for v in rest:
            first = call.add(function, first, v)
        return first

    return read


def mean(call: Call, first: Value, *rest: Value) -> Value:
    total = variadic(elementwise.add)(call, first, *rest)
    return call.add(elementwise.divide, total, B=float(1 + len(rest))) if rest else total


def divide(
    call: Call, a: Value, b: Value, *, axis: int | None = None, broadcast: bool = False
) -> Value:
    function = elementwise.divide if a.dtype.is_float else integer.trunc_divide
    return binary(function)(call, a, b, axis=axis, broadcast=broadcast)


def power(
    call: Call, x: Value, e: Value, *, axis: int | None = None, broadcast: bool = False
) -> Value:
    """The result has the type of the base."""
    known = scalar(call, e, len(x.shape))
    if known is not None and (x.dtype.is_float or known in range(1, 9)):
        return _fixed_power(call, x, known)
    e = lined_up(call, x, e, axis, broadcast)
    if not x.dtype.is_float and not e.dtype.is_float:
        return call.add(integer.integer_power, x, e)
    wide = x.dtype.name if x.dtype.is_float else "float64"
    y = call.add(elementwise.power, *(call.cast(a, wide) for a in (x, e)))
    return call.cast(y, x.dtype)


def _fixed_power(call: Call, x: Value, e: float) -> Value:
    """Exponents that need no logarithm; a small whole one is a few products."""
    if e == -1:
        return call.add(elementwise.reciprocal, x)
    return call.add(elementwise.power, x, B=int(e) if e in range(1, 9) else float(e))


def scalar(call: Call, v: Value, rank: int) -> Any:
    """The number that a value is, if it is a constant of one element whose dimensions would not
    widen a result of that rank.
    """
    a = call.contents(v)
    if a is None or a.size != 1 or a.ndim > rank:
        return None
    return a.reshape(()).astype(np.float64).item() if a.dtype.kind not in "biu" else a.item()


def cast(call: Call, x: Value, *, to: int, saturate: bool = True, round_mode: str = "up") -> Value:
    return call.cast(x, call.element_type(to, "the type to cast to"))


def cast_like(
    call: Call, x: Value, like: Value, *, saturate: bool = True, round_mode: str = "up"
) -> Value:
    return call.cast(x, like.dtype)


def clip(
    call: Call, x: Value, min: Value | float | None = None, max: Value | float | None = None
) -> Value:
    low, high = (_bound(call, x, b) for b in (min, max))
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        low = high  # where the bounds cross, the upper one holds
    numbers = [None if isinstance(b, Value) else b for b in (low, high)]
    if isinstance(low, Value):
        x = call.add(elementwise.maximum, x, low)
    if numbers != [None, None]:
        x = call.add(elementwise.clip, x, low=numbers[0], high=numbers[1])
    if isinstance(high, Value):
        x = call.add(elementwise.minimum, x, high)
    return x


def _bound(call: Call, x: Value, v: Value | float | None) -> Value | float | None:
    """A number where it is known."""
    if not isinstance(v, Value):
        return v
    same_types(call, x, v)
    if v.size != 1:
        call.refuse(f"{v} is a bound; it must be one element")
    number: float | None = scalar(call, v, len(x.shape))
    return shaped(call, v, ()) if number is None else number


def mod(call: Call, a: Value, b: Value, *, fmod: bool = False) -> Value:
    return binary(integer.fmod if fmod else integer.remainder)(call, a, b)


def shift(call: Call, a: Value, b: Value, *, direction: str) -> Value:
    directions = {"LEFT": integer.left_shift, "RIGHT": integer.right_shift}
    if direction not in directions:
        call.refuse(f"direction is {direction!r}; it must be 'LEFT' or 'RIGHT'")
    return binary(directions[direction])(call, a, b)


def bit_cast(call: Call, x: Value, *, to: int) -> Value:
    """Between integers of one width it is a cast, which wraps; a bool is a byte of 0 or 1."""
    made = call.element_type(to, "the type to read the bits as")
    if x.dtype.bits != made.bits:
        call.refuse(f"{x} is read as {made}, which has another number of bits")
    if x.dtype is made or (made.is_int and not x.dtype.is_float):
        return call.cast(x, made)
    raise RunOnHost("there is no kernel that reads floats as integers")


def where(call: Call, condition: Value, a: Value, b: Value) -> Value:
    same_types(call, a, b)
    return call.add(elementwise.where, condition, a, b)


def isinf(
    call: Call, x: Value, *, detect_negative: bool = True, detect_positive: bool = True
) -> Value:
    return call.add(logic.isinf, x, negative=detect_negative, positive=detect_positive)


def swish(call: Call, x: Value, *, alpha: float = 1.0) -> Value:
    if alpha == 1:
        return call.add(elementwise.silu, x)
    return call.add(activation.swish, x, alpha=alpha)


def prelu(call: Call, x: Value, slope: Value) -> Value:
    if call.version < 7 and len(slope.shape) == 1 and slope.size > 1:  # one for each channel
        slope = lined_up(call, x, slope, 1, True)
    return call.add(activation.prelu, x, slope)


def dropout(
    call: Call, x: Value, ratio: Value | float | None = None, training: Array | None = None,
    *, seed: int | None = None, is_test: bool = False,
) -> Any:  # fmt: skip
    """Without training nothing is dropped; what is dropped in training is drawn on the host.
    `is_test` is of opset 6, where a model says itself whether it is trained.
    """
    if training is not None and training.any():
        share = call.array(ratio) if isinstance(ratio, Value) else None
        if share is None or share.any():
            raise RunOnHost(_RANDOM, partial(host_numpy.dropout, seed=seed))
    if not call.wants(1):
        return x
    # Before opset 10 the mask was of the type of the data.
    mask = np.ones(x.shape, bool if call.version >= 10 else x.dtype.numpy)
    return x, call.constant(mask)


_RANDOM = "it draws random numbers"
random = OnHost(_RANDOM)


def multinomial(
    call: Call, x: Value, *, sample_size: int = 1, dtype: int = 6, seed: float | None = None
) -> None:
    if len(x.shape) != 2 or not x.dtype.is_float or not x.size or sample_size < 1:
        call.refuse(f"{x} must be (batch, classes) of floats, and sample_size at least 1")
    made = call.element_type(dtype, "attribute 'dtype'").numpy
    call.check_room("what it draws", sample_size, x.size)
    raise RunOnHost(
        _RANDOM, partial(host_numpy.multinomial, samples=sample_size, dtype=made, seed=seed)
    )


# Operators of one input whose names are the same here, but for the capital.
_UNARY = (
    "Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Gelu Log Reciprocal Relu "
    "Sigmoid Sign Sin Sinh Sqrt Tan Tanh"
)

IMPORTERS: Mapping[str, Importer] = {
    **{name: getattr(elementwise, name.lower()) for name in _UNARY.split()},
    "Abs": elementwise.absolute,
    "Add": binary(elementwise.add),
    "And": binary(logic.logical_and),
    "Bernoulli": random,
    "BitCast": bit_cast,
    "BitShift": shift,
    "BitwiseAnd": binary(integer.bitwise_and),
    "BitwiseNot": integer.bitwise_not,
    "BitwiseOr": binary(integer.bitwise_or),
    "BitwiseXor": binary(integer.bitwise_xor),
    "Cast": cast,
    "CastLike": cast_like,
    "Celu": activation.celu,
    "Clip": clip,
    "Div": divide,
    "Dropout": dropout,
    "Elu": activation.elu,
    "Equal": binary(logic.equal),
    "Greater": binary(logic.greater),
    "GreaterOrEqual": binary(logic.greater_equal),
    "HardSigmoid": activation.hard_sigmoid,
    "HardSwish": activation.hard_swish,
    "IsInf": isinf,
    "IsNaN": logic.isnan,
    "LeakyRelu": elementwise.leaky_relu,
    "Less": binary(logic.less),
    "LessOrEqual": binary(logic.less_equal),
    "Max": variadic(elementwise.maximum),
    "Mean": mean,
    "Min": variadic(elementwise.minimum),
    "Mish": activation.mish,
    "Mod": mod,
    "Mul": binary(elementwise.multiply),
    "Multinomial": multinomial,
    "Neg": elementwise.negative,
    "Not": logic.logical_not,
    "Or": binary(logic.logical_or),
    "PRelu": prelu,
    "Pow": power,
    "RandomNormal": random,
    "RandomNormalLike": random,
    "RandomUniform": random,
    "RandomUniformLike": random,
    "Round": elementwise.rint,
    "Selu": activation.selu,
    "Shrink": activation.shrink,
    "Softplus": activation.softplus,
    "Softsign": activation.softsign,
    "Sub": binary(elementwise.subtract),
    "Sum": variadic(elementwise.add),
    "Swish": swish,
    "ThresholdedRelu": activation.thresholded_relu,
    "Where": where,
    "Xor": binary(logic.logical_xor),
}
