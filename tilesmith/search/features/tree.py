"""The loop tree of a program, with features of its nodes: the program is the root, loops are inner
nodes and statements are leaves. All rows of a variant share the tree; the features depend on the
row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tilesmith.ir.nodes import Block, For, If, Stmt
from tilesmith.search.features.context import LOOP_WIDTH, TOUCHES, Program
from tilesmith.search.features.graph import Term
from tilesmith.search.features.machine import Values
from tilesmith.search.features.nest import Nest
from tilesmith.search.features.operations import OPERATIONS, operations
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant

_OF_STATEMENT = len(OPERATIONS) + 3 + 3 * TOUCHES
# Features of a node: whether it is a statement, then those of a loop or of a statement. Both start
# at the same column to save memory, because most nodes are loops.
NODE_WIDTH = 1 + max(LOOP_WIDTH, _OF_STATEMENT)


class Tree:
    """`parents` has one entry per node, -1 for the root, which comes first. A node comes after its
    parent.
    """

    def __init__(self, variant: Variant) -> None:
        self._program = Program(variant)
        self._nests = {n.block.name: n for n in self._program.nests}
        g = self._program.graph
        self._terms: list[Term] = [g.of(0)] * NODE_WIDTH
        parents = [-1]
        for parent, terms in self._below(variant.func.body, 0, parents):
            parents.append(parent)
            self._terms += [*terms, *[g.of(0)] * (NODE_WIDTH - len(terms))]
        self.parents = tuple(parents)
        self._compiled = g.compile(self._terms)

    def _below(
        self, body: tuple[Stmt, ...], at: int, parents: list[int]
    ) -> Iterator[tuple[int, list[Term]]]:
        g = self._program.graph
        for s in body:
            if isinstance(s, For):
                yield at, [g.of(0), *self._program.loop(s)]
                yield from self._below(s.body, len(parents) - 1, parents)
            elif isinstance(s, If):
                yield from self._below(s.body, at, parents)
            elif isinstance(s, Block):
                yield at, [g.of(1), *_statement(self._nests[s.name])]

    def of(self, rows: Matrix) -> Values:
        """(rows, nodes, NODE_WIDTH)."""
        return self._compiled(rows).reshape(len(rows), len(self.parents), NODE_WIDTH)


def _statement(n: Nest) -> list[Term]:
    g = n.graph
    out = [g.of(float(c)).log() for c in operations(n.block).values()]
    out += [g.of(float(n.points)).log(), float(n.points) / n.iterations, n.unroll_depth.log()]
    for a in n.accesses[:TOUCHES]:
        out += [g.of(float(a.reads)), g.of(float(a.writes)), (a.touched[0] * a.nbytes).log()]
    return out + [g.of(0)] * (_OF_STATEMENT - len(out))


@lru_cache(maxsize=1024)  # a variant is compared by identity
def tree_of(variant: Variant) -> Tree:
    return Tree(variant)
