"""Parts of a user's own: a primitive, an instruction and a back end, in a module that worker
processes can import.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import tilesmith as ts


@dataclass(frozen=True, slots=True)
class Square(ts.Step):
    """The two innermost loops become square tiles."""

    name: ClassVar[str] = "square"
    block: str
    size: int | str

    def apply(self, func: ts.Function) -> ts.Function:
        sch = ts.Schedule(func)
        i, j = sch.loops(self.block)[-2:]
        (i0, i1), (j0, j1) = (sch.split(loop, [None, self.size]) for loop in (i, j))
        sch.reorder(i0, j0, i1, j1)
        return sch.func


def by_squares(sch: ts.TemplateSchedule) -> None:
    sch.apply(Square("Y", sch.sample_choice([2, 4, 8], name="size")))


def plain_tiles(sch: ts.TemplateSchedule) -> None:
    sch.split(sch.loops("Y")[0], [None, sch.sample_choice([2, 4, 8], name="size")])


def _row_by_matrix() -> ts.Function:
    a, b = ts.placeholder((4,), name="A"), ts.placeholder((4, 4), name="B")
    k = ts.reduce_axis(4, name="k")
    c = ts.compute((4,), lambda j: ts.sum(a[k] * b[k, j], axis=k), name="C")
    return ts.function([a, b, c], name="row_by_matrix")


def emit(b: Any, operands: dict[str, Any]) -> Any:
    total = operands["C"]
    for k in range(4):
        number = b.splat(b.part(operands["A"], k), 4)
        total = b.fma(number, b.part(operands["B"], 4 * k, 4), total)
    return total


def emit_backwards(b: Any, operands: dict[str, Any]) -> Any:
    total = operands["C"]
    for k in reversed(range(4)):
        number = b.splat(b.part(operands["A"], k), 4)
        total = b.fma(number, b.part(operands["B"], 4 * k, 4), total)
    return total


ROW_BY_MATRIX = ts.Intrinsic("row_by_matrix", _row_by_matrix(), emitters={"llvm": emit})
CHANGED = ts.Intrinsic("row_by_matrix", _row_by_matrix(), emitters={"llvm": emit_backwards})


@dataclass(frozen=True)
class Signed:
    """The built-in back end, with a word in front of the source."""

    word: str
    kind: ClassVar[str] = "cpu"

    def compile(
        self, func: ts.Function, target: ts.Target, *, checked: bool = False
    ) -> ts.Artifact:
        made = ts.LlvmBackend().compile(func, target, checked=checked)
        return replace(made, source=f"; {self.word}\n{made.source}")


SQUARES = ts.Parts(primitives=(Square,))
ROWS = ts.Parts(intrinsics=(ROW_BY_MATRIX,))
MINE = ts.Parts(backends=(Signed("mine"),))
YOURS = ts.Parts(backends=(Signed("yours"),))
