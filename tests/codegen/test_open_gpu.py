"""GPU kernels with open sizes: the same launch form in the SIMT interpreter at all sizes, the same
code on PoCL, and CUDA that compiles. Sizes lie around the ends of tiles.
"""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gpu_targets import nvidia
from test_open_kernels import (
    FUNCTIONS,
    column_maxima,
    dense,
    elementwise,
    layer_norm,
    matmul_all,
    matmul_relu,
    row_sums,
    softmax,
    transposed,
)

import tilesmith as ts
from tests.support.gpu_programs import OPENCL, GpuCheck, launch_form
from tests.support.meaning import assert_close
from tests.support.open_programs import open_candidates, random_open_program
from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import entry_from_json, entry_to_json
from tilesmith.ir.function import Function
from tilesmith.runtime.build import build, compile_function
from tilesmith.runtime.device_kernel import DevicePortfolio, OpenDeviceKernel
from tilesmith.runtime.dispatch import Region
from tilesmith.runtime.entry_at import entry_at
from tilesmith.schedule.open_trace import open_trace
from tilesmith.tune.open_build import draft_kernels, stage_launches, typical_sizes

LENGTHS = (1, 2, 7, 15, 16, 17, 31, 32, 33, 41)


def sizes_of(func: Function, rng: np.random.Generator, count: int) -> list[dict[str, int]]:
    names = func.open_sizes
    some = [{n: int(rng.choice(LENGTHS)) for n in names} for _ in range(count)]
    return [dict.fromkeys(names, 1), *some, {n: int(rng.integers(1, 60)) for n in names}]


def tiles_of(func: Function) -> list[int]:
    """What the outermost parts of split loops are multiplied with."""
    return sorted({int(np.prod([s.const or 1 for s in f.sizes[1:]])) for f in func.facts})


def is_right_in_simt(func: Function, scheduled: Function, rng: np.random.Generator) -> bool:
    """False for what is refused: a barrier that only some threads would reach, an array of a block
    that depends on a size.
    """
    try:
        compile_function(scheduled, OPENCL)
    except BuildError:
        return False
    require_right_in_simt(func, scheduled, rng)
    return True


def require_right_in_simt(func: Function, scheduled: Function, rng: np.random.Generator) -> None:
    lowered = launch_form(scheduled, OPENCL)
    tiles = [t for t in tiles_of(scheduled) if 1 < t < 60][-1:]
    around = [dict.fromkeys(func.open_sizes, t + d) for t in tiles for d in (-1, 0, 1)]
    for sizes in (*around, *sizes_of(func, rng, 1)):
        check = GpuCheck(ts.instantiate(func, sizes), OPENCL)
        got = ts.run_simt(lowered, *check.arrays)
        assert_close(got, check.want, f"{sizes}\n{lowered}", check.func)


@pytest.mark.turns(4)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_candidates_have_no_races_and_are_right_at_all_sizes(function):
    func, rng = function(), np.random.default_rng(3)
    done = 0
    for scheduled in open_candidates(func, OPENCL, dict.fromkeys(func.open_sizes, 24), 4, rng):
        if any(not b.is_as_given for b in scheduled.inputs):
            continue
        done += is_right_in_simt(func, scheduled, rng)
    require_right_in_simt(func, open_trace(stage_launches(func), func).apply(func), rng)
    assert done or function.__name__ == "dense"


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    func = random_open_program(rng)
    for scheduled in open_candidates(func, OPENCL, dict.fromkeys(func.open_sizes, 20), 2, rng):
        is_right_in_simt(func, scheduled, rng)
    require_right_in_simt(func, open_trace(stage_launches(func), func).apply(func), rng)


def require_right(kernel: ts.Kernel, func: Function, sizes: dict[str, int]) -> None:
    check = GpuCheck(ts.instantiate(func, sizes), OPENCL)
    given = [kernel.pack(b.name, a) for b, a in zip(func.inputs, check.arrays, strict=True)]
    assert_close(kernel(*given), check.want, f"{func.name} {sizes}\n{kernel.source}", check.func)


@pytest.fixture(scope="module")
def pocl() -> ts.Target:
    try:
        return ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))


# Of the others PoCL takes long to compile the unrolled loops.
ON_DEVICES = [matmul_all, dense, elementwise, softmax, layer_norm, column_maxima, transposed]


def draft(func: Function, target: ts.Target) -> ts.Kernel:
    return next(draft_kernels(func, typical_sizes(func), target, None, None))


@pytest.mark.turns(4)
@pytest.mark.parametrize("function", ON_DEVICES, ids=lambda f: f.__name__)
def test_one_kernel_on_a_device_for_all_sizes(function, pocl):
    func, rng = function(), np.random.default_rng(4)
    kernel = draft(func, pocl)
    assert isinstance(kernel, OpenDeviceKernel)
    assert kernel.origin.kind == "draft"
    for sizes in (dict.fromkeys(func.open_sizes, 0), *sizes_of(func, rng, 3)):
        if func.name != "layer_norm" or sizes["n"]:  # a mean of nothing
            require_right(kernel, func, sizes)
    assert kernel._module.sized is not None  # loaded once
    assert all(k._whole is kernel for k in kernel._known.values())


