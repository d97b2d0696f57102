"""Candidates of all operators of the suite, by both sets of rules, with odd extents: the SIMT
interpreter, an OpenCL device and the oracle agree on each of them, and NVRTC compiles each for
several architectures. bench/gpu_programs.py and bench/gpu_kernels.py check thousands.
"""

from __future__ import annotations

import numpy as np
import pytest
from gpu_targets import ARCHITECTURES, H200, devices

import tilesmith as ts
from tests.support.gpu_programs import GpuCheck
from tests.support.gpu_suite import RULES, SHAPES, as_one, candidates, emitted, run_entries
from tests.support.meaning import assert_close
from tests.support.thorough import THOROUGH, TURN, drawn
from tilesmith.cli.operators import operator
from tilesmith.codegen.artifact import Artifact
from tilesmith.codegen.c import nvrtc
from tilesmith.codegen.c.dialect import CUDA, OPENCL
from tilesmith.codegen.c.nvrtc import options_of
from tilesmith.ir.function import Function

COUNT = drawn(8, 20)
# Of them; the others run without, see conftest.py.
OPTIMISED = drawn(1, 2)


@pytest.mark.turns(6)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SHAPES)
def test_candidates(name: str, rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check = GpuCheck(operator(name, SHAPES[name]), H200)
    rng = np.random.default_rng(len(name))
    scheduled = list(candidates(check.func, H200, rules, COUNT, rng))
    assert len(scheduled) == COUNT
    lowered = [check.run(f) for f in scheduled]
    arrays = [check.arguments(f) for f in scheduled]
    found = [t for t in devices() if t.kind == "opencl"]
    for target in found:
        runs_on(check, target, lowered[OPTIMISED:], arrays[OPTIMISED:])
        monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "")
        runs_on(check, target, lowered[:OPTIMISED], arrays[:OPTIMISED])
    compiles(lowered, monkeypatch)
    if not found:
        pytest.skip("there is no OpenCL device; the interpreter agrees, and NVRTC compiles all")


def runs_on(
    check: GpuCheck, target: ts.Target, lowered: list[Function], arrays: list[list[np.ndarray]]
) -> None:
    artifact = as_one(emitted(lowered, target, OPENCL))
    for k, got in enumerate(run_entries(artifact, arrays)):
        assert_close(got, check.want, f"{lowered[k]}", check.func)


def compiles(lowered: list[Function], monkeypatch: pytest.MonkeyPatch) -> None:
    """To machine code, so that registers and shared memory are what the assembler needs: by turns
    for one architecture or another, half of them with the optimisation that users get, which takes
    three times as long. For all architectures where there is time.
    """
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA; the others agree")
    turns, texts = len(ARCHITECTURES), emitted(lowered, H200, CUDA)
    numbered = list(enumerate(texts, TURN))
    for k, arch in enumerate(ARCHITECTURES):
        machine_code([t for n, t in numbered if n % turns == k and n // turns % 2], arch)
    monkeypatch.setattr(nvrtc, "options_of", quick_options)
    for k, arch in enumerate(ARCHITECTURES):
        machine_code(
            [t for n, t in numbered if THOROUGH or (n % turns == k and not n // turns % 2)], arch
        )


def machine_code(texts: list[Artifact], arch: str) -> None:
    artifact = as_one(texts)
    symbols = {launch.symbol for e in artifact.entries for launch in e.launches}
    compiled = nvrtc.compile_cuda(artifact.name, artifact.source, arch)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.resources.keys() == symbols
    assert all(r.registers <= 255 for r in compiled.resources.values())


def quick_options(arch: str, version: tuple[int, int]) -> list[bytes]:
    return [*options_of(arch, version), b"--Ofast-compile=max"]
