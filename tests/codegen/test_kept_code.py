"""What the tests take from an earlier run instead of compiling it: the same text for the same
processor, and nothing else.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.support import kept_code
from tests.support.kept_code import KeptCode
from tilesmith.codegen.c import nvrtc
from tilesmith.codegen.llvm import compiler
from tilesmith.codegen.llvm.compiler import compile_ir

RETURN = "define void @tilesmith_entry(ptr %args, ptr %workspace) nounwind {\n  ret void\n}\n"
DAY = 86_400


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The texts that compilers were given, while code is kept in an empty folder."""
    given: list[str] = []

    def by_llvm(machine: compiler.Machine, name: str, text: str) -> bytes:
        given.append(text)
        return kept_code.COMPILE_LLVM(machine, name, text)

    def by_nvrtc(name: str, source: str, arch: str, lines: bool) -> nvrtc.Compiled:
        given.append(source)
        return nvrtc.Compiled(f"{arch} {source}".encode(), {})

    monkeypatch.setattr(compiler, "object_code", by_llvm)
    monkeypatch.setattr(nvrtc, "_compile", by_nvrtc)
    kept_code.keep(KeptCode(tmp_path))
    return given


def test_the_same_text_is_compiled_once(compiled: list[str]) -> None:
    first = compile_ir("f", RETURN, ts.cpu(), ())
    assert compile_ir("f", RETURN, ts.cpu(), ()) == first
    assert len(compiled) == 1


def test_another_name_text_or_processor_is_compiled(compiled: list[str]) -> None:
    haswell, atom = ts.Target.named("haswell"), ts.Target.named("x86-64")
    codes = [
        compile_ir(name, text, target, ()).code
        for name, text in (("f", RETURN), ("g", RETURN), ("f", RETURN + "; a comment\n"))
        for target in (haswell, atom)
    ]
    assert len(compiled) == len(codes)


def test_a_kernel_from_the_folder_computes_the_same(compiled: list[str]) -> None:
    x = ts.placeholder((7,), name="x")
    func = ts.function([x, ts.compute((7,), lambda i: x[i] * 3, name="y")])
    given = np.arange(7, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(ts.build(ts.Schedule(func), ts.cpu(1))(given), given * 3)
    assert len(set(compiled)) == len(compiled)


def test_cuda_depends_on_architecture_and_options(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    options_of = nvrtc.options_of
    for arch in ("sm_80", "sm_90a", "sm_80"):
        assert nvrtc.compile_cuda("f", "text", arch).cubin == f"{arch} text".encode()
    assert len(compiled) == 2
    monkeypatch.setattr(nvrtc, "options_of", lambda *a: [*options_of(*a), b"--fast"])
    nvrtc.compile_cuda("f", "text", "sm_80")
    assert len(compiled) == 3


def test_a_file_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    kept, made = KeptCode(tmp_path), iter((b"one", b"two"))
    assert kept.get(b"key", lambda: next(made)) == b"one"
    (path,) = tmp_path.glob("*/*")
    path.write_bytes(path.read_bytes()[:3])
    assert kept.get(b"key", lambda: next(made)) == b"two"
    assert kept.get(b"key", lambda: next(made)) == b"two"


def test_what_nobody_wants_is_removed(tmp_path: Path) -> None:
    kept = KeptCode(tmp_path)
    for key in (b"old", b"wanted"):
        kept.get(key, lambda: b"code")
    program = tmp_path / "pocl" / "AB" / "CDEF"
    program.mkdir(parents=True)
    for path in (*tmp_path.glob("??/*"), program):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    kept.get(b"wanted", lambda: b"code")
    kept.prune()
    assert len(list(tmp_path.glob("??/*"))) == 1
    assert not program.exists()
    assert kept.get(b"wanted", lambda: b"again") == b"code"


def test_where_nothing_can_be_written_all_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept, made = KeptCode(tmp_path / "file"), iter((b"one", b"two"))
    assert [kept.get(b"key", lambda: next(made)) for _ in range(2)] == [b"one", b"two"]
