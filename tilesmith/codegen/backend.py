"""`Backend`: the protocol of code generators, each for one kind of target.

A back end is a frozen record of its settings. `runtime/build.py` lists the built-in ones; your own
is passed as `parts=ts.Parts(backends=(MyBackend(),))`, or `ts.build(func, backend=MyBackend())`.
"""

from __future__ import annotations

from typing import Protocol

from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function


class Backend(Protocol):
    """The protocol of a code generator: `kind` is the kind of target that it is for, and `compile`
    turns a scheduled Function into an Artifact.
    """

    @property
    def kind(self) -> str:
        """The kind of target it is for: "cpu", "cuda" ..."""

    def compile(self, func: Function, target: Target, *, checked: bool = False) -> Artifact:
        """Lowers and compiles a Function without open sizes. Raises a BuildError for what it does
        not support. `checked`: indices that are loaded from tensors are tested (see `ts.build`).
        """
