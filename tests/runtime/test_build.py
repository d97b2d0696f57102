"""build: from a Function to a Kernel, with an emitter that stands in for the real one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.artifact import parameters_of
from tilesmith.runtime.build import build, compile_function

COPY = """
define void @tilesmith_entry(ptr %args, ptr %workspace) nounwind {
  %a = load ptr, ptr %args
  %q = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %q
  call void @llvm.memcpy.p0.p0.i64(ptr %b, ptr %a, i64 24, i1 false)
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


@dataclass
class Emitted:
    source: str = COPY
    workspace_nbytes: int = 128
    uses_threads: bool = True
    checks: tuple[()] = ()


@pytest.fixture
def emitted_for(monkeypatch: pytest.MonkeyPatch) -> list[ts.Target]:
    """The targets that the emitter was asked for."""
    asked: list[ts.Target] = []

    def emit_function(func: ts.Function, target: ts.Target, **_: Any) -> Emitted:
        asked.append(target)
        return Emitted()

    monkeypatch.setattr("tilesmith.codegen.llvm.backend.emit_function", emit_function)
    return asked


def copy_function(rows: Any = 2) -> ts.Function:
    a = ts.placeholder((rows, 3), name="A")
    return ts.function([a, ts.compute((rows, 3), lambda i, j: a[i, j], name="B")], name="copy")


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_function_becomes_a_kernel(emitted_for: list[ts.Target]) -> None:
    kernel = build(copy_function())
    np.testing.assert_array_equal(kernel(X), X)
    assert emitted_for == [ts.cpu()]
    assert [str(p) for p in kernel.artifact.parameters] == ["A: float32[2, 3]", "B: float32[2, 3]"]
    assert [p.output for p in kernel.artifact.parameters] == [False, True]
    assert kernel.artifact.workspace_nbytes == 128
    assert kernel.artifact.uses_threads


def test_anything_with_a_function_can_be_built(emitted_for: list[ts.Target]) -> None:
    class Schedule:
        func = copy_function()

    np.testing.assert_array_equal(build(Schedule())(X), X)


def test_a_target_elsewhere(emitted_for: list[ts.Target]) -> None:
    target = ts.Target.named("neoverse-n1" if ts.cpu().arch == "x86-64" else "haswell")
    kernel = build(copy_function(), target)
    assert emitted_for == [target]
    assert f"{kernel.artifact.symbol}:" in kernel.assembly
    with pytest.raises(ts.BuildError, match=f"'copy' was built for {target.arch}"):
        kernel(X)


def test_what_cannot_be_built(emitted_for: list[ts.Target]) -> None:
    with pytest.raises(ts.BuildError, match=r"cannot build a int; pass what ts\.function made"):
        build(3)
    other = replace(ts.Target.named("nvidia-h200"), kind="abacus")
    with pytest.raises(ts.BuildError, match="no code generator for abacus"):
        compile_function(copy_function(), other)
    func = copy_function(ts.size("m"))
    with pytest.raises(ts.BuildError, match=r"'copy' has the open sizes m; .*\{'m': 64\}"):
        build(func, checked=True)
    assert [p.shape[0] for p in parameters_of(func)] == [-1, -1]
    assert not emitted_for
    np.testing.assert_array_equal(build(ts.instantiate(func, {"#m": 2}))(X), X)


def test_with_the_real_emitter() -> None:
    np.testing.assert_array_equal(build(copy_function())(X), X)
