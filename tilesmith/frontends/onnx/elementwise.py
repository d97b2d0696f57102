"""Element-wise operators: arithmetic, comparisons, conditions and casts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from tilesmith.frontends.onnx import host_numpy
from tilesmith.frontends.onnx.call import Call, Importer, OnHost, RunOnHost
from tilesmith.frontends.onnx.types import element_type
from tilesmith.graph.graph import Operator, Value
from tilesmith.ops import elementwise, integer, logic, trigonometry
from tilesmith.ops.transform import reshape


def unary(function: Operator) -> Importer:
    def read(call: Call) -> Value:
        v: Value = call.add(function, call.value(0))
        return v

    return read


def same_types(call: Call, *values: Value) -> None:
    for v in values[1:]:
        if v.dtype is not values[0].dtype:
            call.refuse(f"its inputs are {values[0].dtype} and {v.dtype}; they must be of one type")


def binary(function: Operator) -> Importer:
    def read(call: Call) -> Value:
        same_types(call, call.value(0), call.value(1))
        v: Value = call.add(function, call.value(0), call.value(1))
        return v

    return read


def variadic(function: Operator) -> Importer:
    """Of any number of inputs, two by two."""

    def read(call: Call) -> Value:
        first, *rest = call.values or (call.value(0),)
        same_types(call, first, *rest)
        for v in rest:
            first = call.add(function, first, v)
        return first

    return read


def mean(call: Call) -> Value:
    total, n = variadic(elementwise.add)(call), len(call.values)
    v: Value = total if n == 1 else call.add(elementwise.divide, total, B=float(n))
    return v


def divide(call: Call) -> Value:
    is_float = call.value(0).dtype.is_float
    function = elementwise.divide if is_float else integer.trunc_divide
    v: Value = binary(function)(call)
    return v


def power(call: Call) -> Value:
    """The result has the type of the base."""
    x, e = call.value(0), call.value(1)
    if (known := scalar(call, 1)) is not None and (x.dtype.is_float or known in range(1, 9)):
        return _fixed_power(call, x, known)
    if not x.dtype.is_float and not e.dtype.is_float:
        v: Value = call.add(integer.integer_power, x, e)
        return v
    wide = x.dtype.name if x.dtype.is_float else "float64"
    y: Value = call.add(elementwise.power, *(cast_to(call, a, wide) for a in (x, e)))
    return cast_to(call, y, x.dtype.name)


def _fixed_power(call: Call, x: Value, e: float) -> Value:
    """Exponents that need no logarithm; a small whole one is a few products."""
    v: Value
    if e == -1:
        v = call.add(elementwise.reciprocal, x)
    else:
        v = call.add(elementwise.power, x, B=int(e) if e in range(1, 9) else float(e))
    return v


def scalar(call: Call, k: int) -> Any:
    """The number that input k is, if it is a constant of one element whose dimensions would not
    widen the result.
    """
    a = call.known(k)
    if a is None or a.size != 1 or a.ndim > len(call.value(0).shape):
        return None
    return a.reshape(()).astype(np.float64).item() if a.dtype.kind not in "biu" else a.item()


def cast_to(call: Call, v: Value, dtype: str) -> Value:
    out: Value = v if v.dtype.name == dtype else call.add(elementwise.cast, v, dtype=dtype)
    return out


def cast(call: Call) -> Value:
    to = element_type(call, call.required("to"), "the type to cast to")
    return cast_to(call, call.value(0), to.name)


def cast_like(call: Call) -> Value:
    return cast_to(call, call.value(0), call.value(1).dtype.name)


def clip(call: Call) -> Value:
    """The bounds are attributes in old opsets and inputs in new ones."""
    x = call.value(0)
    low, high = (_bound(call, k, name) for k, name in ((1, "min"), (2, "max")))
    if isinstance(low, int | float) and isinstance(high, int | float):
        low = min(low, high)  # where the bounds cross, the upper one holds
    numbers = [None if isinstance(b, Value) else b for b in (low, high)]
    if isinstance(low, Value):
        x = call.add(elementwise.maximum, x, low)
        numbers[0] = None
    if numbers != [None, None]:
        x = call.add(elementwise.clip, x, low=numbers[0], high=numbers[1])
    if isinstance(high, Value):
        x = call.add(elementwise.minimum, x, high)
    return x


def _bound(call: Call, k: int, name: str) -> Value | float | None:
    """A number where it is known."""
    if call.has_attribute(name):
        return call.attribute(name, 0.0)
    v = call.optional(k)
    if v is None:
        return None
    same_types(call, call.value(0), v)
    if v.size != 1:
        call.refuse(f"{v} is a bound; it must be one element")
    number = scalar(call, k)
    out: Value = call.add(reshape, v, shape=()) if v.shape else v
    return out if number is None else number


def mod(call: Call) -> Value:
    function = integer.fmod if call.attribute("fmod", 0) else integer.remainder
    v: Value = binary(function)(call)
    return v


def shift(call: Call) -> Value:
    directions = {"LEFT": integer.left_shift, "RIGHT": integer.right_shift}
    if (direction := call.required("direction")) not in directions:
        call.refuse(f"direction is {direction!r}; it must be 'LEFT' or 'RIGHT'")
    v: Value = binary(directions[direction])(call)
    return v


def bit_cast(call: Call) -> Value:
    """Between integers of one width it is a cast, which wraps; a bool is a byte of 0 or 1."""
    x = call.value(0)
    to = element_type(call, call.required("to"), "the type to read the bits as")
    if x.dtype.bits != to.bits:
        call.refuse(f"{x} is read as {to}, which has another number of bits")
    if x.dtype is to or (to.is_int and not x.dtype.is_float):
        return cast_to(call, x, to.name)
    raise RunOnHost("there is no kernel that reads floats as integers")


def where(call: Call) -> Value:
    same_types(call, call.value(1), call.value(2))
    v: Value = call.add(elementwise.where, *(call.value(k) for k in range(3)))
    return v


def isinf(call: Call) -> Value:
    v: Value = call.add(
        logic.isinf, call.value(0),
        negative=bool(call.attribute("detect_negative", 1)),
        positive=bool(call.attribute("detect_positive", 1)),
    )  # fmt: skip
    return v


def dropout(call: Call) -> Any:
    """Without training nothing is dropped; what is dropped in training is drawn on the host."""
    x, training = call.value(0), call.optional_array(2)
    if training is not None and training.any():
        ratio = call.optional_array(1)
        if ratio is None or ratio.any():
            seed = call.required("seed") if call.has_attribute("seed") else None
            raise RunOnHost(_RANDOM, partial(host_numpy.dropout, seed=seed))
    if not call.wants(1):
        return x
    # Before opset 10 the mask was of the type of the data.
    mask = np.ones(x.shape, bool if call.version >= 10 else x.dtype.numpy)
    return x, call.constant(mask)


_RANDOM = "it draws random numbers"
random = OnHost(_RANDOM)


def multinomial(call: Call) -> None:
    x, samples = call.value(0), call.attribute("sample_size", 1)
    if len(x.shape) != 2 or not x.dtype.is_float or not x.size or samples < 1:
        call.refuse(f"{x} must be (batch, classes) of floats, and sample_size at least 1")
    made = element_type(call, call.attribute("dtype", 6), "attribute 'dtype'").numpy
    call.check_room("what it draws", samples, x.size)
    seed = call.attribute("seed", 0.0) if call.has_attribute("seed") else None
    raise RunOnHost(
        _RANDOM, partial(host_numpy.multinomial, samples=samples, dtype=made, seed=seed)
    )


IMPORTERS: Mapping[str, Importer] = {
    "Abs": unary(elementwise.absolute),
    "Acos": unary(trigonometry.acos),
    "Acosh": unary(trigonometry.acosh),
    "Add": binary(elementwise.add),
    "And": binary(logic.logical_and),
    "Asin": unary(trigonometry.asin),
    "Asinh": unary(trigonometry.asinh),
    "Atan": unary(trigonometry.atan),
    "Atanh": unary(trigonometry.atanh),
    "Bernoulli": random,
    "BitCast": bit_cast,
    "BitShift": shift,
    "BitwiseAnd": binary(integer.bitwise_and),
    "BitwiseNot": unary(integer.bitwise_not),
    "BitwiseOr": binary(integer.bitwise_or),
    "BitwiseXor": binary(integer.bitwise_xor),
    "Cast": cast,
    "CastLike": cast_like,
    "Ceil": unary(elementwise.ceil),
    "Clip": clip,
    "Cos": unary(trigonometry.cos),
    "Cosh": unary(trigonometry.cosh),
    "Div": divide,
    "Dropout": dropout,
    "Equal": binary(logic.equal),
    "Erf": unary(elementwise.erf),
    "Exp": unary(elementwise.exp),
    "Floor": unary(elementwise.floor),
    "Greater": binary(logic.greater),
    "GreaterOrEqual": binary(logic.greater_equal),
    "IsInf": isinf,
    "IsNaN": unary(logic.isnan),
    "Less": binary(logic.less),
    "LessOrEqual": binary(logic.less_equal),
    "Log": unary(elementwise.log),
    "Max": variadic(elementwise.maximum),
    "Mean": mean,
    "Min": variadic(elementwise.minimum),
    "Mod": mod,
    "Mul": binary(elementwise.multiply),
    "Multinomial": multinomial,
    "Neg": unary(elementwise.negative),
    "Not": unary(logic.logical_not),
    "Or": binary(logic.logical_or),
    "Pow": power,
    "RandomNormal": random,
    "RandomNormalLike": random,
    "RandomUniform": random,
    "RandomUniformLike": random,
    "Reciprocal": unary(elementwise.reciprocal),
    "Round": unary(elementwise.rint),
    "Sign": unary(elementwise.sign),
    "Sin": unary(trigonometry.sin),
    "Sinh": unary(trigonometry.sinh),
    "Sqrt": unary(elementwise.sqrt),
    "Sub": binary(elementwise.subtract),
    "Sum": variadic(elementwise.add),
    "Tan": unary(trigonometry.tan),
    "Tanh": unary(elementwise.tanh),
    "Where": where,
    "Xor": binary(logic.logical_xor),
}
