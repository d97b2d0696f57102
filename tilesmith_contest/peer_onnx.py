"""ONNX Runtime as a peer: a model of one operator is built in memory. Weights are initialisers, and
inputs and outputs are bound, so that a run copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array, Convolution, Problem

_OPSET, _IR = 17, 8


class OnnxPeer:
    def contestants(self, problem: Problem, threads: int) -> list[Contestant]:
        if isinstance(problem, Convolution):
            inputs, weights = [problem.x], [problem.w]
            if problem.bias is not None:
                weights.append(problem.bias)
            nodes = _convolution(problem)
        else:
            inputs, weights = list(problem.inputs), []
            nodes = _plain(problem.kind, problem.inputs)
        session = _session(_model(nodes, inputs, weights), threads)
        binding = session.io_binding()
        for k, a in enumerate(inputs):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(a)
            binding.bind_ortvalue_input(f"x{k}", value)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        # The first output array is kept as the memory for all further ones.
        binding.bind_ortvalue_output("y", binding.get_outputs()[0])

        def run() -> None:
            session.run_with_iobinding(binding)

        def answer() -> Array:
            run()
            return np.array(binding.copy_outputs_to_cpu()[0])

        return [Contestant("onnxruntime", run, answer)]


def _convolution(p: Convolution) -> list[Any]:
    count = p.num_spatial
    names = ["x0", "w0"] + (["w1"] if p.bias is not None else [])
    node = helper.make_node(
        "ConvTranspose" if p.transposed else "Conv",
        names,
        ["c" if p.relu else "y"],
        strides=[p.stride] * count,
        pads=[p.padding] * (2 * count),
        dilations=[p.dilation] * count,
        group=p.groups,
        kernel_shape=list(p.w.shape[2:]),
    )
    return [node, helper.make_node("Relu", ["c"], ["y"])] if p.relu else [node]


def _plain(kind: str, inputs: Sequence[Array]) -> list[Any]:
    if kind == "matmul":
        return [helper.make_node("MatMul", ["x0", "x1"], ["y"])]
    if kind == "norm":
        axes = list(range(inputs[0].ndim))[-2:]
        return [helper.make_node("ReduceL2", ["x0"], ["y"], axes=axes, keepdims=0)]
    if kind == "softmax":
        return [helper.make_node("Softmax", ["x0"], ["y"], axis=1)]
    return [
        helper.make_node("Transpose", ["x0"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["x1"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["q", "k"], ["y"]),
    ]


def _model(nodes: list[Any], inputs: Sequence[Array], weights: Sequence[Array]) -> bytes:
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(f"x{k}", kind, a.shape) for k, a in enumerate(inputs)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(weights)],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    model: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=_IR
    ).SerializeToString()
    return model


def _session(model: bytes, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
