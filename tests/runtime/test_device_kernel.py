"""Kernels on OpenCL devices (PoCL runs them on the processor): NumPy arrays in and out."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from opencl_artifacts import N, device, parameter, two_launches

import tilesmith as ts
from tilesmith.codegen.artifact import Artifact, Entry, Launch
from tilesmith.runtime.device_kernel import DeviceKernel, kernel_of

X = np.arange(N, dtype=np.float32)


def test_the_target_describes_the_device() -> None:
    t = device()
    assert (t.kind, t.device) == ("opencl", 0)
    assert t.num_multiprocessors >= 1
    assert t.max_threads >= 64
    assert t.shared_nbytes >= 16 << 10
    assert t.model
    assert ts.Target.from_json(t.to_json()).fingerprint == t.fingerprint
    assert replace(t, device=1).fingerprint == t.fingerprint


def test_numpy_arrays_in_and_out() -> None:
    kernel = kernel_of(two_launches(device()))
    assert isinstance(kernel, DeviceKernel)
    for _ in range(3):  # the second call uses the memory of the first
        y = kernel(X)
        np.testing.assert_array_equal(y, 2 * X + 1)
    out = np.zeros(N, np.float32)
    assert kernel(X, out=out) is out
    np.testing.assert_array_equal(out, 2 * X + 1)
    again = pickle.loads(pickle.dumps(kernel))
    np.testing.assert_array_equal(again(X), 2 * X + 1)


def test_a_bound_call_reads_its_arrays_every_time() -> None:
    kernel = kernel_of(two_launches(device()))
    x, out = X.copy(), np.zeros(N, np.float32)
    call = kernel.bind(x, out=out)
    x += 1
    np.testing.assert_array_equal(call(), 2 * X + 3)
    x += 1
    call()
    np.testing.assert_array_equal(out, 2 * X + 5)


def test_timing_gives_the_seconds_of_single_calls() -> None:
    timing = kernel_of(two_launches(device())).time(repeats=3, min_seconds=0.001)
    assert len(timing.samples) == 3
    assert all(0 < s < 10 for s in timing.samples)
    assert timing.calls >= 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), r"'double' takes 1 arrays \(X: float32\[1000\]\) and got 0"),
        ((X[:-1],), r"got float32\[999\]; its shape must be \(1000,\)"),
        ((X.astype(np.float64),), r"pass x.astype\(np.float32\)"),
        ((np.zeros(2 * N, np.float32)[::2],), "not C-contiguous"),
        (("text",), "got a str"),
    ],
)
def test_the_errors_are_those_of_the_cpu(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(ts.ArgumentError, match=text):
        kernel_of(two_launches(device()))(*arguments)


def test_outputs_are_checked() -> None:
    kernel = kernel_of(two_launches(device()))
    with pytest.raises(ts.ArgumentError, match="out has 2; several are passed as a tuple"):
        kernel(X, out=(X, X))
    with pytest.raises(ts.ArgumentError, match="overlaps the input X"):
        kernel(X, out=X)
    read_only = np.zeros(N, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ts.ArgumentError, match="read-only"):
        kernel(X, out=read_only)


def test_source_that_does_not_compile_is_an_error() -> None:
    artifact = two_launches(device(), "__kernel void twice(float *x) { nonsense; }")
    with pytest.raises(ts.DeviceError, match="OpenCL"):
        kernel_of(artifact)(X)


def test_too_many_threads_are_refused() -> None:
    artifact = two_launches(device())
    entry = artifact.entries[0]
    wide = replace(entry, launches=(replace(entry.launches[0], threads=1 << 20), entry.launches[1]))
    with pytest.raises(ts.DeviceError, match=r"1048576 threads in a block"):
        kernel_of(replace(artifact, entries=(wide,)))(X)


def test_dynamic_local_memory_is_the_last_argument() -> None:
    source = """
__kernel void turn(__global const float *x, __global float *y, __local float *s) {
  int i = get_local_id(0);
  s[i] = x[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  y[i] = s[31 - i];
}
"""
    launch = Launch("turn", 1, 32, ("X", "Y"), shared_nbytes=128)
    parameters = (parameter("X", (32,)), parameter("Y", (32,), True))
    entry = Entry("turn", "turn", parameters, launches=(launch,))
    kernel = kernel_of(Artifact("turn", device(), (entry,), source, source.encode()))
    np.testing.assert_array_equal(kernel(X[:32].copy()), X[:32][::-1])


def test_code_for_a_device_that_is_not_here_can_be_read() -> None:
    kernel = kernel_of(replace(two_launches(ts.Target.named("nvidia-v100")), language="cuda"))
    assert "twice" in kernel.source
    assert "sm_70" in repr(kernel)
    with pytest.raises(ts.BuildError, match=r"'double' cannot run here: it was built for sm_70"):
        kernel(X)
    with pytest.raises(ts.BuildError, match="no address in this process"):
        _ = kernel.entry_address


def test_a_device_that_is_not_there_is_named() -> None:
    device()
    with pytest.raises(ts.TargetError, match=r"no OpenCL device 99 here; there .*: device 0 is "):
        ts.opencl(99)
