"""Reductions over the lanes of a vector: `S[] = S[] op v` in all lanes at once."""

from __future__ import annotations

import math
from functools import partial

from tilesmith.codegen.llvm.addressing import Address, Addressing
from tilesmith.codegen.llvm.builder import Type, V
from tilesmith.codegen.llvm.expressions import Expressions
from tilesmith.codegen.llvm.operations import binary, extreme_of_numbers
from tilesmith.codegen.llvm.position import Lane, Position
from tilesmith.codegen.llvm.vectors import Vectors
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import Binary, plain_combiner
from tilesmith.ir.nodes import Write


class LaneReductions:
    def __init__(
        self,
        position: Position,
        addressing: Addressing,
        vectors: Vectors,
        expressions: Expressions,
    ) -> None:
        self.position, self.builder = position, position.builder
        self.addressing, self.vectors, self.expressions = addressing, vectors, expressions

    def value(self, w: Write) -> V | None:
        """The value of `S[] = S[] + v`, with the lanes of v reduced first."""
        if self.position.lanes == 1 or not self.joins_lanes(w):
            return None
        e = w.value
        assert isinstance(e, Binary)
        return binary(
            self.builder,
            e.op,
            self.expressions.expr(e.a),
            self._across(self._partial(e), e),
            e.dtype,
        )

    def joins_lanes(self, w: Write) -> bool:
        a = self.addressing.address(w.buffer, w.index)
        return not a.stride and w.accumulates and not self._varies(a)

    def _varies(self, a: Address) -> bool:
        """Whether the part of an address that is no sum of loops differs between lanes."""
        names = (n for m, _ in a.opaque for n in Int({m: 1}).names)
        return any(isinstance(self.position.env.get(n), Lane) for n in names)

    def _partial(self, e: Binary) -> V:
        """The contribution of each lane: the identity for lanes that are masked out."""
        v = self.vectors.splat(self.expressions.expr(e.b), self.position.lanes)
        if self.position.mask is not None:
            neutral = plain_combiner(e.op, e.dtype).identity[0].value
            mask = self.vectors.splat(self.position.mask, self.position.lanes)
            v = self.builder.select(mask, v, self.builder.const(v.type, neutral))
        return v

    def _across(self, v: V, e: Binary) -> V:
        """Reduces the lanes by halving. A NaN is detected once, in parallel, because a maximum that
        propagates NaN would lengthen every step of the chain.
        """
        join, has_nan = partial(binary, self.builder), None
        if e.op in ("max", "min") and v.type.is_float and not self.builder.machine.propagates_nan:
            join = partial(extreme_of_numbers, self.builder)
            nan = self.builder.compare("uno", v, v)
            has_nan = self.builder.call("llvm.vector.reduce.or", Type("i1"), nan)
        while v.type.lanes > 1:
            half = v.type.lanes // 2
            low, high = (self.builder.part(v, k, half) for k in (0, half))
            v = join(e.op, low, high, e.dtype)
        if has_nan is None:
            return v
        return self.builder.select(has_nan, self.builder.const(v.type, math.nan), v)

    def over_pieces(self, w: Write, loop: str, pieces: list[tuple[int, int]]) -> V:
        """A horizontal reduction over several vectors: they are joined lane by lane in a tree, to
        shorten the chain of dependences, and then reduced once across lanes.
        """
        e = w.value
        assert isinstance(e, Binary)
        parts: list[V] = []
        for start, lanes in pieces:
            self.position.env[loop], self.position.lanes = Lane(start, lanes), lanes
            self.expressions.forget()
            parts.append(self._partial(e))
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            last = parts[len(parts) & ~1 :]
            parts = [*(binary(self.builder, e.op, x, y, e.dtype) for x, y in pairs), *last]
        return binary(
            self.builder, e.op, self.expressions.expr(e.a), self._across(parts[0], e), e.dtype
        )
