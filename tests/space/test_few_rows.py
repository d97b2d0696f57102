"""Attention with few queries on GPUs: sketches of the rule in the SIMT interpreter against the
oracle, on PoCL, and what compiles of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import launch_form
from tests.support.meaning import assert_close
from tests.support.thorough import drawn
from tilesmith.ir.nodes import For
from tilesmith.ir.simt import run_simt
from tilesmith.schedule.roll_parts import RollParts
from tilesmith.space.derive import State
from tilesmith.space.few_rows import FuseFewRows
from tilesmith.space.spaces import SketchSpace, variants

H200 = ts.Target.named("nvidia-h200")
NOTHING = float("-inf")


def stated(
    heads: int, groups: int, queries: int, keys: int, size: int, dtype: str = "float16",
    score: Any = None, batch: int = 1,
) -> ts.Function:  # fmt: skip
    shapes = ((batch, heads, queries, size), (batch, groups, keys, size))
    q, k, v = (ts.placeholder(shapes[n > 0], dtype, name="QKV"[n]) for n in range(3))
    return ts.function([q, k, v, ts.ops.attention(q, k, v, score=score)])


def first_keys(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """The last parts see nothing, and the first query sees nothing at all."""
    return ts.where((j < 70) & (i >= 1), s, NOTHING)


def capped(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return ts.tanh(s * 0.1) * 10.0


def arrays_of(func: ts.Function) -> list[np.ndarray]:
    """Scores that grow from key to key: each part has another maximum."""
    rng = np.random.default_rng(3)
    q, k, v = ([n.number for n in b.shape] for b in func.inputs)
    growth = np.linspace(0.1, 1.5, k[2])[:, None]
    made = (np.abs(rng.standard_normal(q)), np.abs(rng.standard_normal(k)) * growth)
    made = (*made, rng.standard_normal(v))
    return [a.astype(b.dtype.numpy) for a, b in zip(made, func.inputs, strict=True)]


def candidates(task: ts.Task, every: int = 1) -> Iterator[ts.Function]:
    rng = np.random.default_rng(5)
    for sketch in SketchSpace().sketches(task)[::every]:
        for v in variants(task, sketch):
            yield v.function(v.sample(rng, 1)[0])


def launches(func: ts.Function) -> int:
    return sum(isinstance(s, For) for s in launch_form(func, H200).body)


CASES = {
    "plain": stated(2, 2, 1, 256, 64, batch=2),
    "odd": stated(3, 3, 1, 197, 64),
    "groups": stated(8, 2, 1, 300, 128),
    "queries": stated(2, 2, 3, 200, 80, score=first_keys),
    "queries of groups": stated(4, 2, 2, 150, 64, score=capped),
    "bfloat16": stated(2, 2, 1, 130, 64, "bfloat16"),
    "float32": stated(4, 2, 2, 200, 64, "float32"),
    "one key": stated(2, 2, 1, 1, 64),
    "narrow": stated(2, 1, 1, 100, 12),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", CASES)
def test_candidates_match_the_oracle(name: str) -> None:
    func = CASES[name]
    arrays = arrays_of(func)
    want = ts.evaluate(func, *arrays)
    for made in candidates(ts.Task(func, H200), every=drawn(7, 2)):
        assert launches(made) <= 2
        assert_close(run_simt(launch_form(made, H200), *arrays), want, f"{made}", func)


def test_infinite_scores_give_what_the_oracle_gives() -> None:
    func = stated(1, 1, 1, 200, 64, "float32")
    arrays = arrays_of(func)
    arrays[1][0, 0, 150] = np.inf
    assert np.isnan(ts.evaluate(func, *arrays)).all()
    for made in candidates(ts.Task(func, H200), every=5):
        assert np.isnan(run_simt(launch_form(made, H200), *arrays)).all()


def test_parts_of_keys_are_a_decision_where_heads_are_few() -> None:
    few, many = stated(8, 8, 1, 4096, 128), stated(32, 32, 1, 512, 64, batch=64)
    sketches = SketchSpace().sketches(ts.Task(few, H200))
    assert {any(isinstance(s, RollParts) for s in t) for t in sketches} == {False, True}
    whole = SketchSpace().sketches(ts.Task(many, H200))
    assert not any(isinstance(s, RollParts) for t in whole for s in t)
    assert all(launches(made) == 1 for made in candidates(ts.Task(many, H200), every=4))


def test_what_fits_is_counted_without_the_terms_of_sums() -> None:
    """8192 keys of 4 rows: scores and weights take 256 KiB, which no block has; parts do."""
    task = ts.Task(stated(32, 8, 1, 8192, 128), H200)
    for sketch in SketchSpace().sketches(task):
        assert any(isinstance(s, RollParts) for s in sketch)
        for v in variants(task, sketch):
            assert len(v.sample(np.random.default_rng(0), 20)) > 5


def test_what_it_does_not_take() -> None:
    def takes(func: ts.Function) -> bool:
        return FuseFewRows()(State(ts.Task(func, H200), func)) is not None

    assert takes(stated(2, 1, 1, 100, 64))
    assert not takes(stated(2, 2, 64, 96, 64))  # many rows
    assert not takes(stated(32, 1, 1, 300, 64))


def test_candidates_compile() -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    task = ts.Task(stated(32, 8, 1, 1243, 128), H200)
    for func in candidates(task, every=drawn(13, 3)):
        artifact = ts.CudaBackend().compile(func, H200)
        assert all(n.resources is not None for n in artifact.entries[0].launches)
        assert "*(const uint4*)" in artifact.source


def test_it_runs_by_opencl() -> None:
    try:
        target = ts.opencl()
    except ts.TilesmithError as e:
        pytest.skip(str(e))
    func = stated(4, 2, 1, 300, 64, "float32")
    arrays = arrays_of(func)
    want = ts.evaluate(func, *arrays)
    for made in list(candidates(ts.Task(func, target), every=5))[: drawn(1, 3)]:
        assert_close(ts.build(made, target)(*arrays), want, f"{made}", func)
