"""LLVM IR to machine code: for here and for elsewhere, and what is said of code that is wrong."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tests.support.kept_code import COMPILE_LLVM
from tilesmith.base.dtype import FLOAT32
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import ENTRY, Parameter
from tilesmith.codegen.llvm import compiler
from tilesmith.codegen.llvm.builder import F32, V
from tilesmith.codegen.llvm.compiler import assembly, compile_ir, few_passes
from tilesmith.codegen.llvm.frames import Cell, CellMap, Held

RETURN = "define void @tilesmith_entry(ptr %args, ptr %workspace) nounwind {\n  ret void\n}\n"
ADD = """
define void @tilesmith_entry(ptr %args, ptr %workspace) nounwind {
  %a = load ptr, ptr %args
  %x = load <8 x float>, ptr %a, align 4
  %y = fadd <8 x float> %x, <float 1.0, float 2.0, float 3.0, float 4.0,
                             float 5.0, float 6.0, float 7.0, float 8.0>
  store <8 x float> %y, ptr %a, align 4
  ret void
}
"""


@pytest.fixture(autouse=True)
def _compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes from an earlier run."""
    monkeypatch.setattr(compiler, "object_code", COMPILE_LLVM)


def test_the_artifact_says_what_it_is() -> None:
    a = Parameter("A", (8,), FLOAT32, False)
    b = Parameter("B", (8,), FLOAT32, True)
    made = compile_ir("f", ADD, cpu(), [a, b], workspace_nbytes=64, uses_threads=True)
    assert (made.name, made.target, made.workspace_nbytes, made.uses_threads) == (
        "f",
        cpu(),
        64,
        True,
    )
    assert (made.parameters, made.inputs, made.outputs) == ((a, b), (a,), (b,))
    assert made.code[:4] == b"\x7fELF"
    assert made.cpu not in ("", "native")
    assert pickle.loads(pickle.dumps(made)) == made


def test_the_source_is_complete() -> None:
    made = compile_ir("f", RETURN, cpu(), ())
    assert made.source.endswith(RETURN.replace(ENTRY, made.symbol))
    assert compile_ir("f", made.source, cpu(), ()).source == made.source


@pytest.mark.parametrize(
    ("name", "machine", "instruction"),
    [
        ("neoverse-n1", 183, "fadd\tv"),
        ("cortex-a53", 183, "fadd\tv"),
        ("haswell", 62, "%ymm"),
        ("skylake-avx512", 62, "%ymm"),
    ],
)
def test_cross_compilation(name: str, machine: int, instruction: str) -> None:
    target = Target.named(name)
    made = compile_ir("f", ADD, target, ())
    assert int.from_bytes(made.code[18:20], "little") == machine  # e_machine of the ELF header
    assert made.cpu == target.cpu
    assert instruction in assembly(made)


def test_constants_are_addressed_relative_to_the_program_counter() -> None:
    assert "(%rip)" in assembly(compile_ir("f", ADD, Target.named("haswell"), ()))


def test_assembly_is_of_the_processor_that_was_compiled_for() -> None:
    made = compile_ir("f", ADD, Target.named("neoverse-n1"), ())
    elsewhere = replace(made, target=replace(made.target, cpu="native"))
    assert assembly(elsewhere) == assembly(made)


def test_code_that_does_not_parse() -> None:
    bad = RETURN.replace("  ret", "  %x = add i32 1, %y\n  ret")
    with pytest.raises(
        BuildError, match=r"'f': line 4: .*undefined value '%y' in: %x = add i32 1, %y$"
    ):
        compile_ir("f", bad, cpu(), ())


def test_code_that_does_not_verify() -> None:
    bad = RETURN.replace(
        "  ret void",
        "  br i1 true, label %a, label %b\na:\n  %x = add i32 1, 2\n  ret void\n"
        "b:\n  %z = add i32 %x, 1\n  ret void",
    )
    with pytest.raises(BuildError, match=r"'f': Instruction does not dominate all uses!\n  %x"):
        compile_ir("f", bad, cpu(), ())


def test_a_target_that_is_no_processor() -> None:
    with pytest.raises(BuildError, match="cuda target of architecture 'sm_90a'"):
        compile_ir("f", RETURN, Target.named("nvidia-h200"), ())


def test_native_means_this_machine() -> None:
    other = "aarch64" if cpu().arch == "x86-64" else "x86-64"
    with pytest.raises(BuildError, match=f"machine of {other}, and this one is {cpu().arch}"):
        compile_ir("f", RETURN, replace(cpu(), arch=other), ())


def test_many_threads_compile_at_once() -> None:
    names = ["haswell", "neoverse-n1", "zen3", "cortex-a76"] * 10
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda n: compile_ir("f", ADD, Target.named(n), ()).code, names))
    assert made == made[:4] * 10
    assert len(set(made)) > 1


def test_importing_loads_no_llvm() -> None:
    script = (
        "import sys, tilesmith, tilesmith.runtime.build\n"
        "print([m for m in ('llvmlite', 'torch', 'ml_dtypes') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_process_writes_the_same_code() -> None:
    """Cells are written back in the order in which they came, whatever the hashes of names are."""
    held = CellMap()
    cells = [Cell(1, (("i", 16),), (7 * k) % 16, 1) for k in range(16)]
    for cell in cells:
        held[cell] = Held(V("%v", F32), True)
    assert held.touching(Cell(1, (("i", 16),), 0, 16)) == cells


STRIDES = """
define void @f(ptr %a, i64 %n) {
entry:
  br label %L
L:
  %i = phi i64 [0, %entry], [%next, %L]
  %at = mul i64 %i, 12
  %p = getelementptr float, ptr %a, i64 %at
  store float 1.0, ptr %p
  %next = add i64 %i, 1
  %go = icmp ult i64 %next, %n
  br i1 %go, label %L, label %done
done:
  ret void
}
"""


def test_code_of_others_is_compiled_as_before() -> None:
    """What is switched off while compiling is on again afterwards: it shows in this loop."""
    machine = llvm.Target.from_default_triple().create_target_machine()

    def theirs() -> bytes:
        return machine.emit_object(llvm.parse_assembly(STRIDES, llvm.create_context()))

    before = theirs()
    compile_ir("return", RETURN, cpu(), ())
    assert theirs() == before
    with few_passes():
        assert theirs() != before
    assert theirs() == before
