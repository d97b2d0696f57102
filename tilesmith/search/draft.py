"""An analytic score that needs no measurements: how fast the rows of a variant could be, from
closed forms over its decision variables. It drafts the first candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilesmith.expr.ints import Int, Rules, bounds, product, reduce_modulo
from tilesmith.ir.nodes import Block, For, Path, walk
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant, compile_int

Score = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Draft:
    """Terms of the estimate; all are shares of the machine's peak that a row can hope for."""

    ports: int = 2  # vector instructions, and loads, a cycle

    def score(self, variant: Variant, rows: Matrix) -> Score:
        """Higher is better: the share of the peak, over all blocks weighted by their work."""
        if not len(rows):
            return np.zeros(0)
        total = np.zeros(len(rows))
        work = 0.0
        for path, b in walk(variant.func.body):
            points = prod(i.extent.const or 1 for i in b.iters)
            seconds = points / np.maximum(self._share(variant, path, b, rows), 1e-6)
            total = total + seconds * self._recomputed(variant, path, b, rows, points)
            work += points
        return np.asarray(work / np.maximum(total, 1e-9) * self._tails(variant, rows))

    def _tails(self, variant: Variant, rows: Matrix) -> Score:
        """Every tile that does not divide its loop costs code, and the time to compile it."""
        out = np.ones(len(rows))
        at = 0
        for d in variant.domains:
            width = len(d.columns)
            if d.tile and d.extent:
                inner = rows[:, at + 1 : at + width].prod(axis=1, dtype=np.int64)
                out = out * np.where(d.extent % np.maximum(inner, 1) == 0, 1.0, 0.9)
            at += width
        return out

    def _eval(self, variant: Variant, p: Int, rows: Matrix) -> Score:
        return compile_int(p, variant.columns)(rows).astype(np.float64)

    def _recomputed(
        self, variant: Variant, path: Path, b: Block, rows: Matrix, points: int
    ) -> Score:
        """How often its points are visited: tiles that do not divide, boxes that overlap."""
        visits = self._eval(variant, product(f.extent for f in path), rows)
        return np.maximum(visits / max(points, 1), 1.0)

    def _share(self, variant: Variant, path: Path, b: Block, rows: Matrix) -> Score:
        target = variant.task.target
        lanes = target.lanes(max(32, b.writes[0].value.dtype.bits))
        vector = [f for f in path if f.kind == "vectorize"]
        ones = np.ones(len(rows))
        if not vector:
            return ones / lanes
        wide = self._eval(variant, product(f.extent for f in vector), rows)
        vectors = np.ceil(wide / lanes)
        filled = wide / (vectors * lanes)
        reducing = b.reducing_loops
        unrolled = [f for f in path if f.kind == "unroll" and f.name not in reducing]
        held = self._eval(variant, product(f.extent for f in unrolled), rows)
        tiles = held * vectors
        if not b.reducing or vector[0].name in reducing:
            return np.asarray(filled * np.minimum(1.0, 0.5 + tiles / 16))
        # one reduction step: a multiply-add per accumulator, a load per row and per vector
        cycles = np.maximum(np.maximum(tiles, held + vectors) / self.ports, 4.0)
        steps = self._inner_steps(variant, path, b, rows)
        spill = np.where(tiles > target.num_vector_registers - 4, 0.5, 1.0)
        share = filled * (tiles / self.ports) / cycles * steps / (steps + 4) * spill
        share = share * self._in_cache(variant, path, b, rows)
        return np.asarray(share * self._balance(variant, path, rows))

    def _inner_steps(self, variant: Variant, path: Path, b: Block, rows: Matrix) -> Score:
        """Reduction steps that an accumulator stays in its register for."""
        inner: list[For] = []
        for f in reversed(path):
            if f.name in b.reducing_loops:
                inner.append(f)
            elif f.kind not in ("unroll", "vectorize"):
                break
        return self._eval(variant, product(f.extent for f in inner), rows)

    def _in_cache(self, variant: Variant, path: Path, b: Block, rows: Matrix) -> Score:
        """What the loops inside the last outer level touch should fit the first or second cache."""
        target = variant.task.target
        half = max(1, len(path) // 2)
        inner = {f.name: f.extent for f in path[half:]}
        nbytes = np.zeros(len(rows))
        rules: Rules = variant.func.rules
        for load in {x.buffer: x for x in b.loads}.values():
            size = self._eval(variant, self._span(b, load.index, inner, rules), rows)
            nbytes = nbytes + size * load.dtype.nbytes
        fits = np.where(
            nbytes <= target.l1_nbytes, 1.0, np.where(nbytes <= target.l2_nbytes / 2, 0.95, 0.7)
        )
        return np.asarray(fits)

    def _span(self, b: Block, index: tuple[Int, ...], inner: dict[str, Int], rules: Rules) -> Int:
        sizes = []
        for p in index:
            low, high = bounds(p.substitute(b.binding), inner)
            sizes.append(reduce_modulo(high - low + 1, rules))
        return product(s for s in sizes if all(n[0] == "#" for n in s.names))

    def _balance(self, variant: Variant, path: Path, rows: Matrix) -> Score:
        cores = variant.task.target.num_cores
        depth = "#parallel"
        if cores == 1 or depth not in variant.columns:
            return np.ones(len(rows))
        chosen = rows[:, variant.columns.index(depth)]
        parts = np.ones(len(rows))
        for k, f in enumerate(x for x in path if x.note("parallel_depth") is not None):
            parts = parts * np.where(chosen > k, self._eval(variant, f.extent, rows), 1)
        return np.asarray(parts / (np.ceil(parts / cores) * cores))
