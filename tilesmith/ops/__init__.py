"""The named operators, each a function from tensors to a tensor."""

from tilesmith.ops.activation import (
    celu as celu,
)
from tilesmith.ops.activation import (
    elu as elu,
)
from tilesmith.ops.activation import (
    hard_sigmoid as hard_sigmoid,
)
from tilesmith.ops.activation import (
    hard_swish as hard_swish,
)
from tilesmith.ops.activation import (
    mish as mish,
)
from tilesmith.ops.activation import (
    prelu as prelu,
)
from tilesmith.ops.activation import (
    selu as selu,
)
from tilesmith.ops.activation import (
    shrink as shrink,
)
from tilesmith.ops.activation import (
    softplus as softplus,
)
from tilesmith.ops.activation import (
    softsign as softsign,
)
from tilesmith.ops.activation import (
    swish as swish,
)
from tilesmith.ops.activation import (
    thresholded_relu as thresholded_relu,
)
from tilesmith.ops.attention import (
    mask_scores as mask_scores,
)
from tilesmith.ops.attention import (
    masked_softmax as masked_softmax,
)
from tilesmith.ops.attention import (
    rotary_embedding as rotary_embedding,
)
from tilesmith.ops.attention import (
    softcap as softcap,
)
from tilesmith.ops.attention import (
    swiglu as swiglu,
)
from tilesmith.ops.blocks import (
    col2im as col2im,
)
from tilesmith.ops.blocks import (
    crop_or_pad as crop_or_pad,
)
from tilesmith.ops.blocks import (
    depth_to_space as depth_to_space,
)
from tilesmith.ops.blocks import (
    space_to_depth as space_to_depth,
)
from tilesmith.ops.causal import (
    causal_conv1d as causal_conv1d,
)
from tilesmith.ops.conv import (
    capsule_conv2d as capsule_conv2d,
)
from tilesmith.ops.conv import (
    conv1d as conv1d,
)
from tilesmith.ops.conv import (
    conv2d as conv2d,
)
from tilesmith.ops.conv import (
    conv3d as conv3d,
)
from tilesmith.ops.conv import (
    depthwise_conv2d as depthwise_conv2d,
)
from tilesmith.ops.conv_transpose import (
    conv1d_transpose as conv1d_transpose,
)
from tilesmith.ops.conv_transpose import (
    conv2d_transpose as conv2d_transpose,
)
from tilesmith.ops.conv_transpose import (
    conv3d_transpose as conv3d_transpose,
)
from tilesmith.ops.deform import (
    deform_conv as deform_conv,
)
from tilesmith.ops.einsum import (
    einsum as einsum,
)
from tilesmith.ops.elementwise import (
    absolute as absolute,
)
from tilesmith.ops.elementwise import (
    add as add,
)
from tilesmith.ops.elementwise import (
    bias_add as bias_add,
)
from tilesmith.ops.elementwise import (
    cast as cast,
)
from tilesmith.ops.elementwise import (
    ceil as ceil,
)
from tilesmith.ops.elementwise import (
    clip as clip,
)
from tilesmith.ops.elementwise import (
    divide as divide,
)
from tilesmith.ops.elementwise import (
    erf as erf,
)
from tilesmith.ops.elementwise import (
    exp as exp,
)
from tilesmith.ops.elementwise import (
    floor as floor,
)
from tilesmith.ops.elementwise import (
    gelu as gelu,
)
from tilesmith.ops.elementwise import (
    leaky_relu as leaky_relu,
)
from tilesmith.ops.elementwise import (
    log as log,
)
from tilesmith.ops.elementwise import (
    log2 as log2,
)
from tilesmith.ops.elementwise import (
    log10 as log10,
)
from tilesmith.ops.elementwise import (
    maximum as maximum,
)
from tilesmith.ops.elementwise import (
    minimum as minimum,
)
from tilesmith.ops.elementwise import (
    multiply as multiply,
)
from tilesmith.ops.elementwise import (
    negative as negative,
)
from tilesmith.ops.elementwise import (
    power as power,
)
from tilesmith.ops.elementwise import (
    reciprocal as reciprocal,
)
from tilesmith.ops.elementwise import (
    relu as relu,
)
from tilesmith.ops.elementwise import (
    rint as rint,
)
from tilesmith.ops.elementwise import (
    rsqrt as rsqrt,
)
from tilesmith.ops.elementwise import (
    sigmoid as sigmoid,
)
from tilesmith.ops.elementwise import (
    sign as sign,
)
from tilesmith.ops.elementwise import (
    silu as silu,
)
from tilesmith.ops.elementwise import (
    sqrt as sqrt,
)
from tilesmith.ops.elementwise import (
    subtract as subtract,
)
from tilesmith.ops.elementwise import (
    tanh as tanh,
)
from tilesmith.ops.elementwise import (
    where as where,
)
from tilesmith.ops.group_norm import (
    group_norm as group_norm,
)
from tilesmith.ops.group_norm import (
    instance_norm as instance_norm,
)
from tilesmith.ops.group_norm import (
    local_response_norm as local_response_norm,
)
from tilesmith.ops.group_norm import (
    lp_normalize as lp_normalize,
)
from tilesmith.ops.group_norm import (
    rms_norm as rms_norm,
)
from tilesmith.ops.indices import (
    gather as gather,
)
from tilesmith.ops.indices import (
    gather_elements as gather_elements,
)
from tilesmith.ops.indices import (
    gather_nd as gather_nd,
)
from tilesmith.ops.indices import (
    one_hot as one_hot,
)
from tilesmith.ops.integer import (
    bitwise_and as bitwise_and,
)
from tilesmith.ops.integer import (
    bitwise_not as bitwise_not,
)
from tilesmith.ops.integer import (
    bitwise_or as bitwise_or,
)
from tilesmith.ops.integer import (
    bitwise_xor as bitwise_xor,
)
from tilesmith.ops.integer import (
    fmod as fmod,
)
from tilesmith.ops.integer import (
    integer_power as integer_power,
)
from tilesmith.ops.integer import (
    left_shift as left_shift,
)
from tilesmith.ops.integer import (
    remainder as remainder,
)
from tilesmith.ops.integer import (
    right_shift as right_shift,
)
from tilesmith.ops.integer import (
    trunc_divide as trunc_divide,
)
from tilesmith.ops.logic import (
    equal as equal,
)
from tilesmith.ops.logic import (
    greater as greater,
)
from tilesmith.ops.logic import (
    greater_equal as greater_equal,
)
from tilesmith.ops.logic import (
    isinf as isinf,
)
from tilesmith.ops.logic import (
    isnan as isnan,
)
from tilesmith.ops.logic import (
    less as less,
)
from tilesmith.ops.logic import (
    less_equal as less_equal,
)
from tilesmith.ops.logic import (
    logical_and as logical_and,
)
from tilesmith.ops.logic import (
    logical_not as logical_not,
)
from tilesmith.ops.logic import (
    logical_or as logical_or,
)
from tilesmith.ops.logic import (
    logical_xor as logical_xor,
)
from tilesmith.ops.matmul import (
    batch_matmul as batch_matmul,
)
from tilesmith.ops.matmul import (
    dense as dense,
)
from tilesmith.ops.matmul import (
    matmul as matmul,
)
from tilesmith.ops.matmul import (
    transpose_batch_matmul as transpose_batch_matmul,
)
from tilesmith.ops.norm import (
    batch_norm as batch_norm,
)
from tilesmith.ops.norm import (
    layer_norm as layer_norm,
)
from tilesmith.ops.norm import (
    log_softmax as log_softmax,
)
from tilesmith.ops.norm import (
    norm as norm,
)
from tilesmith.ops.norm import (
    scale_shift as scale_shift,
)
from tilesmith.ops.norm import (
    softmax as softmax,
)
from tilesmith.ops.pool import (
    avg_pool as avg_pool,
)
from tilesmith.ops.pool import (
    avg_pool2d as avg_pool2d,
)
from tilesmith.ops.pool import (
    global_avg_pool as global_avg_pool,
)
from tilesmith.ops.pool import (
    global_avg_pool2d as global_avg_pool2d,
)
from tilesmith.ops.pool import (
    global_lp_pool as global_lp_pool,
)
from tilesmith.ops.pool import (
    global_max_pool as global_max_pool,
)
from tilesmith.ops.pool import (
    lp_pool as lp_pool,
)
from tilesmith.ops.pool import (
    max_pool as max_pool,
)
from tilesmith.ops.pool import (
    max_pool2d as max_pool2d,
)
from tilesmith.ops.quantize import (
    dequantize as dequantize,
)
from tilesmith.ops.quantize import (
    quantize as quantize,
)
from tilesmith.ops.quantize import (
    requantize as requantize,
)
from tilesmith.ops.quantize import (
    to_integers as to_integers,
)
from tilesmith.ops.quantize import (
    to_reals as to_reals,
)
from tilesmith.ops.quantize import (
    weighted_sum as weighted_sum,
)
from tilesmith.ops.reduce import (
    reduce_l1 as reduce_l1,
)
from tilesmith.ops.reduce import (
    reduce_l2 as reduce_l2,
)
from tilesmith.ops.reduce import (
    reduce_log_sum as reduce_log_sum,
)
from tilesmith.ops.reduce import (
    reduce_log_sum_exp as reduce_log_sum_exp,
)
from tilesmith.ops.reduce import (
    reduce_max as reduce_max,
)
from tilesmith.ops.reduce import (
    reduce_mean as reduce_mean,
)
from tilesmith.ops.reduce import (
    reduce_min as reduce_min,
)
from tilesmith.ops.reduce import (
    reduce_prod as reduce_prod,
)
from tilesmith.ops.reduce import (
    reduce_sum as reduce_sum,
)
from tilesmith.ops.reduce import (
    reduce_sum_square as reduce_sum_square,
)
from tilesmith.ops.regions import (
    max_roi_pool as max_roi_pool,
)
from tilesmith.ops.regions import (
    roi_align as roi_align,
)
from tilesmith.ops.sample import (
    affine_grid as affine_grid,
)
from tilesmith.ops.sample import (
    grid_sample as grid_sample,
)
from tilesmith.ops.scan import (
    cumprod as cumprod,
)
from tilesmith.ops.scan import (
    cumsum as cumsum,
)
from tilesmith.ops.scatter import (
    scatter_elements as scatter_elements,
)
from tilesmith.ops.scatter import (
    scatter_nd as scatter_nd,
)
from tilesmith.ops.scatter import (
    tensor_scatter as tensor_scatter,
)
from tilesmith.ops.search import (
    argmax as argmax,
)
from tilesmith.ops.search import (
    argmin as argmin,
)
from tilesmith.ops.search import (
    hardmax as hardmax,
)
from tilesmith.ops.topk import (
    top_k as top_k,
)
from tilesmith.ops.transform import (
    concatenate as concatenate,
)
from tilesmith.ops.transform import (
    embedding as embedding,
)
from tilesmith.ops.transform import (
    flatten as flatten,
)
from tilesmith.ops.transform import (
    pad as pad,
)
from tilesmith.ops.transform import (
    reshape as reshape,
)
from tilesmith.ops.transform import (
    take as take,
)
from tilesmith.ops.transform import (
    transpose as transpose,
)
from tilesmith.ops.trigonometry import (
    acos as acos,
)
from tilesmith.ops.trigonometry import (
    acosh as acosh,
)
from tilesmith.ops.trigonometry import (
    asin as asin,
)
from tilesmith.ops.trigonometry import (
    asinh as asinh,
)
from tilesmith.ops.trigonometry import (
    atan as atan,
)
from tilesmith.ops.trigonometry import (
    atanh as atanh,
)
from tilesmith.ops.trigonometry import (
    cos as cos,
)
from tilesmith.ops.trigonometry import (
    cosh as cosh,
)
from tilesmith.ops.trigonometry import (
    sin as sin,
)
from tilesmith.ops.trigonometry import (
    sinh as sinh,
)
from tilesmith.ops.trigonometry import (
    tan as tan,
)
from tilesmith.ops.views import (
    expand as expand,
)
from tilesmith.ops.views import (
    pad_mirrored as pad_mirrored,
)
from tilesmith.ops.views import (
    pad_with as pad_with,
)
from tilesmith.ops.views import (
    reverse_sequence as reverse_sequence,
)
from tilesmith.ops.views import (
    slice_ as slice_,
)
from tilesmith.ops.views import (
    tile as tile,
)
from tilesmith.ops.views import (
    trilu as trilu,
)

# What is imported above, without the modules themselves.
__all__ = sorted(n for n, v in globals().items() if callable(v))
