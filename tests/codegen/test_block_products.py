"""Products of 2 x 2 blocks (SMMLA, UMMLA, USMMLA) of newer Arm cores: found by the sketches, in the
code, and right when they are carried out by an emulator.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from emulated import obstacle, run_emulated

import tilesmith as ts
from tilesmith.codegen.llvm.compiler import assembly
from tilesmith.runtime.build import compile_function
from tilesmith.space.spaces import SketchSpace
from tilesmith.task.task import Task
from tilesmith.tune.build_request import drafts_of

V1 = ts.Target.named("neoverse-v1").with_cores(1)
KINDS = {
    ("int8", "int8"): "smmla", ("uint8", "uint8"): "ummla", ("uint8", "int8"): "usmmla",
    ("int8", "uint8"): "usmmla",
}  # fmt: skip


def product(rows: int, columns: int, depth: int, left: str, right: str) -> ts.Function:
    a = ts.placeholder((rows, depth), left, name="A")
    b = ts.placeholder((depth, columns), right, name="B")
    k = ts.reduce_axis(depth, name="k")
    c = ts.compute(
        (rows, columns),
        lambda i, j: ts.sum(ts.cast(a[i, k], "int32") * ts.cast(b[k, j], "int32"), axis=k),
        name="C",
    )
    return ts.function([a, b, c], name=f"product_{left}_{right}_{rows}_{columns}_{depth}")


def with_blocks(func: ts.Function, target: ts.Target = V1) -> list[ts.Schedule]:
    """The best draft of the sketches with such an instruction, if there are any."""
    task = Task(func, target)
    sketches = tuple(s for s in SketchSpace().sketches(task) if "neon.block_" in str(s))
    if not sketches:
        return []
    return [d.apply(func) for d in drafts_of(task, 1, among=sketches)]


@pytest.mark.parametrize(("left", "right"), KINDS)
def test_sketches_have_them_where_the_processor_does(left: str, right: str) -> None:
    func = product(16, 32, 64, left, right)
    (sch,) = with_blocks(func)
    found = re.findall(r"\b[us]+mmla\b", assembly(compile_function(sch, V1)))
    assert len(found) >= 8
    assert set(found) == {KINDS[left, right]}
    assert not with_blocks(func, ts.Target.named("neoverse-n1").with_cores(1))


@pytest.mark.skipif(obstacle("aarch64") is not None, reason=obstacle("aarch64") or "")
def test_they_compute_what_is_stated(tmp_path: Path) -> None:
    """All bytes, whole blocks and parts of them."""
    rng, programs = np.random.default_rng(0), []
    for (left, right), sizes in zip(
        KINDS, ((16, 32, 64), (5, 7, 24), (18, 20, 13), (2, 9, 8)), strict=True
    ):
        func = product(*sizes, left, right)
        (sch,) = with_blocks(func)
        feeds = [
            np.frombuffer(rng.bytes(p.size.number), p.dtype.name).reshape(
                [n.number for n in p.shape]
            )
            for p in func.inputs
        ]
        programs.append((sch, feeds))
    results = run_emulated(programs, V1, tmp_path)
    for (_, (a, b)), (got,) in zip(programs, results, strict=True):
        np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))
