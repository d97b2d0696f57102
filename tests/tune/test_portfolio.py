"""Tuning with open sizes: the cover, the dispatch, and kernels from records of samples."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.runtime.device_kernel import DevicePortfolio
from tilesmith.runtime.dispatch import Region
from tilesmith.runtime.open_kernel import OpenKernel, PortfolioKernel
from tilesmith.tune.open_build import samples_of
from tilesmith.tune.portfolio import Portfolio, covering

ONE = ts.cpu(num_cores=1)


def product(samples=None) -> ts.Function:
    n = ts.size("n", range=(1, 64), samples=samples or {4: 1, 32: 2})
    A, B = ts.placeholder((n, 32), name="A"), ts.placeholder((32, 48), name="B")
    return ts.function([A, B, ts.ops.matmul(A, B)], name="product")


@pytest.mark.parametrize(
    ("seconds", "members"),
    [
        ([[1.0, 1.0]], (0,)),
        ([[1.0, 1.0], [0.999, 0.999]], (0,)),  # not worth a further kernel
        ([[1.0, 1.0], [0.5, 2.0]], (0, 1)),
        ([[1.0, 1.0], [0.5, 0.9], [0.495, 5.0]], (0, 1)),
        ([[1.0, 1.0], [0.5, math.nan], [math.nan, 0.5]], (0, 1, 2)),
    ],
)
def test_the_cover_is_small_and_leaves_no_large_regret(seconds, members):
    assert covering(seconds, [1.0] * len(seconds[0])) == members


def test_a_cover_has_at_most_eight_kernels_and_takes_heavy_samples_first():
    seconds = [[1.0] * 12, *([1.0] * k + [0.5] + [1.0] * (11 - k) for k in range(12))]
    assert len(covering(seconds, [1.0] * 12)) == 8
    assert covering(seconds, [1.0] * 11 + [9.0])[1] == 12


def test_regrets_and_cost_of_a_portfolio():
    samples = ((("n", 4),), (("n", 32),))
    table = Portfolio(
        product(), samples, (1.0, 1.0), ("draft", "a", "b"),
        ((1.0, 1.0), (0.25, 2.0), (0.2, math.nan)), (0, 1),
    )  # fmt: skip
    assert table.chosen == (1, 0)
    assert table.regrets == pytest.approx((1.25, 1.0))
    assert table.cost == pytest.approx(0.5)
    assert "n 1 to 64: 2 of 3 kernels" in str(table)


def test_samples_of_several_sizes_are_few():
    a, b = ts.size("a", samples={2: 1, 4: 3}), ts.size("b")
    X = ts.placeholder((a, b), name="X")
    points = samples_of(ts.function([X, ts.ops.relu(X)]))
    assert len(points) == 12
    c = ts.size("c")
    X = ts.placeholder((a, b, c), name="X")
    points = samples_of(ts.function([X, ts.ops.relu(X)]))
    assert len(points) == 2 + 6 + 6 - 2
    assert all(dict(p)["a"] == 4 or dict(p)["b"] == dict(p)["c"] for p in points)


def test_sizes_choose_the_member_of_the_nearest_sample():
    first, second = (ts.build(product(), ONE) for _ in range(2))
    assert isinstance(first, OpenKernel)
    assert isinstance(second, OpenKernel)
    regions = [Region((("n", 4),), 1), Region((("n", 16),), 0)]
    kernel = PortfolioKernel([first, second], regions, {"n": (2, 64)})
    chosen = {n: kernel.member_for({"n": n}) for n in (0, 1, 2, 4, 7, 9, 16, 64, 65, 10**6)}
    assert chosen == {0: 0, 1: 0, 2: 1, 4: 1, 7: 1, 9: 0, 16: 0, 64: 0, 65: 0, 10**6: 0}
    again = pickle.loads(pickle.dumps(kernel))
    a, b = np.ones((5, 32), np.float32), np.ones((32, 48), np.float32)
    np.testing.assert_array_equal(again(a, b), np.full((5, 48), 32, np.float32))


def test_tuning_with_open_sizes_gives_a_kernel_for_all_and_records_of_samples(tmp_path):
    func, rng = product(), np.random.default_rng(0)
    b = rng.standard_normal((32, 48)).astype(np.float32)
    with ts.open_database(tmp_path / "open.db") as db:
        result = ts.tune(func, ONE, budget=ts.Budget(trials=4), database=db, quiet=True)
        assert result.trials == 4
        assert result.portfolio.samples == ((("n", 4),), (("n", 32),))
        assert len(result.portfolio.members) <= len(result.portfolio.kernels)
        assert max(result.portfolio.regrets) <= 1.10 or len(result.portfolio.members) == 8
        built = ts.build(func, ONE, database=db)
        assert db.best(ts.Task(ts.instantiate(func, {"n": 32}), ONE)) is not None
    assert isinstance(built, PortfolioKernel)
    assert isinstance(result.kernel, PortfolioKernel)
    assert [m.artifact.symbol for m in built.members] == [
        m.artifact.symbol for m in result.kernel.members
    ]
    assert (built.choice, built.limits) == (result.kernel.choice, result.kernel.limits)
    with ts.open_database(tmp_path / "open.db") as db:  # as after a restart, in another process
        text = (
            "import sys, tilesmith as ts; sys.path.insert(0, sys.argv[2]);"
            "from test_portfolio import product, ONE;"
            "k = ts.build(product(), ONE, database=ts.open_database(sys.argv[1]));"
            "print(*[m.artifact.symbol for m in k.members])"
        )
        words = [sys.executable, "-c", text, tmp_path / "open.db", Path(__file__).parent]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
        assert done.stdout.split() == [m.artifact.symbol for m in built.members]
        _spoil(db, func)
        spoiled = ts.build(func, ONE, database=db)  # from records of samples
    for kernel in (result.kernel, built, spoiled):
        for n in (0, 1, 4, 33, 64, 65, 200):
            a = rng.standard_normal((n, 32)).astype(np.float32)
            np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)


def _spoil(db, func) -> None:
    task = ts.Task(ts.instantiate(func, {"n": 32}), ONE)
    data = db.load_state(task, "portfolios")
    (entry,) = json.loads(data)
    other = entry | {"func": "another"}
    for damaged in (
        b"nothing", b"[3]",
        *(json.dumps([entry | change]).encode() for change in (
            {"members": [99]}, {"seconds": [[1.0]]},
            {"kernels": [["draft", None, "", "", "no trace"]] * len(entry["kernels"])},
        )),
    ):  # fmt: skip
        db.save_state(task, "portfolios", damaged)
        assert ts.build(func, ONE, database=db).artifact.name == "product"
    db.save_state(task, "portfolios", json.dumps([other]).encode())


def test_tuning_on_a_device(tmp_path):
    try:
        target = ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))
    func, rng = product(), np.random.default_rng(0)
    b = rng.standard_normal((32, 48)).astype(np.float32)
    with ts.open_database(tmp_path / "open.db") as db:
        result = ts.tune(func, target, budget=ts.Budget(trials=2), database=db, quiet=True)
        assert result.portfolio.kernels[0].startswith("a draft")
        built = ts.build(func, target, database=db)
    assert isinstance(built, DevicePortfolio)
    assert built.choice == result.kernel.choice
    for kernel in (result.kernel, built):
        for n in (0, 1, 33, 100):
            a = rng.standard_normal((n, 32)).astype(np.float32)
            np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
