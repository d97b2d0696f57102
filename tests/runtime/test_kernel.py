"""Kernel: what it takes, what it refuses and says, and that calls do not disturb each other."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.dtype import dtype
from tilesmith.base.errors import ArgumentError, BuildError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Parameter
from tilesmith.codegen.llvm.compiler import compile_ir
from tilesmith.runtime import arrays
from tilesmith.runtime.kernel import Kernel
from tilesmith.runtime.loader import Library


def elementwise(kind: str, n: int, work: str, nargs: int = 2) -> str:
    """out[i] = work(x, y) for n elements; the last pointer is the output's."""
    loads = "\n".join(
        f"  %q{i} = getelementptr ptr, ptr %args, i64 {i}\n  %p{i} = load ptr, ptr %q{i}"
        for i in range(nargs + 1)
    )
    reads = "\n".join(
        f"  %e{i} = getelementptr {kind}, ptr %p{i}, i64 %i\n  %x{i} = load {kind}, ptr %e{i}"
        for i in range(nargs)
    )
    return f"""
define void @tilesmith_entry(ptr %args, ptr %workspace) nounwind {{
entry:
{loads}
  %some = icmp ne i64 {n}, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{reads}
{work}
  %e = getelementptr {kind}, ptr %p{nargs}, i64 %i
  store {kind} %r, ptr %e
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {n}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def add_kernel(shape: tuple[int, ...] = (3, 4), name: str = "float32", **also: Any) -> Kernel:
    d = dtype(name)
    kind = {"float32": "float", "float64": "double"}.get(name, f"i{d.bits}")
    work = f"  %r = {'fadd' if kind in ('float', 'double') else 'add'} {kind} %x0, %x1"
    parameters = [Parameter(n, shape, d, n == "C") for n in "ABC"]
    source = elementwise(kind, int(np.prod(shape)), work)
    return Kernel(compile_ir("add", source, cpu(), parameters, **also))


@pytest.fixture(scope="module")
def add() -> Kernel:
    return add_kernel()


A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = 10 * A + 1


def test_it_computes_and_returns_a_fresh_aligned_array(add: Kernel) -> None:
    first, second = add(A, B), add(B, B)
    np.testing.assert_array_equal(first, A + B)
    np.testing.assert_array_equal(second, B + B)
    for c in (first, second):
        assert c.dtype == np.float32
        assert c.flags.c_contiguous
        assert c.flags.writeable
        assert c.ctypes.data % 64 == 0


def test_out_is_written_and_returned(add: Kernel) -> None:
    c = np.zeros((3, 4), np.float32)
    assert add(A, B, out=c) is c
    np.testing.assert_array_equal(c, A + B)
    assert add(A, A, out=(c,)) is c
    np.testing.assert_array_equal(c, A + A)


def test_the_same_array_may_be_read_twice(add: Kernel) -> None:
    np.testing.assert_array_equal(add(A, A), A + A)


def test_read_only_inputs_and_subclasses_are_welcome(add: Kernel, tmp_path: Any) -> None:
    frozen = A.copy()
    frozen.flags.writeable = False
    mapped = np.memmap(tmp_path / "a", np.float32, "w+", shape=(3, 4))
    mapped[:] = B
    np.testing.assert_array_equal(add(frozen, mapped), A + B)


# A place that is not a multiple of four
ODD = np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4)
FROZEN = np.frombuffer(bytes(48), np.float32).reshape(3, 4)
WIDE = np.zeros((4, 4), np.float32)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((A,), r"'add' takes 2 arrays \(A: float32\[3, 4\], B: float32\[3, 4\]\) and got 1"),
        ((A, B, A), "takes 2 arrays .* and got 3"),
        ((A, B.astype("f8")), r"B: float32\[3, 4\] got float64\[3, 4\]; .*astype\(np.float32\)"),
        ((A, B.astype(">f4")), "B: .* foreign byte order"),
        ((A[:2], B), r"A: float32\[3, 4\] got float32\[2, 4\]; its shape must be \(3, 4\)"),
        ((A, B.ravel()), r"B: .* got float32\[12\]; its shape"),
        ((A, np.asfortranarray(B)), r"B: .* not C-contiguous .*np.ascontiguousarray"),
        ((A, np.zeros((3, 8), np.float32)[:, ::2]), "B: .*np.ascontiguousarray"),
        ((A, ODD), "B: .* boundaries"),
        ((A, 3.0), "B: .* got the number 3.0; it takes an array"),
        ((A, B.tolist()), "B: .* got a list; it takes a NumPy array"),
        ((A, None), "B: .* got a NoneType"),
    ],
)
def test_inputs_that_do_not_fit(add: Kernel, inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        add(*inputs)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ((A, B), "writes 1 arrays .*C: .* and out has 2"),
        (B.astype("f8"), "C: .* got float64"),
        (np.zeros((3, 8), np.float32)[:, ::2], "C: .* not C-contiguous .* np.empty"),
        (ODD, "C: .* boundaries"),
        (FROZEN, "C: .* read-only"),
        (1.5, "out for C: .* is the number 1.5"),
        ([1.0], "C: .* got a list"),
    ],
)
def test_out_that_does_not_fit(add: Kernel, out: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        add(A, B, out=out)


def test_out_must_not_overlap(add: Kernel) -> None:
    with pytest.raises(ArgumentError, match=r"out for C: .* overlaps the input A"):
        add(WIDE[:3], B, out=WIDE[:3])
    with pytest.raises(ArgumentError, match=r"out for C: .* overlaps the input B"):
        add(A, WIDE[:3], out=WIDE[1:])
    two = np.zeros((6, 4), np.float32)
    two[:3] = A
    np.testing.assert_array_equal(add(two[:3], B, out=two[3:]), A + B)


def test_several_outputs() -> None:
    d = dtype("int32")
    source = """
