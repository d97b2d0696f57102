"""An operator of one's own: a function from tensors to a tensor, stated in the same language as the
built-in ones. It is tuned, fused and built like them. This one is the RMS norm of each row:

    y = x / sqrt(mean(x * x) + epsilon) * gamma
"""

import numpy as np

import tilesmith as ts


def rms_norm(X: ts.Tensor, gamma: ts.Tensor, epsilon: float = 1e-6, name: str = "rms") -> ts.Tensor:
    if X.ndim != 2 or gamma.shape != X.shape[1:]:
        raise ts.ExpressionError(f"{name}: X must be (rows, n) and gamma (n)")
    rows, n = X.shape
    k = ts.reduce_axis(n, name="k")
    squares = ts.compute(
        (rows,), lambda i: ts.sum(X[i, k] * X[i, k], axis=k), name=f"{name}_squares"
    )
    scale = ts.compute((rows,), lambda i: ts.rsqrt(squares[i] / n + epsilon), name=f"{name}_scale")
    return ts.compute((rows, n), lambda i, j: X[i, j] * scale[i] * gamma[j], name=name)


def main(rows: int = 64, n: int = 256) -> None:
    x, gamma = ts.placeholder((rows, n), name="X"), ts.placeholder((n,), name="gamma")
    # Followed by a built-in operator: the stages of both are scheduled together.
    func = ts.function([x, gamma, ts.ops.silu(rms_norm(x, gamma), name="Y")], name="rms_silu")
    print(func)

    rng = np.random.default_rng(0)
    a = rng.standard_normal((rows, n), dtype=np.float32)
    g = rng.standard_normal(n, dtype=np.float32)
    normal = a / np.sqrt((a * a).mean(axis=1, keepdims=True) + 1e-6) * g
    want = normal / (1 + np.exp(-normal))
    for answer in (ts.evaluate(func, a, g), ts.build(func)(a, g)):  # the oracle, and a kernel
        np.testing.assert_allclose(answer, want, rtol=1e-4, atol=1e-5)
    print("the oracle and the kernel agree with NumPy")


if __name__ == "__main__":
    main()
