"""Launches are compiled each by itself, and their cubins are one artifact's code."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.codegen.c import nvrtc
from tilesmith.codegen.c.backends import CudaBackend
from tilesmith.codegen.c.nvrtc import joined, parted

H200 = ts.Target.named("nvidia-h200")


@pytest.mark.parametrize("parts", [[b"\x7fELF one"], [b"a", b"", b"ccc"], [b"tilesmith", b"b"], []])
def test_what_is_joined_can_be_parted(parts: list[bytes]) -> None:
    assert parted(joined(parts)) == parts


def filtered() -> list[ts.Function]:
    """Candidates of three launches, of which mostly the second differs."""
    func = operator("conv2d", (14, 256, 256, 3, 1, 1), prepared=True)
    task = ts.Task(func, H200)
    for sketch in ts.SketchSpace().sketches(task):
        for v in ts.variants(task, sketch):
            if "Y.products" in str(v.func):
                return [v.function(row) for row in v.sample(np.random.default_rng(0), 8)]
    raise AssertionError("no sketch filters windows")


def test_a_launch_that_others_have_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_one(name: str, source: str, arch: str, lines: bool) -> nvrtc.Compiled:
        assert not lines
        compiled.append(source)
        return nvrtc.Compiled(source.encode(), {})

    class Store(dict[str, bytes]):
        def put(self, key: str, code: bytes) -> None:
            self[key] = code

    monkeypatch.setattr(nvrtc, "_compile", compile_one)
    candidates, backend = filtered(), CudaBackend(store=Store())
    for func in candidates:
        artifact = backend.compile(func, H200)
        launches = artifact.entries[0].launches
        assert len(launches) >= 3
        texts = [code.decode() for code in parted(artifact.code)]
        assert len(texts) == len(launches)
        for text, launch in zip(texts, launches, strict=True):
            # Each has its own kernel alone, whose text is in the source that a person reads.
            assert text.count("__global__") == 1
            at = text.index("extern")
            assert launch.symbol in text
            assert text[at:].strip() in artifact.source
    assert len(compiled) == len(set(compiled))
    assert len(compiled) < 2 * len(candidates)
