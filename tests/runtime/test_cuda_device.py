"""The CUDA device on a pretended driver: what it asks of the driver, and in which order."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda, Tensor, floats
from opencl_artifacts import N, two_launches

import tilesmith as ts
from tilesmith.base.machines.cuda import runs_on
from tilesmith.codegen.artifact import Artifact, OpenSizes, TensorMap
from tilesmith.expr.ints import of, var
from tilesmith.runtime import device_kernel
from tilesmith.runtime.device_kernel import DeviceKernel, OpenDeviceKernel
from tilesmith.runtime.devices.cuda import CudaDevice, cuda_target
from tilesmith.runtime.devices.open import open_device

X = np.arange(N, dtype=np.float32)


def twice(x: int, t: int) -> None:
    floats(t, N)[:] = 2 * floats(x, N)


def more(t: int, y: int) -> None:
    floats(y, N)[:] = floats(t, N) + 1


def make(shared_nbytes: int = 0) -> tuple[FakeCuda, CudaDevice, Artifact]:
    driver = FakeCuda({"twice": twice, "more": more})
    device = CudaDevice(driver, 0)
    artifact = replace(two_launches(device.target), language="cuda")
    entry = artifact.entries[0]
    first = replace(entry.launches[0], shared_nbytes=shared_nbytes)
    entry = replace(entry, launches=(first, entry.launches[1]))
    return driver, device, replace(artifact, entries=(entry,))


def kernel(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeCuda, DeviceKernel]:
    driver, device, artifact = make()
    monkeypatch.setattr(device_kernel, "open_device", lambda target: device)
    return driver, DeviceKernel(artifact)


def test_open_sizes_are_arguments_and_blocks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For calls with other lengths nothing is loaded again."""
    seen: list[tuple[int, int]] = []

    def twice_n(x: int, t: int, n: int, m: int) -> None:
        seen.append((n, m))
        floats(t, n)[:] = 2 * floats(x, n)

    def more_n(t: int, y: int, n: int, m: int) -> None:
        floats(y, n)[:] = floats(t, n) + 1

    driver = FakeCuda({"twice": twice_n, "more": more_n})
    device = CudaDevice(driver, 0)
    artifact = replace(two_launches(device.target), language="cuda")
    n, most = var("#n"), (("#n", 2**31 - 2**16), ("#m", 2**40))
    (entry,) = artifact.entries
    shapes = ((n,), (var("#m"),), (n,))
    entry = replace(
        entry,
        parameters=(*entry.parameters[:1], replace(entry.parameters[0], name="Z"),
                    *entry.parameters[1:]),
        launches=tuple(replace(x, sizes=most, grid=0) for x in entry.launches),
        open=OpenSizes(
            ("#n", "#m"), shapes, (4 * n + 511) // 256 * 256, ((n + 63) // 64,) * 2, (of(256),),
            maps=((), ()),
        ),
    )  # fmt: skip
    monkeypatch.setattr(device_kernel, "open_device", lambda target: device)
    kernel = OpenDeviceKernel(replace(artifact, entries=(entry,)))
    for length in (5, 64, 65, 1000, 5, 0):
        x, z = np.arange(length, dtype=np.float32), np.zeros(7, np.float32)
        np.testing.assert_array_equal(kernel(x, z), 2 * x + 1)
    assert [c[1] for c in launches(driver)] == [1, 1, 1, 1, 2, 2, 16, 16, 1, 1]
    assert seen == [(length, 7) for length in (5, 64, 65, 1000, 5)]
    assert [c for c in driver.calls if c[0] == "load"] == [("load",)]
    assert len([m for m in driver.handles.values() if m is twice_n]) == 1
    driver.calls.clear()
    for length in (5, 1000, 64, 1100, 1200):
        x, out = np.arange(length, dtype=np.float32), Tensor(np.zeros(length, np.float32))
        kernel(Tensor(x), Tensor(np.zeros(7, np.float32)), out=out)
        np.testing.assert_array_equal(out.array, 2 * x + 1)
    made = [c[0] for c in driver.calls if c[0] in ("allocate", "free")]
    assert made == ["allocate"] * 3  # others may have captured a call with the smaller ones


def launches(driver: FakeCuda) -> list[Any]:
    return [c for c in driver.calls if c[0] == "launch"]


def test_the_target_is_what_the_driver_tells() -> None:
    t = cuda_target(FakeCuda(), 0)
    assert (t.kind, t.arch, t.num_multiprocessors, t.shared_nbytes) == (
        "cuda", "sm_90a", 132, 232448,
    )  # fmt: skip
    assert (t.max_threads, t.warp_size, t.registers_per_block) == (1024, 32, 65536)
    assert (t.l2_nbytes, t.model) == (60 << 20, "NVIDIA Pretend")
    with pytest.raises(ts.TargetError, match="no GPU 2 here; the CUDA driver sees GPUs 0 to 1"):
        cuda_target(FakeCuda(count=2), 2)
    with pytest.raises(ts.TargetError, match="sees no GPU"):
        cuda_target(FakeCuda(count=0), 0)


