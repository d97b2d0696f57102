"""Products on GPUs whose sizes no tile divides: padded, they compute what the oracle does, copy
vectors, and have as many programs as others.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import OPENCL, GpuCheck
from tests.support.thorough import drawn
from tilesmith.codegen.c.backends import emit_artifact
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.pipeline import GPU_PASSES
from tilesmith.ir.function import Function
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.layout import Pad
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space.annotation_gpu import AnnotateForGpu
from tilesmith.space.rules_gpu import round_size
from tilesmith.space.spaces import SketchSpace, structured
from tilesmith.space.tensor_cores import TileByTensorCores
from tilesmith.space.variant import Variant, lower
from tilesmith.space.warp_products import TileByWarps
from tilesmith.task.task import Task

H200 = ts.Target.named("nvidia-h200")


def product(
    m: int, n: int, k: int, dtype: str, turned: tuple[bool, bool], batch: int = 0,
    epilogue: bool = False, constant: bool = False,
) -> Function:  # fmt: skip
    lead = (batch,) if batch else ()
    a = ts.placeholder((*lead, *((k, m) if turned[0] else (m, k))), dtype, name="A")
    b = ts.placeholder((*lead, *((n, k) if turned[1] else (k, n))), dtype, name="B")
    y = (ts.ops.batch_matmul if batch else ts.ops.matmul)(a, b, *turned)
    known = [b] if constant else []
    if not epilogue:
        return ts.function([a, b, y], name="product", constants=known)
    bias = ts.placeholder((n,), dtype, name="bias")
    out = ts.ops.relu(ts.ops.add(y, bias))
    return ts.function([a, b, bias, out], name="product", constants=known)


def variants(func: Function, target: ts.Target, ahead: int | None = None) -> list[Variant]:
    """`ahead` is the work from which on operands are padded ahead."""
    task, rules = Task(func, target), list(ts.default_rules(target))
    for k, r in enumerate(rules):
        if ahead is not None and isinstance(r, TileByTensorCores | TileByWarps):
            rules[k] = replace(r, ahead=ahead)
        if isinstance(r, AnnotateForGpu):  # also few elements that are stored in another order
            rules[k] = replace(r, many=1)
    sketches = SketchSpace(tuple(rules)).sketches(task)
    return [lower(task, next(iter(structured(s)))) for s in sketches]


CASES = {
    "float32": product(37, 53, 41, "float32", (False, False)),
    "turned": product(67, 34, 46, "float32", (True, True), epilogue=True),
    "batch": product(43, 37, 38, "float32", (False, True), batch=3),
    "float16": product(71, 133, 67, "float16", (True, False)),
    "float16 batch": product(65, 67, 70, "float16", (False, False), batch=2, epilogue=True),
    "float16 weights": product(71, 133, 67, "float16", (False, False), constant=True),
    "float16 layer": product(70, 99, 65, "float16", (False, True), epilogue=True, constant=True),
    "bfloat16": product(131, 66, 75, "bfloat16", (False, True)),
    "float16 split": product(66, 34, 250, "float16", (False, True), epilogue=True),
    "split": product(33, 35, 251, "float32", (True, False)),
    "thin": product(37, 3, 82, "float16", (True, True)),
    "thin float16": product(8, 47, 264, "float16", (True, True)),
    "few rows": product(2, 47, 151, "float32", (False, True), epilogue=True),
    "one column": product(131, 1, 67, "float32", (False, False)),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("target", "ahead"), [(H200, None), (H200, 0), (OPENCL, None)], ids=["h200", "ahead", "opencl"]
)
def test_candidates_are_right(name, target, ahead):
    if ahead == 0 and "float16" not in name:
        pytest.skip("only matrix instructions read what is padded ahead")
    check, rng = GpuCheck(CASES[name], target), np.random.default_rng(4)
    every = variants(CASES[name], target, ahead)
    for v in every[:: max(1, len(every) // drawn(2, 5))]:
        for row in v.sample(rng, 1):
            check.run(v.function(row))
            if target is H200:
                emit_artifact(v.function(row), H200, CUDA, GPU_PASSES, checked=False)


def test_sums_are_split_where_parts_do_not_divide():
    for name in ("split", "float16 split"):
        parted = [v for v in variants(CASES[name], H200) if _has(v, Rfactor)]
        assert parted
        if name == "float16 split":
            assert any(_has(v, Tensorize) for v in parted)


def _has(v: Variant, kind: type[Step]) -> bool:
    return any(isinstance(s, kind) for s in v.trace.steps)


def test_sizes_without_divisors_are_padded():
    padded = {
        s.multiples[-2:]  # behind a batch of parts of the sum
        for v in variants(product(1256, 181, 3664, "float32", (True, True)), H200)
        for s in v.trace.steps
        if isinstance(s, Pad)
    }
    assert (("i", 64), ("j", 64)) in padded
    # Parts of the sum are multiples of a tile: 3664 is 16 times a prime.
    assert padded - {(("i", 64), ("j", 64))} == {(("k", 16 * n),) for n in (2, 4, 8)}
    assert [round_size(n, "S") for n in (7, 32, 96, 1000, 1024, 37, 181, 1256)] == [
        1, 1, 1, 1, 1, 8, 64, 64
    ]  # fmt: skip
    assert [round_size(n, "R") for n in (3, 14, 64, 3664, 82, 4071)] == [1, 1, 1, 1, 8, 64]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("extra", [0, 3])
def test_matrix_instructions_take_rows_that_begin_anywhere(extra, constant):
    shape = 1024, 512 + extra, 256 + extra
    func = product(*shape, "float16", (False, False), constant=constant)
    units = [
        v for v in variants(func, H200)
        if any(isinstance(s, Tensorize) and "wgmma" in s.intrinsic.name for s in v.trace.steps)
    ]  # fmt: skip
    assert units
    made = [any(x.endswith(".pad.threads") for x in v.columns) for v in units]
    assert made == [bool(extra)] * len(units)


def test_padded_copies_move_vectors():
    """The padding begins at a multiple of the vector, so that one condition holds for all of it."""
    func = product(1256, 181, 1024, "float32", (True, True))
    rng = np.random.default_rng(0)
    texts = (
        emit_artifact(v.function(row), H200, CUDA, GPU_PASSES, checked=False).source
        for v in variants(func, H200)
        for row in v.sample(rng, 10)
    )
    assert any("< 1256) *(float4*)" in t or "< 1256) *(float2*)" in t for t in texts)


def test_operands_that_are_read_once_are_not_padded_ahead():
    """The copy of what few rows use, such as the weights of a thin product, would be read again."""
    for rows in (16, 300):
        func = product(rows, 270, 33, "float16", (False, False))
        found = [
            v for v in variants(func, H200, ahead=0)
            if any(isinstance(s, Tensorize) and ".mma" in s.intrinsic.name for s in v.trace.steps)
        ]  # fmt: skip
        assert found
        for v in found:
            ahead = {c[1] for c in v.columns if c.endswith(".pad.threads")}
            assert ("B" in ahead) == (rows == 300)
            (row,) = v.sample(np.random.default_rng(0), 1)
            emit_artifact(v.function(row), H200, CUDA, GPU_PASSES, checked=False)


def convolution(channels: int, size: int, filters: int, last: bool) -> Function:
    """Of a padded image whose channels are its first or its last axis."""
    order = (1, size, size, channels) if last else (1, channels, size, size)
    x = ts.placeholder(order, "float16", name="X")
    w = ts.placeholder((3, 3, channels, filters), "float16", name="W")
    image = x if last else ts.ops.transpose(x, (0, 2, 3, 1))
    y = ts.ops.conv2d(image, w, padding=1, layout="NHWC")
    y = ts.ops.relu(y) if last else ts.ops.transpose(y, (0, 3, 1, 2))
    return ts.function([x, w, y], name="convolution", constants=[w])


@pytest.mark.turns(3)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("channels", "size", "filters"),
    [(56, 7, 64), (64, 8, 80), (88, 8, 64), (64, 8, 7), (64, 8, 12), (53, 8, 33)],
)
def test_the_copy_engine_reads_an_image_and_never_all_its_windows(channels, size, filters, last):
    func = convolution(channels, size, filters, last)
    check, rng = GpuCheck(func, H200), np.random.default_rng(4)
    units = [
        v for v in variants(func, H200)
        if any(isinstance(s, Tensorize) and "wgmma" in s.intrinsic.name for s in v.trace.steps)
    ]  # fmt: skip
    assert units
    for v in units[:: drawn(6, 2)]:
        (row,) = v.sample(rng, 1)
        made = v.function(row)
        read = [b for b in made.buffers if b.scope == "global" and b.dtype.bits == 16]
        most = (size + 2) ** 2 * -(-channels // 8) * 8
        assert all(b.size.number <= most for b in read), read
        check.run(made)
        source = emit_artifact(made, H200, CUDA, GPU_PASSES, checked=False).source
        assert "cp.async.bulk.tensor" in source


@pytest.mark.turns(3)
@pytest.mark.parametrize(("size", "filters"), [(25, 192), (31, 192), (191, 192), (65, 8)])
@pytest.mark.parametrize("last", [False, True])
def test_tiles_of_an_image_are_brought_by_the_copy_engine_whatever_their_number(
    size, filters, last
):
    func = convolution(88, size, filters, last)
    units = [
        v for v in variants(func, H200)
        if any(isinstance(s, Tensorize) and "wgmma" in s.intrinsic.name for s in v.trace.steps)
    ]  # fmt: skip
    assert units
    for v in units[:: drawn(4, 1)]:
        for row in v.sample(np.random.default_rng(1), drawn(1, 2)):
            made = v.function(row)
            source = emit_artifact(made, H200, CUDA, GPU_PASSES, checked=False).source
            assert "cp.async.bulk.tensor" in source


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("channels", "filters"), [(8, 24), (64, 40)])
def test_phases_of_a_transposed_convolution_are_stored_without_divisions(dtype, channels, filters):
    """Also where sums are rounded before the phases are put together."""
    x = ts.placeholder((2, 5, 7, channels), dtype, name="X")
    w = ts.placeholder((2, 2, channels, filters), dtype, name="W")
    y = ts.ops.conv2d_transpose(x, w, stride=2, layout="NHWC")
    func = ts.function([x, w, y], constants=[w])
    check, rng = GpuCheck(func, H200), np.random.default_rng(4)
    every = variants(func, H200)
    for v in every:
        assert {s.factor for s in v.trace.steps if isinstance(s, SplitIterator)} >= {2}
    for v in every[:: max(1, len(every) // 4)]:
        for row in v.sample(rng, 1):
            check.run(v.function(row))
            emit_artifact(v.function(row), H200, CUDA, GPU_PASSES, checked=False)


def with_units(func: Function) -> list[Variant]:
    every = variants(func, H200, ahead=1)
    return [v for v in every if any(isinstance(x, Tensorize) for x in v.trace.steps)]


@pytest.mark.parametrize("columns", [133, 134])
def test_rows_that_begin_anywhere_are_stored_from_shared_memory(columns: int) -> None:
    func = product(300, columns, 64, "bfloat16", (False, False))
    found = with_units(func)
    assert found
    check = GpuCheck(func, H200)
    for v in found:
        staged = [b for b in v.func.buffers if b.name == f"{func.outputs[0].name}.shared"]
        assert [b.scope for b in staged] == ["shared"]
        (row,) = v.sample(np.random.default_rng(1), 1)
        check.run(v.function(row))


@pytest.mark.parametrize("depth", [64, 1024])
def test_rows_of_whole_vectors_are_stored_by_the_threads_that_hold_them(depth: int) -> None:
    """Threads of a single warp have pairs only. Of a short sum, groups store in either way."""
    func = product(300, 136, depth, "bfloat16", (False, False))
    ways: dict[bool, set[bool]] = {True: set(), False: set()}
    for v in with_units(func):
        if any(isinstance(x, Rfactor) for x in v.trace.steps):
            continue
        single = any("cuda.mma" in str(x) for x in v.trace.steps)
        ways[single].add(f"{func.outputs[0].name}.shared" in {b.name for b in v.func.buffers})
    assert ways == {True: {True}, False: {False, True} if depth == 64 else {False}}


def test_numbers_of_tiles_without_divisors_are_padded() -> None:
    """181 tiles of 16 columns would leave a block one of them, or all."""
    func = product(640, 2889, 24, "float16", (False, False))
    several = {
        math.prod(s.decision[1:])
        for v in with_units(func) if any("cuda.mma" in str(x) for x in v.trace.steps)
        for row in v.sample(np.random.default_rng(0), 64)
        for s in v.candidate(row).trace.steps
        if isinstance(s, SampleTile) and "j_outer" in s.loop and s.decision
    }  # fmt: skip
    assert several & {4, 8}


def test_copies_of_what_an_earlier_launch_padded_run_ahead() -> None:
    """Both operands have two versions, so that a step has one barrier."""
    task = Task(product(2048, 1965, 2048, "float32", (False, False)), H200)
    every = (lower(task, t) for s in SketchSpace().sketches(task) for t in structured(s))
    at, v = next(
        (k, v) for v in every for k, c in enumerate(v.columns)
        if c.endswith(".pipeline") and "B.pad" in v.func.all_buffers
        and not any(isinstance(x, Rfactor) for x in v.trace.steps)
    )  # fmt: skip
    row = next(r for r in v.sample(np.random.default_rng(0), 40) if r[at] == 2)
    text = emit_artifact(v.function(row), H200, CUDA, GPU_PASSES, checked=False).source
    assert text.count("__syncthreads();") == 1


@pytest.mark.parametrize(("resident", "barriers"), [(1, 2), (1 << 20, 1)])
def test_a_block_with_several_tiles_waits_until_the_last_one_is_stored(
    resident: int, barriers: int
) -> None:
    func = product(700, 133, 192, "float16", (False, False))
    v = next(v for v in with_units(func) if "#matmul_sum.pad.resident" in v.columns)
    (row,) = v.sample(np.random.default_rng(1), 1)
    row[list(v.columns).index("#matmul_sum.pad.resident")] = resident
    text = emit_artifact(v.function(row), H200, CUDA, GPU_PASSES, checked=False).source
    assert text.count("bar.sync 1, ") == barriers


def images(shape: tuple[int, ...], weights: tuple[int, ...], groups: int) -> Function:
    x, w = ts.placeholder(shape, name="X"), ts.placeholder(weights, name="W")
    convolve = ts.ops.conv1d if len(shape) == 3 else ts.ops.conv2d
    y = ts.ops.relu(convolve(x, w, padding=1, groups=groups))
    return ts.function([x, w, y], name="images")


@pytest.mark.parametrize("target", [H200, OPENCL], ids=["h200", "opencl"])
@pytest.mark.parametrize(
    "func",
    [images((2, 6, 131), (14, 3, 3), 2), images((1, 5, 37, 41), (16, 5, 3, 3), 1)],
    ids=["groups", "prime sizes"],
)
def test_images_of_prime_sizes_have_tiles_that_are_cropped(
    func: Function, target: ts.Target
) -> None:
    padded = [
        v
        for v in variants(func, target)
        if any(isinstance(x, Pad) for x in v.trace.steps)
        and not any(isinstance(x, Tensorize) for x in v.trace.steps)
    ]
    assert padded
    check = GpuCheck(func, target)
    for v in padded[:3]:
        (row,) = v.sample(np.random.default_rng(0), 1)
        check.run(v.function(row))


@pytest.mark.parametrize(("channels", "filters"), [(16, 8), (12, 13)])
def test_the_image_of_a_grouped_convolution_is_turned_once(channels: int, filters: int) -> None:
    """Channels lie first where it comes from; each place of the windows copies vectors of them."""
    x = ts.placeholder((1, 2 * channels, 9, 17), "float16", name="X")
    w = ts.placeholder((3, 3, channels, 2 * filters), "float16", name="W")
    y = ts.ops.conv2d(ts.ops.transpose(x, (0, 2, 3, 1)), w, padding=1, groups=2, layout="NHWC")
    func = ts.function([x, w, ts.ops.transpose(y, (0, 3, 1, 2))], name="grouped", constants=[w])
    found = [
        v for v in variants(func, H200)
        if any(isinstance(s, Tensorize) for s in v.trace.steps)
        and "compute_at(block='X.shared'" in str(v.trace)
    ]  # fmt: skip
    assert len(found) == 2  # windows are copied as a whole, or place by place
    check = GpuCheck(func, H200)
    for v in found:
        (row,) = v.sample(np.random.default_rng(0), 1)
        check.run(v.function(row))