def test_a_build_has_kernels_for_few_and_many(pocl):
    func = row_sums()
    kernel = ts.build(func, pocl)
    assert isinstance(kernel, DevicePortfolio)
    assert {dict(r.sizes)["m"] for r in kernel.regions} >= {1, 1024}
    assert 1 < len(kernel.members) <= 4
    assert kernel.member_for({"m": 1 << 20, "n": 1}) == 0
    for m in (1, 33, 2000):
        require_right(kernel, func, {"m": m, "n": m // 2})


def test_what_every_function_falls_back_to(pocl):
    func = matmul_relu()
    kernels = list(draft_kernels(func, (("m", 24),), pocl, None, None))
    assert [k.origin.kind for k in kernels[-2:]] == ["draft", "naive"]
    for kernel in kernels[-2:]:
        for m in (0, 1, 65):
            require_right(kernel, func, {"m": m})


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
@pytest.mark.parametrize("function", [matmul_all, softmax, row_sums], ids=lambda f: f.__name__)
def test_cuda_compiles(function, arch):
    func = function()
    artifact = draft(func, nvidia(arch)).artifact
    assert artifact.entries[0].open is not None
    assert all(x.resources for x in artifact.entries[0].launches)
    assert "const int m" in artifact.source


def test_sizes_beyond_31_bits_are_wide_arguments_where_the_range_has_them():
    def doubled(n: ts.Int) -> Function:
        X = ts.placeholder((n,), "int8", name="X")
        return ts.function([X, ts.compute((n,), lambda i: X[i] + X[i], name="Y")], name="doubled")

    narrow, wide = doubled(ts.size("n")), doubled(ts.size("n", range=(1, 1 << 40)))
    for func in (narrow, wide):
        sch = open_trace(stage_launches(func), func).apply(func)
        artifact = compile_function(sch, OPENCL)
        entry = entry_at(artifact, {"n": 5000})
        assert entry.launches[0].grid == 79
        assert entry.launches[0].values == (5000,)
        if func is narrow:
            assert "const int n" in artifact.source
            with pytest.raises(ts.ArgumentError, match="at most 2147418112, and this one"):
                entry_at(artifact, {"n": 1 << 31})
        else:
            assert "const long n" in artifact.source
            assert entry_at(artifact, {"n": 1 << 33}).launches[0].grid == (1 << 33) // 64
            with pytest.raises(ts.ArgumentError, match=r"blocks at n = .*; a launch has at most"):
                entry_at(artifact, {"n": 1 << 38})


def test_an_entry_goes_through_json():
    func = softmax()
    artifact = compile_function(open_trace(stage_launches(func), func).apply(func), OPENCL)
    (entry,) = artifact.entries
    assert entry.open is not None
    assert len(entry.launches) == len(entry.open.grids) > 1
    assert entry.open.scratch
    assert entry_from_json(json.loads(json.dumps(entry_to_json(entry)))) == entry
    fixed = entry_at(artifact, {"m": 3, "n": 100})
    starts = [at for _, at in fixed.scratch]
    assert starts == sorted(starts)
    assert all(at % 256 == 0 for at in starts)
    assert fixed.workspace_nbytes > starts[-1]


def test_an_array_of_a_block_does_not_depend_on_a_size():
    func = row_sums()
    sch = ts.Schedule(func)
    copy = sch.cache_read("S", "A", "shared")
    sch.compute_at(copy, sch.loops("S")[0])
    sch.bind(sch.loops("S")[0], "blockIdx.x")
    with pytest.raises(BuildError, match="only arrays in global memory may depend on an open size"):
        build(sch, OPENCL)


def test_a_portfolio_on_a_device(pocl):
    func = matmul_relu()
    first, second, *_ = draft_kernels(func, (("m", 24),), pocl, None, None)
    regions = [Region((("m", 4),), 1), Region((("m", 64),), 0)]
    kernel = DevicePortfolio([first, second], regions, {"m": (1, 64)})
    assert [kernel.member_for({"m": m}) for m in (0, 1, 16, 17, 65)] == [0, 1, 1, 0, 0]
    again = pickle.loads(pickle.dumps(kernel))
    for m in (0, 5, 16, 17, 100):
        require_right(kernel, func, {"m": m})
        require_right(again, func, {"m": m})
    a, b = np.ones((3, 24), np.float32), np.ones((23, 40), np.float32)
    with pytest.raises(ts.ArgumentError, match="dimension 0 of B is 23; it must be 24"):
        kernel(a, b)
    with pytest.raises(ts.ArgumentError, match="open sizes m; give the arrays"):
        kernel.time()
    b = np.ones((24, 40), np.float32)
    out = np.empty((3, 40), np.float32)
    assert kernel(a, b, out=out) is out
    np.testing.assert_array_equal(kernel.bind(a, b)(), out)
    assert kernel.time(a, b, repeats=1, min_seconds=1e-4).best > 0


def test_calls_with_many_sizes_share_memory_and_run_in_threads(pocl):
    kernel = ts.build(softmax(), pocl)

    def run(n: int) -> bool:
        x = np.random.default_rng(n).standard_normal((n % 7 + 1, n + 1)).astype(np.float32)
        want = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        return bool(np.allclose(kernel(x), want, rtol=1e-4))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(60)))
    assert len(kernel._frames) <= 4
    assert all(not k._frames for k in kernel._known.values())