define void @tilesmith_entry(ptr %args, ptr %workspace) nounwind {
  %a = load ptr, ptr %args
  %q1 = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %q1
  %q2 = getelementptr ptr, ptr %args, i64 2
  %c = load ptr, ptr %q2
  %x = load i32, ptr %a
  %y = add i32 %x, 1
  store i32 %y, ptr %b
  %z = mul i32 %x, 2
  store i32 %z, ptr %c
  ret void
}
"""
    parameters = [Parameter(n, (1,), d, n != "A") for n in "ABC"]
    kernel = Kernel(compile_ir("two", source, cpu(), parameters))
    x = np.array([20], np.int32)
    b, c = kernel(x)
    assert (b[0], c[0]) == (21, 40)
    out = (np.zeros(1, np.int32), np.zeros(1, np.int32))
    assert kernel(x, out=out) is out
    assert (out[0][0], out[1][0]) == (21, 40)
    with pytest.raises(ArgumentError, match=r"out for C: .* overlaps the output B"):
        kernel(x, out=(out[0], out[0]))
    with pytest.raises(ArgumentError, match="several are passed as a tuple"):
        kernel(x, out=out[0])


def test_arrays_without_elements() -> None:
    kernel = add_kernel((3, 0))
    empty = np.zeros((3, 0), np.float32)
    assert kernel(empty, empty).shape == (3, 0)
    assert kernel(empty, empty, out=empty) is empty


@pytest.mark.parametrize("a", [2.5, 3, np.float32(2.5), np.array(2.5, np.float32)])
def test_rank_0_takes_numbers(a: Any) -> None:
    result = add_kernel(())(a, np.float32(1))
    assert result.shape == ()
    assert result == a + 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("float32", True),
        ("float32", np.float64(1)),
        ("int32", 1.0),
        ("int32", 1 << 31),
        ("int32", True),
        ("uint8", -1),
        ("bool", 1),
    ],
)
def test_rank_0_refuses_what_it_cannot_hold(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"B: {name}"):
        add_kernel((), name)(np.zeros((), dtype(name).numpy), value)


def test_bfloat16_arrays_are_those_of_ml_dtypes() -> None:
    kernel = add_kernel((4,), "bfloat16")  # adds the bits, which is enough here
    a = np.array([1, 2, 3, 4], ml_dtypes.bfloat16)
    result = kernel(a, np.zeros(4, ml_dtypes.bfloat16))
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result, a)
    with pytest.raises(ArgumentError, match=r"got uint16\[4\]; pass x.astype\(ml_dtypes.bfloat16"):
        kernel(a, np.zeros(4, np.uint16))


class Legacy:
    """An exporter older than DLPack 1.0."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, stream: object = None) -> object:
        if self.device != 1:
            raise BufferError("elsewhere")
        return self.array.__dlpack__()


