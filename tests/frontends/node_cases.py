"""ONNX's own node cases, and the way to run one: compiled, or by the oracle."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx.numpy_helper

from tilesmith.frontends.open import load_onnx
from tilesmith.graph.oracle import evaluate_program

# Types of the cases that a tensor library can be asked to run.
PLAIN = {
    onnx.TensorProto.DataType.Value(n)
    for n in (
        "FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16", "INT8", "INT16", "INT32", "INT64",
        "UINT8", "UINT16", "UINT32", "UINT64", "BOOL",
    )
}  # fmt: skip
SPECTRA = {"DFT", "STFT"}
RANDOM = {"Bernoulli", "RandomUniformLike"}
TRAINING = {"Adagrad", "Adam", "Momentum", "Gradient"}

Run = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Outcome:
    kind: str  # "passed", "refused", "wrong", "crashed"
    text: str = ""


@cache
def cases() -> dict[str, Any]:
    """The cases of plain tensors in ONNX's own domain, by name."""
    from onnx.backend.test.case import base
    from onnx.backend.test.case.node import collect_testcases
    from onnx.reference.ops import op_pool_common

    # The texts of the cases, for ONNX's pages, take as long as their arrays.
    text = patch.object(base, "process_snippet", lambda op, name, export: (name, ""))
    pools = patch.object(op_pool_common, "pool", quick_pool)
    with warnings.catch_warnings(), pools, text:
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return {c.name: c for c in found if _is_plain(c.model)}


_POOLS: dict[str, Callable[[Any, tuple[int, ...], int], Any]] = {
    "AVG": lambda x, axes, p: x.mean(axes),
    "MAX": lambda x, axes, p: x.max(axes),
    "LPPOOL": lambda x, axes, p: (abs(x) ** p).sum(axes) ** (1.0 / p),
}
_pool = import_module("onnx.reference.ops.op_pool_common").pool


def quick_pool(
    padded: Any, x_shape: Any, kernel: Any, strides: Any, out_shape: Any, kind: str, *args: Any,
    p: int = 1, **kwargs: Any,
) -> Any:  # fmt: skip
    """ONNX's own looks at one window after the other, which takes most of the time that making the
    cases takes. Where nothing is padded or dilated, all windows at once are the same.
    """
    rank = len(kernel)
    if args or kwargs or np.isnan(padded).any() or padded.shape != tuple(x_shape):
        return _pool(padded, x_shape, kernel, strides, out_shape, kind, *args, p=p, **kwargs)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, tuple(range(2, rank + 2)))
    steps = tuple(slice(None, None, s) for s in strides or [1] * rank)
    axes = tuple(range(-rank, 0))
    found = _POOLS[kind](windows[(slice(None), slice(None), *steps)], axes, p)
    assert found.shape[2:] == tuple(out_shape)
    return found.astype(padded.dtype)


def _is_plain(model: onnx.ModelProto) -> bool:
    graph = model.graph
    for info in (*graph.input, *graph.output):
        if info.type.WhichOneof("value") != "tensor_type":
            return False
        if info.type.tensor_type.elem_type not in PLAIN:
            return False
    if any(n.domain not in ("", "ai.onnx") or n.op_type in TRAINING for n in graph.node):
        return False
    return all(o.domain in ("", "ai.onnx") for o in model.opset_import)


def by_oracle(model: Any, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    return evaluate_program(model, feeds)


def outcome(case: Any, run: Run = by_oracle) -> Outcome:
    """Loads and runs a case and compares every data set with what ONNX expects."""
    from tilesmith.base.errors import TilesmithError

    try:
        model = load_onnx(case.model)
    except TilesmithError as error:
        return Outcome("refused", str(error))
    names = [i.name for i in case.model.graph.input]
    outputs = [o.name for o in case.model.graph.output]
    for inputs, wanted in case.data_sets:
        feeds = {n: _array(x) for n, x in zip(names, inputs, strict=False)}
        try:
            got = run(model, feeds)
        except TilesmithError as error:
            return Outcome("refused", f"at run time: {error}")
        for name, want in zip(outputs, wanted, strict=True):
            if (why := difference(np.asarray(got[name]), _array(want), case)) is not None:
                return Outcome("wrong", f"{name}: {why}")
    return Outcome("passed")


def _array(x: Any) -> Any:
    """Some cases hold their data as messages."""
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)


def difference(got: Any, want: Any, case: Any) -> str | None:
    """Why two arrays differ, by the tolerances of the case; None if they agree."""
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, expected {want.dtype}"
    if case.model.graph.node[0].op_type in RANDOM:
        return None  # ONNX states no generator
    if got.dtype.kind in "biu":
        equal = bool(np.array_equal(got, want))
    else:
        rtol = max(case.rtol or 1e-3, 2e-3 if got.dtype.itemsize == 2 else 0)
        if got.dtype.name == "bfloat16":
            rtol = max(rtol, 2e-2)
        atol = case.atol or 1e-7
        if case.model.graph.node[0].op_type in SPECTRA:  # what cancels out is not quite 0 there
            atol = max(atol, float(1e-7 * np.abs(want).max(initial=0)))
        with np.errstate(all="ignore"):
            equal = bool(
                np.allclose(
                    got.astype(np.float64), want.astype(np.float64), rtol=rtol,
                    atol=atol, equal_nan=True,
                )
            )  # fmt: skip
    if equal:
        return None
    return f"got {got.ravel()[:6]}, expected {want.ravel()[:6]}"
