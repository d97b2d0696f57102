"""bench.gpu_sanitize without a GPU: what the sanitizer prints is read, a process that dies or hangs
costs its candidate only, and reports are attributed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from bench import gpu_sanitize, gpu_sanitize_draw, gpu_sanitize_worker
from bench.gpu_sanitize_draw import Saved, draw_problem, load
from bench.sanitizer_log import mark, mark_of, read
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.simt import run_simt

pytest.importorskip("cuda.bindings", reason="NVRTC compiles the kernels")

MEMCHECK = """\
========= COMPUTE-SANITIZER
@@ 3 begin
@@ 3 right
@@ 4 begin
========= Invalid __global__ write of size 4 bytes
=========     at c00004_product_kernel+0x160 in c00004.cu:12
=========     by thread (0,0,0) in block (1,0,0)
=========     Access at 0x7f5bb3c04001 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f5bb3c00000 of size 16384 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at c00004_product_kernel+0x160 in c00004.cu:12
=========     by thread (1,0,0) in block (1,0,0)
=========     Access at 0x7f5bb3c04005 is out of bounds
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on \
CUDA API call to cuStreamSynchronize.
=========
@@ 4 fails: cuStreamSynchronize: unspecified launch failure
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
@@ 8 begin
@@ 8 right
@@ 9 begin
========= Error: Race reported between Write access at c00008_x_kernel0(float *)+0x90 in \
c00008.cu:40
=========     and Read access at c00008_x_kernel0(float *)+0x100 in c00008.cu:42 [2016 hazards]
=========
========= Warning: Race reported between Write access at c00009_y_kernel+0x90
=========     and Read access at c00009_y_kernel+0x100 [1 hazard]
@@ 9 wrong: Not equal to tolerance
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
@@ 1 begin
========= Barrier error detected. Divergent thread(s) in block
=========     at c00001_z_kernel+0x80 in c00001.cu:5
=========     by thread (1,0,0) in block (0,0,0)
=========
@@ 1 right
Traceback (most recent call last):
========= ERROR SUMMARY: 1 error
"""


def test_reports_of_memcheck() -> None:
    log = read(MEMCHECK.splitlines(keepends=True))
    assert log.begun == [3, 4]
    assert log.ended == {3: "right", 4: "fails: cuStreamSynchronize: unspecified launch failure"}
    assert [(r.candidate, r.line) for r in log.reports] == [(4, 12), (4, 12), (4, 0)]
    assert log.reports[0].kind == "Invalid __global__ write of size 4 bytes"
    assert "nearest allocation" in log.reports[0].text


def test_a_race_belongs_to_the_kernel_it_names_not_to_the_one_that_runs() -> None:
    log = read(RACECHECK.splitlines(keepends=True))
    assert [(r.candidate, r.line, r.hazards) for r in log.reports] == [(8, 40, 2016), (9, 0, 1)]
    assert log.reports[0].kind == "Error: Race reported between Write access"
    assert log.ended[9] == "wrong: Not equal to tolerance"


def test_reports_of_synccheck_and_other_lines() -> None:
    log = read(SYNCCHECK.splitlines(keepends=True))
    assert [(r.candidate, r.line) for r in log.reports] == [(1, 5)]
    assert log.others == ["Traceback (most recent call last):"]
    assert read([]).reports == []


def test_a_report_that_names_no_kernel_belongs_to_the_one_that_ran() -> None:
    text = ["@@ 5 begin", "========= Invalid thing", "=========     somewhere", "@@ 6 begin"]
    assert [r.candidate for r in read(text).reports] == [5]


def test_marks_are_one_line() -> None:
    line = mark(12, "wrong", "a\nb  c" * 500)
    assert "\n" not in line
    found = mark_of(line)
    assert found is not None
    assert found[0] == 12
    assert found[1].startswith("wrong: a b ca b c")
    assert mark_of("@@ x begin") is None


# a sanitizer that is not one ---------------------------------------------------------------------

FAKE = """
import os, sys, time
words = sys.argv[1:]
if "--help" in words:
    print("--tool --print-limit --padding")
    raise SystemExit
print("========= COMPUTE-SANITIZER", flush=True)
if "-c" in words:
    raise SystemExit
