"""What the ends of rows cost that do not fill a vector. Code generation computes n lanes in whole
vector registers, then in smaller powers of two: 7 lanes are 4 + 2 + 1. Each piece takes as long as
a whole register, and needs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.search.features.graph import Term
from tilesmith.search.features.nest import Loop, Nest


@dataclass(frozen=True)
class RestOfRows:
    """The last tile of each row, of fewer lanes than the others."""

    slowdown: Term  # of all tiles, compared to what their lanes fill evenly
    vectors: Term  # pieces of the last tile
    share: Term  # of the last tile in all pieces of a row


def rest_of_rows(n: Nest, loops: Sequence[Loop], lanes: int, vectors: Term) -> RestOfRows:
    """`vectors` are the registers of a whole tile, if its lanes fill them. The ends of sums along a
    vector are joined once for all, and cost nothing here.
    """
    g = n.graph
    loop = next((f for f in loops if f.kind == "vectorize" and not f.reducing), None)
    if loop is None:
        return RestOfRows(g.of(1), g.of(0), g.of(0))
    own = (d for d in n.variant.domains if d.tile and d.columns[-1] == f"#{loop.name}")
    domain = next((d for d in own if d.extent), None)
    tile = loop.extent.maximum(1)
    row = padded = tile
    if domain is not None:
        row = g.of(float(domain.extent))
        padded = g.product([g.column(c) for c in domain.columns])
    whole = row // tile
    last = _pieces(row - whole * tile, lanes)
    pieces = whole * _pieces(tile, lanes) + last
    # the mean of tiles that count whole and of their share, as for loops that are not vectorized
    charged = (padded + 2 * (padded * 0.7).maximum(row)) / (3 * tile) * vectors
    return RestOfRows((pieces / charged).maximum(1), last, last / pieces)


def _pieces(count: Term, lanes: int) -> Term:
    """Whole registers and powers of two that so many lanes are computed in."""
    whole = count // float(lanes)
    left, pieces = count - whole * float(lanes), whole
    while (lanes := lanes // 2) >= 1:
        bit = left // float(lanes)
        left, pieces = left - bit * float(lanes), pieces + bit
    return pieces
