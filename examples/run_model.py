"""A small ONNX model, compiled and run, beside the onnx package's own reference evaluator. Its
batch is open when it is loaded: the model is compiled once for all sizes in its range.
"""

import numpy as np
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import tilesmith as ts

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
perceptron (float[batch, 64] x, float[64, 32] w, float[32] b)
    => (float[batch, 32] y, float[batch] top)
{
    product = MatMul (x, w)
    sum = Add (product, b)
    hidden = Relu (sum)
    y = Softmax <axis = -1> (hidden)
    top = ReduceMax <axes = [-1], keepdims = 0> (y)
}
"""


def arrays(batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    shapes = {"x": (batch, 64), "w": (64, 32), "b": (32,)}
    return {name: rng.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}


def main() -> None:
    proto = parse_model(MODEL)  # or the path of a file
    reference = ReferenceEvaluator(proto)
    sizes = {"batch": (1, 64)}
    model = ts.compile_model(ts.load_onnx(proto), ts.cpu(1), sizes=sizes, cache=None)
    for batch in (1, 8):
        feeds = arrays(batch)
        wanted = dict(zip(model.outputs, reference.run(None, feeds), strict=True))
        for name, got in model(feeds).items():
            np.testing.assert_allclose(got, wanted[name], rtol=1e-4, atol=1e-6)
            print(f"batch {batch}: {name} {got.shape} agrees with the reference")

    fixed = ts.load_onnx(proto, dims={"batch": 8})
    for task, times in ts.extract_tasks(fixed, ts.cpu(1)):
        print(f"{times} x {task.func.name}: {task.func.flops} FLOP, {task.func.nbytes} bytes")
    print(ts.compile_model(fixed, ts.cpu(1), cache=None).profile(arrays(8)))


if __name__ == "__main__":
    main()
