"""Every operator, by the oracle and by the interpreter: two readings of one Function must agree."""

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.serialize import function_to_json

OPS = ts.ops
ids, truth = "ids", "truth"  # stand for arrays that are no float32

# operator -> [(shapes of the inputs, settings)], tiny because the interpreter walks every element
CASES = {
    "absolute": [([(2, 3)], {})],
    "add": [([(2, 3), (3,)], {})],
    "argmax": [([(2, 5)], {}), ([(3, 2, 2)], {"axis": 0, "keepdims": True})],
    "argmin": [([(2, 5)], {"axis": None})],
    "avg_pool2d": [
        ([(1, 2, 4, 4)], {"kernel": 2}),
        ([(1, 1, 4, 5)], {"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
        ([(1, 5, 4, 1)], {"kernel": 2, "stride": 2, "ceil_mode": True, "layout": "NHWC"}),
    ],
    "batch_matmul": [([(2, 2, 3), (2, 3, 2)], {}), ([(1, 3, 2), (2, 3, 2)], {"transpose_a": True})],
    "batch_norm": [([(1, 2, 3), (2,), (2,), (2,), (2,)], {})],
    "bias_add": [([(2, 3), (3,)], {})],
    "capsule_conv2d": [([(1, 3, 3, 2, 2, 1), (2, 2, 2, 2, 1, 2)], {"padding": 1, "stride": 2})],
    "cast": [([(3,)], {"dtype": "int32"}), ([(3,)], {"dtype": "float16"})],
    "clip": [([(5,)], {"low": -0.5, "high": 0.5})],
    "concatenate": [([(2, 2), (1, 2), (3, 2)], {})],
    "conv1d": [([(1, 2, 5), (2, 2, 3)], {"padding": 1, "stride": 2})],
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
    "dense": [([(2, 3), (2, 3), (2,)], {}), ([(2, 3), (2, 3)], {"out_dtype": "float16"})],
    "depthwise_conv2d": [([(1, 2, 3, 3), (4, 1, 2, 2)], {"padding": 1})],
    "divide": [([(2, 3), (1, 3)], {})],
    "einsum": [
        ([(2, 3), (3, 2)], {"equation": "ij,jk->ki"}),
        ([(2, 3, 3)], {"equation": "...ii->...i"}),
    ],
    "embedding": [([(3, 2), ids], {})],
    "erf": [([(3,)], {})],
    "exp": [([(3,)], {})],
    "flatten": [([(2, 3, 2)], {})],
    "gelu": [([(4,)], {}), ([(4,)], {"approximate": "tanh"})],
    "global_avg_pool2d": [([(1, 2, 3, 2)], {})],
    "layer_norm": [([(2, 3), (3,), (3,)], {}), ([(2, 3)], {"axis": 0})],
    "leaky_relu": [([(4,)], {})],
    "log": [([(3,)], {})],
    "log_softmax": [([(2, 3)], {})],
    "mask_scores": [([(1, 2, 2, 3), (2, 3)], {"causal": True, "left": 1, "offset": 1})],
    "masked_softmax": [([(2, 3)], {})],
    "matmul": [
        ([(2, 3), (3, 2)], {}),
        ([(3, 2), (2, 3)], {"transpose_a": True, "transpose_b": True}),
    ],
    "max_pool2d": [([(1, 1, 4, 4)], {"kernel": 3, "stride": 2, "padding": 1})],
    "maximum": [([(2, 3), (2, 1)], {})],
    "minimum": [([(2, 3), (2, 1)], {})],
    "multiply": [([(2, 3), ()], {})],
    "negative": [([(3,)], {})],
    "norm": [([(2, 3)], {}), ([(2, 2, 3)], {})],
    "pad": [([(2, 3)], {"widths": ((1, 0), (0, 2)), "value": 7})],
    "power": [([(3,), (3,)], {})],
    "relu": [([(4,)], {})],
    "reshape": [([(2, 3, 2)], {"shape": (3, 4)})],
    "rotary_embedding": [
        ([(1, 2, 3, 5), (1, 3, 2), (1, 3, 2)], {"width": 4}),
        ([(1, 2, 3, 4), (1, 2, 2), (1, 2, 2)], {"axis": 1, "interleaved": True}),
    ],
    "scale_shift": [([(1, 2, 3), (2,), (2,)], {})],
    "sigmoid": [([(3,)], {})],
    "silu": [([(3,)], {})],
    "softcap": [([(4,)], {"limit": 0.5})],
    "softmax": [([(2, 3)], {}), ([(2, 3)], {"axis": 0})],
    "sqrt": [([(3,)], {})],
    "subtract": [([(2, 3), (3,)], {})],
    "swiglu": [([(4,), (4,)], {"alpha": 0.5})],
    "take": [([(2, 3), ids], {"axis": 1})],
    "tanh": [([(3,)], {})],
    "transpose": [([(2, 3)], {})],
    "transpose_batch_matmul": [([(1, 2, 2, 3), (1, 3, 2, 3)], {})],
    "where": [([truth, (2, 3), (3,)], {})],
}


def test_every_operator_is_here():
    assert sorted(CASES) == sorted(OPS.__all__)
    for name in OPS.__all__:
        assert callable(getattr(OPS, name))


def _array(rng, shape):
    if shape == ids:
        return np.array([1, 0, 1], np.int64)
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


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("concatenate", "cast")])
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
