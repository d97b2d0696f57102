"""Code that one build worker has compiled is there for the others."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.codegen.c import nvrtc
from tilesmith.measure.child import shared_code
from tilesmith.measure.child.build_worker import build
from tilesmith.measure.child.shared_code import SharedCode
from tilesmith.measure.messages import Build, Built
from tilesmith.runtime.build import compile_function

_OTHER = """
import os, sys
from tilesmith.measure.child.shared_code import SharedCode
shared = SharedCode()
os.dup2(int(sys.argv[1]), shared._file)
for k in range(50):
    shared.put(f"{sys.argv[2]} {k}", bytes([k]) * 1000)
"""


def test_what_other_processes_put_is_there() -> None:
    shared = SharedCode()
    others = [
        subprocess.Popen(
            [sys.executable, "-c", _OTHER, str(shared._file), name], pass_fds=(shared._file,)
        )
        for name in "ab"
    ]
    assert [p.wait() for p in others] == [0, 0]
    for name in "ab":
        assert [shared.get(f"{name} {k}") for k in range(50)] == [
            bytes([k]) * 1000 for k in range(50)
        ]
    assert shared.get("c 0") is None


def test_a_record_that_was_not_finished_is_not_there() -> None:
    shared = SharedCode()
    shared.put("a", b"one")
    os.pwrite(shared._file, b"half of a record", shared._end)
    assert shared.get("b") is None
    shared.put("b", b"two")
    assert (shared.get("a"), shared.get("b")) == (b"one", b"two")


def test_it_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_code, "_MOST", 1000)
    shared = SharedCode()
    shared.put("a", b"1" * 500)
    shared.put("b", b"2" * 500)
    assert shared.get("a") == b"1" * 500
    assert shared.get("b") is None


def test_the_same_text_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another worker, which gives the same code and knows the same of it."""
    texts: list[str] = []

    def compiled(name: str, source: str, arch: str, lines: bool) -> nvrtc.Compiled:
        texts.append(source)
        return nvrtc.Compiled(b"cubin", {})

    monkeypatch.setattr(nvrtc, "_compile", compiled)
    func = operator("matmul", (32, 32, 32))
    task = ts.Task(func, ts.Target.named("nvidia-h200"))
    variant = next(iter(ts.variants(task, ts.SketchSpace().sketches(task)[0])))
    rows = variant.sample(np.random.default_rng(0), 1)
    trace = variant.candidate(rows[0]).trace
    job = Build(func, task.target, pickle.dumps(trace), pickle.dumps(compile_function))
    shared = SharedCode()
    first, second = (build(job, shared) for _ in range(2))
    assert isinstance(first, Built)
    assert isinstance(second, Built)
    assert first.artifact == second.artifact
    assert len(texts) == 1
    build(job)
    assert len(texts) == 2  # without the others' code
