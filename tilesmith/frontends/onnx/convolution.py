"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.onnx.windows import (
    auto_pad,
    halves,
    pad_attribute,
    per_axis,
    sliding,
    spatial_rank,
)
from tilesmith.frontends.shared.phases import whole_phases
from tilesmith.graph.graph import Value
from tilesmith.ops.causal import causal_conv1d, causal_state
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.conv_transpose import conv1d_transpose, conv2d_transpose, conv3d_transpose
from tilesmith.ops.deform import deform_conv
from tilesmith.ops.elementwise import bias_add, silu
from tilesmith.ops.transform import pad


def conv(call: Call) -> Value:
    x, w = call.value(0), call.value(1)
    count = spatial_rank(call)
    kernel = kernel_of(call, count)
    groups = groups_of(call)
    slide = sliding(call, x.shape[2:], kernel)
    settings = {"stride": slide.stride, "padding": slide.padding, "dilation": slide.dilation}
    if count == 2 and groups > 1 and groups == x.shape[1]:
        return with_bias(call, call.add(depthwise_conv2d, x, w, **settings))
    function = {1: conv1d, 2: conv2d, 3: conv3d}.get(count)
    if function is None:
        raise RunOnHost(f"its input has {count} spatial dimensions; kernels have 1 to 3")
    return with_bias(call, call.add(function, x, w, groups=groups, **settings))


def with_bias(call: Call, y: Value, k: int = 2) -> Value:
    b = call.optional(k)
    return y if b is None else call.add(bias_add, y, b, axis=1)


def groups_of(call: Call) -> int:
    groups = call.attribute("group", 1)
    if groups < 1:
        call.refuse(f"attribute 'group' is {groups}; it must be at least 1")
    return groups


def kernel_of(call: Call, count: int) -> tuple[int, ...]:
    """The spatial extents of the weights, input 1."""
    w = call.value(1)
    if len(w.shape) != count + 2:
        call.refuse(f"weights {w} must be of rank {count + 2}, as its input is")
    kernel = w.shape[2:]
    if per_axis(call, "kernel_shape", count, 0, 0) != kernel and call.has_attribute("kernel_shape"):
        call.refuse(
            f"attribute 'kernel_shape' is {list(call.attribute('kernel_shape', ()))}, but the "
            f"weights are {w}"
        )
    return kernel


def conv_transpose(call: Call) -> Value:
    x, w = call.value(0), call.value(1)
    count = spatial_rank(call)
    kernel = kernel_of(call, count)
    stride = per_axis(call, "strides", count, 1, 1)
    dilation = per_axis(call, "dilations", count, 1, 1)
    extra = per_axis(call, "output_padding", count, 0, 0)
    mode = auto_pad(call)
    wanted: tuple[int, ...] = call.attribute("output_shape", ())[-count:]
    if wanted and (len(wanted) != count or any(not isinstance(n, int) or n < 1 for n in wanted)):
        call.refuse(
            f"attribute 'output_shape' is {list(wanted)}; it must be {count} entries of at least 1"
        )
    if not wanted and mode.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(x.shape[2:], stride, strict=True))
    padding = pad_attribute(call, count) if mode == "NOTSET" else ((0, 0),) * count
    behind = [0] * count  # zeros where an output is wanted that is larger than what is computed
    if wanted:
        pairs = []
        for k in range(count):
            natural = stride[k] * (x.shape[2 + k] - 1) + dilation[k] * (kernel[k] - 1) + 1
            total = natural + extra[k] - wanted[k]
            pairs.append(halves(max(total, 0), mode == "SAME_UPPER"))
            behind[k] = max(-total, 0)
        padding = tuple(pairs)
    # What an operator adds behind by itself, it computes; more than that is beyond every input.
    for k in range(count):
        if extra[k] + behind[k] < max(stride[k], dilation[k]):
            extra = (*extra[:k], extra[k] + behind[k], *extra[k + 1 :])
            behind[k] = 0
        elif extra[k] >= max(stride[k], dilation[k]):
            behind[k] += extra[k]
            extra = (*extra[:k], 0, *extra[k + 1 :])
    function = {1: conv1d_transpose, 2: conv2d_transpose, 3: conv3d_transpose}.get(count)
    if function is None:
        # The reference operator is right for these only.
        if (
            groups_of(call) > 1
            or call.has_attribute("output_shape")
            or call.has_attribute("auto_pad")
        ):
            call.refuse(
                f"its input has {count} spatial dimensions; with groups, output_shape or auto_pad "
                "there may be 1 to 3"
            )
        raise RunOnHost(f"its input has {count} spatial dimensions; kernels have 1 to 3")
    if call.known(1) is not None and max(dilation) == 1:
        w, padding = whole_phases(call, w, stride, padding)
    y: Value = call.add(
        function, x, w, stride=stride, padding=padding, output_padding=extra, dilation=dilation,
        groups=groups_of(call),
    )  # fmt: skip
    if any(behind):
        y = call.add(pad, y, widths=((0, 0), (0, 0), *((0, n) for n in behind)))
    return with_bias(call, y)


def deform(call: Call) -> Value:
    x, w, offset = call.value(0), call.value(1), call.value(2)
    count = spatial_rank(call)
    kernel_of(call, count)
    mask = call.optional(4)
    y: Value = call.add(
        deform_conv, x, w, offset, *(() if mask is None else (mask,)),
        stride=per_axis(call, "strides", count, 1, 1), padding=pad_attribute(call, count),
        dilation=per_axis(call, "dilations", count, 1, 1), groups=groups_of(call),
        offset_groups=call.attribute("offset_group", 1),
    )  # fmt: skip
    return with_bias(call, y, 3)


def causal(call: Call) -> tuple[Value, Value]:
    x, w, past = call.value(0), call.value(1), call.optional(3)
    activation = call.attribute("activation", "none")
    if activation not in ("none", "silu", "swish"):
        call.refuse(f"attribute 'activation' is {activation!r}; it must be none, silu or swish")
    if len(w.shape) != 3:
        call.refuse(f"weights {w} must be (channels, 1, kernel)")
    before = () if past is None else (past,)
    y = with_bias(call, call.add(causal_conv1d, x, w, *before))
    if activation != "none":
        y = call.add(silu, y)
    state: Value = call.add(causal_state, x, *before, kept=w.shape[2] - 1)
    return y, state


IMPORTERS: Mapping[str, Importer] = {
    "CausalConvWithState": causal,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "DeformConv": deform,
}
