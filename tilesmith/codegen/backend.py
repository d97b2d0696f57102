"""Backend: what turns a Function into code for one kind of target.

A back end is a frozen record of its settings. `runtime/build.py` has the list of the built-in ones;
another one is passed to `ts.build(func, target, backend=MyBackend())`.
"""

from __future__ import annotations

from typing import Protocol

from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function


class Backend(Protocol):
    @property
    def kind(self) -> str:
        """Of the targets it is for: "cpu", "cuda" ..."""

    def compile(self, func: Function, target: Target, *, checked: bool = False) -> Artifact:
        """Lowers, writes and compiles a Function without open sizes. Raises a BuildError for what
        it cannot do. `checked`: indices that come from data are tested (see `ts.build`).
        """
