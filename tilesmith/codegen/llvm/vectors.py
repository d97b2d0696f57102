"""Splats: vectors of one scalar in every lane. A splat is emitted once per frame and reused."""

from __future__ import annotations

from tilesmith.codegen.llvm.builder import V
from tilesmith.codegen.llvm.copies import Operand
from tilesmith.codegen.llvm.position import Position


class Vectors:
    def __init__(self, position: Position) -> None:
        self.position, self.builder = position, position.builder
        self.frames = position.frames

    def match(self, x: V, y: V) -> tuple[V, V]:
        """Both values with the same number of lanes."""
        if x.type.lanes == y.type.lanes:
            return x, y
        return (
            (self.splat(x, y.type.lanes), y)
            if x.type.lanes == 1
            else (x, self.splat(y, x.type.lanes))
        )

    def splat(self, v: V, lanes: int) -> V:
        """A vector of a scalar. While a store is recorded, the splat of an operand is one, too."""
        if v.type.lanes == lanes:
            return v
        if v.name[0] != "%":
            return self.builder.splat(v, lanes)
        rec = self.position.recording
        of = rec.names.get(v.name) if rec is not None else None
        if rec is None or of is None:
            return self._in_all_lanes(v, lanes)
        lines, self.builder.lines = self.builder.lines, rec.around
        out = self._in_all_lanes(v, lanes)
        self.builder.lines = lines
        rec.add(out, Operand(None, of, lanes))
        return out

    def _in_all_lanes(self, v: V, lanes: int) -> V:
        key = (v.name, lanes)
        for frame in reversed(self.frames):
            if key in frame.splats:
                return frame.splats[key]
        out = self.frames[-1].splats[key] = self.builder.splat(v, lanes)
        return out
