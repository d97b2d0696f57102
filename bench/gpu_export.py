"""Exported kernels and a network on an NVIDIA GPU: `python -m bench.gpu_export`.

Each is compiled for the GPU of this machine, exported, linked with its example by the C compiler
and run through the driver. What C computes is compared with Python bit for bit, and with the oracle
within the tolerance of the dtype. The status is 1 if one differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.runtime.export.write import Exported

Array = np.ndarray[Any, Any]


def ran(files: Exported, name: str, inputs: Sequence[Array], like: Sequence[Array]) -> list[Array]:
    """What the example computes."""
    folder = files.header.parent
    words = ["cc", "-O2", "example.c", "-I.", "-L.", f"-l{name}", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*words, "-o", "example"], cwd=folder, check=True)
    given = b"".join(np.ascontiguousarray(a).tobytes() for a in inputs)
    done = subprocess.run(
        [folder / "example", files.weights], input=given, capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.decode()}")
    out, at = [], 0
    for a in like:
        out.append(np.frombuffer(done.stdout[at : at + a.nbytes], a.dtype).reshape(a.shape))
        at += a.nbytes
    return out


def compared(
    name: str, got: Sequence[Array], python: Sequence[Array], want: Sequence[Array]
) -> bool:
    same = all(g.tobytes() == p.tobytes() for g, p in zip(got, python, strict=True))
    errors = [
        float(np.abs(g.astype(np.float64) - w).max() / max(1e-30, np.abs(w).max()))
        for g, w in zip(got, (np.asarray(w, np.float64) for w in want), strict=True)
    ]
    most = 1e-2 if any(g.dtype == np.float16 for g in got) else 1e-4
    right = same and max(errors) <= most
    told = "the bits of Python" if same else "NOT the bits of Python"
    print(f"{name:24} {told}, {max(errors):.1e} from the oracle: {'ok' if right else 'WRONG'}")
    return right


def kernels() -> Mapping[str, ts.Function]:
    """With tensor maps, with several launches and a workspace, and with odd sizes."""
    A = ts.placeholder((512, 1024), "float16", name="A")
    B = ts.placeholder((1024, 768), "float16", name="B")
    return {
        "gemm": ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="gemm"),
        "matmul": operator("matmul", (127, 65, 33)),
        "conv2d": operator("conv2d", (14, 256, 256, 3, 1, 1)),
        "softmax": operator("softmax", (37, 1000)),
    }


def network() -> ts.Graph:
    """Convolutions, a view at an odd place, a product, and outputs that no kernel writes."""
    rng = np.random.default_rng(0)

    def constant(*shape: int) -> Any:
        return b.constant(rng.standard_normal(shape).astype(np.float32) / 8)

    b = GraphBuilder("network")
    x = b.input("x", (2, 3, 57, 61), "float32")
    y = b.add(ts.ops.relu, b.add(ts.ops.conv2d, x, constant(32, 3, 3, 3), stride=2, padding=1))
    y = b.add(ts.ops.relu, b.add(ts.ops.conv2d, y, constant(64, 32, 3, 3), padding=1))
    y = b.add(ts.ops.max_pool2d, y, kernel=2)
    flat = b.add(ts.ops.reshape, y, shape=(2, 64 * 14 * 15))
    scores = b.add(ts.ops.matmul, flat, constant(64 * 14 * 15, 11))
    part = b.add(ts.ops.slice_, scores, starts=(1, 0), stops=(2, 11))
    again = b.add(ts.ops.softmax, b.add(ts.ops.matmul, part, constant(11, 7)))
    return b.finish({"scores": scores, "again": again, "part": part, "x": x})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", type=int, default=0, help="which GPU to compile for")
    target = ts.cuda(parser.parse_args().device)
    rng = np.random.default_rng(1)
    right = True
    for name, func in kernels().items():
        kernel = ts.build(func, target)
        arrays = [
            rng.standard_normal(p.shape).astype(p.dtype.numpy) / 8 for p in kernel.artifact.inputs
        ]
        python = kernel(*arrays)
        want = ts.evaluate(func, *arrays)
        with tempfile.TemporaryDirectory() as folder:
            got = ran(kernel.export(folder, name), name, arrays, [python])
        right &= compared(name, got, [python], [want])
    graph = network()
    model = ts.compile_model(graph, target)
    feeds = {"x": rng.standard_normal((2, 3, 57, 61)).astype(np.float32)}
    results = model(feeds)
    with tempfile.TemporaryDirectory() as folder:
        got = ran(model.export(folder, "net"), "net", [feeds["x"]], [*results.values()])
    right &= compared("network", got, [*results.values()], [*evaluate_graph(graph, feeds).values()])
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
