"""Attention in models with open sizes: one kernel for all numbers of queries and keys, right where
a tile ends, one before and one behind.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.open_models import check, compiled, feeds_of, program
from tilesmith.testing.measurers import FakeMeasurer

MASKS = {
    "none": ("", "t = Identity(s)", {}),
    "added": (", float[1, 1, queries, keys] mask", "t = Add(s, mask)", {}),
    "left out": (
        ", int64[1, 1, 1, keys] valid",
        "zero = Constant<value_int = 4>() out = Less(valid, zero)"
        " low = Constant<value_float = -inf>() t = Where(out, s, low)",
        {},
    ),
    "table": (
        "",
        "n = Shape<start = 2, end = 3>(q) m = Shape<start = 2, end = 3>(k)"
        " first = Constant<value_ints = [0]>() axis = Constant<value_ints = [1]>()"
        " some = Slice(table, first, n) part = Slice(some, first, m, axis) t = Add(s, part)",
        {"table": (80, 80)},
    ),
}
SIZES = {"queries": (1, 64), "keys": (1, 64)}
LENGTHS = [(1, 1), (1, 7), (3, 2), (15, 17), (16, 16), (17, 15), (33, 64), (64, 63), (70, 65)]


def attention(mask: str) -> Any:
    given, masked, tables = MASKS[mask]
    return program(
        f"""attention (float[1, 4, queries, 16] q, float[1, 4, keys, 16] k,
                       float[1, 4, keys, 16] v{given}) => (float[1, 4, queries, 16] y)
            {{kt = Transpose<perm = [0, 1, 3, 2]>(k) p = MatMul(q, kt)
             c = Constant<value_float = 0.25>() s = Mul(p, c) {masked}
             w = Softmax(t) y = MatMul(w, v)}}""",
        **tables,
    )


@pytest.fixture(autouse=True)
def as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates say that one kernel is faster."""
    choice = import_module("tilesmith.tune.partition_choice")
    monkeypatch.setattr(choice, "estimated_cycles", lambda *_: 1.0)


@pytest.mark.parametrize("mask", MASKS)
def test_one_kernel_for_all_lengths(mask: str) -> None:
    model = attention(mask)
    made = compiled(model, SIZES)
    plan = made._run.executor.plan
    (at,) = (k for k, step in enumerate(plan.steps) if "softmax" in step.group.name)
    assert [n.op for n in plan.steps[at].group.nodes].count("batch_matmul") == 2
    kernel = made._run.executor.kernels[at]
    assert kernel.origin.kind == "draft"
    assert '"roll"' not in kernel.origin.schedule  # tiles of keys that end within one are slow
    for queries, keys in LENGTHS:
        check(made, model, queries=queries, keys=keys)


def test_an_export_and_a_saved_model_compute_the_same(tmp_path: Any) -> None:
    model = attention("added")
    made = compiled(model, SIZES)
    made.save(tmp_path / "attention.tsm")
    again = ts.load_model(tmp_path / "attention.tsm")
    made.save_lock(tmp_path / "lock.json")
    locked = compiled(model, SIZES, lock=tmp_path / "lock.json")
    feeds = feeds_of(model, queries=17, keys=33)
    for other in (again, locked):
        assert len(other.kernels) == 1
        np.testing.assert_array_equal(other(feeds)["y"], made(feeds)["y"])


def test_both_ways_are_tuned_and_the_faster_one_is_kept() -> None:
    model = attention("none")
    sizes = {n: (1, 32, {16: 1}) for n in SIZES}
    db = ts.open_database(":memory:")
    tuned = ts.tune_model(
        model, ts.cpu(1), sizes=sizes, budget=ts.Budget(trials=4), measurer=FakeMeasurer(),
        strategy=ts.Random(), quiet=True, cache=None, database=db,
    )  # fmt: skip
    assert tuned.tuning is not None
    names = {t.task.func.name for t in tuned.tuning.tasks}
    assert len(names) == 4  # the whole, two products and a softmax
    again = ts.compile_model(model, ts.cpu(1), sizes=sizes, database=db, cache=None)
    assert len(again._run.executor.kernels) == len(tuned._run.executor.kernels)
    for queries, keys in ((1, 1), (5, 31), (40, 33)):
        check(tuned, model, queries=queries, keys=keys)
        check(again, model, queries=queries, keys=keys)


def test_a_model_without_kernels_is_open_too() -> None:
    model = program("copies (float[rows, 4] x) => (float[flat] y) <int64[1] minus = {-1}>"
                    "{y = Reshape(x, minus)}")  # fmt: skip
    made = compiled(model, {"rows": (1, 8)})
    assert not made.kernels
    for rows in (1, 7, 9):
        check(made, model, rows=rows)
