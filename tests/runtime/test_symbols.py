"""The symbols of kernels: no two kernels share one, so that many link into one library; and calls
on plain addresses.
"""

from __future__ import annotations

import ctypes
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.runtime.build import build, compile_function
from tilesmith.runtime.loader import load_all, undefined_symbols

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def plus(number: float, name: str = "plus") -> ts.Function:
    x = ts.placeholder((4, 6), name="x")
    y = ts.compute((4, 6), lambda i, j: x[i, j] + number, name="y")
    return ts.function([x, y], name=name)


def test_a_symbol_says_the_name_and_is_the_kernels_own() -> None:
    one, two, again = (compile_function(plus(k)) for k in (1.0, 2.0, 1.0))
    assert one.symbol.startswith("tilesmith_plus_")
    assert len(one.symbol) == len(two.symbol)
    assert one.symbol != two.symbol
    assert (one.symbol, one.code, one.source) == (again.symbol, again.code, again.source)
    assert f"define void @{one.symbol}(" in one.source
    assert f"{one.symbol}:" in build(plus(1.0)).assembly


@pytest.mark.parametrize("name", ["a.b-c", "größe", "x y", "tilesmith_entry", "0" * 16, "_"])
def test_any_name_gives_a_symbol(name: str) -> None:
    kernel = build(plus(3.0, name))
    assert kernel.name == name
    assert kernel.artifact.symbol.isascii()
    assert kernel.artifact.symbol.isidentifier()
    np.testing.assert_array_equal(kernel(X), X + 3)


def test_other_code_has_another_symbol() -> None:
    targets = [ts.Target.named(n) for n in ("haswell", "neoverse-n1")]
    made = [compile_function(plus(1.0), t) for t in targets]
    assert len({a.symbol for a in made}) == 2
    assert all(a.symbol.encode() in a.code for a in made)


def threaded(n: int) -> ts.Schedule:
    x = ts.placeholder((8, 64), name="x")
    y = ts.compute((8, 64), lambda i, j: x[i, j] * float(n), name="y")
    sch = ts.Schedule(ts.function([x, y], name="threaded"))
    sch.parallel(sch.loops("y")[0])
    return sch


def call(address: int, artifact: ts.Artifact, *arrays: Any) -> None:
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    workspace = np.zeros(artifact.workspace_nbytes + 64, np.uint8)
    aligned = -(-workspace.ctypes.data // 64) * 64
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)(pointers, aligned)


def test_many_kernels_link_into_one_library() -> None:
    target = ts.cpu(2)
    programs = [(plus(k), X, X + k) for k in (1, 2, 2)]
    big = np.ones((8, 64), np.float32)
    programs += [(threaded(n), big, big * n) for n in (3, 5)]
    made = [compile_function(what, target) for what, _, _ in programs]
    library = load_all("together", made)
    assert len(library.addresses) == 4  # two of them are one
    for a, (_, x, want) in zip(made, programs, strict=True):
        out = np.zeros_like(want)
        call(library.addresses[a.symbol], a, x, out)
        np.testing.assert_array_equal(out, want)
    assert [s for s in undefined_symbols(made[0].code) if s.startswith("tilesmith")] == []


def test_an_artifact_holds_several_entries() -> None:
    """As a back end would make it that writes several kernels into one object."""
    one = compile_function(plus(1.0))
    entry = one.entries[0]
    both = replace(one, entries=(entry, replace(entry, name="alias")))
    assert pickle.loads(pickle.dumps(both)) == both
    assert (both.symbol, both.parameters) == (one.symbol, one.parameters)


def test_a_call_on_plain_addresses() -> None:
    kernel = build(plus(4.0))
    out = np.zeros_like(X)
    kernel.raw((X.ctypes.data, out.ctypes.data))
    np.testing.assert_array_equal(out, X + 4)
    out[...] = 0
    call(kernel.entry_address, kernel.artifact, X, out)
    np.testing.assert_array_equal(out, X + 4)


def test_code_for_another_machine_has_no_address() -> None:
    other = ts.Target.named("neoverse-n1" if ts.cpu().arch == "x86-64" else "haswell")
    kernel = build(plus(1.0), other)
    with pytest.raises(ts.BuildError, match="was built for"):
        kernel.raw((X.ctypes.data, X.ctypes.data))
    with pytest.raises(ts.BuildError, match="was built for"):
        _ = kernel.entry_address
