"""One table of arithmetic on the interpreter, LLVM, OpenCL and CUDA: every operation means the
same on each of them.
"""

from __future__ import annotations

import pytest
from arithmetic_cases import FLOATS, Case, table
from gpu_targets import devices, in_blocks, nvidia

import tilesmith as ts
from tilesmith.codegen.c.nvrtc import parted

TABLE = table()
every_case = pytest.mark.parametrize("case", TABLE, ids=str)


@pytest.mark.parametrize("case", TABLE[:-2], ids=str)
def test_interpreter_and_llvm(case: Case) -> None:
    """All but the casts, of which test_casts.py has more than the table."""
    case.check(ts.interpret(case.func, *case.arrays), "interpreter")
    case.check(ts.build(ts.Schedule(case.func), ts.cpu(1))(*case.arrays), "LLVM")


@every_case
def test_devices(case: Case) -> None:
    """All devices in one test: without a GPU, PoCL is the only one."""
    found = devices()
    if not found:
        pytest.skip("no OpenCL device and no GPU is here")
    for target in found:
        case.check(ts.build(in_blocks(case.func), target)(*case.arrays), target.kind)


@every_case
def test_nvrtc_compiles_it(case: Case) -> None:
    """Halves and extremes are other instructions before and after sm_80."""
    arch = ("sm_75", "sm_90a") if any(d in case.name for d in FLOATS) else ("sm_80",)
    for a in arch:
        artifact = ts.build(in_blocks(case.func), nvidia(a)).artifact
        assert all(cubin[:4] == b"\x7fELF" for cubin in parted(artifact.code))
