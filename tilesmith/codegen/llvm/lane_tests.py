"""Masks of the lanes in front of the end of an open axis: `n - 1 - j >= 0`, where j is a vectorized
loop. Such a mask is computed once, where the innermost loop that it depends on starts an iteration.
"""

from __future__ import annotations

from tilesmith.codegen.llvm.builder import I64, Type, V
from tilesmith.codegen.llvm.position import Lane, Position
from tilesmith.codegen.llvm.run_time_sizes import RunTimeSizes
from tilesmith.expr.dynamic import is_loaded
from tilesmith.expr.ints import Int, is_size, of, var


class LaneTests:
    def __init__(self, position: Position, sizes: RunTimeSizes) -> None:
        self.position, self.builder, self.sizes = position, position.builder, sizes

    def mask(self, p: Int) -> V | None:
        """The lanes in which p >= 0; None if p is not of this form."""
        if not any(map(is_size, p.names)):
            return None
        env, lanes = self.position.env, self.position.lanes
        varying = [n for n in p.names if isinstance(env.get(n), Lane)]
        if len(varying) != 1 or is_loaded(p) or varying[0] in (p + var(varying[0])).names:
            return None
        lane = env[varying[0]]
        assert isinstance(lane, Lane)
        known = {n: of(v) for n in p.names if isinstance(v := env.get(n), int)}
        inside = p.substitute({**known, varying[0]: of(lane.start - 1)})  # so many lanes pass
        names = inside.names
        if not all(isinstance(env.get(n), V) for n in names):
            return None
        depth = max((self.position.depth[n] for n in names), default=0)
        frame = self.position.frames[depth]
        key = (inside, lanes)
        if key not in frame.masks:
            lines = self.builder.lines
            self.builder.lines = frame.head if depth else self.position.entry_lines
            frame.masks[key] = self._mask(inside, lanes)
            self.position.end_masks.add(frame.masks[key].name)
            self.builder.lines = lines
        return frame.masks[key]

    def _mask(self, inside: Int, lanes: int) -> V:
        b = self.builder
        count = self.sizes.steady(inside)
        assert count is not None
        for bound, sign in ((0, "slt"), (lanes, "sgt")):
            limit = V(str(bound), I64)
            count = b.select(b.compare(sign, count, limit), limit, count)
        numbers = ", ".join(f"i32 {k}" for k in range(lanes))
        each = b.splat(b.cast("trunc", count, "i32"), lanes)
        return b.compare("sgt", each, V(f"<{numbers}>", Type("i32", lanes)))
