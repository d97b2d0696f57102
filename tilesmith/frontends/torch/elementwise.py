"""Element-wise arithmetic, comparisons, conditions, casts and activations. Operands are brought
to the dtype that PyTorch computes in, which the type of the result tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilesmith.base.dtype import BOOL, DType
from tilesmith.frontends.shared.building import expanded
from tilesmith.frontends.torch.call import Call, Importer, Number, Term, both, common_dtype, named
from tilesmith.graph.graph import Operator, Value
from tilesmith.ops import activation as a
from tilesmith.ops import elementwise as e
from tilesmith.ops import integer, logic


# of one operand
def unary(function: Operator) -> Importer:
    """In the dtype of the result: the sine of integers is a float32."""

    def read(call: Call, x: Value) -> Value:
        return call.add(function, call.cast(x, call.dtype))

    return read


def predicate(function: Operator) -> Importer:
    def read(call: Call, x: Value) -> Value:
        if not x.dtype.is_float:
            call.leave(f"its operand is {x.dtype}")
        return call.add(function, x)

    return read


def rounding(function: Operator) -> Importer:
    """Rounds floats; integers stay as they are."""

    def read(call: Call, x: Value) -> Value:
        return call.add(function, x) if x.dtype.is_float else x

    return read


def identity(call: Call, x: Value, **_: Any) -> Value:
    return x


def exp2(call: Call, x: Value) -> Value:
    return call.add(e.power, call.value(2.0, call.dtype), call.cast(x, call.dtype))


def logical_not(call: Call, x: Value) -> Value:
    return call.add(logic.logical_not, call.cast(x, BOOL))


def bitwise_not(call: Call, x: Value) -> Value:
    return call.add(logic.logical_not if x.dtype is BOOL else integer.bitwise_not, x)


# of two operands
def arithmetic(function: Operator, of_bools: Operator | None = None) -> Callable[..., Value]:
    """Computed in the dtype of the result."""

    def read(call: Call, a: Term, b: Term, *, alpha: Number = 1) -> Value:
        if alpha != 1:
            b = call.pair(e.multiply, b, alpha, call.dtype)
        if call.dtype is BOOL:
            if of_bools is None:
                call.leave("its result is bool")
            return call.pair(of_bools, a, b, BOOL)
        return call.pair(function, a, b, call.dtype)

    return read


def rsub(call: Call, a: Term, b: Term, alpha: Number = 1) -> Value:
    return subtract(call, b, a, alpha=alpha)


subtract = arithmetic(e.subtract)


def comparison(function: Operator) -> Importer:
    def read(call: Call, a: Term, b: Term) -> Value:
        dtype = common_dtype(a, b)
        if dtype is BOOL:  # compared as numbers
            a, b = (
                call.add(e.cast, x, dtype="uint8") if isinstance(x, Value) else int(x)
                for x in (a, b)
            )
            dtype = common_dtype(a)
        return call.pair(function, a, b, dtype)

    return read


def not_equal(call: Call, a: Term, b: Term) -> Value:
    return call.add(logic.logical_not, comparison(logic.equal)(call, a, b))


def bits(function: Operator, of_bools: Operator | None = None) -> Importer:
    def read(call: Call, a: Term, b: Term) -> Value:
        if call.dtype is BOOL and of_bools is not None:
            return call.pair(of_bools, a, b, BOOL)
        return call.pair(function, a, b, call.dtype)

    return read


def logical(function: Operator) -> Importer:
    def read(call: Call, a: Value, b: Value) -> Value:
        return call.add(function, call.cast(a, BOOL), call.cast(b, BOOL))

    return read


def divide(call: Call, a: Term, b: Term, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return call.pair(e.divide, a, b, call.dtype)
    if rounding_mode == "floor":
        return call.pair(integer.floor_divide, a, b, call.dtype)
    if not call.dtype.is_float:
        return call.pair(integer.trunc_divide, a, b, call.dtype)
    return call.add(e.trunc, call.pair(e.divide, a, b, call.dtype))


def power(call: Call, x: Term, exponent: Term) -> Value:
    known = call.number(exponent)
    dtype = call.dtype
    if known is None or isinstance(known, bool):
        function = e.power if dtype.is_float else integer.integer_power
        return call.pair(function, x, exponent, dtype)
    base = call.value(x, dtype)
    if not dtype.is_float:
        return call.add(integer.integer_power, base, B=int(known))
    roots = {-1: e.reciprocal, -0.5: e.rsqrt, 0.5: e.sqrt}
    if known in roots:
        return call.add(roots[known], base)
    return call.add(e.power, base, B=int(known) if known in range(1, 9) else float(known))


# of three operands
def where(call: Call, condition: Value, a: Term, b: Term) -> Value:
    return call.add(
        e.where, call.cast(condition, BOOL), call.value(a, call.dtype), call.value(b, call.dtype)
    )


def clamp(call: Call, x: Value, min: Term | None = None, max: Term | None = None) -> Value:
    """Where the bounds cross, the upper one holds."""
    y, dtype = call.cast(x, call.dtype), call.dtype
    low, high = (None if b is None else call.number(b) for b in (min, max))
    if low is not None and high is not None and low > high:
        low = high
    if min is not None and low is None:
        y = call.pair(e.maximum, y, min, dtype)
    if low is not None or high is not None:
        bounds = [None if b is None else call.term(b, dtype) for b in (low, high)]
        y = call.add(e.clip, y, low=bounds[0], high=bounds[1])
    if max is not None and high is None:
        y = call.pair(e.minimum, y, max, dtype)
    return y


def hardtanh(call: Call, x: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    return clamp(call, x, min_val, max_val)


# types
def to_copy(call: Call, x: Value, *, dtype: DType | None = None, **_: Any) -> Value:
    return call.cast(x, call.dtype)


def copy(call: Call, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return expanded(call, call.cast(source, call.dtype), call.shape)


_ADD = arithmetic(e.add, logic.logical_or)
_MULTIPLY = arithmetic(e.multiply, logic.logical_and)


def elu(
    call: Call, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> Value:
    """ELU, and SELU, which is ELU times a scale."""
    if input_scale != 1:
        call.leave(f"its input is scaled by {input_scale}")
    if scale != 1:
        return call.add(a.selu, x, alpha=float(alpha), gamma=float(scale))
    return call.add(a.elu, x, alpha=float(alpha))


def gelu(call: Call, x: Value, *, approximate: str = "none") -> Value:
    return call.add(e.gelu, x, approximate=approximate)


def leaky_relu(call: Call, x: Value, negative_slope: Number = 0.01) -> Value:
    return call.add(e.leaky_relu, x, alpha=float(negative_slope))


def hardsigmoid(call: Call, x: Value) -> Value:
    return call.add(a.hard_sigmoid, x, alpha=1 / 6, beta=0.5)


def softplus(call: Call, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    """Above the threshold PyTorch returns x. For the default threshold the exact result rounds to x
    in float32. Other settings are left to PyTorch.
    """
    if beta != 1 or threshold < 20:
        call.leave(f"beta is {beta} and the threshold {threshold}; a kernel has 1 and 20")
    return call.add(a.softplus, x)


def rrelu(
    call: Call, x: Value, noise: Value, lower: Number = 0.125, upper: Number = 1 / 3,
    training: bool = False,
) -> tuple[Value, None]:  # fmt: skip
    """In inference the slope is the mean of its bounds."""
    if training:
        call.leave("it draws random numbers")
    return leaky_relu(call, x, (lower + upper) / 2), None


# Operators of one operand whose names are the same here.
_UNARY = (
    "acos acosh asin asinh atan atanh cos cosh erf exp expm1 log log10 log1p log2 reciprocal "
    "rsqrt sign sin sinh sqrt tan relu sigmoid silu tanh"
)

IMPORTERS: Mapping[str, Importer] = {
    **{f"aten.{name}.default": unary(getattr(e, name)) for name in _UNARY.split()},
    "aten.abs.default": unary(e.absolute),
    **both("add", _ADD),
    "aten.alias.default": identity,
    **both("bitwise_and", bits(integer.bitwise_and, logic.logical_and)),
    "aten.bitwise_not.default": bitwise_not,
    **both("bitwise_or", bits(integer.bitwise_or, logic.logical_or)),
    **both("bitwise_xor", bits(integer.bitwise_xor, logic.logical_xor)),
    **both("bitwise_left_shift", bits(integer.left_shift)),
    **both("bitwise_right_shift", bits(integer.right_shift)),
    **both("__lshift__", bits(integer.left_shift)),
    **both("__rshift__", bits(integer.right_shift)),
    "aten.ceil.default": rounding(e.ceil),
    **named("clamp", clamp, "Tensor", "default"),
    "aten.clone.default": identity,
    "aten.copy.default": copy,
    "aten.detach.default": identity,
    **named("div", divide, "Tensor", "Scalar", "Tensor_mode", "Scalar_mode"),
    **both("eq", comparison(logic.equal)),
    "aten.exp2.default": exp2,
    "aten.floor.default": rounding(e.floor),
    **both("fmod", arithmetic(integer.fmod)),
    **both("ge", comparison(logic.greater_equal)),
    **both("gt", comparison(logic.greater)),
    "aten.hardtanh.default": hardtanh,
    "aten.isinf.default": predicate(logic.isinf),
    "aten.isnan.default": predicate(logic.isnan),
    **both("le", comparison(logic.less_equal)),
    "aten.lift_fresh_copy.default": identity,
    "aten.logical_and.default": logical(logic.logical_and),
    "aten.logical_not.default": logical_not,
    "aten.logical_or.default": logical(logic.logical_or),
    "aten.logical_xor.default": logical(logic.logical_xor),
    **both("lt", comparison(logic.less)),
    "aten.maximum.default": arithmetic(e.maximum, logic.logical_or),
    "aten.minimum.default": arithmetic(e.minimum, logic.logical_and),
    **both("mul", _MULTIPLY),
    **both("ne", not_equal),
    "aten.neg.default": unary(e.negative),
    **named("pow", power, "Scalar", "Tensor_Scalar", "Tensor_Tensor"),
    **both("remainder", arithmetic(integer.remainder)),
    "aten.round.default": rounding(e.rint),
    **both("rsub", rsub),
    **both("sub", subtract),
    "aten.trunc.default": rounding(e.trunc),
    "aten._to_copy.default": to_copy,
    "aten.where.self": where,
    "aten.elu.default": elu,
    "aten.gelu.default": gelu,
    "aten.hardsigmoid.default": hardsigmoid,
    "aten.hardswish.default": unary(a.hard_swish),
    "aten.leaky_relu.default": leaky_relu,
    "aten.mish.default": unary(a.mish),
    "aten.rrelu_with_noise_functional.default": rrelu,
    "aten.softplus.default": softplus,
}
