"""An ONNX operator of one's own: a model has a node of a domain that no library knows; a function
of the DSL says what it computes. The function's parameters are the operator's schema: tensors are
its inputs, the others its attributes, with their defaults and types.
"""

import numpy as np
import onnx.parser

import tilesmith as ts

MODEL = """
<ir_version: 9, opset_import: ["" : 17, "com.example" : 1]>
tiny (float[2, 4] x) => (float[2, 4] y) {
    s = com.example.HardShrink <lambd = 0.75> (x)
    y = Relu (s)
}
"""


def hard_shrink(X: ts.Tensor, *, lambd: float = 0.5) -> ts.Tensor:
    """x where it is further from 0 than lambd, else 0."""
    return ts.compute(
        X.shape, lambda *i: ts.where(ts.abs(X[i]) > lambd, X[i], 0.0), name="hard_shrink"
    )


def main() -> None:
    operators = {"com.example.HardShrink": hard_shrink}
    model = onnx.parser.parse_model(MODEL)
    graph = ts.load_onnx(model, operators=operators)
    print(graph)

    x = np.array([[-1, -0.5, 0, 0.5], [0.7, 0.8, 1, 2]], np.float32)
    got = ts.compile_model(graph)({"x": x})["y"]
    np.testing.assert_array_equal(got, np.where(x > 0.75, x, 0))
    print("the model agrees with NumPy")

    # A node that does not fit is refused with its name and what would be right.
    model.graph.node[0].attribute[0].name = "lambda"
    try:
        ts.load_onnx(model, operators=operators)
    except ts.GraphError as error:
        print(error)


if __name__ == "__main__":
    main()