def test_dlpack(add: Kernel) -> None:
    np.testing.assert_array_equal(add(Legacy(A), Legacy(B)), A + B)
    out = Legacy(np.zeros((3, 4), np.float32))
    assert add(A, B, out=out) is out
    np.testing.assert_array_equal(out.array, A + B)
    with pytest.raises(ArgumentError, match=r"B: .* on a device \(number 2 of DLPack's\)"):
        add(A, Legacy(B, device=2))
    with pytest.raises(ArgumentError, match=r"B: .* got int32\[3, 4\]"):
        add(A, Legacy(B.astype("i4")))
    with pytest.raises(ArgumentError, match=r"B: .* not C-contiguous"):
        add(A, Legacy(np.asfortranarray(B)))
    with pytest.raises(ArgumentError, match=r"B: .* got complex64"):
        add(A, Legacy(B.astype("c8")))


def test_dlpack_memory_lives_until_the_array_dies() -> None:
    p = Parameter("A", (100_000,), dtype("float32"), True)
    borrowed = arrays.convert(Legacy(np.full(100_000, 7, np.float32)), p)
    gc.collect()
    other = np.full(100_000, 9, np.float32)  # takes the memory, if it was given back
    assert (borrowed == 7).all()
    assert (other == 9).all()


@pytest.mark.parametrize("name", ["float32", "float64", "int8", "uint8", "int64", "bool"])
def test_torch_tensors(name: str) -> None:
    torch = pytest.importorskip("torch")
    kernel = add_kernel((4,), name)
    a = torch.tensor([0, 1, 0, 1]).to(getattr(torch, name))
    zero = torch.zeros_like(a)
    got = kernel(a, zero)
    assert isinstance(got, torch.Tensor)
    assert torch.equal(got, a)
    assert torch.equal(kernel(a, zero.numpy()), a)
    assert torch.equal(kernel.bind(a, zero)(), a)
    out = torch.zeros_like(a)
    assert kernel(a, zero, out=out) is out
    assert torch.equal(out, a)


def test_errors_about_torch_tensors_say_what_to_write_in_torch() -> None:
    torch = pytest.importorskip("torch")
    kernel, zero = add_kernel((2, 3)), torch.zeros(2, 3)
    with pytest.raises(ArgumentError, match=r"got float64\[2, 3\]; pass x\.to\(torch\.float32\)"):
        kernel(zero.double(), zero)
    with pytest.raises(ArgumentError, match=r"strides \(1, 2\)\); pass x\.contiguous\(\)"):
        kernel(zero, zero.reshape(3, 2).T)
    with pytest.raises(ArgumentError, match=r"pass an array made by torch\.empty"):
        kernel(zero, zero, out=torch.zeros(3, 2).T)
    with pytest.raises(ArgumentError, match=r"pass x\.astype\(np\.float32\)"):
        kernel(zero.double().numpy(), zero)
    with pytest.raises(ArgumentError, match=r"pass x\.to\(torch\.bfloat16\)"):
        add_kernel((2, 3), "bfloat16")(zero, zero)


def test_torch_bfloat16_and_gradients() -> None:
    torch = pytest.importorskip("torch")
    kernel = add_kernel((2, 3), "bfloat16")
    a = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    zero, out = torch.zeros_like(a), torch.zeros_like(a)
    assert torch.equal(kernel(a, zero), a)
    kernel(a, zero, out=out)
    assert torch.equal(out, a)
    with pytest.raises(ArgumentError, match=r"A: .* not C-contiguous"):
        kernel(a.reshape(3, 2).T, zero)
    with pytest.raises(ArgumentError, match=r"A: .* gradient"):
        kernel(a.requires_grad_(), zero)
    with torch.no_grad():
        assert torch.equal(kernel(a, zero), a)
    with pytest.raises(ArgumentError, match=r"A: float32\[2, 3\] got bfloat16\[2, 3\]"):
        add_kernel((2, 3))(zero, zero)


