"""Kernels of a model alone and in their places, beside what their records say."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.ops.elementwise import relu
from tilesmith.ops.matmul import matmul
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith_contest.in_place import in_place


def network() -> ts.Graph:
    """Three equal layers and another one."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    x = b.input("x", (8, 16), "float32")
    for m, n in ((16, 16), (16, 16), (16, 16), (16, 24)):
        w = b.constant(rng.standard_normal((m, n)).astype(np.float32))
        x = b.add(relu, b.add(matmul, x, w))
    return b.finish({"y": x})


def test_every_kernel_alone_and_in_its_place() -> None:
    feeds = {"x": np.ones((8, 16), np.float32)}
    with ts.open_database(":memory:") as db:
        model = ts.tune_model(
            network(), ts.cpu(1), budget=ts.Budget(trials=6), measurer=FakeMeasurer(),
            strategy=ts.Random(), database=db, quiet=True, cache=None,
        )  # fmt: skip
    report = in_place(model, feeds, rounds=3)
    assert sorted(k.count for k in report.kernels) == [1, 3]
    for k in report.kernels:
        assert min(k.alone, k.rotated, k.in_place) > 0
        assert k.record is not None
    tuning = model.tuning
    assert tuning is not None
    assert report.total("record") == pytest.approx(tuning.estimate)
    assert report.excess == pytest.approx(report.total("in_place") / report.total("alone") - 1)
    lines = str(report).splitlines()
    assert len(lines) == 4
    assert "records" in lines[-1]
    processor = in_place(model, feeds, rounds=2, processor_time=True)
    assert all(min(k.alone, k.rotated, k.in_place) > 0 for k in processor.kernels)
    profile = model.profile(feeds)
    assert profile.recorded == pytest.approx(tuning.estimate)
    assert "sum of their records" in str(profile)


def test_drafts_have_no_record() -> None:
    model = ts.compile_model(network(), ts.cpu(1), cache=None, progress=False)
    report = in_place(model, {"x": np.ones((8, 16), np.float32)}, rounds=2)
    assert all(k.record is None for k in report.kernels)
    assert "records" not in str(report)
    assert model.profile({"x": np.ones((8, 16), np.float32)}).recorded is None
