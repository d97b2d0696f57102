"""What the default space has on GPUs beyond Ansor's, found in its sketches."""

from __future__ import annotations

import numpy as np

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.cli.operators import operator
from tilesmith.codegen.pipeline import GPU_PASSES, lower
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.nodes import Alloc, For, Join, Stmt, Store, statements
from tilesmith.space.domains import compile_ints
from tilesmith.space.spaces import SketchSpace, variants

H200 = ts.Target.named("nvidia-h200")


def variants_of(name: str, *shape: int) -> list[ts.Variant]:
    task = ts.Task(operator(name, shape), H200)
    sketches = SketchSpace(ts.default_rules(H200)).sketches(task)
    return [v for s in sketches for v in variants(task, s)]


def some_rows(v: ts.Variant, count: int) -> list[ts.Function]:
    return [v.function(row) for row in v.sample(np.random.default_rng(0), count)]


def is_shared(v: ts.Variant) -> bool:
    return any(b.scope == "shared" for b in v.func.buffers)


def launches(func: ts.Function) -> list[Stmt]:
    return [s for s in lower(func, H200, GPU_PASSES).body if not isinstance(s, Alloc)]


def test_operands_are_copied_to_shared_memory_or_read_where_they_are() -> None:
    assert {is_shared(v) for v in variants_of("depthwise-conv2d", 28, 32, 3, 2, 1)} == {True, False}


def test_the_parts_of_a_split_sum_are_tiled_like_a_whole_one() -> None:
    """The guard of a split that divides holds always, and is no reason to leave loops whole."""
    split = [v for v in variants_of("matmul", 64, 32, 512) if "C.rf" in str(v.func)]
    assert split
    for v in split:
        assert max(d.size for d in v.domains if d.columns[0].startswith("#C.rf.local.k.1")) > 5


def test_a_transposed_convolution_is_one_launch() -> None:
    whole = [
        v for v in variants_of("conv2d-transpose", 4, 16, 8, 4, 2, 1) if ".rf" not in str(v.func)
    ]
    assert whole
    for v in whole:
        assert [len(launches(f)) for f in some_rows(v, 2)] == [1, 1]


def test_a_norm_is_two_launches_and_its_root_part_of_the_second() -> None:
    found = {len(launches(f)) for v in variants_of("norm", 40, 300) for f in some_rows(v, 3)}
    assert found <= {1, 2}


def test_large_sums_may_be_padded_ahead() -> None:
    large, small = ((14, 256, 256, 3, 1, 1, 16), (14, 16, 16, 3, 1, 1))
    kept = ["\n  pad = global" in f"\n{v.func}" for v in variants_of("conv2d", *large)]
    assert {*kept} == {True, False}
    assert not any("pad = global" in str(v.func) for v in variants_of("conv2d", *small))


def written_out(body: tuple[Stmt, ...]) -> int:
    """Statements after unrolling."""
    total = 0
    for s in body:
        inner = written_out(s.body) if hasattr(s, "body") else isinstance(s, Store | Join)
        total += inner * (s.trips if isinstance(s, For) and s.kind == "unroll" else 1)
    return total


def test_unrolled_code_is_bounded_before_it_is_built() -> None:
    counts = []
    for v in variants_of("conv2d", 16, 32, 32, 3, 1, 1)[:3]:
        counts += [written_out(lower(f, H200, GPU_PASSES).body) for f in some_rows(v, 6)]
    assert max(counts) < 3 * 4096
    assert max(counts) > 64


def held(func: ts.Function) -> bool:
    return any(isinstance(s, Alloc) and ".held" in s.buffer.name for s in statements(func.body))


def test_rows_that_fit_stay_in_registers() -> None:
    (v,) = variants_of("softmax", 5, 256)
    rows = v.sample(np.random.default_rng(0), 60)
    at = {c: k for k, c in enumerate(v.columns)}
    rng, seen = np.random.default_rng(1), set()
    for row in rows:
        key = tuple(int(row[at[f"#Y.{n}"]]) for n in ("threads", "width", "at_once", "held"))
        if key in seen:
            continue
        seen.add(key)
        threads, width, at_once, most = key
        lowered = lower(v.function(row), H200, GPU_PASSES)
        turns = -(-256 // (threads * width * at_once))
        assert held(lowered) == (turns * width * at_once <= most)
        arrays = random_inputs(v.task.func, rng)
        assert_close(ts.run_simt(lowered, *arrays), evaluate(v.task.func, *arrays), "", v.task.func)
    assert len(seen) > 10


def test_a_grouped_convolution_copies_its_image_to_shared_memory() -> None:
    """A tile lies in one group, so the part of the image that it needs is known."""
    found = variants_of("group-conv2d", 6, 8, 12, 3, 2, 1, 4, 2)
    assert {"Y.local", "pad.shared", "W.shared"} in [
        {b.name for b in v.func.buffers} for v in found
    ]
    given = random_inputs(found[0].task.func, np.random.default_rng(0))
    want = evaluate(found[0].task.func, *given)
    for v in found:
        assert "Y.local" in v.func.all_buffers
        for func in some_rows(v, 2):
            assert_close(ts.run_simt(lower(func, H200, GPU_PASSES), *given), want)


def test_threads_that_share_a_sum_count() -> None:
    """Blocks behind the sum have fewer threads, which must not be taken for those of the block."""
    across = [v for v in variants_of("matmul", 256, 256, 2048) if "reduce_across" in str(v.trace)]
    assert across
    for v in across:
        rows = v.sample(np.random.default_rng(0), 400)
        threads = compile_ints([x.value for x in v.limits if "threads of" in x.name], v.columns)
        most = np.argsort(-np.prod(threads(rows), axis=0), kind="stable")[:6]
        for row in rows[most]:
            launches(v.function(row))  # raises if a block has too many
