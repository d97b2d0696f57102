"""Emits joins: reductions over the threads of a block.

Threads of a warp exchange values by warp shuffles (a butterfly), after which all of them hold the
result; other threads exchange them through shared memory. Every thread of a group joins the same
values in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tilesmith.base.dtype import BOOL, DType
from tilesmith.codegen.c.expressions import Expressions
from tilesmith.codegen.c.integers import Integers
from tilesmith.codegen.c.piece import Piece
from tilesmith.codegen.c.position import UNROLL, Position
from tilesmith.expr.nodes import join_args
from tilesmith.ir.nodes import Join, Stmt, statements

_WARP = 32
# Up to so many values each thread reads and joins by itself; more are joined by a tree.
_SERIAL = 32


class Joins:
    def __init__(self, position: Position, integers: Integers, expressions: Expressions) -> None:
        self.position, self.integers, self.expressions = position, integers, expressions
        # Shared arrays that joins exchange values in: (name, dtype), one element per thread.
        self.arrays: list[tuple[str, DType]] = []
        self._in_use = False  # whether some thread may still read them

    def synced(self) -> None:
        """After a barrier, no thread reads what was exchanged before it."""
        self._in_use = False

    @contextmanager
    def repeated(self, body: tuple[Stmt, ...]) -> Iterator[None]:
        """Inside of a loop, whose body's end comes before its start."""
        self._in_use = self._in_use or any(isinstance(s, Join) for s in statements(body))
        yield

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """Inside of a condition: barriers there may not be reached."""
        before = self._in_use
        yield
        self._in_use = self._in_use or before

    def join(self, s: Join) -> None:
        if s.extent == 1:
            return
        with self.position.braces(""):
            held = (self.expressions.value(x) for x in s.values)
            values = [v.text for v in self._variables(s, held)]
            extent, stride = s.extent, s.stride
            whole = self.position.threads % (extent * stride) == 0
            warps = _is_power(extent) or extent * stride % _WARP == 0
            if self.position.dialect.shuffle and whole and warps and _is_power(stride):
                done = self._butterfly(s, values)
                extent, stride = extent // done, stride * done
            if extent > 1:
                self._exchange(s, values, extent, stride, whole)
            for x, v in zip(s.values, values, strict=True):
                raw = self.expressions.operations.narrow(Piece(v), x.dtype, x.dtype)
                self.position.write(f"{self.expressions.element(x)} = {raw.text};")

    def _type(self, d: DType) -> str:
        return self.position.dialect.value_type(d)

    def _variables(
        self, s: Join, values: Iterable[Piece], const: str = "", hint: str = "joined"
    ) -> list[Piece]:
        """A variable for each of the values that are joined."""
        names = []
        for v, x in zip(values, s.values, strict=True):
            names.append(self.position.fresh(hint))
            self.position.write(f"{const}{self._type(x.dtype)} {names[-1]} = {v.text};")
        return [Piece(n) for n in names]

    def _butterfly(self, s: Join, values: list[str]) -> int:
        """Joins inside of warps; the number of values that each thread's holds then."""
        lanes = s.stride
        position = self.position
        mask = (1 << min(_WARP, position.threads)) - 1
        while lanes < min(_WARP, s.stride * s.extent):
            others = [Piece(f"__shfl_xor_sync({mask:#x}u, {v}, {lanes})") for v in values]
            # More than one use; or every lane takes part, where || would leave some out.
            if len(values) > 1 or s.combiner.op is None or s.values[0].dtype is BOOL:
                others = self._variables(s, others)
            self._combine(s, values, [Piece(v) for v in values], others)
            lanes *= 2
        done = lanes // s.stride
        if done > 1 and s.combiner.op is None:
            # Both lanes of a pair computed it with their operands swapped, which may differ in the
            # last bit. All take the first one's.
            thread = position.dialect.thread
            first = f"({thread} & {_WARP - 1}) & {~(lanes - s.stride) & (_WARP - 1)}"
            for v in values:
                position.write(f"{v} = __shfl_sync({mask:#x}u, {v}, {first});")
        return done

    def _combine(self, s: Join, targets: list[str], left: list[Piece], right: list[Piece]) -> None:
        """targets = left joined with right."""
        self.expressions.args = join_args(left, right)
        results = [self.expressions.value(v) for v in s.combiner.values]
        if len(results) > 1:
            results = self._variables(s, results, "const ", "t")
        for t, r in zip(targets, results, strict=True):
            self.position.write(f"{t} = {r.text};")

    def _exchange(self, s: Join, values: list[str], extent: int, stride: int, whole: bool) -> None:
        """Joins through shared memory. The last group may have fewer threads than the others."""
        position, threads = self.position, self.position.threads
        barrier = position.dialect.barriers["shared"]
        arrays = [self._array(k, x.dtype) for k, x in enumerate(s.values)]
        if self._in_use:
            position.write(barrier)
        thread = position.fresh("thread")
        position.write(f"const int {thread} = {position.dialect.thread};")
        for a, v in zip(arrays, values, strict=True):
            position.write(f"{a}[{thread}] = {v};")
        position.write(barrier)
        span = extent * stride
        if extent > _SERIAL:
            self._tree(s, arrays, thread, extent, stride, whole)
            base = f"{thread} - rank*{stride}" if stride > 1 else f"{thread} - rank"
            base = base if span < threads else f"{thread} % {stride}" if stride > 1 else "0"
        else:
            outer = "" if span >= threads else f"{thread}/{span}*{span} + "
            base = f"{outer}{thread} % {stride}" if stride > 1 else outer.removesuffix(" + ") or "0"
        first = position.fresh("first")
        position.write(f"const int {first} = {base};")
        for a, v in zip(arrays, values, strict=True):
            position.write(f"{v} = {a}[{first}];")
        if extent <= _SERIAL:
            head = f"for (int member = 1; member < {extent}; ++member)"
            with position.braces(head, UNROLL):
                at = f"{first} + member*{stride}" if stride > 1 else f"{first} + member"
                if not whole:
                    position.write(f"if ({at} >= {threads}) break;")
                others = [Piece(f"{a}[{at}]") for a in arrays]
                if s.combiner.op is None:
                    others = self._variables(s, others)
                self._combine(s, values, [Piece(v) for v in values], others)
        self._in_use = True

    def _rank(self, thread: str, extent: int, stride: int) -> str:
        """The number of a thread in its group."""
        number = thread if stride == 1 else f"{thread}/{stride}"
        return (
            f"({number} % {extent})" if extent * stride < self.position.threads else f"({number})"
        )

    def _tree(
        self, s: Join, arrays: list[str], thread: str, extent: int, stride: int, whole: bool
    ) -> None:
        position = self.position
        half = 1 << (extent - 1).bit_length() - 1
        rank = "rank"
        position.write(f"const int {rank} = {self._rank(thread, extent, stride)[1:-1]};")
        with position.braces(f"for (int step = {half}; step > 0; step /= 2)"):
            partner = f"{thread} + step*{stride}" if stride > 1 else f"{thread} + step"
            guard = f"{rank} < step && {rank} + step < {extent}"
            if not whole:
                guard += f" && {partner} < {position.threads}"
            with position.braces(f"if ({guard})"):
                left = [Piece(f"{a}[{thread}]") for a in arrays]
                right = [Piece(f"{a}[{partner}]") for a in arrays]
                if s.combiner.op is None:
                    left, right = (self._variables(s, side) for side in (left, right))
                self._combine(s, [f"{a}[{thread}]" for a in arrays], left, right)
            position.write(position.dialect.barriers["shared"])

    def _array(self, k: int, d: DType) -> str:
        """The shared array for the value number k of joins."""
        for name, dtype in self.arrays:
            if self._type(dtype) == self._type(d) and name.endswith(f"_{k}"):
                return name
        name = f"{self.position.names.fresh(f'exchange_{d.name}')}_{k}"
        self.arrays.append((name, d))
        return name


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0
