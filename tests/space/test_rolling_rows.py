"""Attention by tiles of keys on CPUs: sketches of the rule against the oracle, with scores that
grow from tile to tile so that every repair counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tilesmith as ts
from tests.schedule.test_roll import Score, attention, capped, causal, negative, scaled, window
from tests.support.meaning import assert_close, assert_same_meaning
from tests.support.thorough import drawn
from tilesmith.ir.nodes import Alloc, For, If, statements
from tilesmith.schedule.roll import Roll
from tilesmith.space.rolling_rows import RollRows
from tilesmith.space.spaces import SketchSpace, variants

N1 = ts.Target.named("neoverse-n1").with_cores(1)


def rolled(task: ts.Task) -> list[ts.Trace]:
    return [t for t in SketchSpace().sketches(task) if any(isinstance(s, Roll) for s in t)]


def candidates(task: ts.Task, seed: int = 0) -> Iterator[ts.Function]:
    rng = np.random.default_rng(seed)
    for sketch in rolled(task):
        for v in variants(task, sketch):
            for row in v.mutate(rng, v.sample(rng, drawn(1, 3))):
                func = v.function(row)
                assert func == v.decided(row).apply(task.func)
                yield func


def arrays_of(func: ts.Function) -> list[np.ndarray]:
    """Each key more important than those before it."""
    rng = np.random.default_rng(3)
    q, k, v = ([n.number for n in b.shape] for b in func.inputs)
    growth = np.linspace(0.1, 2, k[1])[None, :, None]
    made = (np.abs(rng.standard_normal(q)) + 0.5, np.abs(rng.standard_normal(k)) * growth)
    made = (*made, rng.standard_normal(v))
    return [a.astype(b.dtype.numpy) for a, b in zip(made, func.inputs, strict=True)]


CASES = [
    (37, 150, scaled, "float32"),
    (64, 128, causal, "float32"),
    (70, 131, causal, "float32"),
    (50, 200, window, "float32"),
    (33, 97, capped, "float32"),  # scores are stored
    (21, 90, negative, "float32"),
    (20, 100, causal, "float16"),
]


@pytest.mark.parametrize(("queries", "keys", "score", "dtype"), CASES)
def test_candidates_match_the_oracle(queries: int, keys: int, score: Score, dtype: str) -> None:
    func = attention(queries, keys, score, dtype, 24, 20)
    task = ts.Task(func, ts.cpu(1 + keys % 2))
    arrays = arrays_of(func)
    want = ts.evaluate(func, *arrays)
    count = 0
    for scheduled in candidates(task):
        got = ts.build(scheduled, task.target)(*arrays)
        assert_close(got, want, f"{scheduled}", func)
        count += 1
    assert count >= 2


def test_every_element_is_computed_before_it_is_read() -> None:
    func = attention(5, 21, causal, "float32", 3, 2)
    for scheduled in candidates(ts.Task(func, N1)):
        assert_same_meaning(func, scheduled)


def test_tiles_behind_a_mask_cost_a_branch() -> None:
    """All that a tile of keys computes is under one guard."""
    func = attention(64, 96, causal, "float32", 16, 8)
    task = ts.Task(func, N1)
    for sketch in rolled(task):
        for v in variants(task, sketch):
            rows = v.sample(np.random.default_rng(0), 200)
            tiles = [v.columns.index(c) for c in v.columns if c.endswith((".i.0", ".j.0"))][:2]
            several = rows[(rows[:, tiles] > 2).all(axis=1)]
            assert len(several)
            lowered = ts.lower(v.function(several[0]), N1, ts.CPU_PASSES)
            (over_keys,) = [
                f for f in statements(lowered.body)
                if isinstance(f, For) and any(isinstance(s, Alloc) for s in f.body)
                and not any(isinstance(s, For) for s in f.body)
            ]  # fmt: skip
            assert sum(isinstance(s, If) for s in over_keys.body) == 1, lowered


def test_what_it_does_not_take() -> None:
    assert not rolled(ts.Task(attention(8, 12, scaled), N1))  # one tile of keys
    a, b = ts.placeholder((32, 32), name="A"), ts.placeholder((32, 64), name="B")
    softmax = ts.ops.softmax(ts.ops.matmul(a, b))
    assert not rolled(ts.Task(ts.function([a, b, softmax]), N1))  # no product behind it
    assert all(not isinstance(r, RollRows) for r in ts.ansor_rules(N1))
