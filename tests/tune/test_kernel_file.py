"""Kernels in the cache: what is read is what was written, or nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilesmith as ts
from tilesmith.codegen.artifact import (
    Artifact,
    Check,
    Entry,
    Launch,
    Parameter,
    Resources,
    TensorMap,
)
from tilesmith.expr.ints import of, var
from tilesmith.ir.nodes import Buffer
from tilesmith.ir.prepare import AppendSums, AppendZeros, Basis, Merge
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import AS_GIVEN, Origin
from tilesmith.tune.cache import Cache, kernel_from_bytes, kernel_to_bytes

GPU = ts.Target.named("nvidia-h200")
PLAIN = Parameter("x", (3, 4), ts.dtype("float32"), False)
INT8 = ts.dtype("int8")
# One with every kind of preparation.
PREPARED = Buffer(
    "w",
    (of(6), of(8)),
    INT8,
    layout=(var("d1"), var("d0")),
    align=(0, 32, 8),
    prepared=(
        Merge((of(2), of(2), of(2))),
        Basis(((0, ((0.1, -1.0), (1e-9, 2.0), (0.5, 3.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0))),)),
        AppendZeros((0, 4)),
        AppendSums((1,)),
    ),
)
FULL = Artifact(
    "net",
    GPU,
    (
        Entry(
            "first",
            "first_1",
            (PLAIN, Parameter("w", (8, 6), INT8, False, PREPARED)),
            4096,
            True,
            (Check("w", 1, 8),),
            (
                Launch("f", 12, 128, ("x", "w"), 1 << 10, Resources(32, 8, 1024, 16)),
                Launch(
                    "g", 1, 32, (), maps=(TensorMap("x", "half", (4, 3), (8,), (2, 2), (1, 1)),),
                    overlaps=True,
                ),
            ),
            (("t", 256),),
        ),
        Entry("second", "second_1", ()),
    ),
    "the source, \N{GREEK SMALL LETTER ALPHA}\n",
    bytes(range(256)),
    "native",
    "+neon",
    "cuda",
)  # fmt: skip


@pytest.mark.parametrize("origin", [AS_GIVEN, Origin("record", 1.5e-5, "measured there")])
def test_all_of_a_kernel_is_read_again(origin: Origin) -> None:
    read = kernel_from_bytes(kernel_to_bytes(FULL, origin), GPU)
    assert read == (FULL, origin)
    # Packed weights have their name from this text.
    packed = [p.packed for e in read[0].entries for p in e.parameters]
    assert repr(packed) == repr([p.packed for e in FULL.entries for p in e.parameters])


def test_it_is_for_the_device_that_asks() -> None:
    data = kernel_to_bytes(FULL, AS_GIVEN)
    read = kernel_from_bytes(data, replace(GPU, device=1))
    assert read is not None
    assert read[0].target.device == 1
    assert kernel_from_bytes(data, ts.Target.named("nvidia-a100")) is None


@given(st.data())
def test_other_bytes_are_no_kernel(data: st.DataObject) -> None:
    good = kernel_to_bytes(FULL, AS_GIVEN)
    head = 16 + int.from_bytes(good[:8], "little")
    at = data.draw(st.integers(0, head - 1))
    new = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(head // 2, len(good)))
    for damaged in (good[:at] + bytes([new]) + good[at + 1 :], good[: cut - head // 2], b""):
        read = kernel_from_bytes(damaged, GPU)
        assert read is None or isinstance(read[0], Artifact)


def test_a_kernel_of_the_cache_runs_and_packs(tmp_path: Path) -> None:
    x, w = ts.placeholder((5, 6), name="X"), ts.placeholder((6, 8), name="W")
    func = ts.function([x, w, ts.ops.matmul(x, w, name="Y")], constants=[w])
    sch = ts.Schedule(func)
    sch.transform_layout("W", lambda k, j: (j // 4, k, j % 4))
    built = ts.build(sch, ts.cpu(1))
    Cache(tmp_path).put("k", kernel_to_bytes(built.artifact, AS_GIVEN))
    data = Cache(tmp_path).get("k")
    assert data is not None
    read = kernel_from_bytes(data, ts.cpu(1))
    assert read is not None
    assert repr(read[0].parameters) == repr(built.artifact.parameters)
    kernel = kernel_of(*read)
    a = np.arange(30, dtype="float32").reshape(5, 6)
    b = np.arange(48, dtype="float32").reshape(6, 8)
    np.testing.assert_allclose(kernel(a, kernel.pack("W", b)), a @ b, rtol=1e-5)
