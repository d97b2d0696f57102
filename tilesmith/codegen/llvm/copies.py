"""Templates of stores: a store in an unrolled loop is emitted once while its lines are recorded.
Each further copy fills the names of its operands into that text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

from tilesmith.base.dataclass import dataclass
from tilesmith.codegen.llvm.builder import Type, V
from tilesmith.codegen.llvm.frames import Memory, Terms
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Unary, children
from tilesmith.expr.walk import preorder

_NAME = re.compile(r"%[A-Za-z]+\d+")
_RESULT = re.compile(r"  (%v\d+) = ")


class Place(NamedTuple):
    """A cell whose offset alone differs between copies."""

    memory: Memory
    terms: Terms
    offset: int
    fixed: tuple[tuple[str, int], ...]  # unrolled loops and lanes, with their strides
    lanes: int


class Operand(NamedTuple):
    """The value loaded at a place, or the splat of an earlier operand."""

    place: Place | None
    of: int = -1
    lanes: int = 1


class Copy(NamedTuple):
    """The text of a store with numbered gaps: first for the operands, then for new names."""

    operands: tuple[Operand, ...]
    text: str
    fresh: int
    # the destination of each value, which is the number of a gap or a constant
    writes: tuple[tuple[Place, int | str, Type], ...]


@dataclass(slots=True)
class Recording:
    """A store while it is emitted for the first time. Instructions that load its operands go to
    `around`, those that compute with them to `lines`.
    """

    around: list[str]
    lines: list[str] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    unlike: bool = False  # whether another copy could need other instructions

    def add(self, v: V, operand: Operand) -> None:
        """Registers an operand. If two operands have the same value here, or one is a constant,
        they may differ in other copies, and there is no template.
        """
        number = self.names.get(v.name)
        if number is None:
            number = self.names[v.name] = len(self.operands)
            self.operands.append(operand)
        if self.operands[number] != operand or v.name[0] != "%":
            self.unlike = True

    def copy(self, writes: Sequence[tuple[Place, V]]) -> Copy | None:
        """The template; None if the recorded text does not suit other copies."""
        if self.unlike:
            return None
        gaps = dict(self.names)
        for line in self.lines:
            result = _RESULT.match(line)
            if result is None:
                return None
            gaps[result[1]] = len(gaps)
        text = "\n".join(self.lines).replace("{", "{{").replace("}", "}}")
        if any(name not in gaps for name in _NAME.findall(text)):
            return None
        kept: list[tuple[Place, int | str, Type]] = []
        for place, v in writes:
            if v.name[0] == "%" and v.name not in gaps:
                return None
            kept.append((place, gaps.get(v.name, v.name), v.type))
        text = _NAME.sub(lambda found: f"{{{gaps[found[0]]}}}", text)
        return Copy(tuple(self.operands), text, len(self.lines), tuple(kept))


def repeats(values: Sequence[Expr]) -> bool:
    """Whether copies differ only in their operands."""
    return all(
        isinstance(e, Load | Const | Unary | Binary | Cast)
        for v in values
        for e in preorder(v, children)
    )
