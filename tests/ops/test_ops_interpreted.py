"""Every operator, by the oracle and by the interpreter: two readings of one Function must agree."""

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.serialize import function_to_json

OPS = ts.ops
NOTHING = float("-inf")
ids, truth, rows = "ids", "truth", "rows"  # stand for arrays that are no float32
byte, some_bytes = "byte", "some bytes"

# operator -> [(shapes of the inputs, settings)], tiny because the interpreter walks every element
CASES = {
    "absolute": [([(2, 3)], {})],
    "acos": [([(4,)], {})],
    "acosh": [([(4,)], {})],
    "add": [([(2, 3), (3,)], {})],
    "affine_grid": [([(1, 2, 3)], {"size": (2, 3)})],
    "argmax": [([(2, 5)], {}), ([(3, 2, 2)], {"axis": 0, "keepdims": True})],
    "argmin": [([(2, 5)], {"axis": None})],
    "asin": [([(4,)], {})],
    "asinh": [([(4,)], {})],
    "atan": [([(4,)], {})],
    "atanh": [([(4,)], {})],
    "attention": [
        ([(1, 4, 2, 3), (1, 2, 3, 3), (1, 2, 3, 2)], {}),
        (
            [(1, 2, 3, 2), (1, 1, 4, 2), (1, 1, 4, 2)],
            {"scale": 0.5, "score": lambda s, b, h, i, j: ts.where(j < i, s * 2, NOTHING)},
        ),
    ],
    "avg_pool": [
        ([(1, 1, 5)], {"kernel": 2, "padding": 1, "count_include_pad": False, "dilation": 2}),
    ],
    "avg_pool2d": [
        ([(1, 2, 4, 4)], {"kernel": 2}),
        ([(1, 1, 4, 5)], {"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
        ([(1, 5, 4, 1)], {"kernel": 2, "stride": 2, "ceil_mode": True, "layout": "NHWC"}),
    ],
    "batch_matmul": [([(2, 2, 3), (2, 3, 2)], {}), ([(1, 3, 2), (2, 3, 2)], {"transpose_a": True})],
    "batch_norm": [([(1, 2, 3), (2,), (2,), (2,), (2,)], {})],
    "bias_add": [([(2, 3), (3,)], {})],
    "bitwise_and": [([ids, ids], {})],
    "bitwise_not": [([ids], {})],
    "bitwise_or": [([ids, ids], {})],
    "bitwise_xor": [([ids, ids], {})],
    "capsule_conv2d": [([(1, 3, 3, 2, 2, 1), (2, 2, 2, 2, 1, 2)], {"padding": 1, "stride": 2})],
    "cast": [([(3,)], {"dtype": "int32"}), ([(3,)], {"dtype": "float16"})],
    "causal_conv1d": [([(1, 2, 4), (2, 1, 3)], {}), ([(1, 2, 3), (2, 1, 3), (1, 2, 2)], {})],
    "ceil": [([(4,)], {})],
    "celu": [([(4,)], {"alpha": 2.0})],
    "clip": [([(5,)], {"low": -0.5, "high": 0.5})],
    "col2im": [([(1, 4, 3)], {"image": (3, 4), "block": 2, "stride": (2, 1)})],
    "concatenate": [([(2, 2), (1, 2), (3, 2)], {})],
    "conv1d": [([(1, 2, 5), (2, 2, 3)], {"padding": 1, "stride": 2})],
    "conv1d_transpose": [([(1, 2, 3), (2, 1, 4)], {"stride": 2, "padding": 1})],
    "conv2d": [
        ([(1, 2, 4, 3), (2, 2, 3, 2)], {"padding": 1}),
        ([(1, 2, 4, 4), (4, 1, 2, 2)], {"groups": 2, "stride": 2}),
        ([(1, 4, 4, 2), (2, 2, 2, 1)], {"layout": "NHWC", "dilation": 2}),
    ],
    "conv2d_transpose": [
        ([(1, 2, 2, 3), (2, 1, 3, 2)], {"stride": 2, "padding": 1, "output_padding": 1}),
        ([(1, 2, 2, 2), (2, 1, 2, 2)], {"groups": 2}),
    ],
    "conv3d": [([(1, 1, 2, 3, 2), (1, 1, 2, 2, 2)], {"padding": (0, 1, 0)})],
    "conv3d_transpose": [([(1, 1, 2, 2, 1), (1, 2, 2, 1, 3)], {"stride": (2, 1, 1)})],
    "cos": [([(3,)], {})],
    "cosh": [([(4,)], {})],
    "crop_or_pad": [([(2, 3)], {"starts": (-1, 1), "shape": (4, 2)})],
    "cumprod": [([(2, 5)], {}), ([(70, 2)], {"axis": 0, "exclusive": True})],
    "cumsum": [([(2, 5)], {"axis": 0}), ([(2, 70)], {"reverse": True})],
    "deform_conv": [([(1, 2, 3, 3), (2, 1, 2, 2), (1, 8, 2, 2)], {"groups": 2})],
    "dense": [([(2, 3), (2, 3), (2,)], {}), ([(2, 3), (2, 3)], {"out_dtype": "float16"})],
    "depth_to_space": [
        ([(1, 4, 1, 2)], {"block": 2}),
        ([(1, 1, 2, 8)], {"block": 2, "channel_last": True, "layout": "NHWC"}),
    ],
    "depthwise_conv2d": [([(1, 2, 3, 3), (4, 1, 2, 2)], {"padding": 1})],
    "dequantize": [([ids, ()], {}), ([ids, (3,), ids], {"axis": 0, "dtype": "float16"})],
    "divide": [([(2, 3), (1, 3)], {})],
    "einsum": [
        ([(2, 3), (3, 2)], {"equation": "ij,jk->ki"}),
        ([(2, 3, 3)], {"equation": "...ii->...i"}),
    ],
    "elu": [([(4,)], {})],
    "embedding": [([(3, 2), ids], {})],
    "equal": [([(2, 3), (3,)], {})],
    "erf": [([(3,)], {})],
    "exp": [([(3,)], {})],
    "expand": [([(2, 1)], {"shape": (2, 2, 3)})],
    "flatten": [([(2, 3, 2)], {})],
    "floor": [([(4,)], {})],
    "fmod": [([(2, 3), (3,)], {})],
    "gelu": [([(4,)], {}), ([(4,)], {"approximate": "tanh"})],
    "global_avg_pool": [([(1, 2, 3)], {})],
    "global_avg_pool2d": [([(1, 2, 3, 2)], {})],
    "global_lp_pool": [([(1, 2, 3)], {"p": 3})],
    "global_max_pool": [([(1, 2, 2, 3)], {"layout": "NHWC"})],
    "greater": [([(2, 3), (3,)], {})],
    "greater_equal": [([(2, 3), (3,)], {})],
    "grid_sample": [
        ([(1, 2, 3, 2), (1, 2, 1, 2)], {"padding_mode": "border"}),
        ([(1, 1, 3, 3), (1, 2, 1, 2)], {"mode": "cubic"}),
    ],
    "group_norm": [([(2, 4, 3), (4,), (4,)], {"groups": 2})],
    "hard_sigmoid": [([(4,)], {})],
    "hard_swish": [([(4,)], {})],
    "hardmax": [([(2, 3)], {}), ([(2, 3)], {"axis": 0})],
    "instance_norm": [([(2, 2, 3), (2,), (2,)], {})],
    "integer_power": [([ids, ids], {})],
    "isinf": [([(3,)], {})],
    "isnan": [([(3,)], {})],
    "layer_norm": [([(2, 3), (3,), (3,)], {}), ([(2, 3)], {"axis": 0})],
    "leaky_relu": [([(4,)], {})],
    "left_shift": [([ids, ids], {})],
    "less": [([(2, 3), (3,)], {})],
    "less_equal": [([(2, 3), (3,)], {})],
    "local_response_norm": [([(1, 4, 2)], {"size": 3})],
    "log": [([(3,)], {})],
    "log10": [([(3,)], {})],
    "log2": [([(3,)], {})],
    "log_softmax": [([(2, 3)], {})],
    "logical_and": [([truth, truth], {})],
    "logical_not": [([truth], {})],
    "logical_or": [([truth, truth], {})],
    "logical_xor": [([truth, truth], {})],
    "lp_normalize": [([(2, 3)], {}), ([(2, 3)], {"axis": 0, "p": 1})],
    "lp_pool": [([(1, 4, 2)], {"kernel": 3, "stride": 1, "padding": 1, "layout": "NWC"})],
    "mask_scores": [([(1, 2, 2, 3), (2, 3)], {"causal": True, "left": 1, "offset": 1})],
    "masked_softmax": [([(2, 3)], {})],
    "matmul": [
        ([(2, 3), (3, 2)], {}),
        ([(3, 2), (2, 3)], {"transpose_a": True, "transpose_b": True}),
    ],
    "max_pool": [([(1, 1, 2, 4, 3)], {"kernel": 2, "stride": 1})],
    "max_pool2d": [([(1, 1, 4, 4)], {"kernel": 3, "stride": 2, "padding": 1})],
    "max_roi_pool": [([(1, 2, 3, 3), (2, 5)], {"size": 2, "scale": 3.0})],
    "maximum": [([(2, 3), (2, 1)], {})],
    "minimum": [([(2, 3), (2, 1)], {})],
    "mish": [([(4,)], {})],
    "multiply": [([(2, 3), ()], {})],
    "negative": [([(3,)], {})],
    "norm": [([(2, 3)], {}), ([(2, 2, 3)], {})],
    "pad": [([(2, 3)], {"widths": ((1, 0), (0, 2)), "value": 7})],
    "pad_mirrored": [([(2, 3)], {"widths": ((0, 1), (2, 1))})],
    "pad_with": [([(2, 3), ()], {"widths": 1})],
    "power": [([(3,), (3,)], {})],
    "prelu": [([(2, 3), (3,)], {})],
    "quantize": [([(2, 3), (3,)], {"dtype": "int8"}), ([(2, 4), (2, 2)], {"block": 2})],
    "reciprocal": [([(3,)], {})],
    "reduce_l1": [([(2, 3)], {"axes": (0,)})],
    "reduce_l2": [([(2, 3)], {"axes": 1, "keepdims": True})],
    "reduce_log_sum": [([(2, 3)], {"axes": ()})],
    "reduce_log_sum_exp": [([(2, 3)], {"axes": (1,)})],
    "reduce_max": [([(2, 3, 2)], {"axes": (0, 2)})],
    "reduce_mean": [([(2, 3)], {})],
    "reduce_min": [([(2, 3)], {})],
    "reduce_prod": [([(2, 3)], {})],
    "reduce_sum": [([(2, 3, 2)], {"axes": (-1, 0), "keepdims": True})],
    "reduce_sum_square": [([(2, 3)], {"axes": (0,)})],
    "relu": [([(4,)], {})],
    "remainder": [([(2, 3), (3,)], {})],
    "requantize": [
        ([ids, (3,), ids], {"dtype": "int8"}),
        ([ids, (3,), ids, (3,)], {"dtype": "int8"}),
    ],
    "reshape": [([(2, 3, 2)], {"shape": (3, 4)})],
    "requantize_sum": [([some_bytes, (3,), (), some_bytes, (), *z], {}) for z in ((), ((),))],
    "reverse_sequence": [([(3, 3), ids], {})],
    "right_shift": [([ids, ids], {})],
    "rint": [([(4,)], {})],
    "rms_norm": [([(2, 3), (3,)], {}), ([(2, 3)], {"axis": 0})],
    "roi_align": [([(2, 1, 3, 3), (3, 4), ids], {"size": 2, "scale": 4.0})],
    "rotary_embedding": [
        ([(1, 2, 3, 5), (1, 3, 2), (1, 3, 2)], {"width": 4}),
        ([(1, 2, 3, 4), (1, 2, 2), (1, 2, 2)], {"axis": 1, "interleaved": True}),
    ],
    "rsqrt": [([(3,)], {})],
    "scale_shift": [([(1, 2, 3), (2,), (2,)], {})],
    "selu": [([(4,)], {})],
    "shrink": [([(4,)], {"lambd": 0.1, "bias": 0.2})],
    "sigmoid": [([(3,)], {})],
    "sign": [([(4,)], {})],
    "silu": [([(3,)], {})],
    "sin": [([(3,)], {})],
    "sinh": [([(4,)], {})],
    "scaled_reals": [([some_bytes, (3,), *rest], {}) for rest in ((), ((),))],
    "slice_": [([(3, 4)], {"starts": (0, 3), "stops": (2, 0), "steps": (1, -2)})],
    "softcap": [([(4,)], {"limit": 0.5})],
    "softmax": [([(2, 3)], {}), ([(2, 3)], {"axis": 0})],
    "softplus": [([(4,)], {})],
    "softsign": [([(4,)], {})],
    "space_to_depth": [([(1, 2, 2, 4)], {"block": 2})],
    "sqrt": [([(3,)], {})],
    "subtract": [([(2, 3), (3,)], {})],
    "swiglu": [([(4,), (4,)], {"alpha": 0.5})],
    "swish": [([(4,)], {"alpha": 2.0})],
    "take": [([(2, 3), ids], {"axis": 1})],
    "tan": [([(4,)], {})],
    "tanh": [([(3,)], {})],
    "thresholded_relu": [([(4,)], {"alpha": 0.1})],
    "tile": [([(2, 3)], {"repeats": (2, 1)})],
    "transpose": [([(2, 3)], {})],
    "transpose_batch_matmul": [([(1, 2, 2, 3), (1, 3, 2, 3)], {})],
    "trilu": [([(3, 3)], {"k": 1})],
    "trunc_divide": [([ids, ids], {})],
    "where": [([truth, (2, 3), (3,)], {})],
}

# views and indices
CASES |= {
    "expand": [([(3, 1)], {"shape": (2, 3, 2)})],
    "gather": [([(2, 3), ids], {"axis": 1})],
    "gather_elements": [([(3,), ids], {})],
    "gather_nd": [([(2, 2, 2), ids], {}), ([(2, 3), rows], {})],
    "lookup": [([some_bytes, (256,)], {})],
    "one_hot": [([ids, (2,)], {"depth": 3, "axis": 0})],
    "pad_mirrored": [([(2, 3)], {"widths": ((1, 0), (0, 4)), "mode": m})
                     for m in ("reflect", "edge", "wrap")],
    "pad_with": [([(2, 3), ()], {"widths": ((1, 0), (0, 2))})],
    "reverse_sequence": [([(4, 3), ids], {})],
    "scatter_elements": [([(4,), ids, (3,)], {"reduction": r})
                         for r in ("add", "mul", "max", "min")],
    "scatter_nd": [([(2, 3), rows, (3, 3)], {}), ([(4,), rows, (3,)], {"reduction": "max"})],
    "slice_": [([(3, 4)], {"starts": (1, -1), "stops": (None, -9), "steps": (1, -2)})],
    "tensor_scatter": [([(3, 4, 2), (3, 1, 2), ids], {}),
                       ([(3, 2, 2), (3, 2, 2), ids], {"circular": True})],
    "tile": [([(2, 3)], {"repeats": (2, 1)})],
    "to_integers": [([(2, 3), (), byte], {}), ([(4,), (), byte], {"dtype": "uint8"})],
    "to_reals": [([some_bytes, (), byte], {})],
    "top_k": [],  # two results: tests/ops/test_ops_indices.py
    "trilu": [([(3, 3)], {}), ([(2, 3)], {"k": -1, "upper": False})],
    "weighted_sum": [([some_bytes, some_bytes, (), (), (), *z], {}) for z in ((), ((),))],
}  # fmt: skip


def test_every_operator_is_here():
    assert sorted(CASES) == sorted(OPS.__all__)
    for name in OPS.__all__:
        assert callable(getattr(OPS, name))


def _array(rng, shape):
    if shape == ids:
        return np.array([1, 0, 1], np.int64)
    if shape == rows:
        return np.array([[1], [0], [-1]], np.int64)
    if shape == byte:
        return np.array(3, np.uint8)
    if shape == some_bytes:
        return np.array([0, 200, 255], np.uint8)
    if shape == truth:
        return np.array([[True, False, True], [False, False, True]])
    return np.asarray(rng.random(shape) - 0.3, np.float32)


@pytest.mark.parametrize(
    ("name", "shapes", "settings"), [(n, *case) for n, cases in CASES.items() for case in cases]
)
def test_oracle_and_interpreter_agree(rng, stated, name, shapes, settings):
    arrays = [_array(rng, s) for s in shapes]
    if name == "power":
        arrays = [np.abs(a) + 0.1 for a in arrays]
    op = getattr(OPS, name)
    if name == "concatenate":
        func = stated(lambda *tensors: OPS.concatenate(tensors, **settings), *arrays)
    else:
        func = stated(op, *arrays, **settings)
    want, got = ts.evaluate(func, *arrays), ts.interpret(func, *arrays)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int32", "uint8"])
def test_matmul_in_every_dtype(rng, dtype):
    A, B = (ts.placeholder(s, dtype=dtype, name=n) for n, s in (("A", (2, 3)), ("B", (3, 2))))
    func = ts.function([A, B, OPS.matmul(A, B)])
    a, b = rng.integers(0, 5, (2, 3)), rng.integers(0, 5, (3, 2))
    got = ts.interpret(func, a, b)
    np.testing.assert_array_equal(got.astype(np.float64), a @ b)
    np.testing.assert_array_equal(ts.evaluate(func, a, b).astype(np.float64), a @ b)


@pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if c and n not in ("concatenate", "cast")]
)
def test_the_result_takes_the_name(rng, stated, name):
    shapes, settings = CASES[name][0]
    func = stated(getattr(OPS, name), *(_array(rng, s) for s in shapes), **settings, name="mine")
    assert [b.name for b in func.outputs] == ["mine"]


@pytest.mark.parametrize(
    ("name", "shapes", "settings"), [(n, *case) for n, cases in CASES.items() for case in cases]
)
def test_every_operator_goes_through_json(rng, stated, name, shapes, settings):
    arrays = [_array(rng, s) for s in shapes]
    if name == "concatenate":
        func = stated(lambda *tensors: OPS.concatenate(tensors, **settings), *arrays)
    else:
        func = stated(getattr(OPS, name), *arrays, **settings)
    assert function_from_json(function_to_json(func)) == func
