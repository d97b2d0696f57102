"""Which sketches are derived, in which order, and what they look like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from suite import FOUR_CORES, SUITE, V100, sketches_of, task_of

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.cli.operators import operator
from tilesmith.ir.function import find_block
from tilesmith.ir.nodes import For, walk
from tilesmith.ir.notes import FetchAhead
from tilesmith.ir.verify import verify
from tilesmith.schedule.cache import CacheWrite
from tilesmith.schedule.location import ReverseComputeAt
from tilesmith.schedule.loops import Reorder
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.trace import Trace
from tilesmith.space.show import show_sketch, show_sketches
from tilesmith.space.spaces import structured, variants
from tilesmith.space.variant import lower

Golden = Callable[[object], None]


@pytest.mark.parametrize("rules", ["ansor", "default"])
@pytest.mark.parametrize("name", SUITE)
def test_sketches(name: str, rules: str, golden: Golden) -> None:
    task = task_of(name, FOUR_CORES)
    golden(show_sketches(task, sketches_of(task, rules)))


@pytest.mark.parametrize("name", ["matmul", "conv2d-bn-relu", "softmax", "norm"])
def test_gpu_sketches(name: str, golden: Golden) -> None:
    task = task_of(name, V100)
    golden(show_sketches(task, sketches_of(task, "ansor")))


def kinds(sketch: Trace) -> tuple[bool, str | None]:
    """(whether there is a cache stage, the loop that the consumer was fused into)."""
    fused = [s.loop for s in sketch if isinstance(s, ReverseComputeAt)]
    return any(isinstance(s, CacheWrite) for s in sketch), fused[0] if fused else None


def test_matmul_has_ansors_three_sketches_in_its_order() -> None:
    found = [kinds(s) for s in sketches_of(task_of("matmul", FOUR_CORES), "ansor")]
    assert found == [(False, None), (True, "C.local.j.0"), (True, "C.local.j.1")]


def test_conv_bn_relu_has_ansors_three_sketches_in_its_order() -> None:
    found = [kinds(s) for s in sketches_of(task_of("conv2d-bn-relu", FOUR_CORES), "ansor")]
    assert found == [(False, "Y.w.0"), (False, "Y.w.1"), (False, None)]


@pytest.mark.parametrize("name", ["matmul", "conv2d-bn-relu"])
def test_a_v100_has_one_sketch(name: str) -> None:
    (sketch,) = sketches_of(task_of(name, V100), "ansor")
    tiles = [s for s in sketch if isinstance(s, SampleTile)]
    assert {t.parts for t in tiles} == {3, 5}  # SSSRRSRS


def test_sketches_are_the_same_every_time() -> None:
    task = task_of("softmax", FOUR_CORES)
    assert sketches_of(task, "default") == sketches_of(task, "default")


def test_a_chain_of_matmuls_tiles_both() -> None:
    for rules in ("ansor", "default"):
        for sketch in sketches_of(task_of("matmul-chain", FOUR_CORES), rules):
            tiled = {s.loop.split(".")[0] for s in sketch if isinstance(s, SampleTile)}
            assert tiled == {"AB", "ABC"}


def test_a_scalar_sum_is_cut_both_ways_round() -> None:
    cut = [
        [s.loop for s in sketch if isinstance(s, Rfactor)]
        for sketch in sketches_of(task_of("sum", FOUR_CORES), "ansor")
    ]
    assert cut == [["Y.k.0"], ["Y.k.1"], []]


def test_no_rfactor_where_space_is_wide() -> None:
    for sketch in sketches_of(task_of("matmul", FOUR_CORES), "ansor"):
        assert not any(isinstance(s, Rfactor) for s in sketch)


def test_a_short_window_is_not_cut() -> None:
    for sketch in sketches_of(task_of("max-pool2d", FOUR_CORES), "default"):
        assert not any(isinstance(s, Rfactor) for s in sketch)


@pytest.mark.parametrize("name", ["max-pool2d", "gelu"])
def test_what_is_not_used_again_is_not_tiled(name: str) -> None:
    for sketch in sketches_of(task_of(name, FOUR_CORES), "ansor"):
        assert not any(isinstance(s, SampleTile) and s.parts > 2 for s in sketch)


def outer_loops(sketch: Trace, block: str) -> tuple[str, ...]:
    orders = [s.loops for s in sketch if isinstance(s, Reorder) and s.loops[0].startswith(block)]
    return tuple(n for n in orders[0] if n.endswith(".0"))


def test_the_order_of_the_outer_levels_is_a_choice() -> None:
    """Either operand of a product can be the one that stays in the cache."""
    sketches = sketches_of(task_of("matmul", FOUR_CORES), "default")
    found = {outer_loops(s, "C.")[:2] for s in sketches}
    assert found == {("C.i.0", "C.j.0"), ("C.j.0", "C.i.0")}


def test_only_the_heaviest_block_has_both_orders() -> None:
    """Choices multiply from block to block; the number of sketches must not run away."""
    sketches = sketches_of(task_of("matmul-chain", FOUR_CORES), "default")
    assert len({outer_loops(s, "AB.") for s in sketches}) == 2
    assert len({outer_loops(s, "ABC.") for s in sketches}) == 1


def winograd(tiles: int, channels: int, filters: int) -> ts.Function:
    """F(2, 3) in one dimension: transforms with constant-like matrices around a batched product."""
    x = ts.placeholder((tiles, 4, channels), name="X")
    b, a = ts.placeholder((4, 4), name="B"), ts.placeholder((4, 2), name="A")
    u = ts.placeholder((4, channels, filters), name="U")
    r, c, q = ts.reduce_axis(4, name="r"), ts.reduce_axis(channels, "c"), ts.reduce_axis(4, "q")
    v = ts.compute(
        (4, tiles, channels), lambda e, t, i: ts.sum(b[r, e] * x[t, r, i], axis=r), name="V"
    )
    m = ts.compute(
        (4, tiles, filters), lambda e, t, f: ts.sum(v[e, t, c] * u[e, c, f], axis=c), name="M"
    )
    y = ts.compute(
        (tiles, 2, filters), lambda t, o, f: ts.sum(a[q, o] * m[q, t, f], axis=q), name="Y"
    )
    return ts.function([x, b, a, u, y], name="winograd")


@pytest.mark.parametrize("rules", ["ansor", "default"])
def test_winograd(rules: str, golden: Golden) -> None:
    task = ts.Task(winograd(49, 64, 64), FOUR_CORES)
    sketches = sketches_of(task, rules)
    golden(f"{len(sketches)} sketches; the first:\n{show_sketch(task, sketches[0])}")


@pytest.mark.parametrize("rules", ["ansor", "default"])
def test_winograd_is_right(rules: str) -> None:
    rng = np.random.default_rng(3)
    task = ts.Task(winograd(5, 3, 6), ts.cpu(2))
    arrays = random_inputs(task.func, rng)
    want = ts.evaluate(task.func, *arrays)
    sketches = sketches_of(task, rules)
    for k in rng.choice(len(sketches), 5):
        every = list(structured(sketches[k]))
        v = lower(task, every[rng.integers(len(every))])
        kernel = ts.build(v.function(v.sample(rng, 1)[0]), task.target)
        assert_close(kernel(*arrays), want, f"{v.trace}")


GPU_SHAPES = {
    "matmul": (16, 12, 6),
    "matmul-relu": (7, 18, 9),
    "conv1d": (11, 3, 5, 3, 2, 1),
    "conv2d-bn-relu": (5, 2, 4, 3, 2, 1),
    "group-conv2d": (5, 4, 6, 3, 2, 1, 2),
    "softmax": (3, 40),
    "sum": (101,),
    "max-pool2d": (5, 2, 3, 2, 1),
}


@pytest.mark.parametrize("name", GPU_SHAPES)
def test_gpu_candidates_mean_what_the_oracle_says(name: str) -> None:
    rng = np.random.default_rng(0)
    task = ts.Task(operator(name, GPU_SHAPES[name]), V100)
    arrays = random_inputs(task.func, rng)
    want = ts.evaluate(task.func, *arrays)
    for sketch in sketches_of(task, "ansor"):
        for v in variants(task, sketch):
            row = v.sample(rng, 1)[0]
            func = v.function(row)
            verify(func)
            assert func == v.decided(row).apply(task.func)
            assert_close(ts.interpret(func, *arrays), want, str(func))


def test_every_gpu_loop_in_space_is_bound() -> None:
    """All but the reducing ones and the loops inside a thread's own tile."""
    task = task_of("softmax", V100)
    for sketch in sketches_of(task, "ansor"):
        (v,) = variants(task, sketch)
        for name in ("Y_max", "Y_sum", "Y"):
            path, b = find_block(v.func, name)
            serial = [f.name for f in path if f.kind == "serial"]
            assert set(serial) <= set(b.reducing_loops), f"{name}: {serial}"