def test_numpy_arrays_are_copied_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, k = kernel(monkeypatch)
    np.testing.assert_array_equal(k(X), 2 * X + 1)
    assert [c[1:4] for c in launches(driver)] == [(16, 64, 0), (16, 64, 0)]
    allocated = len([c for c in driver.calls if c[0] == "allocate"])
    np.testing.assert_array_equal(k(X + 1), 2 * X + 3)
    assert len([c for c in driver.calls if c[0] == "allocate"]) == allocated  # memory is kept
    assert not driver.contexts  # the caller's context is current again


def test_tensor_maps_come_before_the_pointers() -> None:
    driver, device, artifact = make()
    entry = artifact.entries[0]
    tensor = TensorMap("X", "float32", (N,), (), (64,), (1,))
    first = replace(entry.launches[0], arguments=("T",), maps=(tensor,))
    entry = replace(entry, launches=(first, entry.launches[1]))
    module = device.load(replace(artifact, entries=(entry,)))
    x, y, scratch = (device.allocate(4 * N) for _ in range(3))
    device.write(x, X)
    out = np.empty_like(X)
    device.run((device.call(module, 0, [x.address, y.address], scratch),))
    device.read(y, out)
    np.testing.assert_array_equal(out, 2 * X + 1)
    assert ("tensor_map", "X") in driver.calls


@pytest.mark.parametrize(("arch", "early"), [("sm_90a", 2), ("sm_100a", 2), ("sm_86", 0)])
def test_launches_that_wait_themselves_may_begin_early(arch: str, early: int) -> None:
    driver, device, artifact = make()
    entry = artifact.entries[0]
    entry = replace(entry, launches=tuple(replace(x, overlaps=True) for x in entry.launches))
    target = replace(artifact.target, arch=arch)
    x, y, scratch = (device.allocate(4 * N) for _ in range(3))
    for launched, count in ((replace(artifact, entries=(entry,), target=target), early),
                            (artifact, 0)):  # fmt: skip
        driver.calls.clear()
        call = device.call(device.load(launched), 0, [x.address, y.address], scratch)
        device.run((call,))
        assert driver.calls.count(("early",)) == count
        assert len(launches(driver)) == 2


def test_much_shared_memory_is_asked_for() -> None:
    driver, device, artifact = make(shared_nbytes=49 << 10)
    device.load(artifact)
    assert ("shared", 49 << 10) in driver.calls
    driver, device, artifact = make(shared_nbytes=48 << 10)
    device.load(artifact)
    assert not [c for c in driver.calls if c[0] == "shared"]
    _, device, artifact = make(shared_nbytes=228 << 10)
    with pytest.raises(ts.DeviceError, match="INVALID_VALUE"):
        device.load(artifact)


def test_timing_replays_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, k = kernel(monkeypatch)
    timing = k.time(repeats=2, min_seconds=1e-3)
    assert timing.median == pytest.approx(2e-5)  # two launches of 10 us each
    assert ("graph", 80) in driver.calls  # 40 calls of two launches
    assert ("free graph",) in driver.calls


def test_a_fault_surfaces_as_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, k = kernel(monkeypatch)
    driver.fail = ts.DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS (...)", "fault")
    with pytest.raises(ts.DeviceError, match="ILLEGAL_ADDRESS"):
        k(X)


def test_tensors_on_the_device_are_used_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, k = kernel(monkeypatch)
    x, y = Tensor(X), Tensor(np.zeros(N, np.float32))
    assert k(x, out=y) is y
    np.testing.assert_array_equal(y.array, 2 * X + 1)
    assert not [c for c in driver.calls if c[0] in ("write", "read")]
    # The tensor's library is told the stream of the kernel, which has ended when the call returns.
    own = launches(driver)[0][4]
    assert x.streams == [own]
    assert driver.calls[-1] == ("synchronize", own)


def test_the_callers_stream_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, k = kernel(monkeypatch)

    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 77

    x, y = Tensor(X), Tensor(np.zeros(N, np.float32))
    k(x, out=y, stream=Stream())
    assert {c[4] for c in launches(driver)} == {77}
    assert x.streams == [77]
    assert not [c for c in driver.calls if c[0] == "synchronize"]  # it is enqueued, no more
    k(x, out=y, stream=78)
    assert launches(driver)[-1][4] == 78
    with pytest.raises(ts.ArgumentError, match="stream is a str"):
        k(x, out=y, stream="fast")


def test_tensors_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, k = kernel(monkeypatch)
    y = Tensor(np.zeros(N, np.float32))
    with pytest.raises(ts.ArgumentError, match=r"got float64\[1000\]; convert it to float32"):
        k(Tensor(X.astype(np.float64)), out=y)
    with pytest.raises(ts.ArgumentError, match=r"its shape must be \(1000,\)"):
        k(Tensor(X[:-1]), out=y)
    with pytest.raises(ts.ArgumentError, match="no multiple of 16; pass a copy"):
        k(Tensor(X, offset=4), out=y)
    with pytest.raises(ts.ArgumentError, match="on device 1 of kind 2"):
        k(Tensor(X, index=1), out=y)
    with pytest.raises(ts.ArgumentError, match="overlaps the input X"):
        k(y, out=y)
    with pytest.raises(ts.ArgumentError, match="pass one as out="):
        k(Tensor(X))


