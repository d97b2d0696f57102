"""`ts.from_tvmscript`: what imported functions compute, against NumPy; errors name the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts

Array = np.ndarray[Any, Any]
MATMUL = """
# from tvm.script import tir as T
@T.prim_func
def matmul(A: T.Buffer((16, 32), "float32"), B: T.Buffer((32, 24), "float32"),
           C: T.Buffer((16, 24), "float32")):
    T.func_attr({"global_symbol": "main", "tir.noalias": True})
    for i, j, k in T.grid(16, 24, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            T.reads(A[vi, vk], B[vk, vj])
            T.writes(C[vi, vj])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
# The same after splits, a cache, bindings, a decomposed reduction; and with handles.
SCHEDULED = """
@I.ir_module
class Module:
    @T.prim_func
    def other(x: T.handle): pass

    @T.prim_func(private=True)
    def matmul(a: T.handle, b: T.handle, c: T.handle):
        T.func_attr({"tir.noalias": T.bool(True)})
        B = T.match_buffer(b, (32, 24))
        C = T.match_buffer(c, (T.int64(16), T.int64(24)), "float32")
        A = T.match_buffer(a, (16, 32), dtype="float32")
        with T.block("root"):
            T.reads()
            T.writes()
            C_local = T.alloc_buffer((16, 24), scope="local")
            for i_0 in T.thread_binding(4, thread="blockIdx.x"):
                for i_1, j in T.grid(4, 24):
                    with T.block("C_init"):
                        vi = T.axis.spatial(16, i_0 * 4 + i_1)
                        vj = T.axis.S(24, j)
                        C_local[vi, vj] = T.float32(0)
                for k_0 in T.serial(0, 5, annotations={"pragma_unroll": 1}):
                    for k_1 in T.unroll(7):
                        for i_1 in T.vectorized(4):
                            for j in range(24):
                                with T.sblock("C_update"):
                                    vi = T.axis.spatial(T.int64(16), i_0 * 4 + i_1)
                                    vj = T.axis.spatial((0, 24), j)
                                    vk = T.axis.R(32, k_0 * 7 + k_1)
                                    T.where(k_0 * 7 + k_1 < 32)
                                    C_local[vi, vj] = C_local[vi, vj] + A[vi, vk] * B[vk, vj]
            for i, j in T.grid(16, 24):
                with T.block("C_local"):
                    v0, v1 = T.axis.remap("SS", [i, j])
                    C[v0, v1] = C_local[v0, v1]
"""


def arrays(func: ts.Function) -> list[Array]:
    rng = np.random.default_rng(0)
    return [
        (rng.integers(-5, 6, [int(n.const) for n in b.shape])
         if not b.dtype.is_float
         else rng.standard_normal([int(n.const) for n in b.shape])).astype(b.dtype.numpy)
        for b in func.inputs
    ]  # fmt: skip


@pytest.mark.parametrize("text", [MATMUL, SCHEDULED])
def test_a_product_is_a_product_however_it_is_scheduled(text: str) -> None:
    func = ts.from_tvmscript(text, name="matmul")
    assert [b.name for b in func.params] == ["A", "B", "C"]
    assert func.name == "matmul"
    a, b = arrays(func)
    np.testing.assert_allclose(ts.evaluate(func, a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_an_imported_product_is_the_same_task_as_our_own() -> None:
    A, B = ts.placeholder((16, 32), name="A"), ts.placeholder((32, 24), name="B")
    k = ts.reduce_axis(32, name="k")
    C = ts.compute((16, 24), lambda i, j: ts.sum(A[i, k] * B[k, j], axis=k), name="C")
    own = ts.Task(ts.function([A, B, C], name="own"), ts.cpu(1))
    assert ts.Task(ts.from_tvmscript(MATMUL), ts.cpu(1)).key == own.key


def test_it_is_tuned_and_built_like_any_other() -> None:
    func = ts.from_tvmscript(MATMUL)
    result = ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=2), quiet=True)
    a, b = arrays(func)
    np.testing.assert_allclose(result.kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)


def stage(body: str, params: str = "A: T.Buffer((6, 10), 'float32')", out: str = "(6, 10)") -> str:
    """A function of one block; `body` is its text."""
    lines = "\n".join(f"            {line}" for line in body.strip().splitlines())
    return f"""
@T.prim_func
def f({params}, B: T.Buffer({out}, "float32")):
    for i, j in T.grid(6, 10):
        with T.block("B"):
{lines}
"""


def elementwise(value: str) -> str:
    return stage(f'vi, vj = T.axis.remap("SS", [i, j])\nB[vi, vj] = {value}')


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("A[vi, vj] + T.float32(1)", lambda a: a + 1),
        (
            "T.max(A[vi, vj], T.float32(0.5)) - A[vi, 9 - vj]",
            lambda a: np.maximum(a, 0.5) - a[:, ::-1],
        ),
        (
            "T.exp(T.tanh(A[vi, vj])) * T.sigmoid(A[vi, vj])",
            lambda a: np.exp(np.tanh(a)) / (1 + np.exp(-a)),
        ),
        (
            "T.Select(A[vi, vj] < T.float32(0), -A[vi, vj], A[vi, vj] / 3.0)",
            lambda a: np.where(a < 0, -a, a / 3),
        ),
        (
            "T.if_then_else(1 <= vi and vi < 5, A[vi - 1, vj], T.float32(0))",
            lambda a: np.concatenate([np.zeros((1, 10)), a[:4], np.zeros((1, 10))]),
        ),
        (
            "T.Cast('float32', T.Cast('int32', A[vi, vj] * T.float32(10)))",
            lambda a: np.trunc(a * 10),
        ),
        (
            "(A[vi, vj] * T.float32(10)).astype('int8').astype('float32')",
            lambda a: np.trunc(a * 10),
        ),
        (
            "T.abs(A[vi // 2, vj % 3]) ** 2.0",
            lambda a: np.abs(a[np.arange(6)[:, None] // 2, np.arange(10) % 3]) ** 2,
        ),
        (
            "A[vi, vj] if vj >= 4 else T.sqrt(T.fabs(A[vi, vj]))",
            lambda a: np.where(np.arange(10) >= 4, a, np.sqrt(np.abs(a))),
        ),
        (
            "T.pow(T.float32(2), A[vi, vj]) + T.log(T.fabs(A[vi, vj]) + T.float32(1))",
            lambda a: 2.0**a + np.log(np.abs(a) + 1),
        ),
        ("T.Cast('float32', vi * 10 + vj)", lambda a: np.arange(60.0).reshape(6, 10)),
        ("T.min(A[vi, vj], T.infinity('float32'))", lambda a: a),
    ],
)
def test_expressions(value: str, want: Callable[[Array], Array]) -> None:
    func = ts.from_tvmscript(elementwise(value))
    (a,) = arrays(func)
    np.testing.assert_allclose(ts.evaluate(func, a), want(a), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("update", "init", "want"),
    [
        ("T.max(B[vi], A[vi, vj])", "T.float32('-inf')", lambda a: a.max(1)),
        ("T.max(A[vi, vj], B[vi])", "T.min_value('float32')", lambda a: a.max(1)),
        ("T.min(B[vi], A[vi, vj])", "T.max_value('float32')", lambda a: a.min(1)),
        ("B[vi] * A[vi, vj]", "T.float32(1)", lambda a: a.prod(1)),
        ("A[vi, vj] * A[vi, vj] + B[vi]", "0.0", lambda a: (a * a).sum(1)),
        ("B[vi] - A[vi, vj]", "T.float32(0)", lambda a: -a.sum(1)),
        ("B[vi] + A[vi, vj]", "A[vi, 0] * 2.0", lambda a: a.sum(1) + 2 * a[:, 0]),
    ],
)
def test_reductions(update: str, init: str, want: Callable[[Array], Array]) -> None:
    body = f"""
vi, vj = T.axis.remap("SR", [i, j])
with T.init():
    B[vi] = {init}
B[vi] = {update}"""
    func = ts.from_tvmscript(stage(body, out="(6,)"))
    (a,) = arrays(func)
    np.testing.assert_allclose(ts.evaluate(func, a), want(a), rtol=1e-4, atol=1e-5)


SOFTMAX = """
@T.prim_func
def softmax(A: T.Buffer((5, 7), "float16"), out: T.Buffer((5, 7), "float16")):
    m = T.alloc_buffer((5,), "float32")
    e = T.alloc_buffer((5, 7))
    s = T.alloc_buffer((5,))
    for i, k in T.grid(5, 7):
        with T.block("m"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                m[vi] = T.float32(-3.4028234663852886e38)
            m[vi] = T.max(m[vi], T.Cast("float32", A[vi, vk]))
    for i, k in T.grid(5, 7):
        with T.block("e"):
            vi, vk = T.axis.remap("SS", [i, k])
            shifted: T.float32 = T.Cast("float32", A[vi, vk]) - m[vi]
            e[vi, vk] = T.exp(shifted)
    for i, k in T.grid(5, 7):
        with T.block("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float32(0)
            s[vi] = s[vi] + e[vi, vk]
    for i, k in T.grid(5, 7):
        with T.block("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            out[vi, vk] = T.Cast("float16", e[vi, vk] / s[vi])
"""


def test_several_stages_and_types() -> None:
    func = ts.from_tvmscript(SOFTMAX)
    (a,) = arrays(func)
    e = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
    np.testing.assert_allclose(ts.evaluate(func, a), e / e.sum(1, keepdims=True), atol=2e-3)


CONV = """
@T.prim_func
def conv(X: T.Buffer((1, 9, 9, 4), "float32"), W: T.Buffer((3, 3, 4, 8), "float32"),
         Y: T.Buffer((1, 5, 5, 8), "float32")):
    pad = T.alloc_buffer((1, 11, 11, 4))
    for n, h, w, c in T.grid(1, 11, 11, 4):
        with T.block("pad"):
            vn, vh, vw, vc = T.axis.remap("SSSS", [n, h, w, c])
            pad[vn, vh, vw, vc] = T.if_then_else(
                1 <= vh and vh < 10 and 1 <= vw and vw < 10, X[vn, vh - 1, vw - 1, vc], 0.0
            )
    for n, h, w, f, r, s, c in T.grid(1, 5, 5, 8, 3, 3, 4):
        with T.block("conv"):
            vn, vh, vw, vf, vr, vs, vc = T.axis.remap("SSSSRRR", [n, h, w, f, r, s, c])
            with T.init():
                Y[0, vh, vw, vf] = T.float32(0)
            Y[0, vh, vw, vf] += pad[vn, vh * 2 + vr, vw * 2 + vs, vc] * W[vr, vs, vc, vf]
"""


def test_a_convolution() -> None:
    text = CONV.replace("Y[0, vh, vw, vf] += ", "Y[0, vh, vw, vf] = Y[0, vh, vw, vf] + ")
    func = ts.from_tvmscript(text)
    x, w = arrays(func)
    X, W = ts.placeholder(x.shape, name="X"), ts.placeholder(w.shape, name="W")
    own = ts.function([X, W, ts.ops.conv2d(X, W, stride=2, padding=1, layout="NHWC")])
    np.testing.assert_allclose(
        ts.evaluate(func, x, w), ts.evaluate(own, x, w), rtol=1e-4, atol=1e-4
    )


def lines(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", "line 1: invalid syntax"),
        ("x = 1", "line 1: there is no function"),
        (
            lines(MATMUL, "(16, 32)", "(n, 32)"),
            "line 4: n is not a number: only sizes that are known",
        ),
        (lines(MATMUL, '"float32")', '"float99")'), r"line 4: .*float99"),
        (lines(MATMUL, 'A: T.Buffer((16, 32), "float32")', "A: T.int32"), "line 4: A is a T.int32"),
        (lines(MATMUL, 'A: T.Buffer((16, 32), "float32")', "A"), "line 4: A has no type"),
        (lines(MATMUL, "T.axis.remap", "T.axis.opaque"), "line 9: axes of the kind opaque"),
        (lines(MATMUL, "[i, j, k]", "[i, j, x]"), "line 9: x is no loop around"),
        (lines(MATMUL, "A[vi, vk] * B", "A[vi, vk + 8] * B"), r"line 14: .*"),
        (
            lines(MATMUL, "A[vi, vk] * B", "A[vi] * B"),
            "line 14: A has 2 dimensions but is read with 1",
        ),
        (lines(MATMUL, "A[vi, vk] * B", "Z[vi, vk] * B"), "line 14: Z is not a buffer"),
        (lines(MATMUL, "A[vi, vk] * B", "T.erfc(A[vi, vk]) * B"), "line 14: T.erfc of 1 cannot"),
        (lines(MATMUL, "A[vi, vk] * B", "A[vi, 0:4] * B"), "line 14: .* takes a part of a buffer"),
        (lines(MATMUL, "+ A[vi, vk]", "/ A[vi, vk]"), "line 14: .* is not C.* with a term added"),
        (
            lines(MATMUL, "+ A[vi, vk]", "+ A[vi, vk] + C[vi, vj]"),
            "line 14: .* is not C|line 14: C is read twice",
        ),
        (
            lines(
                MATMUL, "            with T.init():\n                C[vi, vj] = T.float32(0)\n", ""
            ),
            "line 12: C is changed in place",
        ),
        (
            lines(MATMUL, "C[vi, vj] = C[vi, vj]", "C[vi, vj + 1] = C[vi, vj + 1]"),
            "line 14: .* one axis",
        ),
        (
            lines(MATMUL, '"C"):', '"C"):\n            if vi < 3: pass'),
            "line 9: 'if vi < 3:' in a block",
        ),
        (lines(MATMUL, "T.func_attr", "T.launch_kernel"), "line 6: .* is not a loop or a block"),
        (lines(MATMUL, "T.grid(16, 24, 32)", "T.grid(16, 24)"), "line 7: 3 loops have 2 extents"),
        (lines(MATMUL, "(16, 24)", "(16, 48)"), "line 14: vj runs over 24 of the 48 elements"),
        (
            lines(
                MATMUL,
                "                C[vi, vj] = T.float32(0)\n",
                "                C[vi, vj] = q\n",
            ),
            "line 14: q is not defined here|line 13: q is not defined here",
        ),
        (
            lines(MATMUL, 'remap("SSR"', 'remap("SSS"'),
            "line 14: .* does not depend on|in place|one axis",
        ),
        (SCHEDULED, "line 5: there are several functions: other, matmul"),
        (
            MATMUL.replace("with T.block", "if True: pass\n        with T.sblock"),
            "line 8: 'if True:",
        ),
        (
            "@T.prim_func\ndef f(A: T.Buffer((4,), 'float32')):\n    A[0] = 1.0",
            "line 3: .* outside of a",
        ),
        ("@T.prim_func\ndef f(A: T.Buffer((4,), 'float32')):\n    pass", "line 2: f writes none"),
    ],
)
def test_errors_name_the_line(text: str, said: str) -> None:
    with pytest.raises(ts.ExpressionError, match=said) as error:
        ts.from_tvmscript(text)
    assert str(error.value).startswith("line ")


def test_names_of_functions() -> None:
    with pytest.raises(ts.ExpressionError, match="there is no function 'sum'; there is matmul"):
        ts.from_tvmscript(MATMUL, name="sum")
    with pytest.raises(ts.ExpressionError, match="text"):
        ts.from_tvmscript(3)  # type: ignore[arg-type]


def test_the_text_is_never_run() -> None:
    text = MATMUL.replace("T.float32(0)", "T.float32(__import__('os').abort())")
    with pytest.raises(ts.ExpressionError, match="cannot be imported"):
        ts.from_tvmscript(text)
