"""Outputs are compared on the device: it agrees with the host on every element, and the host says
which one is wrong. On PoCL; the kernels for CUDA are only compiled here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest

import tilesmith as ts
from tilesmith.base.dtype import dtype
from tilesmith.codegen.artifact import Artifact, Entry, Launch, parameters_of
from tilesmith.measure.child.check import Expected, from_bits, to_bits
from tilesmith.measure.child.gpu_runner import GpuRunner, OnDevice
from tilesmith.measure.child.task_arrays import TaskArrays
from tilesmith.measure.gpu_support import COMPARED_FLOATS, build_support, comparison, support_source
from tilesmith.measure.messages import REFERENCE, Built
from tilesmith.runtime.devices.open import Device, open_device
from tilesmith.task.task import Failure

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from opencl_artifacts import device as opencl_target

Array = np.ndarray[Any, Any]
N = 70_001
FUNC = planted.task().func


def within(want: Array, limit: float | Array = 1e-3) -> Expected:
    """Floats may be off by the limit, integers not at all."""
    limit = limit if want.dtype.kind not in "biu" else 0.0
    return Expected("Y", want, to_bits(np.broadcast_to(np.float32(limit), want.shape)))


class Comparing:
    def __init__(self) -> None:
        target = opencl_target()
        self.device: Device = open_device(target)
        self.support = build_support(FUNC, target)
        self.module = self.device.load(self.support)

    def of(self, expected: Expected) -> OnDevice | None:
        return OnDevice.of(self.device, self.module, self.support, expected)

    def is_near(self, expected: Expected, got: Array) -> bool:
        memory, on_device = self.device.allocate(got.nbytes), self.of(expected)
        assert on_device is not None
        self.device.write(memory, np.ascontiguousarray(got))
        return on_device.is_near(memory.at(0, got.nbytes))


@pytest.fixture(scope="module")
def comparing() -> Comparing:
    return Comparing()


def values(kind: str) -> Array:
    d = dtype(kind)
    rng = np.random.default_rng(0)
    if kind == "bool":
        return rng.integers(0, 2, N) > 0
    if d.is_float:
        return rng.standard_normal(N).astype(d.numpy)
    return rng.integers(d.lowest(), d.highest(), N, dtype=d.numpy, endpoint=True)


@pytest.mark.parametrize("at", [0, 255, 256, N // 2, N - 1])
@pytest.mark.parametrize("kind", [*COMPARED_FLOATS, "int8", "int32", "int64", "uint16", "bool"])
def test_one_wrong_element_is_seen(comparing: Comparing, kind: str, at: int) -> None:
    want = values(kind)
    expected = within(want)
    assert comparing.is_near(expected, want)
    got = want.copy()
    got[at] = not got[at] if kind == "bool" else got[at] + got.dtype.type(1)
    assert not comparing.is_near(expected, got)
    assert f"Y[{at}]" in (expected.differs(got) or "")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", COMPARED_FLOATS)
def test_what_is_not_finite_is_wrong(comparing: Comparing, kind: str, wrong: float) -> None:
    want = values(kind)
    got = want.copy()
    got[12345] = wrong
    assert not comparing.is_near(within(want), got)


@pytest.mark.parametrize("kind", COMPARED_FLOATS)
def test_the_same_errors_are_allowed_as_on_the_host(comparing: Comparing, kind: str) -> None:
    """For errors about as large as allowed, one array of a single value each."""
    rng = np.random.default_rng(1)
    agreed = set()
    for value in rng.standard_normal(40):
        want = np.full(N, value, dtype(kind).numpy)
        expected = within(want, 0.05)
        most = np.float32(from_bits(expected.limits[:1])[0])
        near = np.float32(want[0]) + most * np.float32(1 + rng.integers(-3, 4) * 1e-2)
        got = np.full(N, near).astype(want.dtype)
        right = expected.differs(got) is None
        assert comparing.is_near(expected, got) == right
        agreed.add(right)
    assert agreed == {True, False}


@pytest.mark.parametrize("kind", COMPARED_FLOATS)
def test_special_numbers_have_to_be_where_they_are_wanted(comparing: Comparing, kind: str) -> None:
    want = values(kind)
    want[3], want[4], want[5] = np.nan, np.inf, -np.inf
    assert comparing.is_near(within(want), want)
    for at in (3, 4, 5):
        got = want.copy()
        got[at] = 1
        assert not comparing.is_near(within(want), got)
        limits = np.full(N, 1e-3, np.float32)
        limits[at] = np.nan  # anything is right there
        assert comparing.is_near(within(want, limits), got)


def test_what_the_device_cannot_compare_is_left_to_the_host(comparing: Comparing) -> None:
    assert comparing.of(within(values("float64"))) is None
    assert comparison(dtype("float64")) == ""
    tipping = np.zeros(N, np.float32)
    tipping[3] = 1
    assert comparing.of(Expected("Y", values("int32"), to_bits(tipping))) is None


def test_a_bad_kernel_cannot_change_what_is_expected(comparing: Comparing) -> None:
    want = values("float32")
    on_device = comparing.of(within(want))
    assert on_device is not None
    memory = comparing.device.allocate(want.nbytes)
    comparing.device.write(memory, want)
    comparing.device.fill(on_device._memory[0], 0)
    assert not on_device.is_near(memory.at(0, want.nbytes))
    on_device.restore()
    assert on_device.is_near(memory.at(0, want.nbytes))


BODIES = {
    "right": "Y[i] = 2 * X[i] + 1;",
    "wrong": "Y[i] = i == 99999 ? 3 : 2 * X[i] + 1;",
    "idle": "if (i < 100000) Y[i] = 2 * X[i] + 1;",
}


class CountedReads:
    """A Device that adds up the bytes that are read from it."""

    def __init__(self, device: Device) -> None:
        self._device, self.nbytes = device, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def read(self, memory: Any, array: Array, offset: int = 0) -> None:
        self.nbytes += array.nbytes
        self._device.read(memory, array, offset)


def test_large_outputs_are_read_only_if_they_differ() -> None:
    target = opencl_target()
    size = 128 * 1024
    given = ts.placeholder((size,), name="X")
    func = ts.function([given, ts.compute((size,), lambda i: given[i] * 2 + 1, name="Y")])
    arrays = TaskArrays(func)
    assert arrays.fill(0) is None
    device = CountedReads(open_device(target))
    runner = GpuRunner(arrays, device, cold=False)  # type: ignore[arg-type]
    support = build_support(func, target)
    assert runner.load(REFERENCE, Built(support, (), 0.0)) is None
    for slot, body in enumerate(BODIES.values()):
        source = f"""__kernel void f(__global const float *X, __global float *Y) {{
            int i = get_group_id(0) * 128 + get_local_id(0); {body} }}"""
        launch = Launch("f", size // 128, 128, ("X", "Y"))
        entry = Entry("f", "f", parameters_of(func), launches=(launch,))
        artifact = Artifact("f", target, (entry,), source, source.encode(), language="opencl")
        assert runner.load(slot, Built(artifact, func.params, 0.0)) is None
    right, wrong, idle, again = (runner.check(slot) for slot in (0, 1, 2, 0))
    assert isinstance(right, float)
    assert isinstance(again, float)
    assert isinstance(wrong, Failure)
    assert wrong.kind == "wrong"
    assert "Y[99999] is 3.0" in wrong.text
    assert isinstance(idle, Failure)
    assert "of 131072 elements are off" in idle.text
    assert "Y[100000] is nan" in idle.text
    output = 4 * size
    assert 2 * output <= device.nbytes < 3 * output  # the two that are wrong, and guards


def test_the_kernels_compile_for_every_kind() -> None:
    assert "$" not in support_source("cuda") + support_source("opencl")
    assert "get_group_id" in build_support(FUNC, ts.Target("opencl", "any", "any")).source
    pytest.importorskip("cuda.bindings.nvrtc")
    artifact = build_support(FUNC, ts.Target.named("nvidia-h200"))
    assert artifact.code[:4] == b"\x7fELF"
    assert artifact.entries[0].launches[0].grid == 264
    names = {e.name for e in artifact.entries}
    assert {comparison(dtype(k)) for k in ("float16", "float32", "bfloat16", "int8")} <= names