SCRATCH = """
declare void @usleep(i32)
define void @tilesmith_entry(ptr %args, ptr %workspace) nounwind {
  %a = load ptr, ptr %args
  %q = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %q
  %x = load i64, ptr %a
  store volatile i64 %x, ptr %workspace, align 64
  call void @usleep(i32 500)
  %y = load volatile i64, ptr %workspace, align 64
  %w = ptrtoint ptr %workspace to i64
  %low = and i64 %w, 63
  %r = add i64 %y, %low
  store i64 %r, ptr %b
  ret void
}
"""


def test_calls_at_the_same_time_have_workspaces_of_their_own() -> None:
    d = dtype("int64")
    parameters = [Parameter("A", (), d, False), Parameter("B", (), d, True)]
    kernel = Kernel(compile_ir("scratch", SCRATCH, cpu(), parameters, workspace_nbytes=4096))
    wrong: list[int] = []

    def many(value: int) -> None:
        for _ in range(100):
            if kernel(value) != value:
                wrong.append(value)

    callers = [threading.Thread(target=many, args=(1000 + i,)) for i in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join(timeout=300)
    assert not wrong


def test_time(add: Kernel) -> None:
    out = np.zeros((3, 4), np.float32)
    timing = add.time(A, B, out=out, repeats=5, min_seconds=1e-4)
    np.testing.assert_array_equal(out, A + B)
    assert len(timing.samples) == 5
    assert 0 < timing.best <= timing.median <= max(timing.samples)
    assert timing.calls > 1
    assert "5 samples" in str(timing)
    assert len(add.time(repeats=2, min_seconds=1e-5).samples) == 2  # on random arrays
    with pytest.raises(ArgumentError, match=r"B: .* float64"):
        add.time(A, B.astype("f8"))
    with pytest.raises(ArgumentError, match="repeats is 0"):
        add.time(repeats=0)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "bool"])
def test_time_makes_random_arrays_of_every_kind(name: str) -> None:
    assert add_kernel((5,), name).time(repeats=1, min_seconds=1e-6).best > 0


def test_source_and_assembly(add: Kernel) -> None:
    assert add.source == add.artifact.source
    assert f"define void @{add.artifact.symbol}" in add.source
    assert f"{add.artifact.symbol}:" in add.assembly
    assert repr(add).startswith("<Kernel add(A: float32[3, 4], B: float32[3, 4]) -> C: ")


def test_a_kernel_can_be_sent(add: Kernel) -> None:
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(add))(A, B), A + B)


def test_a_pickle_runs_in_a_process_that_compiles_nothing(add: Kernel, tmp_path: Path) -> None:
    file = tmp_path / "kernel"
    file.write_bytes(pickle.dumps(add))
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).name)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)], capture_output=True, text=True, timeout=300,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{add.name}\n", "")


def test_code_for_another_machine_is_read_only(add: Kernel) -> None:
    name = "neoverse-n1" if cpu().arch == "x86-64" else "haswell"
    target = Target.named(name)
    source = elementwise("float", 12, "  %r = fadd float %x0, %x1")
    kernel = Kernel(compile_ir("add", source, target, add.artifact.parameters))
    assert "fadd" in kernel.assembly or "vaddss" in kernel.assembly
    message = f"'add' was built for {target.arch}; this machine is {cpu().arch}; .*assembly"
    with pytest.raises(BuildError, match=message):
        kernel(A, B)
    with pytest.raises(BuildError, match=message):
        kernel.time()


def test_code_for_a_processor_with_more_features(add: Kernel) -> None:
    target = replace(cpu(), features=cpu().features | {"teleport"})
    with pytest.raises(BuildError, match="a processor with teleport, which this machine's has not"):
        Kernel(replace(add.artifact, target=target))(A, B)


def test_a_symbol_that_is_not_there() -> None:
    source = "declare void @no_such_thing()\n" + elementwise(
        "float", 4, "  call void @no_such_thing()\n  %r = fadd float %x0, %x1"
    )
    parameters = [Parameter(n, (4,), dtype("float32"), n == "C") for n in "ABC"]
    with pytest.raises(BuildError, match=r"'add' cannot be linked.*: no_such_thing$"):
        Kernel(compile_ir("add", source, cpu(), parameters))


def test_the_code_goes_with_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    original = Library.__del__

    def watch(self: Library) -> None:
        if self._tracker is not None:
            gone.append(self._tracker.name)
        original(self)

    monkeypatch.setattr(Library, "__del__", watch)
    kernel = add_kernel((2,), "int32")
    kernel(np.ones(2, np.int32), np.ones(2, np.int32))
    assert not gone
    del kernel
    gc.collect()
    assert len(gone) == 1