assert words[:2] == ["--tool", "memcheck"] and "--print-limit" in words, words
assert "--show-backtrace" not in words
print("@@ worker", os.getpid(), flush=True)
folder, numbers = words[words.index("bench.gpu_sanitize_worker") + 1 :][:2]
for n in map(int, numbers.split(",")):
    print(f"@@ {n} begin", flush=True)
    if n == 1:
        os._exit(9)
    if n == 2:
        time.sleep(60)
    if n == 3:
        print("========= Invalid __shared__ read of size 4 bytes")
        print(f"=========     at c{n:05d}_product_kernel+0x160 in c{n:05d}.cu:2")
        print("=========")
    if n >= 90000:
        print(f"========= Invalid __global__ write\\n=========     at c{n:05d}_planted")
    print(f"@@ {n} " + ("wrong: 3 is not 4" if n == 0 else "right"), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five candidates of a product of matrices."""
    path = tmp_path_factory.mktemp("sanitize")
    draw_problem(str(path), 0, 0, 5)
    assert gpu_sanitize.numbers_in(path) == [0, 1, 2, 3, 4]
    return path


def test_a_process_that_dies_or_hangs_costs_its_candidate_only(
    folder: Path, tmp_path: Path
) -> None:
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    options = argparse.Namespace(
        jobs=1, timeout=2.0, sanitizer=shlex.join([sys.executable, str(fake)])
    )
    planted = gpu_sanitize.save_planted(folder)
    numbers = [0, 1, 2, 3, 4, planted[0]]
    ends = time.monotonic() + 60
    outcomes = gpu_sanitize.sanitize(folder, numbers, ["memcheck"], options, ends)
    (outcome,) = outcomes.values()
    assert outcome.ended == {0: "wrong: 3 is not 4", 3: "right", 4: "right", planted[0]: "right"}
    assert outcome.lost == {1: "the process ended with code 9", 2: "it hung"}
    text, found, good = gpu_sanitize.summary(folder, numbers, outcomes, "again")
    assert not good
    assert sorted(found) == [0, 1, 2, 3]
    assert "memcheck: 1 of 5 clean; 1 reported, 1 wrong, 0 failed, 2 lost, 0 not run" in text
    assert "the planted fault is reported" in text
    assert load(folder, 3).artifact.source.splitlines()[1].strip() in text
    (folder / "summary.txt").write_text(text)
    gpu_sanitize.bundle(tmp_path / "b.tar.gz", folder, sorted(found))
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert {"summary.txt", "memcheck-0.log", "c00003.cu", "c00003.json"} <= {*tar.getnames()}


def test_a_sanitizer_that_does_not_start_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not start"):
        gpu_sanitize.prepared([str(tmp_path / "none")], "memcheck")


# candidates --------------------------------------------------------------------------------------


class Simulated:
    """A device whose launches are the interpreter's; its memory is checked like a real one's."""

    def __init__(self, saved: Saved) -> None:
        self.saved = saved

    class Memory:
        def __init__(self, nbytes: int) -> None:
            self.data = np.zeros(nbytes, np.uint8)

        def at(self, offset: int, nbytes: int) -> Any:
            assert offset + nbytes <= len(self.data)
            return self

    def allocate(self, nbytes: int) -> Memory:
        return self.Memory(nbytes)

    def load(self, artifact: Artifact) -> Artifact:
        return artifact

    def write(self, m: Memory, a: np.ndarray) -> None:
        m.data[:] = np.frombuffer(a.tobytes(), np.uint8)

    def fill(self, m: Memory, byte: int) -> None:
        m.data[:] = byte

    def call(self, module: Artifact, entry: int, pointers: list[Memory], scratch: Any) -> Any:
        assert scratch is None
        return module, pointers

    def run(self, calls: Any) -> None:
        ((module, pointers),) = calls
        memory = dict(zip((p.name for p in module.parameters), pointers, strict=True))
        wanted = {name for x in module.entries[0].launches for name in x.arguments}
        assert wanted <= memory.keys()
        saved = self.saved
        scheduled = saved.trace.apply(saved.func)
        got = run_simt(ts.lower(scheduled, gpu_sanitize_draw.H200, ts.GPU_PASSES), *saved.inputs)
        for p, a in zip(
            saved.artifact.outputs, got if isinstance(got, tuple) else (got,), strict=True
        ):
            self.write(memory[p.name], np.ascontiguousarray(a))

    def synchronize(self) -> None:
        pass

    def read(self, m: Memory, a: np.ndarray) -> None:
        a[...] = np.frombuffer(m.data.tobytes(), a.dtype).reshape(a.shape)


def test_the_worker_runs_and_compares_what_was_saved(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in (0, 4):  # the last one is of Ansor's rules
        saved = load(folder, n)
        assert f"c{n:05d}_" in saved.artifact.source
        assert gpu_sanitize_worker.work(folder, [n], Simulated(saved), True) == 0
    assert capsys.readouterr().out.splitlines() == [
        "@@ 0 begin",
        "@@ 0 right",
        "@@ 4 begin",
        "@@ 4 right",
    ]


def split_sums() -> Iterator[Saved]:
    """Candidates with buffers between launches."""
    x, y = ts.placeholder((8, 256), name="A"), ts.placeholder((256, 8), name="B")
    func = ts.function([x, y, ts.ops.matmul(x, y, name="C")], name="product")
    rng = np.random.default_rng(0)
    for scheduled, trace, labels in gpu_sanitize_draw.drawn(func, rng, 12):
        artifact = gpu_sanitize_draw.built(scheduled, 7)
        if artifact.entries[0].scratch:
            yield Saved(7, 0, func, trace, artifact, [], None, labels, ())


def test_buffers_between_launches_have_memory_of_their_own() -> None:
    saved = next(split_sums())
    assert "SplitSums" in saved.labels
    entry = gpu_sanitize_worker.apart(saved.artifact).entries[0]
    assert not entry.scratch
    assert entry.workspace_nbytes == 0
    own = entry.parameters[len(saved.artifact.parameters) :]
    assert [p.name for p in own] == [name for name, _ in saved.artifact.entries[0].scratch]
    assert sum(p.nbytes for p in own) == saved.artifact.workspace_nbytes > 0


def test_candidates_are_of_rules_by_name() -> None:
    names = {*gpu_sanitize_draw.rule_names()}
    assert {"TileByTensorCores", "TileUnfolded", "FuseRows", "SplitSums", "skip"} <= names
    func = gpu_sanitize_draw.problem(0, 1)  # of half precision
    labels = [x for _, _, x in gpu_sanitize_draw.drawn(func, np.random.default_rng(0), 6)]
    assert len(labels) == 6
    assert {"TileByTensorCores", "TileByWarps", "TileForGpu"} <= {n for x in labels for n in x}
    again = [x for _, _, x in gpu_sanitize_draw.drawn(func, np.random.default_rng(0), 6)]
    assert labels == again


def test_coverage_names_what_no_candidate_has(folder: Path) -> None:
    table, missing = gpu_sanitize.coverage([load(folder, n) for n in range(5)])
    assert table.startswith("5 candidates of 1 problems")
    assert "TileByTensorCores" in missing
    assert "TileForGpu" not in missing