def test_gpu_limits_hold_before_anything_is_built() -> None:
    rng = np.random.default_rng(0)
    task = task_of("matmul", V100)
    (sketch,) = sketches_of(task, "ansor")
    (v,) = variants(task, sketch)
    rows = v.sample(rng, 500)
    at = {c: rows[:, k].astype(int) for k, c in enumerate(v.columns)}

    def tile(axis: str, levels: range) -> np.ndarray:
        return np.prod([at[f"#C.local.{axis}.{k}"] for k in levels], axis=0)

    threads = tile("i", range(2, 3)) * tile("j", range(2, 3))
    depth = tile("k", range(1, 3))
    shared = 4 * depth * (tile("i", range(1, 5)) + tile("j", range(1, 5)))
    assert len(rows) == 500
    assert threads.min() >= 32
    assert threads.max() <= 1024
    assert shared.max() <= task.target.shared_nbytes
    every = v.draw(rng, 2000)
    assert not v.valid(every).all()


def test_rows_of_a_softmax_are_gone_through_in_one_loop_that_fetches_ahead() -> None:
    """What a person writes is in the space: all stages inside the loop over rows."""
    task = task_of("softmax", FOUR_CORES)
    (sketch,) = sketches_of(task, "default")
    nests = [len(v.func.body) for v in variants(task, sketch)]
    assert min(nests) == 1
    v = next(v for v in variants(task, sketch) if len(v.func.body) == 1)
    (row,) = v.func.body
    assert isinstance(row, For)
    assert {b.name for _, b in walk(row.body)} == {"Y_max", "Y_exp", "Y_sum", "Y"}
    assert row.note(FetchAhead) == FetchAhead("#prefetch")
    assert "#prefetch" in v.columns