def test_the_fast_way_to_an_address_is_in_use() -> None:
    assert arrays.address_of is arrays._fast_address
    for a in (A, B[1:], np.zeros((3, 0)), np.array(1.0)):
        assert arrays.address_of(a) == a.ctypes.data


# bind
def test_bound_calls_do_what_calls_do() -> None:
    kernel = add_kernel()
    a, b = (np.random.default_rng(k).random((3, 4), np.float32) for k in range(2))
    call = kernel.bind(a, b)
    first = call()
    np.testing.assert_array_equal(first, a + b)
    a += 1  # the very arrays are read, each time
    assert call() is first
    np.testing.assert_array_equal(first, a + b)


def test_bound_calls_write_to_out_and_stay_apart() -> None:
    kernel = add_kernel()
    a, b = np.ones((3, 4), np.float32), np.ones((3, 4), np.float32)
    out = np.zeros((3, 4), np.float32)
    call, other = kernel.bind(a, b, out=out), kernel.bind(a, b)
    assert call() is out
    assert (out == 2).all()
    out[...] = 0
    assert (other() == 2).all()
    assert (out == 0).all()


def test_bound_arrays_stay_alive() -> None:
    kernel = add_kernel((1000, 1000))
    call = kernel.bind(np.ones((1000, 1000), np.float32), np.ones((1000, 1000), np.float32))
    del kernel
    gc.collect()
    other = np.zeros((1000, 1000), np.float32)  # would take the memory that was freed
    assert (call() == 2).all()
    assert not other.any()


def test_bind_checks_its_arrays() -> None:
    kernel = add_kernel()
    with pytest.raises(ArgumentError, match="takes 2 arrays"):
        kernel.bind(np.ones((3, 4), np.float32))
    with pytest.raises(ArgumentError, match="its shape must be"):
        kernel.bind(np.ones((3, 4), np.float32), np.ones((4, 3), np.float32))
    a = np.ones((3, 4), np.float32)
    with pytest.raises(ArgumentError, match="overlaps"):
        kernel.bind(a, np.ones((3, 4), np.float32), out=a)


# pack
def packed_kernel() -> tuple[ts.Function, Kernel]:
    x, w = ts.placeholder((5, 6), name="X"), ts.placeholder((6, 8), name="W")
    func = ts.function([x, w, ts.ops.matmul(x, w, name="Y")], constants=[w])
    sch = ts.Schedule(func)
    sch.transform_layout("W", lambda k, j: (j // 4, k, j % 4))
    return func, ts.build(sch)


def test_pack_brings_an_array_into_the_layout_of_the_kernel() -> None:
    func, kernel = packed_kernel()
    x = np.random.default_rng(0).random((5, 6), np.float32)
    w = np.random.default_rng(1).random((6, 8), np.float32)
    ready = kernel.pack("W", w)
    assert ready.shape == (2, 6, 4)
    np.testing.assert_array_equal(ready, w.reshape(6, 2, 4).transpose(1, 0, 2))
    np.testing.assert_allclose(kernel(x, ready), ts.evaluate(func, x, w), rtol=1e-5)
    lined = kernel.pack("X", x)
    assert lined.ctypes.data % 64 == ready.ctypes.data % 64 == 0
    assert kernel.pack("X", lined) is lined
    np.testing.assert_array_equal(lined, x)
    sent = pickle.loads(pickle.dumps(kernel))
    np.testing.assert_array_equal(sent.pack("W", w), ready)


def test_what_is_not_packed_is_refused_and_told_how() -> None:
    _, kernel = packed_kernel()
    x, w = np.ones((5, 6), np.float32), np.ones((6, 8), np.float32)
    with pytest.raises(ArgumentError, match=r"not packed; pass kernel.pack\('W', x\)"):
        kernel(x, w)
    with pytest.raises(ArgumentError, match=r"W has shape \[6, 9\].* wants \[6, 8\]"):
        kernel.pack("W", np.ones((6, 9), np.float32))
    with pytest.raises(ArgumentError, match="has no input 'Y'; it has X, W"):
        kernel.pack("Y", x)
