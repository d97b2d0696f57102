"""Tasks that differ in sizes alone are drafted together: the structures that are best for one of
them are the only ones tried for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.forms import form_of
from tilesmith.ir.function import Function
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import Origin
from tilesmith.task.task import Task
from tilesmith.tune.build_request import BuildRequest, fulfil
from tilesmith.tune.forms import share_structures

spaces = import_module("tilesmith.space.spaces")


def conv(size: int, ci: int, co: int, kernel: int = 3, stride: int = 1) -> Function:
    x = ts.placeholder((1, size, size, ci), name="x")
    w = ts.placeholder((kernel, kernel, ci, co), name="w")
    y = ts.ops.conv2d(x, w, stride=stride, padding=kernel // 2, layout="NHWC")
    return ts.function([x, w, ts.ops.relu(y)], constants=[w])


def product(m: int, n: int, k: int, dtype: str = "float32") -> Function:
    a, b = ts.placeholder((m, k), dtype, name="a"), ts.placeholder((k, n), dtype, name="b")
    return ts.function([a, b, ts.ops.matmul(a, b)])


def test_sizes_do_not_change_a_form() -> None:
    assert form_of(conv(14, 24, 40)) == form_of(conv(57, 64, 130))
    assert form_of(product(33, 65, 129)) == form_of(product(128, 256, 512))


@pytest.mark.parametrize(
    "other",
    [conv(14, 24, 40, kernel=1), conv(14, 24, 40, stride=2), conv(14, 24, 40, 5), conv(1, 24, 40)],
)
def test_windows_strides_and_axes_of_one_do(other: Function) -> None:
    assert form_of(conv(14, 24, 40)) != form_of(other)


def test_types_and_single_rows_do() -> None:
    assert form_of(product(33, 65, 129)) != form_of(product(33, 65, 129, "float64"))
    assert form_of(product(33, 65, 129)) != form_of(product(1, 65, 129))


@pytest.fixture
def derivations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions whose sketches are derived."""
    seen: list[str] = []
    derive = spaces.derive

    def counted(task: Task, *rest: Any) -> Any:
        seen.append(task.func.digest)
        return derive(task, *rest)

    monkeypatch.setattr(spaces, "derive", counted)
    return seen


def test_one_task_of_a_form_is_derived(derivations: list[str], short_drafts: None) -> None:
    funcs = [product(m, n, k) for m, n, k in ((34, 66, 95), (61, 31, 77), (45, 101, 51))]
    requests = share_structures([BuildRequest(Task(f, ts.cpu(1))) for f in funcs])
    assert sorted(r.like is None for r in requests) == [False, False, True]
    results = [fulfil(r) for r in requests]
    assert len(derivations) == 1
    rng = np.random.default_rng(0)
    for func, result in zip(funcs, results, strict=True):
        assert result.origin.kind == "draft"
        a, b = (
            rng.standard_normal([n.number for n in p.shape]).astype(np.float32) for p in func.inputs
        )
        assert result.artifact is not None
        got = kernel_of(result.artifact, result.origin)(a, b)
        assert np.allclose(got, a @ b, atol=1e-4)


@pytest.mark.parametrize("func", [product(34, 66, 95), conv(9, 8, 24)])
def test_a_draft_is_built_as_its_trace_is(func: Function, short_drafts: None) -> None:
    """It comes from the variant that the search has lowered, a record's from a replay."""
    task = Task(func, ts.cpu(1))
    drafted = fulfil(BuildRequest(task))
    assert drafted.trace is not None
    assert drafted.artifact is not None
    replayed = fulfil(BuildRequest(task, ((drafted.trace, Origin("record")),)))
    assert replayed.artifact is not None
    assert replayed.artifact.source == drafted.artifact.source


def test_what_does_not_fit_is_derived_after_all(derivations: list[str], short_drafts: None) -> None:
    tall, conv3 = Task(product(35, 67, 97), ts.cpu(1)), Task(conv(9, 8, 16), ts.cpu(1))
    result = fulfil(BuildRequest(tall, like=conv3))
    assert result.origin.kind == "draft"
    assert tall.func.digest in derivations


def test_a_thread_of_a_gpu_computes_no_long_sum_by_itself() -> None:
    x = ts.placeholder((2, 8, 60), name="X")
    sums = ts.function([x, ts.ops.reduce_sum(x)])
    moved = ts.function([x, ts.ops.transpose(x)])
    h200 = ts.Target.named("nvidia-h200")
    for func, target, plain in ((sums, h200, False), (sums, ts.cpu(1), True), (moved, h200, True)):
        assert BuildRequest(Task(func, target), plain_points=2048).is_plain == plain


def test_records_and_small_functions_are_left_alone() -> None:
    small = [BuildRequest(Task(product(4, n, 4), ts.cpu(1)), plain_points=2048) for n in (4, 5)]
    assert all(r.like is None for r in share_structures(small))
