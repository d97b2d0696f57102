"""What a launch takes is reckoned before it is lowered, also for sizes that are still open: the
bytes of shared memory are those that the generated CUDA declares.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.backends import CudaBackend, emit_artifact
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.pipeline import GPU_PASSES
from tilesmith.ir.launch_resources import LaunchResources, launch_resources, results_of_thread
from tilesmith.ir.nodes import walk
from tilesmith.ir.notes import PipelineStages
from tilesmith.space.domains import compile_ints

H200 = ts.Target.named("nvidia-h200")
NBYTES = {"float": 4, "unsigned short": 2, "__half": 2, "__nv_bfloat16": 2, "int": 4}
DECLARED = re.compile(r"__shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[(\d+)\];")


def half(n: int) -> ts.Function:
    a, b = (ts.placeholder((n, n), "float16", name=x) for x in "AB")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="half")


FUNCTIONS = {
    "matmul": lambda: operator("matmul", (64, 32, 512)),
    "conv2d": lambda: operator("conv2d", (14, 16, 16, 3, 1, 1)),
    "depthwise": lambda: operator("depthwise-conv2d", (28, 32, 3, 2, 1)),
    "short sums": lambda: operator("matmul", (64, 32, 16)),
    "half": lambda: half(256),
    "half with tails": lambda: half(200),
}


@cache
def drawn(name: str, count: int = 2) -> tuple[tuple[ts.Variant, Any], ...]:
    task = ts.Task(FUNCTIONS[name](), H200)
    return tuple(
        (v, v.sample(np.random.default_rng(0), count))
        for s in ts.SketchSpace().sketches(task)
        for v in ts.variants(task, s)
    )


def reckoned(func: ts.Function) -> list[LaunchResources]:
    return [launch_resources(func, list(walk((s,))), H200.warp_size) for s in func.body]


def declared(launch: Launch, source: str) -> int:
    """Bytes of a launch's arrays, but for those in which threads exchange parts of a sum."""
    if launch.shared_nbytes:
        return launch.shared_nbytes
    text = source[source.index(f" {launch.symbol}(") :].split("\n}\n")[0]
    arrays = [a for a in DECLARED.findall(text) if "exchange" not in a[1]]
    return sum(-(-NBYTES[kind] * int(size) // 16) * 16 for kind, _, size in arrays)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shared_bytes_are_those_of_the_generated_code(name: str) -> None:
    for v, rows in drawn(name):
        for func in map(v.function, rows):
            artifact = emit_artifact(func, H200, CUDA, GPU_PASSES, checked=False)
            made = [declared(x, artifact.source) for x in artifact.entries[0].launches]
            assert [x.shared_nbytes.const for x in reckoned(func)] == made, str(func)


def test_what_was_drawn_has_all_ways_to_use_shared_memory() -> None:
    texts = [str(v.function(r)) for name in FUNCTIONS for v, rows in drawn(name) for r in rows]
    for part in ("pipeline=1", "pipeline=2", "pipeline=4", "cluster", "align"):
        assert any(part in text for text in texts), part


@pytest.mark.parametrize("name", FUNCTIONS)
def test_open_sizes_give_the_same_as_numbers(name: str) -> None:
    for v, rows in drawn(name):
        for k, x in enumerate(reckoned(v.func)):
            columns = compile_ints((x.shared_nbytes, x.tile_nbytes, x.versions), v.columns)(rows)
            for row, values in zip(rows, zip(*columns, strict=True), strict=True):
                one = reckoned(v.function(row))[k]
                exact = (one.shared_nbytes.const, one.tile_nbytes.const, one.versions.const)
                assert exact == tuple(values), str(v.function(row))


def test_a_tile_that_is_copied_once_has_one_version() -> None:
    """There is no next one to fetch, whatever the loop's note says."""
    found = set()
    for v, rows in drawn("short sums", 12):
        for func in map(v.function, rows):
            noted = {
                f.name: f for path, _ in walk(func.body) for f in path
                if f.note(PipelineStages) is not None
            }  # fmt: skip
            if noted:
                several = any((f.extent.const or 0) > 1 for f in noted.values())
                stages = {f.count(PipelineStages) for f in noted.values()}
                versions = max(x.versions.const or 0 for x in reckoned(func))
                found.add((*stages, several, versions))
    assert (
        {(2, False, 1), (2, True, 2)}
        <= found
        <= {(1, False, 1), (1, True, 1), (2, False, 1), (2, True, 2)}
    )


@pytest.mark.parametrize("name", ["matmul", "half"])
def test_registers_are_at_least_those_of_the_results(name: str) -> None:
    """As NVRTC compiles it; where the limits hold, nothing is spilled for want of registers."""
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    for v, rows in drawn(name)[:6]:
        func = v.function(rows[0])
        made = CudaBackend().compile(func, H200).entries[0].launches
        for launch, s in zip(made, func.body, strict=True):
            assert launch.resources is not None
            held = [results_of_thread(p, b).const or 0 for p, b in walk((s,)) if b.reducing]
            assert launch.resources.registers >= max(held, default=0)
