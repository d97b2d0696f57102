"""Minimal filtering with large tiles: where it is offered, that it is right, and that its error is
within what `accuracy` allows.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.records.accurate import AccurateRecords
from tilesmith.schedule.winograd import Winograd, filtering_error
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.task.task import ACCURACY, Candidate, Measurement, Task
from tilesmith.tune.build_request import drafts_of


def conv(size: int, channels: int, results: int, name: str = "conv2d") -> ts.Function:
    return operator(name, (size, channels, results, 3, 1, 1), "NHWC", prepared=True)


def large(sketch: ts.Trace) -> bool:
    return any(isinstance(s, Winograd) and s.results == 4 for s in sketch.steps)


def first(task: Task) -> ts.Trace:
    """A decided trace with large tiles."""
    rng = np.random.default_rng(0)
    for sketch in filter(large, SketchSpace().sketches(task)):
        for v in variants(task, sketch):
            for row in v.sample(rng, 1):
                return v.decided(row)
    raise AssertionError("there is none")


def error(kernel: ts.Kernel, func: ts.Function, seed: int, positive: bool) -> float:
    """The largest error over the largest value, against float64."""
    rng = np.random.default_rng(seed)
    x, w, *more = (
        rng.standard_normal([n.number for n in b.shape], np.float32) for b in func.inputs
    )
    x = np.maximum(x, 0) if positive else x
    got = kernel(x, kernel.pack(func.inputs[1].name, w), *more)
    wide, weights = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))).astype(np.float64), w.astype("f8")
    _, h, w_, _ = x.shape
    want = sum(wide[:, i : i + h, j : j + w_] @ weights[i, j] for i in range(3) for j in range(3))
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(("size", "channels"), [(9, 16), (7, 64), (8, 256), (4, 512)])
def test_the_error_of_a_layer_is_within_its_bound(size: int, channels: int) -> None:
    func = conv(size, channels, 24)
    task = Task(func, ts.cpu(1))
    trace = first(task)
    bound = filtering_error(func, trace.steps)
    assert bound <= ACCURACY
    kernel = ts.build(trace.apply(func), task.target)
    errors = [error(kernel, func, seed, seed % 2 == 1) for seed in range(4)]
    assert max(errors) <= bound, (errors, bound)
    assert max(errors) >= bound / 16, "the bound says nothing"


@pytest.mark.parametrize("name", ["conv1d", "conv2d-bn-relu"])
def test_candidates_match_the_oracle(name: str) -> None:
    func = operator(name, (12, 16, 18, 3, 1, 1), "NHWC", prepared=True)
    task = Task(func, ts.cpu(2))
    kernel = ts.build(first(task).apply(func), task.target)
    rng = np.random.default_rng(1)
    arrays = [rng.random([n.number for n in b.shape], np.float32) for b in func.inputs]
    want = ts.evaluate(func, *arrays)
    given = [kernel.pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)]
    assert np.abs(kernel(*given) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(
    ("size", "channels", "offered"),
    [
        (8, 512, True),
        (8, 1024, False),  # its error would be above 1e-5
        (5, 64, False),  # two groups of four results take as many products as three of two
    ],
)
def test_where_it_is_offered(size: int, channels: int, offered: bool) -> None:
    sketches = SketchSpace().sketches(Task(conv(size, channels, 32), ts.cpu(1)))
    assert any(map(large, sketches)) == offered


def test_accuracy_says_what_is_allowed() -> None:
    task = Task(conv(8, 64, 32), ts.cpu(1))

    def errors(accuracy: float) -> set[float]:
        space = SketchSpace(accuracy=accuracy)
        return {filtering_error(task.func, s.steps) for s in space.sketches(task)}

    assert errors(0) == {0.0}
    plain, small = sorted(errors(1e-6))
    assert plain == 0.0
    assert 0 < small <= 1e-6
    assert sorted(errors(1e-4))[:2] == [plain, small]
    assert len(errors(1e-4)) == 3
    for trace in drafts_of(task, 1, (), 0.0):
        assert not any(isinstance(s, Winograd) for s in trace.steps)
    with pytest.raises(ts.ScheduleError, match=r"accuracy is -1; it is the relative error"):
        ts.build(task.func, task.target, accuracy=-1)


def test_records_beyond_the_accuracy_are_not_taken() -> None:
    task = Task(conv(8, 64, 32), ts.cpu(1))
    fast = Measurement(Candidate(task, first(task)), (1e-6,) * 3)
    slow = Measurement(Candidate(task, drafts_of(task, 1, (), 0.0)[0]), (2e-6,) * 3)
    with ts.open_database(":memory:") as database:
        database.add([fast, slow])
        assert AccurateRecords(database, 1e-5).best(task) == fast
        assert AccurateRecords(database, 1e-7).best(task) == slow
        assert AccurateRecords(database, 1e-7).of(task) == [slow]
        assert ts.build(task.func, task.target, database=database).origin.seconds == 1e-6
        kernel = ts.build(task.func, task.target, database=database, accuracy=0)
        assert kernel.origin.seconds == 2e-6


def test_more_results_have_a_larger_error() -> None:
    """A kernel for a GPU had an error of 1.19e-5 in one of 13 million results: above the bound that
    there was, and above the accuracy that it was offered for.
    """
    func = operator("conv3d", (14, 256, 256, 3, 1, 1, 16, 16), prepared=True)
    step = Winograd("Y", ("rh", "rw"), results=4)
    assert filtering_error(func, (step,)) >= 1.19e-5
    sketches = SketchSpace().sketches(Task(func, ts.Target.named("nvidia-h200")))
    found = {s.results for t in sketches for s in t.steps if isinstance(s, Winograd)}
    assert found == {2}
    one_image = operator("conv3d", (14, 256, 256, 3, 1, 1), prepared=True)
    assert filtering_error(one_image, (step,)) <= ACCURACY  # 800 thousand results
