"""The data of a Function, as a protocol for the printer, the JSON writer and the counts. Function
calls these, so they depend on the protocol instead of the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tilesmith.expr.ints import Int
from tilesmith.ir.nodes import Buffer, Stmt


@dataclass(frozen=True, slots=True)
class Fact:
    """A relation between the sizes of a split: their product is the extent (exact), or the first
    is ceil(extent / product of the rest).
    """

    sizes: tuple[Int, ...]
    extent: Int
    exact: bool


class Program(Protocol):
    """The parts of a Function that are read without changing it."""

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
