"""`tilesmith doctor`: what this machine can run, and what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

from tilesmith.base.errors import TilesmithError
from tilesmith.base.target import cpu
from tilesmith.expr.dsl import compute, placeholder
from tilesmith.ir.lower import function
from tilesmith.runtime.build import build

_PARTS = {
    "numpy": "arrays",
    "llvmlite": "code for CPUs",
    "sqlalchemy": "records",
    "psycopg": "records in PostgreSQL",
    "torch": "a peer to compare with",
    "onnxruntime": "a peer to compare with",
}


def doctor() -> None:
    """What this machine can run, and what is missing."""
    print(f"Python {sys.version.split()[0]}")
    target = cpu()
    caches = (target.l1_nbytes >> 10, target.l2_nbytes >> 10, target.l3_nbytes >> 10)
    size = " ".join(f"L{k} {n} KB" for k, n in enumerate(caches, 1))
    print(f"CPU: {target.arch}, {target.num_cores} cores, {target.vector_bits}-bit vectors, {size}")
    print(f"     {' '.join(sorted(target.features))}")
    for name, what in _PARTS.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed ({what})")
        else:
            print(f"{name} {importlib.metadata.version(name)} ({what})")
    x = placeholder((16,), name="x")
    try:
        kernel = build(function([x, compute((16,), lambda i: x[i] + 1, name="y")]), target)
        print(f"a kernel builds and runs: {kernel.time()}")
    except TilesmithError as e:
        print(f"a kernel does not build: {e}")
        sys.exit(1)
