"""The named operators of the command line, each with the sizes that it takes. Sizes come in the
order in which the operator suite lists them; operators on images take a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

import tilesmith.ops as ops
from tilesmith.base.dataclass import dataclass
from tilesmith.expr.dsl import Tensor, compute, placeholder, reduce_axis
from tilesmith.expr.ints import Int
from tilesmith.expr.reductions import sum as sum_over

Tensors = tuple[Tensor, ...]  # inputs, then the output
_DTYPE: ContextVar[str] = ContextVar("_DTYPE", default="float32")  # of all inputs


def given(shape: Sequence[int], name: str) -> Tensor:
    """An input, of the dtype that `Operator.tensors` is asked for."""
    return placeholder(tuple(shape), _DTYPE.get(), name=name)


def _matmul(N: int, M: int, K: int, B: int = 1) -> Tensors:
    lead = () if B == 1 else (B,)
    a, b = given((*lead, N, K), name="A"), given((*lead, K, M), name="B")
    return a, b, (ops.batch_matmul if lead else ops.matmul)(a, b, name="C")


def _matmul_relu(N: int, M: int, K: int) -> Tensors:
    a, b = given((N, K), name="A"), given((K, M), name="B")
    return a, b, ops.relu(ops.matmul(a, b, name="C"), name="D")


def _matmul_chain(N: int, M: int, K: int, L: int) -> Tensors:
    a, b, c = (
        given(shape, name=name) for shape, name in (((N, K), "A"), ((K, M), "B"), ((M, L), "C"))
    )
    return a, b, c, ops.matmul(ops.matmul(a, b, name="AB"), c, name="ABC")


def _images(
    layout: str, N: int, CI: int, CO: int, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """X and W, where NHWC stands for all layouts with the channels last."""
    if layout == "NCHW":
        return given((N, CI, *sizes), name="X"), given((CO, CI, *kernel), name="W")
    return given((N, *sizes, CI), name="X"), given((*kernel, CI, CO), name="W")


def _square(layout: str, H: int, CI: int, CO: int, K: int, N: int) -> tuple[Tensor, Tensor]:
    return _images(layout, N, CI, CO, (H, H), (K, K))


def _conv1d(
    L: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, w = _images(layout, N, CI, CO, (L,), (K,))
    return x, w, ops.conv1d(x, w, stride=S, padding=P, layout=layout, name="Y")


def _conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, w = _square(layout, H, CI, CO, K, N)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, layout=layout, name="Y")


def _conv3d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, D: int = 16, N: int = 1,
    *, layout: str = "NCHW",
) -> Tensors:  # fmt: skip
    x, w = _images(layout, N, CI, CO, (D, H, H), (K, K, K))
    return x, w, ops.conv3d(x, w, stride=S, padding=P, layout=layout, name="Y")


def _group_conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, G: int = 4, N: int = 1,
    *, layout: str = "NCHW",
) -> Tensors:  # fmt: skip
    x, _ = _square(layout, H, CI, CO, K, N)
    _, w = _square(layout, H, CI // G, CO, K, N)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, groups=G, layout=layout, name="Y")


def _dilated_conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, w = _square(layout, H, CI, CO, K, N)
    return x, w, ops.conv2d(x, w, stride=S, padding=P, dilation=2, layout=layout, name="Y")


def _depthwise_conv2d(
    H: int, C: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, _ = _square(layout, H, C, C, K, N)
    _, w = _square(layout, H, 1, C, K, N)
    return x, w, ops.depthwise_conv2d(x, w, stride=S, padding=P, layout=layout, name="Y")


def _conv2d_transpose(
    H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, _ = _square(layout, H, CI, CO, K, N)
    shape = (CI, CO, K, K) if layout == "NCHW" else (K, K, CI, CO)
    w = given(shape, name="W")
    return x, w, ops.conv2d_transpose(x, w, stride=S, padding=P, layout=layout, name="Y")


def _capsule_conv2d(
    H: int, CI: int, CO: int, K: int, S: int, P: int, CAP: int = 4, N: int = 1
) -> Tensors:
    x = given((N, H, H, CAP, CAP, CI), name="X")
    w = given((K, K, CAP, CAP, CI, CO), name="W")
    return x, w, ops.capsule_conv2d(x, w, stride=S, padding=P, name="Y")


def _norm(M: int, N: int, B: int = 1) -> Tensors:
    x = given((M, N) if B == 1 else (B, M, N), name="X")
    return x, ops.norm(x, name="Y")


def _softmax(M: int, N: int, B: int = 1) -> Tensors:
    x = given((B * M, N), name="X")
    return x, ops.softmax(x, name="Y")


def _conv2d_bn_relu(
    H: int, CI: int, CO: int, K: int, S: int, P: int, N: int = 1, *, layout: str = "NCHW"
) -> Tensors:
    x, w = _square(layout, H, CI, CO, K, N)
    bias, scale, shift = (given((CO,), name=name) for name in ("bias", "scale", "shift"))
    axis = 1 if layout == "NCHW" else -1
    y = ops.conv2d(x, w, stride=S, padding=P, layout=layout, name="Y")
    y = ops.bias_add(y, bias, axis=axis, name="biased")
    y = ops.scale_shift(y, scale, shift, axis=axis, name="normal")
    return x, w, bias, scale, shift, ops.relu(y, name="Z")


def _transpose_batch_matmul(SEQ: int, HEADS: int, DIM: int, N: int = 1) -> Tensors:
    q, k = (given((N, SEQ, HEADS, DIM), name=name) for name in ("Q", "K"))
    return q, k, ops.transpose_batch_matmul(q, k, name="S")


def _max_pool2d(H: int, C: int, K: int, S: int, P: int, N: int = 1) -> Tensors:
    x = given((N, C, H, H), name="X")
    return x, ops.max_pool2d(x, K, stride=S, padding=P, name="Y")


def _sum(N: int) -> Tensors:
    x, k = given((N,), name="X"), reduce_axis(N, name="k")
    return x, compute((), lambda: sum_over(x[k], axis=k), name="Y")


def _gelu(M: int, N: int) -> Tensors:
    x = given((M, N), name="X")
    return x, ops.gelu(x, name="Y")


@dataclass(frozen=True)
class Operator:
    """`make` takes the sizes in order. `about` says what is computed, and names every size unless
    the operator is `on_images`: those share the sizes that SIZES explains.
    """

    make: Callable[..., Tensors]
    about: str
    on_images: bool = False

    def tensors(
        self, sizes: Sequence[int | Int], dtype: str = "float32", **settings: str
    ) -> Tensors:
        """Inputs of this dtype, then the output."""
        token = _DTYPE.set(dtype)
        try:
            return self.make(*sizes, **settings)
        finally:
            _DTYPE.reset(token)


# The sizes of operators on images, in the order in which they are given.
SIZES = {
    "L": "length of the signal",
    "H": "height and width of the image (they are equal)",
    "CI": "channels of the input",
    "CO": "channels of the output",
    "C": "channels of input and output",
    "K": "height and width of the kernel (or window)",
    "S": "stride",
    "P": "zeros added on each side (padding); may be 0",
    "D": "depth of the volume",
    "G": "groups of channels",
    "CAP": "rows and columns of a capsule's matrix",
    "N": "images at once (batch)",
}

OPERATORS: dict[str, Operator] = {
    "matmul": Operator(_matmul, "N x K matrix times K x M matrix; B such products"),
    "matmul-relu": Operator(
        _matmul_relu, "N x K matrix times K x M matrix, negative elements replaced by 0"
    ),
    "matmul-chain": Operator(_matmul_chain, "N x K times K x M times M x L"),
    "transpose-batch-matmul": Operator(
        _transpose_batch_matmul,
        "attention scores: SEQ queries by SEQ keys of DIM elements, for each of HEADS heads; "
        "N sequences",
    ),
    "softmax": Operator(_softmax, "softmax of each of M rows of N elements; B such matrices"),
    "norm": Operator(_norm, "2-norm of an M x N matrix; of each of B such matrices"),
    "sum": Operator(_sum, "sum of N elements"),
    "gelu": Operator(_gelu, "gelu of each element of an M x N matrix"),
    "conv1d": Operator(_conv1d, "convolution of a signal", on_images=True),
    "conv2d": Operator(_conv2d, "convolution of an image", on_images=True),
    "conv2d-bn-relu": Operator(
        _conv2d_bn_relu, "convolution, bias, batch normalisation and relu", on_images=True
    ),
    "conv2d-transpose": Operator(
        _conv2d_transpose, "transposed convolution (upsampling)", on_images=True
    ),
    "conv3d": Operator(_conv3d, "convolution of a volume", on_images=True),
    "group-conv2d": Operator(_group_conv2d, "convolution in groups of channels", on_images=True),
    "dilated-conv2d": Operator(_dilated_conv2d, "convolution with dilation 2", on_images=True),
    "depthwise-conv2d": Operator(_depthwise_conv2d, "one filter for each channel", on_images=True),
    "capsule-conv2d": Operator(
        _capsule_conv2d, "convolution of matrices (capsules)", on_images=True
    ),
    "max-pool2d": Operator(_max_pool2d, "largest element of each window", on_images=True),
}
