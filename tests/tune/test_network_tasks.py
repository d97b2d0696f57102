"""What a scheduler asks of tasks: which are alike, and how fast they can be at most."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.measure.this_machine import peak_of
from tilesmith.tune.network_tasks import least_seconds, merged, structure


def conv(c: int, k: int, stride: int = 1, size: int = 14, relu: bool = False) -> ts.Function:
    x = ts.placeholder((1, size, size, c), name="X")
    w = ts.placeholder((k, k, c, 2 * c), name="W")
    y = ts.ops.conv2d(x, w, padding=k // 2, stride=stride, layout="NHWC", name="Y")
    out = ts.ops.relu(y) if relu else y
    return ts.function([x, w, out], name="conv", constants=[w])


def dense(m: int, n: int, k: int) -> ts.Function:
    a, b = ts.placeholder((m, k), name="A"), ts.placeholder((k, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="dense")


def test_sizes_and_epilogues_do_not_matter() -> None:
    assert structure(conv(16, 3)) == structure(conv(32, 3, size=28)) == structure(conv(8, 3))
    assert structure(conv(16, 3)) == structure(conv(16, 3, relu=True))
    assert structure(dense(8, 16, 32)) == structure(dense(64, 64, 64))


def test_other_computations_are_not_alike() -> None:
    functions = [conv(16, 1), conv(16, 3), conv(16, 3, stride=2), dense(8, 16, 32), dense(1, 16, 8)]
    x = ts.placeholder((8, 16), name="X")
    functions.append(ts.function([x, ts.ops.softmax(x, name="Y")], name="softmax"))
    functions.append(ts.function([x, ts.ops.relu(x, name="Y")], name="relu"))
    assert len({structure(f) for f in functions}) == len(functions)


def test_arithmetic_and_memory_bound_a_task() -> None:
    target = ts.cpu(1)
    heavy = ts.Task(dense(256, 256, 256), target)
    peak = peak_of(heavy.func.outputs[0].dtype, 1)
    assert peak is not None
    assert least_seconds(heavy) == pytest.approx(0.95 * heavy.func.flops / peak)
    vector = ts.Task(dense(1, 2048, 2048), target)
    assert least_seconds(vector) > 2 * vector.func.flops / peak
    two = ts.Task(heavy.func, replace(target, num_cores=2))
    assert least_seconds(two) == pytest.approx(least_seconds(heavy) / 2, rel=0.5)


def test_windows_may_save_arithmetic() -> None:
    target = ts.cpu(1)
    plain, windows = ts.Task(conv(64, 1), target), ts.Task(conv(64, 3), target)
    per_flop = [least_seconds(t) / t.func.flops for t in (plain, windows)]
    assert per_flop[1] == pytest.approx(per_flop[0] / 4, rel=0.05)


def test_another_machine_has_no_bound() -> None:
    assert least_seconds(ts.Task(dense(8, 8, 8), ts.Target.named("skylake-avx512"))) == 0


def test_equal_tasks_of_networks_are_one() -> None:
    target = ts.cpu(1)
    a, b = dense(8, 16, 32), dense(8, 8, 8)
    x, y = ts.placeholder((8, 32), name="other"), ts.placeholder((32, 16), name="names")
    same = ts.function([x, y, ts.ops.matmul(x, y, name="Z")], name="renamed")
    tasks = merged(
        [[(ts.Task(a, target), 2), (ts.Task(b, target), 1)], [(ts.Task(same, target), 3)]]
    )
    assert [(t.task.func.name, t.weights, t.weight) for t in tasks] == [
        ("dense", (2, 3), 5),
        ("dense", (1, 0), 1),
    ]


def test_on_a_gpu_a_launch_arithmetic_and_l2_bound_a_task() -> None:
    h200 = ts.Target.named("nvidia-h200")
    launch = least_seconds(ts.Task(dense(8, 8, 8), h200))
    assert 0.3e-6 < launch < 1e-6
    large = ts.Task(dense(4096, 4096, 4096), h200)
    assert 60e12 < large.func.flops / least_seconds(large) < 80e12
    table, rows = ts.placeholder((30000, 64), name="T"), ts.placeholder((4,), "int64", name="R")
    gather = ts.function([table, rows, ts.ops.gather(table, rows, axis=0)], name="gather")
    assert least_seconds(ts.Task(gather, h200)) < 1.1 * launch
