"""What the analytic score of GPUs knows, as an order of pairs that was measured on an H200, and the
features of GPU programs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import OPENCL
from tilesmith.base.target import GpuConstants, Target
from tilesmith.cli.operators import operator
from tilesmith.schedule.schedule import Schedule
from tilesmith.search.features.nest import shared_nests
from tilesmith.search.gpu_score import GpuScore, launches_of, occupancy
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.statements import NAMES, statements_of
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.space.variant import Variant, lower
from tilesmith.task.task import Task

H200 = Target.named("nvidia-h200")
OPERATORS = {
    "matmul": (512, 512, 512), "conv2d": (14, 64, 64, 3, 1, 1), "softmax": (512, 512),
    "norm": (256, 256), "depthwise-conv2d": (28, 64, 3, 1, 1),
    "conv2d-bn-relu": (14, 32, 32, 3, 1, 1),
}  # fmt: skip


# matmul by hand
def product(n: int = 1024, turned: bool = False) -> Variant:
    """The sketch of tiles in shared memory; `turned` stores that of A the other way round."""
    task = Task(operator("matmul", (n, n, n)), H200)
    for sketch in SketchSpace().sketches(task):
        v = next(variants(task, sketch))
        buffers = v.func.all_buffers
        if "A.shared" in buffers and (buffers["A.shared"].layout is not None) == turned:
            return v
    raise AssertionError("no sketch of that kind")


def score(v: Variant, i, j, k, unroll=1024, pipeline=2, width=4) -> float:  # type: ignore[no-untyped-def]
    """Tiles from blocks to registers: blocks, virtual threads, threads, and two levels within."""
    row = {"#C.local.unroll": unroll, "#C.local.pipeline": pipeline}
    row |= {"#A.shared.width": width, "#B.shared.width": width}
    for name, parts in (("i", i), ("j", j), ("k", k)):
        row |= {f"#C.local.{name}.{at}": e for at, e in enumerate(parts)}
    matrix = np.array([[row[c] for c in v.columns]], np.int32)
    return float(ScoreByTarget().score(v, matrix)[0])


K = (64, 1, 16)


def test_more_results_per_thread_need_fewer_loads() -> None:
    v = product(turned=True)
    large = score(v, (16, 2, 8, 1, 4), (16, 2, 8, 1, 4), K)
    medium = score(v, (16, 1, 16, 1, 4), (16, 1, 16, 1, 4), K)
    small = score(v, (64, 1, 16, 1, 1), (64, 1, 16, 1, 1), K)
    assert large > medium > small
    assert large > 3 * small


def test_virtual_threads_count_as_copies_of_unrolled_code() -> None:
    """They stand inside of the reducing loop when code generation decides what is unrolled."""
    v = product(4096, turned=True)
    tiles = ((32, 4, 8, 1, 4), (16, 2, 32, 1, 4), (256, 1, 16))
    assert score(v, *tiles, unroll=2048) > 1.1 * score(v, *tiles, unroll=1024)
    for unroll, is_kept in ((2048, False), (1024, True)):
        row = np.array([[*tiles[0], *tiles[1], *tiles[2], 4, 4, 2, unroll]], np.int32)
        assert v.contains(row).all()
        assert v.valid(row).all()
        text = str(ts.lower(v.function(row[0]), H200, ts.GPU_PASSES))
        assert ("for C.local.k.2 in 16:\n" in text) == is_kept


def test_as_many_blocks_as_multiprocessors() -> None:
    v = product(turned=True)
    many = score(v, (16, 2, 8, 1, 4), (16, 2, 8, 1, 4), K)
    half = score(v, (8, 2, 16, 1, 4), (8, 2, 16, 1, 4), K)
    few = score(v, (2, 2, 32, 2, 4), (2, 2, 32, 2, 4), K)
    assert many > 1.2 * half
    assert half > 4 * few


def test_copies_that_run_ahead_hide_their_latency() -> None:
    v = product(turned=True)
    i = j = (16, 2, 8, 1, 4)
    assert score(v, i, j, K) > 1.02 * score(v, i, j, K, pipeline=1)


def test_the_reduced_loop_is_unrolled() -> None:
    v = product(turned=True)
    i = j = (16, 2, 8, 1, 4)
    assert score(v, i, j, K) > 1.05 * score(v, i, j, K, unroll=0)


def test_neighbours_read_neighbouring_words_of_shared_memory() -> None:
    """Eight contiguous results per thread put eight lanes on one bank; virtual threads do not. The
    rows of A as they lie are 16 words apart, those of the turned and padded tile are not.
    """
    v = product(turned=True)
    strided = score(v, (16, 2, 8, 1, 4), (16, 2, 8, 1, 4), K)
    contiguous = score(v, (16, 1, 8, 1, 8), (16, 1, 8, 1, 8), K)
    assert strided > 1.05 * contiguous
    plain = score(product(turned=False), (16, 2, 8, 1, 4), (16, 2, 8, 1, 4), K)
    assert strided > 1.2 * plain


def test_registers_that_do_not_suffice() -> None:
    v = product(turned=True)
    fits = score(v, (16, 2, 4, 1, 8), (16, 2, 8, 1, 4), K)
    spills = score(v, (16, 4, 2, 1, 8), (16, 4, 2, 1, 8), K)  # 1024 results
    assert fits > 3 * spills


def test_short_rows_of_a_tile_waste_sectors() -> None:
    v = product(turned=True)
    long = score(v, (16, 2, 8, 1, 4), (16, 2, 8, 1, 4), (64, 1, 16))
    short = score(v, (16, 2, 8, 1, 4), (16, 2, 8, 1, 4), (512, 1, 2))
    assert long > 1.1 * short


# other programs by hand
def decided(func: ts.Function, *steps: tuple[str, ...], target: Target = H200) -> float:
    sch = Schedule(func)
    for name, *arguments in steps:
        getattr(sch, name)(*arguments)
    v = lower(Task(func, target), sch.trace)
    return float(ScoreByTarget().score(v, np.zeros((1, 0), np.int32))[0])


def scaled(n: int = 4096) -> ts.Function:
    x = ts.placeholder((n, n), name="X")
    return ts.function([x, ts.compute((n, n), lambda i, j: x[i, j] * 2.0, name="Y")])


def bound(*, blocks: str, threads: str) -> tuple[tuple[str, ...], ...]:
    return (
        ("split", f"Y.{threads}", [None, 256]),  # type: ignore[list-item]
        ("reorder", f"Y.{blocks}", f"Y.{threads}.0", f"Y.{threads}.1"),
        ("bind", f"Y.{blocks}", "blockIdx.x"),
        ("bind", f"Y.{threads}.0", "blockIdx.x"),
        ("bind", f"Y.{threads}.1", "threadIdx.x"),
    )


def test_coalesced_accesses_beat_strided_ones() -> None:
    coalesced = decided(scaled(), *bound(blocks="i", threads="j"))
    strided = decided(scaled(), *bound(blocks="j", threads="i"))
    assert coalesced > 2 * strided


def test_a_single_thread_is_the_worst() -> None:
    assert decided(scaled(256), *bound(blocks="i", threads="j")) > 20 * decided(scaled(256))


def test_a_row_operator_in_one_launch_beats_several() -> None:
    task = Task(operator("softmax", (4096, 1024)), H200)
    best: dict[int, float] = {}
    for rules in (ts.default_rules(H200), ts.ansor_rules(H200)):
        for sketch in SketchSpace(rules).sketches(task):
            v = next(variants(task, sketch))
            rows = v.sample(np.random.default_rng(0), 64)
            top = float(ScoreByTarget().score(v, rows).max())
            best[len(v.func.body)] = max(best.get(len(v.func.body), 0.0), top)
    assert best[1] > 1.2 * max(s for launches, s in best.items() if launches > 1)


def test_sums_in_registers_beat_sums_in_memory() -> None:
    x = ts.placeholder((512, 64, 512), name="X")
    k = ts.reduce_axis(64, name="k")
    func = ts.function(
        [x, ts.compute((512, 512), lambda i, j: ts.sum(x[i, k, j], axis=k), name="Y")]
    )
    plain = (("bind", "Y.i", "blockIdx.x"), ("bind", "Y.j", "threadIdx.x"))
    local = (
        ("cache_write", "Y", "local"),
        ("compute_at", "Y.local", "Y.j"),
        ("bind", "Y.i", "blockIdx.x"),
        ("bind", "Y.j", "threadIdx.x"),
    )
    assert decided(func, *local) > 1.3 * decided(func, *plain)


def test_occupancy() -> None:
    v = product(turned=True)
    graph, nests = shared_nests(v)
    (launch,) = launches_of(nests)
    gpu = GpuConstants.of(H200)
    room = occupancy(gpu, launch)
    row = dict.fromkeys(v.columns, 1)
    row |= {f"#C.local.i.{k}": e for k, e in enumerate((16, 2, 8, 1, 4))}
    row |= {f"#C.local.j.{k}": e for k, e in enumerate((16, 2, 8, 1, 4))}
    row |= {"#C.local.k.0": 64, "#C.local.k.1": 1, "#C.local.k.2": 16, "#C.local.pipeline": 2}
    terms = [room.threads, room.blocks, room.shared, room.share, room.spills]
    rows = np.array([[row[c] for c in v.columns]], np.int32)
    threads, blocks, shared, share, spills = graph.evaluate(terms, rows)[0]
    assert (threads, blocks, share, spills) == (64, 256, 2, 0)
    assert shared == 2 * (64 * 16 + 64 * 16) * 4
    (registers, resident) = graph.evaluate([room.registers, room.resident], rows)[0]
    assert 64 + 16 <= registers <= 128
    assert resident == min(
        gpu.threads // 64,
        gpu.registers // (64 * registers),
        gpu.shared_nbytes // (shared + 1024),
        32,
    )


@pytest.mark.parametrize("target", [H200, OPENCL], ids=["h200", "opencl"])
@pytest.mark.parametrize("name", OPERATORS)
def test_scores_and_features_of_every_sketch_are_finite(name: str, target: Target) -> None:
    task = Task(operator(name, OPERATORS[name]), target)
    for rules in (ts.default_rules(target), ts.ansor_rules(target)):
        for sketch in SketchSpace(rules).sketches(task):
            v = next(variants(task, sketch))
            rows = v.sample(np.random.default_rng(0), 32)
            predicted = ScoreByTarget().predict(v, rows)
            assert np.isfinite(predicted).all()
            assert (predicted < 0.5).all()  # no more than the peak, up to what is estimated
            features, whole = statements_of(v).with_score(rows)
            assert np.isfinite(features).all()
            np.testing.assert_allclose(whole, predicted, rtol=1e-5, atol=1e-5)
            graph, _ = shared_nests(v)
            slow = graph.evaluate([GpuScore().term(v)], rows)[:, 0]
            np.testing.assert_allclose(slow, predicted, rtol=1e-3, atol=1e-3)


def test_constants_follow_the_target() -> None:
    half = replace(H200, num_multiprocessors=66)
    many = bound(blocks="i", threads="j")
    # the same share of a smaller machine's peak, if there are enough blocks for both
    assert decided(scaled(), *many, target=half) == pytest.approx(decided(scaled(), *many), rel=0.2)
    v = product()
    rows = v.sample(np.random.default_rng(0), 16)
    slow = GpuScore(replace(GpuConstants.of(H200), launch_cycles=1e6))
    assert (slow.predict(v, rows) < GpuScore().predict(v, rows)).all()
    assert (ScoreByTarget().predict(v, rows) == GpuScore().predict(v, rows)).all()


# features
def features(name: str, rows: int = 200) -> tuple[Variant, np.ndarray]:  # type: ignore[type-arg]
    task = Task(operator(name, OPERATORS[name]), H200)
    v = next(variants(task, SketchSpace().sketches(task)[0]))
    return v, statements_of(v).of(v.sample(np.random.default_rng(0), rows))


def test_features_of_gpus_are_alive() -> None:
    v, x = features("matmul")
    blocks = [n.block.name for n in shared_nests(v)[1]]
    main = x[:, blocks.index("C.local")]
    at = {name: k for k, name in enumerate(NAMES)}
    assert (main[:, at["is gpu"]] == 1).all()
    for name in (
        "blockIdx.x", "threadIdx.x", "vthread", "tile: accumulators", "tile: loads a step",
        "tile: parts", "launch: shared bytes", "launch: registers", "launch: blocks at once",
        "launch: rounds", "estimate: computing", "estimate: second cache", "analytic score",
        "unroll: product",
    ):  # fmt: skip
        assert np.ptp(main[:, at[name]]) > 0, name
    copy = x[:, blocks.index("A.shared")]
    assert (copy[:, at["allocated"]] > 0).all()
    for name in ("estimate: third cache", "estimate: memory", "launch: shared bytes"):
        assert (copy[:, at[name]] > 0).all(), name


def test_a_loop_reduced_across_threads_counts_as_theirs() -> None:
    _, x = features("softmax")
    at = {name: k for k, name in enumerate(NAMES)}
    assert (x[:, :, at["threadIdx.x"]] > 0).all()
    assert (x[:, :, at["is gpu"]] == 1).all()


def test_features_of_cpus_have_none_of_it() -> None:
    task = Task(operator("matmul", (64, 64, 64)), Target.named("zen3"))
    v = next(variants(task, SketchSpace().sketches(task)[0]))
    x = statements_of(v).of(v.sample(np.random.default_rng(0), 8))
    gpu = [k for k, name in enumerate(NAMES) if name.startswith(("launch:", "is gpu", "threadIdx"))]
    assert (x[:, :, gpu] == 0).all()