def test_host_arrays_may_be_mixed_with_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    _, k = kernel(monkeypatch)
    y = Tensor(np.zeros(N, np.float32))
    k(X, out=y)
    np.testing.assert_array_equal(y.array, 2 * X + 1)
    out = np.zeros(N, np.float32)
    k(Tensor(X), out=out)
    np.testing.assert_array_equal(out, 2 * X + 1)


def test_results_of_torch_tensors_are_torch_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pretended PyTorch, whose tensors lie on the pretended device."""
    import sys
    import types

    driver, k = kernel(monkeypatch)
    torch = types.ModuleType("torch")

    class TorchTensor(Tensor):
        pass

    TorchTensor.__module__ = "torch"
    torch.float32 = np.float32  # type: ignore[attr-defined]
    torch.device = lambda kind, index: (kind, index)  # type: ignore[attr-defined]
    torch.empty = (  # type: ignore[attr-defined]
        lambda shape, dtype, device: TorchTensor(np.zeros(shape, dtype))
    )
    stream = types.SimpleNamespace(cuda_stream=55)
    torch.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        current_stream=lambda device: stream
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    x = TorchTensor(X)
    y = k(x)
    assert isinstance(y, TorchTensor)
    np.testing.assert_array_equal(y.array, 2 * X + 1)
    assert {c[4] for c in launches(driver)} == {55}
    assert x.streams == [-1]  # it works on the same stream: nothing to wait for


def test_code_for_another_architecture_is_refused() -> None:
    assert runs_on("sm_90a", "sm_90a")
    assert runs_on("sm_80", "sm_86")
    assert not runs_on("sm_90a", "sm_100a")
    assert not runs_on("sm_86", "sm_80")
    assert not runs_on("sm_80", "sm_90a")
    with pytest.raises(ts.BuildError, match="built for sm_70"):
        open_device(ts.Target.named("nvidia-v100"))


def test_the_real_driver_is_called_with_the_right_types() -> None:
    """Every signature names as many arguments as the methods pass: the driver itself checks none
    of them.
    """
    from tilesmith.runtime.devices import cuda_driver

    class Library(cuda_driver.LibCuda):
        def __init__(self) -> None:
            self.asked: dict[str, tuple[Any, ...]] = {}
            self.mode, self.modes = 0, list[int]()  # of captures: global, as of torch.cuda.graph

            def stub(name: str) -> Any:
                kinds = cuda_driver._SIGNATURES[name]

                def body(*arguments: Any) -> int:
                    self.asked[name] = arguments
                    if name == "cuThreadExchangeStreamCaptureMode":
                        (mode,) = arguments
                        self.modes.append(mode[0])
                        mode[0], self.mode = self.mode, mode[0]
                    return 0

                return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(body)

            self._calls = {name: stub(name) for name in cuda_driver._SIGNATURES}
            self._launch = self._calls["cuLaunchKernel"]

    d = Library()
    assert d.count() == 0
    # fmt: off
    d.name(0), d.attribute(0, 1), d.context(0), d.push(1), d.pop()
    d.allocate(5), d.free(1), d.write(1, 2, 3, 4), d.read(1, 2, 3, 4), d.copy(1, 2, 3, 4)
    d.fill(1, 255, 3, 4), d.load(b"a\0b"), d.unload(1), d.function(1, "f"), d.allow_shared(1, 2)
    d.function_attribute(1, 4), d.launch(1, 2, 3, 4, 5, 6), d.create_stream(), d.synchronize(1)
    d.launch_early(1, 2, 3, 4, 5, 6)
    d.begin_capture(1), d.end_capture(1), d.launch_graph(1, 2), d.free_graph(1)
    d.create_event(), d.record(1, 2), d.wait(1), d.elapsed(1, 2)
    held = d.tensor_map(TensorMap("X", "bfloat16", (64, 128), (128,), (64, 32), (1, 2)), 4096)
    assert ctypes.sizeof(held) == 128
    assert d.asked["cuTensorMapEncodeTiled"][1:4] == (9, 2, 4096)
    assert d.asked["cuLaunchKernel"] == (1, 2, 1, 1, 3, 1, 1, 4, 5, 6, None)
    assert d.asked["cuLaunchKernelEx"][1:] == (1, 6, None)
    assert d.asked["cuMemsetD8Async"] == (1, 255, 3, 4)
    unused = {"cuInit", "cuGetErrorName", "cuGetErrorString"}
    assert d.asked.keys() | unused == cuda_driver._SIGNATURES.keys()
    d.modes.clear()
    d.allocate(5), d.free(1)  # others may capture a graph meanwhile, and their mode comes back
    assert d.modes == [2, 0, 2, 0]
    with pytest.raises(ts.DeviceError, match="error 700") as caught:
        d._fail("cuStreamSynchronize", 700)
    assert caught.value.kind == "fault"
