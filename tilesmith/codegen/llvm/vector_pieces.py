"""Vectorized loops cut into pieces: a loop in, (start, lanes) of each of its vectors out."""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.codegen.passes.strip_vectors import lanes_of
from tilesmith.ir.nodes import For


class VectorPieces:
    def __init__(self, target: Target) -> None:
        self.target = target
        self._pieces: dict[int, tuple[For, list[tuple[int, int]]]] = {}

    def of(self, s: For) -> list[tuple[int, int]]:
        """Whole registers, then smaller powers of two."""
        if (known := self._pieces.get(id(s))) is not None:
            return known[1]
        n, width, at = s.extent.const or 0, lanes_of(s.body, self.target), 0
        out: list[tuple[int, int]] = []
        self._pieces[id(s)] = s, out  # with the loop, so that its identity is not another's
        while at < n:
            while width > n - at:
                width //= 2
            out.append((at, width))
            at += width
        return out