def test_rows_of_a_softmax_go_through_its_stages_in_groups() -> None:
    """One row's sum is joined across lanes while the others are read: all stages of a group are
    side by side in its loop, and how many rows it has is a choice.
    """
    task = task_of("softmax", FOUR_CORES)
    (sketch,) = sketches_of(task, "default")
    (tile,) = [s for s in sketch.steps if isinstance(s, SampleTile)]
    assert (tile.loop, tile.max_innermost) == ("Y.i0", 8)
    side_by_side = [
        v
        for v in variants(task, sketch)
        if len(v.func.body) == 1
        and isinstance(group := v.func.body[0], For)
        and sum(isinstance(s, For) for s in group.body) == 4
    ]
    assert len(side_by_side) == 1
    plain = sketches_of(task_of("gelu", FOUR_CORES), "default")
    tiled = {s.loop for sketch in plain for s in sketch.steps if isinstance(s, SampleTile)}
    assert not [loop for loop in tiled if loop.endswith(".i0")]


def test_elements_on_gpus_are_fused_and_split_by_a_warp() -> None:
    """As Ansor does with what no rule has tiled."""
    task = task_of("gelu", V100)
    for sketch in sketches_of(task, "ansor"):
        for v in variants(task, sketch):
            for path, b in walk(v.func.body):
                kinds = {f.kind: f.extent.const for f in path}
                assert set(kinds) == {"blockIdx.x", "threadIdx.x"}, b.name
                assert kinds["threadIdx.x"] == V100.warp_size
