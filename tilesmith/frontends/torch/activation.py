"""Activations."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.torch.call import Call, Importer, Number
from tilesmith.frontends.torch.elementwise import unary
from tilesmith.graph.graph import Value
from tilesmith.ops import activation as a
from tilesmith.ops import elementwise as e


def elu(
    call: Call, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> Value:
    """ELU, and SELU, which is ELU times a scale."""
    if input_scale != 1:
        call.leave(f"its input is scaled by {input_scale}")
    y: Value
    if scale != 1:
        y = call.add(a.selu, x, alpha=float(alpha), gamma=float(scale))
    else:
        y = call.add(a.elu, x, alpha=float(alpha))
    return y


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


IMPORTERS: Mapping[str, Importer] = {
    "aten.elu.default": elu,
    "aten.gelu.default": gelu,
    "aten.hardsigmoid.default": hardsigmoid,
    "aten.hardswish.default": unary(a.hard_swish),
    "aten.leaky_relu.default": leaky_relu,
    "aten.mish.default": unary(a.mish),
    "aten.relu.default": unary(e.relu),
    "aten.rrelu_with_noise_functional.default": rrelu,
    "aten.sigmoid.default": unary(e.sigmoid),
    "aten.silu.default": unary(e.silu),
    "aten.softplus.default": softplus,
    "aten.tanh.default": unary(e.tanh),
}
