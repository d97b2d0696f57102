"""Divides vectorized loops into vectors: the (start, lanes) of each."""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.codegen.passes.strip_vectors import lanes_at_once
from tilesmith.ir.nodes import For


class VectorPieces:
    def __init__(self, target: Target) -> None:
        self.target = target
        self._pieces: dict[int, tuple[For, list[tuple[int, int]]]] = {}

    def of(self, s: For) -> list[tuple[int, int]]:
        """Whole registers first, or groups of them, then smaller powers of two."""
        if (pieces := self._pieces.get(id(s))) is not None:
            return pieces[1]
        n, width, at = s.trips, lanes_at_once(s.body, self.target), 0
        out: list[tuple[int, int]] = []
        self._pieces[id(s)] = s, out  # the loop is kept alive, because its id is the key
        while at < n:
            while width > n - at:
                width //= 2
            out.append((at, width))
            at += width
        return out
