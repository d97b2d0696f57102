"""Templates of stores: a store in an unrolled loop is emitted once while it is recorded, and each
further copy fills in the names of its operands. The LLVM lines of the first copy go in, a Copy
(text with gaps) comes out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilesmith.codegen.llvm.builder import Type, V
from tilesmith.codegen.llvm.frames import Memory, Terms
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Unary, children
from tilesmith.expr.walk import preorder

_NAME = re.compile(r"%[A-Za-z]+\d+")
_MADE = re.compile(r"  (%v\d+) = ")


class Place(NamedTuple):
    """A cell whose offset alone differs between copies."""

    memory: Memory
    terms: Terms
    offset: int
    known: tuple[tuple[str, int], ...]  # loops that are written out, or are lanes
    lanes: int


class Operand(NamedTuple):
    """What is read at a place, or an earlier operand in every lane of a vector."""

    place: Place | None
    of: int = -1
    lanes: int = 1


class Copy(NamedTuple):
    """A store's text and what goes into the gaps: the operands, then fresh names."""

    operands: tuple[Operand, ...]
    text: str
    fresh: int
    # where each value goes: the number of its gap, or a constant
    writes: tuple[tuple[Place, int | str, Type], ...]


@dataclass(slots=True)
class Recording:
    """A store while it is written for the first time. Its operands are read into `around`, what is
    computed from them goes into `lines`.
    """

    around: list[str]
    lines: list[str] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    unlike: bool = False  # another copy could need other instructions

    def add(self, v: V, operand: Operand) -> None:
        """Two operands that happen to be one value here are two elsewhere; so are a constant and a
        value.
        """
        known = self.names.get(v.name)
        if known is None:
            known = self.names[v.name] = len(self.operands)
            self.operands.append(operand)
        if self.operands[known] != operand or v.name[0] != "%":
            self.unlike = True

    def copy(self, writes: Sequence[tuple[Place, V]]) -> Copy | None:
        """None if the text does not say all that another copy needs."""
        if self.unlike:
            return None
        gaps = dict(self.names)
        for line in self.lines:
            made = _MADE.match(line)
            if made is None:
                return None
            gaps[made[1]] = len(gaps)
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
    """Whether nothing but the operands differs between copies."""
    return all(
        isinstance(e, Load | Const | Unary | Binary | Cast)
        for v in values
        for e in preorder(v, children)
    )
