"""The named operators, each a function from tensors to a tensor."""

from tilesmith.ops.activation import (
    celu,
    elu,
    hard_sigmoid,
    hard_swish,
    mish,
    prelu,
    selu,
    shrink,
    softplus,
    softsign,
    swish,
    thresholded_relu,
)
from tilesmith.ops.attention import (
    mask_scores,
    masked_softmax,
    rotary_embedding,
    softcap,
    swiglu,
)
from tilesmith.ops.blocks import (
    col2im,
    crop_or_pad,
    depth_to_space,
    space_to_depth,
)
from tilesmith.ops.causal import (
    causal_conv1d,
)
from tilesmith.ops.conv import (
    capsule_conv2d,
    conv1d,
    conv2d,
    conv3d,
    depthwise_conv2d,
)
from tilesmith.ops.conv_transpose import (
    conv1d_transpose,
    conv2d_transpose,
    conv3d_transpose,
)
from tilesmith.ops.deform import (
    deform_conv,
)
from tilesmith.ops.einsum import (
    einsum,
)
from tilesmith.ops.elementwise import (
    absolute,
    add,
    bias_add,
    cast,
    ceil,
    clip,
    divide,
    erf,
    exp,
    floor,
    gelu,
    leaky_relu,
    log,
    log2,
    log10,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    reciprocal,
    relu,
    rint,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sqrt,
    subtract,
    tanh,
    where,
)
from tilesmith.ops.group_norm import (
    group_norm,
    instance_norm,
    local_response_norm,
    lp_normalize,
    rms_norm,
)
from tilesmith.ops.indices import (
    gather,
    gather_elements,
    gather_nd,
    one_hot,
)
from tilesmith.ops.integer import (
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    fmod,
    integer_power,
    left_shift,
    remainder,
    right_shift,
    trunc_divide,
)
from tilesmith.ops.logic import (
    equal,
    greater,
    greater_equal,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from tilesmith.ops.matmul import (
    batch_matmul,
    dense,
    matmul,
    transpose_batch_matmul,
)
from tilesmith.ops.norm import (
    batch_norm,
    layer_norm,
    log_softmax,
    norm,
    scale_shift,
    softmax,
)
from tilesmith.ops.pool import (
    avg_pool,
    avg_pool2d,
    global_avg_pool,
    global_avg_pool2d,
    global_lp_pool,
    global_max_pool,
    lp_pool,
    max_pool,
    max_pool2d,
)
from tilesmith.ops.quantize import (
    dequantize,
    quantize,
    requantize,
    to_integers,
    to_reals,
    weighted_sum,
)
from tilesmith.ops.reduce import (
    reduce_l1,
    reduce_l2,
    reduce_log_sum,
    reduce_log_sum_exp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reduce_sum_square,
)
from tilesmith.ops.regions import (
    max_roi_pool,
    roi_align,
)
from tilesmith.ops.sample import (
    affine_grid,
    grid_sample,
)
from tilesmith.ops.scan import (
    cumprod,
    cumsum,
)
from tilesmith.ops.scatter import (
    scatter_elements,
    scatter_nd,
    tensor_scatter,
)
from tilesmith.ops.search import (
    argmax,
    argmin,
    hardmax,
)
from tilesmith.ops.topk import (
    top_k,
)
from tilesmith.ops.transform import (
    concatenate,
    embedding,
    flatten,
    pad,
    reshape,
    take,
    transpose,
)
from tilesmith.ops.trigonometry import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    cosh,
    sin,
    sinh,
    tan,
)
from tilesmith.ops.views import (
    expand,
    pad_mirrored,
    pad_with,
    reverse_sequence,
    slice_,
    tile,
    trilu,
)

__all__ = [
    "absolute", "acos", "acosh", "add", "affine_grid", "argmax", "argmin", "asin", "asinh", "atan",
    "atanh", "avg_pool", "avg_pool2d", "batch_matmul", "batch_norm", "bias_add", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "capsule_conv2d", "cast", "causal_conv1d", "ceil",
    "celu", "clip", "col2im", "concatenate", "conv1d", "conv1d_transpose", "conv2d",
    "conv2d_transpose", "conv3d", "conv3d_transpose", "cos", "cosh", "crop_or_pad", "cumprod",
    "cumsum", "deform_conv", "dense", "depth_to_space", "depthwise_conv2d", "dequantize", "divide",
    "einsum", "elu", "embedding", "equal", "erf", "exp", "expand", "flatten", "floor", "fmod",
    "gather", "gather_elements", "gather_nd", "gelu", "global_avg_pool", "global_avg_pool2d",
    "global_lp_pool", "global_max_pool", "greater", "greater_equal", "grid_sample", "group_norm",
    "hard_sigmoid", "hard_swish", "hardmax", "instance_norm", "integer_power", "isinf", "isnan",
    "layer_norm", "leaky_relu", "left_shift", "less", "less_equal", "local_response_norm", "log",
    "log2", "log10", "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor",
    "lp_normalize", "lp_pool", "mask_scores", "masked_softmax", "matmul", "max_pool", "max_pool2d",
    "max_roi_pool", "maximum", "minimum", "mish", "multiply", "negative", "norm", "one_hot", "pad",
    "pad_mirrored", "pad_with", "power", "prelu", "quantize", "reciprocal", "reduce_l1",
    "reduce_l2", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean", "reduce_min",
    "reduce_prod", "reduce_sum", "reduce_sum_square", "relu", "remainder", "requantize", "reshape",
    "reverse_sequence", "right_shift", "rint", "rms_norm", "roi_align", "rotary_embedding", "rsqrt",
    "scale_shift", "scatter_elements", "scatter_nd", "selu", "shrink", "sigmoid", "sign", "silu",
    "sin", "sinh", "slice_", "softcap", "softmax", "softplus", "softsign", "space_to_depth", "sqrt",
    "subtract", "swiglu", "swish", "take", "tan", "tanh", "tensor_scatter", "thresholded_relu",
    "tile", "to_integers", "to_reals", "top_k", "transpose", "transpose_batch_matmul", "trilu",
    "trunc_divide", "weighted_sum", "where",
]  # fmt: skip
