"""LlvmBackend: compiles a Function for a CPU Target through LLVM."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, OpenSizes, parameters_of
from tilesmith.codegen.llvm.emit import emit_function
from tilesmith.codegen.pipeline import CPU_PASSES, Pass
from tilesmith.ir.function import Function


@checks_given
@dataclass(frozen=True, slots=True)
class LlvmBackend:
    """The code generator for processors. `passes` are by default `ts.CPU_PASSES`."""

    passes: tuple[Pass, ...] = CPU_PASSES
    kind: ClassVar[str] = "cpu"

    def compile(self, func: Function, target: Target, *, checked: bool = False) -> Artifact:
        """Object code of a Function for a CPU."""
        # Imported late, because `import tilesmith` imports this file and must not load LLVM (60 MB,
        # 0.1 s).
        from tilesmith.codegen.llvm.compiler import compile_ir

        sizes = OpenSizes.of(func)
        emitted = emit_function(func, target, checked=checked, passes=self.passes)
        return compile_ir(
            func.name,
            emitted.source,
            target,
            parameters_of(func),
            emitted.workspace_nbytes,
            emitted.uses_threads,
            emitted.checks,
            sizes and replace(sizes, workspace=emitted.workspace),
        )
