"""Joins scalar loads of consecutive elements within one iteration of a loop into vector loads.

The scalars are factors that a vector is multiplied by. Where the processor multiplies by a lane of
a register (Neon), one load then serves several multiplications: a product that reads a packed panel
of 8 rows issues 2 loads for them instead of 8, which matters when the panel comes from L2.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.target import Target
from tilesmith.codegen.llvm.builder import Builder, Type, storage_type
from tilesmith.codegen.llvm.frames import Cell, Frame, Memory, ScalarLoad, Terms


def can_join(m: Memory, cell: Cell, frame: Frame, target: Target) -> bool:
    """Whether a load may be moved within an iteration and become a lane of a vector."""
    return (
        target.machine.rates.lane_factors
        and cell.lanes == 1
        and m.dtype.name in ("float32", "float64")
        and frame.kind == "loop"
        and cell.memory not in frame.written | frame.owned  # else stores may lie between its loads
    )


def join_lane_loads(frame: Frame, builder: Builder, target: Target) -> None:
    """Rewrites the lines of a loop's body, at its end. If there are too few registers for all such
    vectors, only those are formed that are alive one at a time.
    """
    carried = sum(_registers(v.type, target) for _, v in frame.phis.values())
    free = target.num_vector_registers - carried - target.machine.rates.lane_operands
    if free < 1:
        return
    groups = list(_groups(frame.scalars, target))
    spans = [_span(group) for group in groups]
    most = max((sum(at in span for span in spans) for at in (s.start for s in spans)), default=0)
    removed: set[int] = set()
    for group, span in zip(groups, spans, strict=True):
        if most > free and sum(_overlap(span, other) for other in spans) > 1:
            continue
        frame.lines[span.start] = _joined(group, builder)
        removed.update(s.line for s in group if s.line != span.start)
    if removed:
        frame.lines[:] = [text for k, text in enumerate(frame.lines) if k not in removed]


def _joined(group: list[ScalarLoad], builder: Builder) -> str:
    first = group[0]
    size, elem = first.memory.dtype.nbytes, storage_type(first.memory.dtype)
    whole = storage_type(first.memory.dtype, len(group))
    p, v = builder.fresh("p"), builder.fresh("v")
    lines = [
        f"  {p} = getelementptr inbounds {elem}, ptr {first.base}, i64 {first.cell.offset}",
        f"  {v} = load {whole}, ptr {p}, align {size}",
    ]
    for k, s in enumerate(group):
        lines.append(f"  {s.name} = extractelement {whole} {v}, i64 {k}")
    return "\n".join(lines)


def _groups(loads: list[ScalarLoad], target: Target) -> Iterator[list[ScalarLoad]]:
    """Loads of as many consecutive elements as a vector has."""
    pieces: dict[tuple[int, Terms], dict[int, ScalarLoad]] = {}
    for s in loads:
        pieces.setdefault((s.cell.memory, s.cell.terms), {})[s.cell.offset] = s
    for by_offset in pieces.values():
        lanes = target.lanes(next(iter(by_offset.values())).memory.dtype.bits)
        at = -1
        for offset in sorted(by_offset):
            if offset >= at and all(offset + k in by_offset for k in range(lanes)):
                yield [by_offset[offset + k] for k in range(lanes)]
                at = offset + lanes


def _span(group: list[ScalarLoad]) -> range:
    """The lines between the first and the last load of a group."""
    lines = [s.line for s in group]
    return range(min(lines), max(lines) + 1)


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _registers(t: Type, target: Target) -> int:
    return max(1, t.lanes * t.bits // target.vector_bits)
