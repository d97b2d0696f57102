"""Small valid ONNX models of many kinds: what mutations start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, UINT8 = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8,
)  # fmt: skip
N = helper.make_node


@dataclass(frozen=True)
class Seed:
    model: onnx.ModelProto
    files: Mapping[str, bytes] = field(default_factory=dict)  # beside the model


def _w(*shape: int) -> Any:
    """Weights that are the same everywhere."""
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) / np.sqrt(max(1, shape[-1]))).astype(np.float32)


def _ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, int],
    constants: Mapping[str, Any],
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "seed",
        [helper.make_tensor_value_info(n, t, list(s)) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    opsets = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(f.domain, 1) for f in functions),
    ]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


def conv_net() -> Seed:
    nodes = [
        N(
            "Conv",
            ["x", "w1", "b1"],
            ["c1"],
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            strides=[2, 2],
        ),
        N("BatchNormalization", ["c1", "s", "o", "m", "v"], ["n1"], epsilon=1e-4),
        N("Relu", ["n1"], ["r1"]),
        N("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        N("Conv", ["p1", "w2"], ["c2"], group=4, auto_pad="SAME_UPPER", dilations=[1, 1]),
        N("Clip", ["c2", "low", "high"], ["r2"]),
        N("Add", ["p1", "r2"], ["a"]),
        N("AveragePool", ["a"], ["p2"], kernel_shape=[2, 2], count_include_pad=1),
        N("ConvTranspose", ["p2", "w3"], ["t"], strides=[2, 2], output_padding=[1, 1]),
        N("GlobalAveragePool", ["t"], ["g"]),
        N("Flatten", ["g"], ["f"], axis=1),
        N("Gemm", ["f", "w4", "b4"], ["h"], transB=1, alpha=0.5),
        N("Softmax", ["h"], ["y"], axis=-1),
    ]
    constants = {
        "w1": _w(4, 3, 3, 3), "b1": _w(4), "s": _w(4), "o": _w(4), "m": _w(4),
        "v": np.abs(_w(4)) + 1, "w2": _w(4, 1, 3, 3), "low": np.float32(0), "high": np.float32(6),
        "w3": _w(4, 2, 3, 3), "w4": _w(5, 2), "b4": _w(5),
    }  # fmt: skip
    return Seed(_model(nodes, {"x": (FLOAT, [1, 3, 12, 12])}, {"y": FLOAT}, constants))


def attention() -> Seed:
    """One layer of a transformer, its batch and length open, as exporters spell it out."""
    nodes = [
        N("Gather", ["table", "ids"], ["x"], axis=0),
        N("Shape", ["x"], ["shape"]),
        N("Slice", ["shape", "zero", "two"], ["lead"]),
        N("Concat", ["lead", "heads"], ["split"], axis=0),
        *(
            node
            for k in "qkv"
            for node in (
                N("MatMul", ["x", f"w{k}"], [f"m{k}"]),
                N("Reshape", [f"m{k}", "split"], [f"r{k}"]),
                N(
                    "Transpose",
                    [f"r{k}"],
                    [f"t{k}"],
                    perm=[0, 2, 3, 1] if k == "k" else [0, 2, 1, 3],
                ),
            )
        ),
        N("MatMul", ["tq", "tk"], ["scores"]),
        N("Div", ["scores", "root"], ["scaled"]),
        N("Softmax", ["scaled"], ["p"], axis=-1),
        N("MatMul", ["p", "tv"], ["mixed"]),
        N("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        N("Reshape", ["back", "joined"], ["out"]),
        N("Add", ["out", "x"], ["sum"]),
        N("LayerNormalization", ["sum", "g", "o"], ["y"], axis=-1, epsilon=1e-5),
    ]
    constants = {
        "table": _w(7, 8), "zero": _ints(0), "two": _ints(2), "heads": _ints(2, 4),
        "wq": _w(8, 8), "wk": _w(8, 8), "wv": _w(8, 8), "root": np.float32(2),
        "joined": _ints(0, 0, 8), "g": _w(8), "o": _w(8),
    }  # fmt: skip
    return Seed(_model(nodes, {"ids": (INT64, ["batch", "length"])}, {"y": FLOAT}, constants))


def _body(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int]]],
    outputs: Mapping[str, int],
) -> onnx.GraphProto:
    return helper.make_graph(
        list(nodes), "body",
        [helper.make_tensor_value_info(n, t, list(s)) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
    )  # fmt: skip


def control_flow() -> Seed:
    """The number of turns is an input, so that no mutation makes a loop without an end."""
    then = _body([N("Mul", ["x", "k"], ["u"])], {}, {"u": FLOAT})
    other = _body([N("Sub", ["x", "k"], ["v"])], {}, {"v": FLOAT})
    loop = _body(
        [
            N("Add", ["h", "branch"], ["h2"]),
            N("Identity", ["go"], ["go2"]),
            N("ReduceSum", ["h2"], ["total"], keepdims=0),
        ],
        {"i": (INT64, []), "go": (BOOL, []), "h": (FLOAT, [2, 3])},
        {"go2": BOOL, "h2": FLOAT, "total": FLOAT},
    )
    scan = _body(
        [N("Add", ["s", "row"], ["s2"]), N("Tanh", ["s2"], ["t"])],
        {"s": (FLOAT, [3]), "row": (FLOAT, [3])}, {"s2": FLOAT, "t": FLOAT},
    )  # fmt: skip
    nodes = [
        N("If", ["flag"], ["branch"], then_branch=then, else_branch=other),
        N("Loop", ["turns", "", "x"], ["last", "totals"], body=loop),
        N("Scan", ["start", "last"], ["end", "rows"], body=scan, num_scan_inputs=1),
    ]
    inputs: dict[str, tuple[int, Sequence[int | str]]] = {
        "x": (FLOAT, [2, 3]), "flag": (BOOL, []), "turns": (INT64, []),
    }  # fmt: skip
    outputs = {"totals": FLOAT, "end": FLOAT, "rows": FLOAT}
    return Seed(_model(nodes, inputs, outputs, {"k": np.float32(2), "start": _w(3)}))


def quantised() -> Seed:
    nodes = [
        N("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        N("QLinearConv", ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["c"], pads=[1, 1, 1, 1]),
        N("DequantizeLinear", ["c", "sy", "zy"], ["d"]),
        N("GlobalMaxPool", ["d"], ["g"]),
        N("Reshape", ["g", "flat"], ["f"]),
        N("DynamicQuantizeLinear", ["f"], ["fq", "fs", "fz"]),
        N("MatMulInteger", ["fq", "m", "fz"], ["i"]),
        N("Cast", ["i"], ["j"], to=FLOAT),
        N("Mul", ["j", "fs"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    constants = {
        "sx": np.float32(0.02), "zx": np.uint8(128), "sw": np.full(4, 0.01, np.float32),
        "zw": np.zeros(4, np.int8), "w": rng.integers(-90, 90, (4, 2, 3, 3)).astype(np.int8),
        "sy": np.float32(0.05), "zy": np.uint8(100), "flat": _ints(1, -1),
        "m": rng.integers(-90, 90, (4, 3)).astype(np.int8),
    }  # fmt: skip
    return Seed(_model(nodes, {"x": (FLOAT, [1, 2, 6, 6])}, {"y": FLOAT}, constants))


def indices() -> Seed:
    nodes = [
        N("Pad", ["x", "pads", "value"], ["a"], mode="constant"),
        N("Slice", ["a", "starts", "ends", "axes", "steps"], ["b"]),
        N("Resize", ["b", "", "scales"], ["c"], mode="linear"),
        N("Tile", ["c", "repeats"], ["d"]),
        N("Expand", ["d", "wide"], ["e"]),
        N("Split", ["e"], ["f", "g"], axis=1, num_outputs=2),
        N("GatherElements", ["f", "where"], ["h"], axis=1),
        N("ScatterND", ["x", "places", "updates"], ["i"]),
        N("TopK", ["i", "k"], ["top", "at"], axis=-1),
        N("OneHot", ["at", "depth", "pair"], ["hot"], axis=-1),
        N("CumSum", ["x", "axis"], ["sums"]),
        N("Trilu", ["sums"], ["tri"], upper=1),
        N("NonZero", ["tri"], ["full"]),
        N(
            "ConstantOfShape",
            ["made"],
            ["fill"],
            value=numpy_helper.from_array(np.ones(1, np.int64)),
        ),
        N("Range", ["begin", "end", "step"], ["range"]),
        N("Einsum", ["x", "tri"], ["ein"], equation="ij,kj->ik"),
        N("Squeeze", ["hot", "third"], ["squeezed"]),
    ]
    constants = {
        "pads": _ints(1, 0, 0, 2), "value": np.float32(3), "starts": _ints(0, -1),
        "ends": _ints(4, -9), "axes": _ints(0, 1), "steps": _ints(1, -2),
        "scales": np.array([2, 1.5], np.float32), "repeats": _ints(1, 2), "wide": _ints(1, 1, 1),
        "where": np.zeros((1, 2, 8), np.int64), "places": _ints(0, 2, 1, 1).reshape(2, 2),
        "updates": _w(2), "k": _ints(1), "depth": np.int64(4),
        "pair": np.array([0, 1], np.float32), "axis": np.int64(1), "made": _ints(2, 3),
        "begin": np.int64(0), "end": np.int64(9), "step": np.int64(2), "third": _ints(1),
    }  # fmt: skip
    outputs = {
        "h": FLOAT, "g": FLOAT, "squeezed": FLOAT, "full": INT64, "fill": INT64, "range": INT64,
        "ein": FLOAT,
    }  # fmt: skip
    return Seed(_model(nodes, {"x": (FLOAT, [3, 4])}, outputs, constants))


def recurrent() -> Seed:
    nodes = [
        N("LSTM", ["x", "w", "r", "b"], ["l", "h", "c"], hidden_size=3, direction="bidirectional"),
        N("Transpose", ["l"], ["t"], perm=[0, 2, 1, 3]),
        N("Reshape", ["t", "shape"], ["f"]),
        N("GRU", ["f", "w2", "r2"], ["", "g"], hidden_size=2, linear_before_reset=1),
        N("ReduceMean", ["g", "axes"], ["mean"], keepdims=0),
        N("InstanceNormalization", ["f", "s", "o"], ["norm"]),
    ]
    constants = {
        "w": _w(2, 12, 4), "r": _w(2, 12, 3), "b": _w(2, 24), "shape": _ints(5, 2, 6),
        "w2": _w(1, 6, 6), "r2": _w(1, 6, 2), "axes": _ints(0, 1), "s": _w(2), "o": _w(2),
    }  # fmt: skip
    outputs = {"mean": FLOAT, "norm": FLOAT, "h": FLOAT}
    return Seed(_model(nodes, {"x": (FLOAT, [5, 2, 4])}, outputs, constants))


def functions() -> Seed:
    """Functions of the model's own, one of which calls the other."""
    inner = helper.make_function(
        "own", "Scale", ["a"], ["b"],
        [N("Constant", [], ["c"], value_float=2.0), N("Mul", ["a", "c"], ["b"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    outer = helper.make_function(
        "own", "Twice", ["p"], ["q"],
        [N("Scale", ["p"], ["m"], domain="own"), N("Scale", ["m"], ["n"], domain="own"),
         N("HardSigmoid", ["n"], ["q"])],
        [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)],
    )  # fmt: skip
    nodes = [
        N("Twice", ["x"], ["t"], domain="own"), N("Gelu", ["t"], ["g"]),
        N("Where", ["flags", "g", "x"], ["w"]), N("ArgMax", ["w"], ["y"], axis=1),
    ]  # fmt: skip
    model = _model(
        nodes, {"x": (FLOAT, ["n", 4]), "flags": (BOOL, [4])}, {"y": INT64}, {}, 20, [inner, outer]
    )
    del model.opset_import[2:]  # both functions are of one domain
    return Seed(model)


def external() -> Seed:
    data = _w(40, 40).tobytes()
    seed = _model(
        [N("MatMul", ["x", "w"], ["m"]), N("Add", ["m", "b"], ["y"])],
        {"x": (FLOAT, [2, 40])}, {"y": FLOAT}, {"b": _w(2048)[:40]},
    )  # fmt: skip
    for t, offset in ((TensorProto(name="w", data_type=FLOAT, dims=[40, 40]), 64),):
        t.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", offset), ("length", len(data))):
            t.external_data.add(key=key, value=str(value))
        seed.graph.initializer.append(t)
    return Seed(seed, {"w.bin": bytes(64) + data})


def seeds() -> tuple[Seed, ...]:
    makers = (
        conv_net, attention, control_flow, quantised, indices, recurrent, functions, external,
    )  # fmt: skip
    return tuple(make() for make in makers)
