"""What the printer, the writer of JSON and the counts ask of a Function: its data. Function calls
them, so they know this protocol and not the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tilesmith.expr.ints import Int
from tilesmith.ir.nodes import Buffer, Stmt


@dataclass(frozen=True, slots=True)
class Fact:
    """What relates the sizes of a split: their product is the extent (exact), or the first is
    ceil(extent / the rest).
    """

    sizes: tuple[Int, ...]
    extent: Int
    exact: bool


class Program(Protocol):
    """The parts of a Function that are read without changing it; see ir/function.py."""

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> tuple[Buffer, ...]: ...

    @property
    def num_outputs(self) -> int: ...

    @property
    def inputs(self) -> tuple[Buffer, ...]: ...

    @property
    def outputs(self) -> tuple[Buffer, ...]: ...

    @property
    def buffers(self) -> tuple[Buffer, ...]: ...

    @property
    def body(self) -> tuple[Stmt, ...]: ...

    @property
    def facts(self) -> tuple[Fact, ...]: ...
