"""Tensor instructions found by search against float32, other instructions and ONNX Runtime:
`python -m bench.tensor [--cases matmul,conv,tiles] [--seconds 15]`.

Cases are products and convolutions of small integers (and bfloat16), with constant weights. All
sides run in one thread and take turns of about a second; the median over the rounds of the median
of each turn counts, in processor time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime

import tilesmith as ts
from bench.spells import Spells, add_options
from tilesmith.ir.intrinsics import AMX_TILES, INTRINSICS
from tilesmith.space.instructions import TileByInstruction
from tilesmith.space.sets import usable

Run = Callable[[], object]


@dataclass(frozen=True)
class Contestant:
    name: str
    run: Run


@dataclass(frozen=True)
class Case:
    name: str
    func: ts.Function
    # "default", "plain" (no instructions), "no_tiles" (without AMX) or "sums" (without Winograd)
    rules: str = "default"


def matmul(n: int, left: str, right: str) -> ts.Function:
    a, b = ts.placeholder((n, n), left, name="A"), ts.placeholder((n, n), right, name="B")
    total = "float32" if left in ("float32", "bfloat16") else "int32"
    k = ts.reduce_axis(n, name="k")

    def body(i: ts.Value, j: ts.Value) -> ts.Value:
        return ts.sum(ts.cast(a[i, k], total) * ts.cast(b[k, j], total), axis=k)

    return ts.function([a, b, ts.compute((n, n), body, name="C")], constants=[b])


def conv(left: str, right: str) -> ts.Function:
    """56 x 56 pixels of 64 channels, 3 x 3; sums of small integers are requantised."""
    x = ts.placeholder((1, 56, 56, 64), left, name="X")
    w = ts.placeholder((3, 3, 64, 64), right, name="W")
    y = ts.ops.conv2d(x, w, padding=1, layout="NHWC")
    if left == "float32":
        return ts.function([x, w, y], constants=[w])
    factor = ts.placeholder((1,), "float32", name="factor")
    y = ts.ops.requantize(y, factor, dtype=left)
    return ts.function([x, w, factor, y], constants=[w, factor])


def rules_of(kind: str, target: ts.Target) -> tuple[Any, ...]:
    rules = ts.default_rules(target)
    if kind == "default":
        return rules
    if kind == "sums":
        return ts.default_rules(target, accuracy=0.0)
    units = () if kind == "plain" else tuple(u for u in INTRINSICS if u not in AMX_TILES)
    by_unit = TileByInstruction(usable(units, target))
    return tuple(by_unit if isinstance(r, TileByInstruction) else r for r in rules)


def arrays_of(func: ts.Function) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    out = []
    for p in func.inputs:
        shape = [e.number for e in p.shape]
        if p.dtype.is_float:
            small = 1e-4 if p.name == "factor" else 1.0
            out.append((rng.standard_normal(shape) * small).astype(p.dtype.numpy))
        else:
            info = np.iinfo(p.dtype.numpy)
            out.append(rng.integers(info.min, info.max + 1, shape).astype(p.dtype.numpy))
    return out


def tuned(case: Case, seconds: float, database: Any) -> Contestant:
    target = ts.cpu(num_cores=1)
    if case.rules != "default":  # else records of the other rules would win
        database = None
    space = ts.SketchSpace(rules_of(case.rules, target))
    result = ts.tune(
        case.func, target, budget=ts.Budget(seconds=seconds, trials=10_000), space=space,
        database=database, seed=0, quiet=True,
    )  # fmt: skip
    kernel = result.kernel
    arrays = arrays_of(case.func)
    given = [kernel.pack(p.name, x) for p, x in zip(case.func.inputs, arrays, strict=True)]
    want = ts.evaluate(case.func, *arrays)
    got = kernel(*given)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)
    else:
        assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max() <= (
            got.dtype.itemsize == 1
        )
    names = {i.name for i in INTRINSICS if repr(i.name) in str(result.best.candidate.trace)}
    used = ", ".join(sorted(names)) or "no instruction"
    return Contestant(f"{case.name} ({used})", kernel.bind(*given))


def session(nodes: Sequence[onnx.NodeProto], x: np.ndarray[Any, Any], out: int,
            constants: dict[str, np.ndarray[Any, Any]]) -> Run:  # fmt: skip
    from onnx import helper, numpy_helper

    code = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        list(nodes), "case", [helper.make_tensor_value_info("X", code, x.shape)],
        [helper.make_tensor_value_info("Y", out, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    made = onnxruntime.InferenceSession(model.SerializeToString(), options)
    binding = made.io_binding()
    binding.bind_cpu_input("X", x)
    binding.bind_output("Y")
    return lambda: made.run_with_iobinding(binding)


def peer_matmul(func: ts.Function) -> Contestant:
    a, b = arrays_of(func)
    node = onnx.helper.make_node("MatMulInteger", ["X", "B"], ["Y"])
    return Contestant(
        "ONNX Runtime MatMulInteger", session([node], a, onnx.TensorProto.INT32, {"B": b})
    )


def peer_conv(func: ts.Function) -> Contestant:
    """Channels last, as ours, so that nothing is transposed."""
    x, w = arrays_of(func)[:2]
    one, zero, wzero = np.float32(1), x.dtype.type(0), w.dtype.type(0)
    constants = {
        "s": np.array(one), "z": np.array(zero), "wz": np.array(wzero),
        "os": np.array(1e4, np.float32), "W": np.ascontiguousarray(w.transpose(3, 2, 0, 1)),
    }  # fmt: skip
    node = onnx.helper.make_node(
        "QLinearConv", ["X", "s", "z", "W", "s", "wz", "os", "z"], ["Y"], domain="com.microsoft",
        pads=[1, 1, 1, 1], channels_last=1,
    )  # fmt: skip
    code = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    return Contestant("ONNX Runtime QLinearConv", session([node], x, code, constants))


def contest(
    title: str, func: ts.Function, contestants: Sequence[Contestant], spells: Spells
) -> None:
    rounds = spells.of([c.run for c in contestants])
    medians = [statistics.median(r) for r in rounds]
    print(f"{title}, {func.flops / 1e9:.3f} G operations; {spells.text}")
    print(f"  {'':58} {'us':>9} {'slowest':>9} {'G/s':>8} {'time / first':>13}")
    for c, s, each in zip(contestants, medians, rounds, strict=True):
        print(
            f"  {c.name:58} {s * 1e6:9.0f} {max(each) * 1e6:9.0f} {func.flops / s / 1e9:8.1f} "
            f"{s / medians[0]:13.2f}"
        )
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="tuning time per kernel")
    parser.add_argument("--db", default=":memory:", help="database of measurements to use and fill")
    parser.add_argument("--cases", default="matmul,conv,mixed,tiles", help="which of these to run")
    add_options(parser)
    args = parser.parse_args()
    spells = Spells(args.rounds, args.spell)
    database = ts.open_database(args.db)
    features = ts.cpu().features
    left = "uint8" if "vnni" in features or "avxvnni" in features else "int8"

    def ours(name: str, func: ts.Function, rules: str = "default") -> Contestant:
        return tuned(Case(name, func, rules), args.seconds, database)

    if "matmul" in args.cases:
        func = matmul(512, left, "int8")
        contest("matmul 512", func, [
            ours(f"{left} x int8", func), ours("float32", matmul(512, "float32", "float32")),
            peer_matmul(func),
        ], spells)  # fmt: skip
    if "conv" in args.cases:
        func = conv(left, "int8")
        contest("conv 56x56x64 3x3", func, [
            ours(f"{left} x int8", func), ours("float32", conv("float32", "float32")),
            ours("float32 without Winograd", conv("float32", "float32"), "sums"), peer_conv(func),
        ], spells)  # fmt: skip
    if "mixed" in args.cases:  # other types than those that the machine's instructions take
        small = {"uint8 x int8": ("uint8", "int8"), "int8 x int8": ("int8", "int8")}
        for n in (256, 512):
            funcs = {name: matmul(n, *types) for name, types in small.items()}
            func = funcs["uint8 x int8"]
            contest(f"matmul {n}, uint8 x int8", func, [
                ours("uint8 x int8", func), ours("uint8 x int8", func, "plain"),
                ours("int8 x int8", funcs["int8 x int8"]), peer_matmul(func),
            ], spells)  # fmt: skip
        func = conv("uint8", "int8")
        contest("conv 56x56x64 3x3, uint8 x int8", func, [
            ours("uint8 x int8", func), ours("uint8 x int8", func, "plain"),
            ours("int8 x int8", conv("int8", "int8")), peer_conv(func),
        ], spells)  # fmt: skip
    if "tiles" in args.cases and "amx" in features:
        func = matmul(1024, "uint8", "int8")
        small, plain = matmul(1024, "bfloat16", "bfloat16"), matmul(1024, "float32", "float32")
        contest("matmul 1024", func, [
            ours("uint8 x int8", func), ours("uint8 x int8 without AMX", func, "no_tiles"),
            ours("int8 x int8", matmul(1024, "int8", "int8")), ours("bfloat16", small),
            ours("float32", plain), peer_matmul(func),
        ], spells)  # fmt: skip


if __name__ == "__main__":
    main()
