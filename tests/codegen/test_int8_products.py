"""Products of bytes by matrix instructions of GPUs: exact, for every pair of signs and every order
of the operands, with what rounds the sums behind them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.codegen.test_tensor_cores import by_instruction, product, unit_of
from tests.support.gpu_programs import GpuCheck, without_each_sync
from tilesmith.codegen.c.backends import CudaBackend
from tilesmith.ir.function import Function
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unfold import Unfold
from tilesmith.schedule.unit import Tensorize
from tilesmith.space.derive import derive
from tilesmith.space.sets import default_rules
from tilesmith.space.tensor_cores import TileByTensorCores
from tilesmith.space.variant import Variant, lower
from tilesmith.task.task import Task

H200, A100 = ts.Target.named("nvidia-h200"), ts.Target.named("nvidia-a100")

pytestmark = pytest.mark.usefixtures("quick_nvrtc")


def of_two_types(left: str, right: str) -> Function:
    a, b = ts.placeholder((64, 128), left, name="A"), ts.placeholder((64, 128), right, name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, False, True)], name="product")


def requantised(rows: int, columns: int, depth: int) -> Function:
    x = ts.placeholder((rows, depth), "uint8", name="X")
    w = ts.placeholder((columns, depth), "int8", name="W")
    factor = ts.placeholder((columns,), name="factor")
    zero, rest = ts.placeholder((), "uint8", name="zero"), ts.placeholder((columns,), name="rest")
    y = ts.ops.requantize(ts.ops.dense(x, w), factor, zero, rest)
    return ts.function([x, w, factor, zero, rest, y], name="requantised")


def by_constant() -> Function:
    """The caller turns the weights."""
    a, b = ts.placeholder((64, 128), "uint8", name="A"), ts.placeholder((128, 64), "int8", name="B")
    return ts.function([a, b, ts.ops.matmul(a, b)], name="product", constants=[b])


CASES = {
    "constant": by_constant(),
    "plain": product((64, 64, 128), "int8", turned=(False, True)),
    "rows of B": product((64, 64, 128), "int8"),
    "both turned": product((64, 32, 256), "int8", turned=(True, False)),
    "unsigned": product((64, 64, 128), "uint8", turned=(False, True)),
    "unsigned by signed": of_two_types("uint8", "int8"),
    "signed by unsigned": of_two_types("int8", "uint8"),
    "batch": product((64, 64, 128), "int8", batch=2),
    "odd": product((127, 67, 250), "int8"),
    "requantised": requantised(64, 64, 128),
    "requantised, odd": requantised(100, 70, 120),
}


def every(func: Function, target: ts.Target) -> dict[str, Variant]:
    """One variant of each kind of instruction, also where turning an operand takes longer than the
    product.
    """
    rules = [
        replace(r, ahead=0) if isinstance(r, TileByTensorCores) else r
        for r in default_rules(target)
    ]
    task = Task(func, target)
    sketches = derive(task, rules).finished
    units = [s for s in sketches if any(isinstance(x, Tensorize) for x in s.steps)]
    variants = [lower(task, Trace(s.steps)) for s in units]
    return {unit_of(v).name.split(".")[1].split("_")[0]: v for v in variants}


@pytest.mark.parametrize("target", [H200, A100], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("name", CASES)
def test_products_are_exact_and_compile(name: str, target: ts.Target) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    func = CASES[name]
    check, kinds = GpuCheck(func, target), every(func, target)
    assert kinds.keys() == ({"wgmma", "mma"} if target is H200 else {"mma"})
    for variant in kinds.values():
        (row,) = variant.sample(np.random.default_rng(0), 1)
        scheduled = variant.function(row)
        check.run(scheduled)
        source = CudaBackend().compile(scheduled, target).source
        assert ".s32." in source
        assert "load_bytes" not in source  # registers hold neighbours in the sum


def test_a_missing_barrier_is_a_race() -> None:
    check = GpuCheck(CASES["rows of B"], A100)
    variant = every(CASES["rows of B"], A100)["mma"]
    (row,) = variant.sample(np.random.default_rng(0), 1)
    scheduled = variant.function(row)
    for broken in without_each_sync(check.run(scheduled)):
        assert "race" in check.race_without(scheduled, broken)


def test_convolutions() -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    x = ts.placeholder((1, 8, 8, 128), "uint8", name="X")
    w = ts.placeholder((3, 3, 128, 64), "int8", name="W")
    y = ts.ops.conv2d(x, w, padding=1, layout="NHWC")
    factor, zero = ts.placeholder((64,), name="factor"), ts.placeholder((), "uint8", name="zero")
    y = ts.ops.requantize(y, factor, zero)
    func = ts.function([x, w, factor, zero, y], name="conv", constants=[w])
    check, variants = GpuCheck(func, H200), by_instruction(func)
    assert any(isinstance(x, Unfold) for v in variants for x in v.trace.steps)
    for variant in (variants[0], variants[-1]):
        (row,) = variant.sample(np.random.default_rng(0), 1)
        scheduled = variant.function(row)
        check.run(scheduled)
        CudaBackend().compile(scheduled, H200)
