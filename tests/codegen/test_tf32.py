"""Products of float32 by matrix instructions that read TF32: right up to the stated error, chosen
only where that is allowed, and told from wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from bench.wrong_kernels import difference
from tests.codegen.test_tensor_cores import channels_last, product, unit_of
from tests.support.gpu_programs import GpuCheck, launch_form, without_each_sync
from tilesmith import open_database
from tilesmith.codegen.c.backends import CudaBackend
from tilesmith.ir.error_bounds import bounded_in_ways
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import TF32_ROUNDOFF
from tilesmith.ir.simt import rounded, run_simt
from tilesmith.records.accurate import AccurateRecords
from tilesmith.schedule.rounding import TF32_ERROR, factor_error, rounds_in
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unfold import Unfold
from tilesmith.schedule.unit import Tensorize
from tilesmith.schedule.winograd import Winograd
from tilesmith.space.derive import derive
from tilesmith.space.sets import default_rules
from tilesmith.space.tensor_cores import TileByTensorCores
from tilesmith.space.variant import Variant, lower
from tilesmith.task.task import Candidate, Task

H200, A100 = ts.Target.named("nvidia-h200"), ts.Target.named("nvidia-a100")
OLD = replace(A100, arch="sm_75", cpu="sm_75")

pytestmark = pytest.mark.usefixtures("quick_nvrtc")


def by_instruction(
    func: Function, target: ts.Target = H200, accuracy: float | None = TF32_ERROR
) -> list[Variant]:
    """Also where a launch that turns an operand takes longer than the product."""
    rules = [
        replace(r, ahead=0) if isinstance(r, TileByTensorCores) else r
        for r in default_rules(target, accuracy)
    ]
    task = Task(func, target)
    sketches = derive(task, rules).finished
    units = [s for s in sketches if any(isinstance(x, Tensorize) for x in s.steps)]
    return [lower(task, Trace(s.steps)) for s in units]


def error_of(check: GpuCheck, lowered: Function, scheduled: Function) -> float:
    got = run_simt(lowered, *check.arguments(scheduled))
    return float(np.abs(got - check.want).max() / np.abs(check.want).max())


CASES = {
    "plain": product((64, 64, 64), "float32", turned=(False, True)),
    "rows of B": product((64, 64, 64), "float32"),
    "both turned": product((64, 32, 96), "float32", turned=(True, False)),
    "batch": product((64, 64, 32), "float32", batch=2),
    "odd": product((127, 67, 95), "float32"),
    "odd rows": product((100, 64, 60), "float32", turned=(False, True)),
}


@pytest.mark.parametrize("target", [H200, A100], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("name", CASES)
def test_products_have_the_stated_error_and_compile(name: str, target: ts.Target) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    func = CASES[name]
    check = GpuCheck(func, target)
    kinds = {unit_of(v).name.split(".")[1].split("_")[0]: v for v in by_instruction(func, target)}
    assert kinds.keys() == ({"wgmma", "mma"} if target is H200 else {"mma"})
    for variant in kinds.values():
        (row,) = variant.sample(np.random.default_rng(0), 1)
        scheduled = variant.function(row)
        lowered = launch_form(scheduled, target)
        assert 0 < error_of(check, lowered, scheduled) <= TF32_ERROR
        source = CudaBackend().compile(scheduled, target).source
        assert ".tf32.tf32" in source
        assert rounds_in(variant.trace.steps) == "factors"


def test_a_missing_barrier_is_a_race() -> None:
    check = GpuCheck(CASES["rows of B"], A100)
    (variant,) = by_instruction(CASES["rows of B"], A100)
    (row,) = variant.sample(np.random.default_rng(0), 1)
    scheduled = variant.function(row)
    for broken in without_each_sync(launch_form(scheduled, A100)):
        assert "race" in check.race_without(scheduled, broken)


def convolution(stride: int = 1, constant: bool = True) -> Function:
    x = ts.placeholder((1, 32, 8 * stride, 8 * stride), name="X")
    w = ts.placeholder((64, 32, 3, 3), name="W")
    y = ts.ops.conv2d(x, w, stride, 1)
    return ts.function([x, w, y], name="conv", constants=[w] if constant else [])


@pytest.mark.parametrize(
    "func",
    [
        channels_last((1, 8, 8, 32), 64, dtype="float32"),
        channels_last((1, 8, 8, 30), 60, dtype="float32", epilogue=True),
        convolution(),
        convolution(2, constant=False),
    ],
    ids=["channels last", "odd with epilogue", "channels first", "stride"],
)
def test_convolutions(func: Function) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    check = GpuCheck(func, H200)
    variants = by_instruction(func)
    assert any(isinstance(x, Unfold) for v in variants for x in v.trace.steps)
    for variant in (variants[0], variants[-1]):
        (row,) = variant.sample(np.random.default_rng(0), 1)
        scheduled = variant.function(row)
        assert error_of(check, launch_form(scheduled, H200), scheduled) <= TF32_ERROR
        CudaBackend().compile(scheduled, H200)


@pytest.mark.parametrize("accuracy", [None, 0.0, 9e-4])
def test_float32_is_not_rounded_unless_that_is_allowed(accuracy: float | None) -> None:
    assert not by_instruction(CASES["plain"], H200, accuracy)
    assert not by_instruction(CASES["plain"], OLD)


def test_filtered_windows_are_not_rounded() -> None:
    x, w = ts.placeholder((1, 128, 56, 56), name="X"), ts.placeholder((128, 128, 3, 3), name="W")
    func = ts.function([x, w, ts.ops.conv2d(x, w, 1, 1)], constants=[w])
    sketches = derive(Task(func, H200), default_rules(H200, 1e-2)).finished
    assert any(isinstance(x, Winograd) for s in sketches for x in s.steps)
    for s in sketches:
        assert factor_error(s.steps) in (0, TF32_ERROR)


Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
DRAWS: dict[str, Draw] = {
    "both signs": lambda r, s: r.standard_normal(s),
    "positive": lambda r, s: r.random(s) + 0.1,
    "heavy tails": lambda r, s: r.standard_t(2, s),
    "channels": lambda r, s: r.standard_normal(s) * np.exp2(r.integers(-8, 8, s[1])),
    "tiny": lambda r, s: r.standard_normal(s) * 1e-12,
    "huge": lambda r, s: r.standard_normal(s) * 1e12,
}


@pytest.mark.parametrize("terms", [8, 64, 512, 8192])
@pytest.mark.parametrize("draw", DRAWS)
def test_the_stated_error_holds(draw: str, terms: int) -> None:
    rng = np.random.default_rng(terms)
    a, b = (DRAWS[draw](rng, (96, terms)).astype(np.float32) for _ in range(2))
    want = a.astype(np.float64) @ b.T.astype(np.float64)
    x, y = (rounded(x, TF32_ROUNDOFF).astype(np.float64) for x in (a, b))
    error = np.abs(x @ y.T - want)
    assert error.max() <= TF32_ERROR * np.abs(want).max()
    i, j = ts.placeholder(a.shape, name="A"), ts.placeholder(b.shape, name="B")
    func = ts.function([i, j, ts.ops.matmul(i, j, False, True)])
    (plain,), (wide,) = bounded_in_ways(func, ("", "factors"), a, b)
    assert plain.error is not None
    assert wide.error is not None
    assert (plain.error < wide.error).all()
    assert (error <= wide.error).all()


def test_what_eleven_digits_hold_is_exact() -> None:
    a = np.random.default_rng(0).integers(-2047, 2048, (40, 50)).astype(np.float32)
    np.testing.assert_array_equal(rounded(a, TF32_ROUNDOFF), a)
    odd = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 2049, 1 + 2**-11], np.float32)
    want = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 2050, 1 + 2**-10], np.float32)
    np.testing.assert_array_equal(rounded(odd, TF32_ROUNDOFF), want)


@pytest.mark.parametrize("terms", [16, 300, 2048])
def test_wrong_kernels_are_told_from_rounded_ones(terms: int) -> None:
    i, j = ts.placeholder((40, terms), name="A"), ts.placeholder((terms, 30), name="B")
    func = ts.function([i, j, ts.ops.matmul(i, j)])

    def right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = (rounded(v, TF32_ROUNDOFF).astype(np.float64) for v in (a, b))
        return (x @ y).astype(np.float32)

    def without_last(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return right(a[:, :-1], b[:-1])

    def in_bfloat16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = (rounded(v, 2.0**-8).astype(np.float64) for v in (a, b))
        return (x @ y).astype(np.float32)

    assert difference(func, right, way="factors") is None
    assert difference(func, right) is not None
    assert difference(func, without_last, way="factors") is not None
    assert difference(func, in_bfloat16, way="factors") is not None


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_rows_of_other_magnitudes_are_rounded_more(turned: tuple[bool, bool]) -> None:
    func = product((256, 256, 512), "float32", turned=turned)

    def right(*arrays: np.ndarray) -> np.ndarray:
        x, y = (rounded(v, TF32_ROUNDOFF) for v in arrays)
        x, y = (v.T if t else v for v, t in zip((x, y), turned, strict=True))
        return (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32)

    for seed in (0, 1):
        assert difference(func, right, seed, way="factors") is None


def test_records_are_for_those_who_allow_the_error() -> None:
    task = Task(CASES["plain"], H200)
    variant = by_instruction(CASES["plain"])[0]
    (row,) = variant.sample(np.random.default_rng(0), 1)
    candidate = Candidate(task, variant.candidate(row).trace)
    with open_database(":memory:") as records:
        assert not AccurateRecords(records, None).allows(candidate)
        assert AccurateRecords(records, TF32_ERROR).allows(candidate)


def test_arguments() -> None:
    func = CASES["plain"]
    with pytest.raises(ts.TilesmithError, match=r"'float16'\): an operator is computed in the typ"):
        ts.build(func, H200, precision="float16")
    with pytest.raises(ts.TilesmithError, match=r"error of up to 0.00098; leave accuracy out"):
        ts.build(func, H200, precision="tf32", accuracy=1e-5)
    with pytest.raises(ts.TilesmithError, match=r"'tf16'\) is unknown"):
        ts.tune(func, H200, precision="tf16")
    with pytest.warns(UserWarning, match="sm_75 has no faster products of tf32 than of float32"):
        ts.build(func, OLD, precision="tf32")
    with pytest.warns(UserWarning, match="products are computed in float32"):
        ts.build(func, ts.cpu(1), precision="tf32")
