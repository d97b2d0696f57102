"""The LLVM module of one kernel: collects functions and declarations, and gives its text."""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.codegen.artifact import PARALLEL_FOR, Check


class Module:
    """What the functions of one kernel share."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions: list[str] = []
        self.declarations: dict[str, str] = {}
        self.workspace_nbytes = 0
        self.uses_threads = False
        self.serial = 0
        self.metadata = 0
        self.checks: tuple[Check, ...] = ()

    def reserve(self, nbytes: int) -> int:
        """Reserves bytes in the workspace; returns their offset."""
        at = self.workspace_nbytes
        self.workspace_nbytes += -(-nbytes // 64) * 64
        return at

    def text(self) -> str:
        lines = [*self.declarations.values(), ""]
        if self.uses_threads:
            lines.insert(0, f"declare void @{PARALLEL_FOR}(ptr, ptr, i64, i64)")
        ends = ["", '!0 = !{!"llvm.loop.unroll.disable"}']
        # each loop has a node of its own that keeps LLVM from unrolling it again
        ends += [f"!{k} = distinct !{{!{k}, !0}}" for k in range(1, self.metadata + 1)]
        return "\n".join([*lines, *self.functions, *ends]) + "\n"
