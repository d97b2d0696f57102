"""Matrix instructions of GPUs in the automatic space: every sketch computes what the oracle does in
the SIMT interpreter, compiles, and needs its barriers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import GpuCheck, without_each_sync
from tilesmith.codegen.c.backends import CudaBackend, emit_artifact
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.pipeline import GPU_PASSES
from tilesmith.expr.ints import of
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import BULK_COPY, WGMMA
from tilesmith.ir.nodes import Alloc, Store, statements
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unfold import Unfold
from tilesmith.schedule.unit import Tensorize
from tilesmith.space.ansor import ansor_rules
from tilesmith.space.derive import derive
from tilesmith.space.sets import default_rules
from tilesmith.space.variant import Variant, lower
from tilesmith.task.task import Task

H200, A100 = ts.Target.named("nvidia-h200"), ts.Target.named("nvidia-a100")
OLD = replace(A100, arch="sm_75", cpu="sm_75")


def product(
    shape: tuple[int, int, int], dtype: str = "float16", out: str | None = None,
    turned: tuple[bool, bool] = (False, False), batch: int = 0,
) -> Function:  # fmt: skip
    m, n, k = shape
    lead = (batch,) if batch else ()
    a = ts.placeholder((*lead, *((k, m) if turned[0] else (m, k))), dtype, name="A")
    b = ts.placeholder((*lead, *((n, k) if turned[1] else (k, n))), dtype, name="B")
    op = ts.ops.batch_matmul if batch else ts.ops.matmul
    return ts.function([a, b, op(a, b, *turned, out_dtype=out)], name="product")


def by_instruction(func: Function, target: ts.Target = H200) -> list[Variant]:
    task = Task(func, target)
    sketches = derive(task, default_rules(target)).finished
    units = [s for s in sketches if any(isinstance(x, Tensorize) for x in s.steps)]
    return [lower(task, Trace(s.steps)) for s in units]


def unit_of(variant: Variant) -> ts.Intrinsic:
    return next(x.intrinsic for x in variant.trace.steps if isinstance(x, Tensorize))


def by_groups(func: Function, target: ts.Target = H200) -> list[Variant]:
    """The variants whose instructions are those of several warps."""
    return [v for v in by_instruction(func, target) if "wgmma" in unit_of(v).name]


def channels_last(
    shape: tuple[int, int, int, int], columns: int, kernel: int = 3, stride: int = 1,
    dtype: str = "float16", epilogue: bool = False,
) -> Function:  # fmt: skip
    x = ts.placeholder(shape, dtype, name="X")
    w = ts.placeholder((kernel, kernel, shape[-1], columns), dtype, name="W")
    y = ts.ops.conv2d(x, w, stride, kernel // 2, layout="NHWC", name="Y")
    if not epilogue:
        return ts.function([x, w, y], name="conv")
    bias = ts.placeholder((columns,), dtype, name="bias")
    other = ts.placeholder(y.shape, dtype, name="other")
    y = ts.ops.relu(ts.ops.add(ts.ops.add(y, bias), other))
    return ts.function([x, w, bias, other, y], name="conv")


def convolution(
    size: int, kernel: int, channels: int = 16, columns: int = 32, constant: bool = False
) -> Function:
    x = ts.placeholder((1, channels, size, size), "float16", name="X")
    w = ts.placeholder((columns, channels, kernel, kernel), "float16", name="W")
    y = ts.ops.conv2d(x, w, padding=kernel // 2)
    return ts.function([x, w, y], name="conv", constants=[w] if constant else [])


def with_bias() -> Function:
    a, w = ts.placeholder((64, 64), "float16", name="A"), ts.placeholder((64, 64), "float16")
    bias = ts.placeholder((64,), "float16", name="bias")
    return ts.function([a, w, bias, ts.ops.relu(ts.ops.dense(a, w, bias))], name="dense_relu")


def attention_scores() -> Function:
    """Operands are transposed in front of the product; tiles go by the order of memory."""
    q, k = (ts.placeholder((64, 2, 64), "float16", name=n) for n in "QK")
    turned = ts.ops.transpose(q, axes=(1, 0, 2)), ts.ops.transpose(k, axes=(1, 2, 0))
    scores = ts.ops.divide(ts.ops.batch_matmul(*turned), 8.0)
    return ts.function([q, k, scores], name="scores")


def attention_values() -> Function:
    """The result is stored with the heads inside, by the threads that hold it."""
    p = ts.placeholder((2, 64, 64), "float16", name="P")
    v = ts.placeholder((64, 2, 64), "float16", name="V")
    product = ts.ops.batch_matmul(p, ts.ops.transpose(v, axes=(1, 0, 2)))
    return ts.function([p, v, ts.ops.transpose(product, axes=(1, 0, 2))], name="values")


CASES = {
    "plain": product((128, 64, 128)),
    "turned": product((64, 64, 192), "bfloat16", turned=(True, True)),
    "float32": product((128, 128, 64), out="float32", turned=(False, True)),
    "batch": product((64, 64, 64), batch=3),
    "long sum": product((64, 32, 256), turned=(False, True)),
    "epilogue": with_bias(),
    "attention scores": attention_scores(),
    "attention values": attention_values(),
    "padded": product((100, 80, 56), "bfloat16", turned=(False, True)),
    "padded float32": product((70, 64, 120), out="float32"),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", CASES)
def test_sketches_compute_the_same_and_compile(name: str) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    rng = np.random.default_rng(0)
    check = GpuCheck(CASES[name], H200)
    variants = by_groups(CASES[name])
    assert variants
    for k, variant in enumerate(variants[:: max(1, len(variants) // 3)]):
        (row,) = variant.sample(rng, 1)
        func = variant.function(row)
        check.run(func)
        if k == 0:
            (launch,) = CudaBackend().compile(func, H200).entries[0].launches
            assert launch.resources is not None
            assert launch.resources.spilled_nbytes == 0
            assert [m.buffer for m in launch.maps] == [b.name for b in CASES[name].inputs[:2]]
            assert launch.shared_nbytes <= H200.shared_nbytes


BY_WARPS = {
    "plain": product((64, 64, 64)),
    "turned": product((32, 48, 32), "bfloat16", turned=(True, True)),
    "padded": product((50, 40, 24)),
    "padded float32": product((50, 40, 24), out="float32", turned=(False, True)),
    "batch": product((32, 32, 32), batch=2),
    "1x1": convolution(14, 1),
    "3x3": convolution(7, 3),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", BY_WARPS)
def test_instructions_of_a_warp_pad_and_convolve(name: str) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    check = GpuCheck(BY_WARPS[name], A100)
    (variant,) = by_instruction(BY_WARPS[name], A100)
    for k, row in enumerate(variant.sample(np.random.default_rng(0), 3)):
        func = variant.function(row)
        lowered = check.run(func)
        for broken in without_each_sync(lowered):
            assert "race" in check.race_without(func, broken)
        if k == 0:
            text = CudaBackend().compile(func, A100).source
            assert "mma.sync.aligned.m16n8k16" in text


def grouped(
    shape: tuple[int, int, int, int], groups: int, columns: int, kernel: int = 3, stride: int = 1,
    dtype: str = "float16", layout: str = "NHWC",
) -> Function:  # fmt: skip
    """With an epilogue that writes NCHW if that is the layout, and sums channels last."""
    n, h, w, channels = shape
    last = layout == "NHWC"
    x = ts.placeholder(shape if last else (n, channels, h, w), dtype, name="X")
    filters = ts.placeholder((kernel, kernel, channels // groups, columns), dtype, name="W")
    bias = ts.placeholder((columns,), dtype, name="bias")
    image = x if last else ts.ops.transpose(x, axes=(0, 2, 3, 1))
    y = ts.ops.conv2d(image, filters, stride, kernel // 2, groups=groups, layout="NHWC", name="Y")
    y = ts.ops.relu(ts.ops.add(y, bias))
    out = y if last else ts.ops.transpose(y, axes=(0, 3, 1, 2))
    return ts.function([x, filters, bias, out], name="grouped")


GROUPED = {
    "even": grouped((1, 6, 16, 32), 2, 32),
    "channels first": grouped((2, 5, 15, 32), 2, 32, layout="NCHW"),
    "small groups": grouped((1, 5, 9, 24), 3, 30, layout="NCHW"),
    "odd groups": grouped((1, 4, 11, 22), 2, 26, dtype="bfloat16"),
    "stride": grouped((1, 9, 27, 32), 2, 36, stride=2),
    "1x1": grouped((2, 5, 7, 48), 2, 40, kernel=1),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", GROUPED)
def test_groups_are_products_of_their_own_by_warps(name: str) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    check = GpuCheck(GROUPED[name], A100)
    variants = by_instruction(GROUPED[name], A100)
    each = 1 if name == "1x1" else 2
    is_first = "transpose" in str(GROUPED[name])  # then a launch may move the channels last
    assert len(variants) == (2 * each if is_first else each)
    for n, variant in enumerate(variants):
        for k, row in enumerate(variant.sample(np.random.default_rng(0), 2)):
            func = variant.function(row)
            check.run(func)
            if k == 0:
                artifact = CudaBackend().compile(func, A100)
                assert "mma.sync.aligned.m16n8k16" in artifact.source
                assert len(artifact.entries[0].launches) == (1 if n < each else 2)


UNFOLDED = {
    "padded rows": channels_last((1, 7, 14, 64), 64),
    "images": channels_last((2, 7, 7, 64), 64, dtype="bfloat16"),
    "stride": channels_last((1, 15, 15, 64), 64, stride=2),
    "1x1": channels_last((2, 7, 9, 128), 64, kernel=1),
    "1x1 stride": channels_last((2, 14, 14, 64), 64, kernel=1, stride=2),
    "epilogue": channels_last((1, 7, 7, 64), 64, epilogue=True),
    "few channels": channels_last((1, 8, 8, 40), 56),
}


def unfolded(func: Function) -> list[Variant]:
    return [v for v in by_groups(func) if any(isinstance(x, Unfold) for x in v.trace.steps)]


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", UNFOLDED)
def test_convolutions_read_moved_boxes_of_the_image(name: str) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    rng = np.random.default_rng(0)
    func = UNFOLDED[name]
    check = GpuCheck(func, H200)
    variants = unfolded(func)
    assert variants
    every = (variants[0], variants[-1]) if name == "epilogue" else variants[:1]
    for k, variant in enumerate(every):
        (row,) = variant.sample(rng, 1)
        scheduled = variant.function(row)
        check.run(scheduled)
        if k == 0:
            artifact = CudaBackend().compile(scheduled, H200)
            launch = artifact.entries[0].launches[0]
            assert launch.resources is not None
            assert launch.resources.spilled_nbytes == 0
            image, _ = launch.maps
            assert image.steps[1] == (2 if "stride" in name else 1)
            wide = "transpose_quad(quad" in artifact.source.rpartition("__global__")[2]
            assert wide == (name != "few channels")  # threads store 16 bytes


@pytest.mark.parametrize(
    ("func", "launches"),
    [
        (convolution(8, 3, 64, 64), 3),  # image, weights, product
        (convolution(7, 3, 64, 96, constant=True), 2),  # the caller packs the weights
        (convolution(8, 1, 64, 128), 2),  # pixels of an image are columns as they are
    ],
    ids=["3x3", "constant", "1x1"],
)
def test_channels_are_moved_last_by_launches_of_their_own(func: Function, launches: int) -> None:
    variant = unfolded(func)[0]
    (row,) = variant.sample(np.random.default_rng(0), 1)
    scheduled = variant.function(row)
    GpuCheck(func, H200).run(scheduled)
    artifact = emit_artifact(scheduled, H200, CUDA, GPU_PASSES, checked=False)
    assert len(artifact.entries[0].launches) == launches


def test_sums_of_few_results_are_split_over_blocks() -> None:
    func = channels_last((1, 7, 7, 128), 64)
    found = unfolded(func)
    parts = {x.factors[0] for v in found for x in v.trace.steps if x.name == "split"
             and isinstance(x.factors[0], int) and x.loop.endswith("rh_rw_rc")}  # fmt: skip
    assert parts == {2, 3, 6, 9}  # of 18 steps


@pytest.mark.parametrize("padding", [0, 1])
def test_what_is_computed_in_front_is_a_launch_of_its_own(padding: int) -> None:
    """The copy engine cannot compute. Padding it does, whatever the size of the image."""
    x = ts.placeholder((1, 64, 64, 64), "float16", name="X")
    w = ts.placeholder((3, 3, 64, 128), "float16", name="W")
    y = ts.ops.conv2d(ts.ops.relu(x), w, 1, padding, layout="NHWC")
    found = by_groups(ts.function([x, w, y], name="conv"))
    assert found
    for v in found:
        (row,) = v.sample(np.random.default_rng(0), 1)
        artifact = emit_artifact(v.function(row), H200, CUDA, GPU_PASSES, checked=False)
        split = any(s.name == "rfactor" for s in v.trace.steps)
        assert len(artifact.entries[0].launches) == 2 + split


def test_few_rows_are_padded_and_their_sums_split() -> None:
    func = product((49, 64, 256))
    check = GpuCheck(func, H200)
    found = [v for v in by_groups(func) if any(x.name == "rfactor" for x in v.trace.steps)]
    assert found
    (row,) = found[-1].sample(np.random.default_rng(0), 1)
    check.run(found[-1].function(row))


@pytest.mark.parametrize(
    "func",
    [
        channels_last((1, 8, 8, 64), 64, dtype="float32"),
        channels_last((1, 8, 8, 3), 64),  # rows of 6 bytes
        channels_last((1, 2, 2, 64), 64),  # most of it would be padding
        convolution(8, 3),  # 16 channels of 64
    ],
    ids=["float32", "image", "small", "few channels"],
)
def test_what_is_not_unfolded(func: Function) -> None:
    assert not unfolded(func)


def test_a_missing_barrier_is_a_race() -> None:
    func = CASES["plain"]
    check = GpuCheck(func, H200)
    variant = by_groups(func)[0]
    (row,) = variant.sample(np.random.default_rng(1), 1)
    scheduled = variant.function(row)
    broken = list(without_each_sync(check.run(scheduled)))
    assert len(broken) == 2
    for lowered in broken:
        assert "race" in check.race_without(scheduled, lowered)


def test_shared_tiles_are_filled_by_the_copy_engine_and_results_stay_in_registers() -> None:
    variant = by_groups(CASES["plain"])[0]
    (row,) = variant.sample(np.random.default_rng(2), 1)
    func = variant.function(row)
    for step in GPU_PASSES:
        func = step(func, H200)
    every = list(statements(func.body))
    copies = [s for s in every if isinstance(s, Store) and s.intrinsic is BULK_COPY]
    assert [s.writes[0].buffer for s in copies] == ["A.shared", "B.shared"]
    scopes = {s.buffer.name: s.buffer.scope for s in every if isinstance(s, Alloc)}
    assert scopes == {"A.shared": "shared", "B.shared": "shared", "matmul_sum": "local"}


def test_a_fragment_has_each_element_once() -> None:
    unit = min(WGMMA, key=lambda u: u.cost)
    fragment = unit.fragment
    assert fragment is not None
    rows, columns = (e.number for e in unit.description.outputs[0].shape)
    at = [{"d0": of(i), "d1": of(j)} for i in range(rows) for j in range(columns)]
    held = {(fragment.lane.substitute(x).const, fragment.register.substitute(x).const) for x in at}
    lanes, registers = range(fragment.threads), range(fragment.registers)
    assert held == {(t, r) for t in lanes for r in registers}


@pytest.mark.parametrize(
    ("func", "fits"),
    [
        (product((64, 64, 64)), {"wgmma", "mma"}),
        (product((100, 64, 64)), {"wgmma", "mma"}),  # rows do not divide
        (product((80, 64, 72)), {"mma"}),  # too much padding for the larger one
        (product((64, 36, 64)), {"mma"}),  # rows of B are no multiple of 16 bytes
        (product((64, 64, 64), "float32"), set()),
        (product((3, 64, 64)), set()),  # most of it would be padding
    ],
)
def test_which_instructions_fit(func: Function, fits: set[str]) -> None:
    found = {unit_of(v).name.split(".")[1].split("_")[0] for v in by_instruction(func)}
    assert found == fits
    every = derive(Task(func, H200), default_rules(H200)).finished
    assert any(not any(isinstance(x, Tensorize) for x in s.steps) for s in every)


def test_other_targets_and_ansors_rules_have_none() -> None:
    assert not by_instruction(CASES["plain"], OLD)
    sketches = derive(Task(CASES["plain"], H200), ansor_rules(H200)).finished
    assert not any(isinstance(x, Tensorize) for s in sketches for x in s.steps)


def test_rows_within_limits_fit_the_machine() -> None:
    small = replace(H200, shared_nbytes=100 << 10)
    for target in (H200, small):
        for variant in by_groups(product((256, 256, 192)), target)[::5]:
            for row in variant.sample(np.random.default_rng(3), 1):
                func = variant.function(row)
                artifact = emit_artifact(func, target, CUDA, GPU_PASSES, checked=False)
                for launch in artifact.entries[0].launches:
                    assert launch.shared_nbytes <= target.shared_nbytes
                    assert launch.threads <= target.max_threads


def test_padded_copies_move_whole_vectors_or_zeros() -> None:
    """Conditions of padding that hold for all elements of a vector are asked once for it, and what
    is only moved is not converted.
    """
    func = grouped((1, 6, 16, 32), 2, 32)
    sources = []
    for variant in by_instruction(func, A100):
        (row,) = variant.sample(np.random.default_rng(0), 1)
        artifact = emit_artifact(variant.function(row), A100, CUDA, GPU_PASSES, checked=False)
        sources.append(artifact.source)
    for source in sources:
        stored = ("groups_shared[", "relu_at[")
        lines = [line.strip() for line in source.splitlines() if " = " in line]
        copies = [x for x in lines if any(name in x.split(" = ")[0] for name in stored)]
        assert copies
        assert all("(uint4*)" in line for line in copies)
        assert "unsigned short X_v[8] = {0};" in source
