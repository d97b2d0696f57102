"""A network of images moves to channels-last as a whole: resizes, blocks and transposed products
do not stop it.
"""

import numpy as np
from onnx import helper, numpy_helper

from tilesmith.frontends.open import load_onnx
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.layouts import channels_last
from tilesmith.graph.passes.movement import sink_movement
from tilesmith.ops.transform import transpose


def test_only_the_borders_are_transposed():
    rng = np.random.default_rng(1)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        node("Resize", ["a", "", "s"], ["b"], mode="linear"),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2]),
        node("Resize", ["c", "", "s"], ["d"], mode="nearest"),
        node("ConvTranspose", ["d", "w2"], ["e"], strides=[2, 2], group=2),
        node("DepthToSpace", ["e"], ["f"], blocksize=2),
        node("Conv", ["f", "w3"], ["g"], group=4),
        node("GlobalAveragePool", ["g"], ["y"]),
    ]
    held = {
        "w1": rng.standard_normal((6, 2, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((6, 8, 2, 2)).astype(np.float32),
        "w3": rng.standard_normal((4, 1, 2, 2)).astype(np.float32),
        "s": np.array([1, 1, 2, 1.5], np.float32),
    }
    info = helper.make_tensor_value_info
    proto = helper.make_graph(
        nodes, "g", [info("x", 1, [1, 2, 4, 4])], [info("y", 1, None)],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )  # fmt: skip
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    graph = load_onnx(model)
    moved = sink_movement(channels_last(graph))
    x = rng.standard_normal((1, 2, 4, 4)).astype(np.float32)
    want, got = (evaluate_graph(g, {"x": x})["y"] for g in (graph, moved))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    turned = [n for n in moved.nodes if n.function is transpose]
    ends = {*moved.inputs, *moved.returned}
    assert all(ends & {*n.inputs, *n.outputs} for n in turned), str(moved)
