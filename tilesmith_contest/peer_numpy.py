"""NumPy as a peer, for products, norms and softmaxes. It has no convolutions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array, Plain, Problem


class NumpyPeer:
    def contestants(self, problem: Problem, threads: int) -> list[Contestant]:
        if not isinstance(problem, Plain):
            return []
        call = _CALLS[problem.kind](*problem.inputs)
        return [Contestant("numpy", call, call)]


def _matmul(a: Array, b: Array) -> Callable[[], Array]:
    out = np.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    return lambda: np.matmul(a, b, out=out)


def _norm(x: Array) -> Callable[[], Array]:
    if x.ndim == 3:
        return lambda: np.asarray(np.sqrt(np.einsum("bij,bij->b", x, x)))
    flat = x.ravel()
    return lambda: np.asarray(np.sqrt(np.dot(flat, flat)))


def _softmax(x: Array) -> Callable[[], Array]:
    out = np.empty_like(x)

    def call() -> Array:
        np.subtract(x, x.max(axis=1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(axis=1, keepdims=True), out=out)
        return out

    return call


def _scores(q: Array, k: Array) -> Callable[[], Array]:
    left, right = q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1)
    out = np.empty((*left.shape[:-1], right.shape[-1]), q.dtype)
    return lambda: np.matmul(left, right, out=out)


_CALLS: dict[str, Callable[..., Callable[[], Array]]] = {
    "matmul": _matmul, "norm": _norm, "softmax": _softmax, "scores": _scores,
}  # fmt: skip
