"""Functions in launch form, written by hand: what the emitters of C text get."""

from __future__ import annotations

import tilesmith as ts
from tilesmith.base.dtype import BOOL, FLOAT32, INT32, DType
from tilesmith.expr.ints import Int, of, var
from tilesmith.expr.nodes import (
    Arg,
    Binary,
    Cast,
    Combiner,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
    plain_combiner,
)
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Join, Stmt, Store, Sync, Write


def buffer(name: str, *shape: int, dtype: str = "float32", scope: str = "global") -> Buffer:
    return Buffer(name, tuple(map(of, shape)), ts.dtype(dtype), scope)


def load(b: Buffer, *index: Int) -> Load:
    return Load(b.name, index, b.dtype)


def store(b: Buffer, index: tuple[Int, ...], value: Expr) -> Store:
    return Store((Write(b.name, index, value),))


def loop(name: str, extent: int, *body: Stmt, kind: str = "serial") -> For:
    return For(name, of(extent), body, kind)


def launch(blocks: int, threads: int, *body: Stmt, shared: tuple[Buffer, ...] = ()) -> For:
    """Loops b over blocks and t over threads."""
    inner = For("t", of(threads), body, "threadIdx.x")
    return For("b", of(blocks), (*map(Alloc, shared), inner), "blockIdx.x")


def tiled_matmul(n: int = 64, tile: int = 32, depth: int = 8) -> Function:
    """C = A B by tiles in shared memory, 4 x 4 elements per thread. A's tile is turned."""
    a, b, c = (buffer(x, n, n) for x in "ABC")
    a_tile = buffer("A.shared", depth, tile, scope="shared")
    b_tile = buffer("B.shared", depth, tile, scope="shared")
    acc = buffer("C.local", 4, 4, scope="local")
    side = tile // 4
    i, j, k, ki, v = map(var, ("i", "j", "k", "ki", "v"))
    ty, tx = var("ty"), var("tx")
    thread = ty * side + tx
    row, col = var("by") * tile + ty * 4, var("bx") * tile + tx * 4
    quads = depth // 4  # vectors of A per row of its tile
    a_row, a_col = thread // quads, thread % quads * 4 + v
    fetch_a = store(a_tile, (a_col, a_row), load(a, var("by") * tile + a_row, k * depth + a_col))
    b_row, b_col = thread // side, thread % side * 4 + v
    fetch_b = store(b_tile, (b_row, b_col), load(b, k * depth + b_row, var("bx") * tile + b_col))
    product_ = Binary("mul", load(a_tile, ki, ty * 4 + i), load(b_tile, ki, tx * 4 + j), FLOAT32)
    update = store(acc, (i, j), Binary("add", load(acc, i, j), product_, FLOAT32))

    def square(s: Stmt) -> For:
        return loop("i", 4, loop("j", 4, s, kind="unroll"), kind="unroll")

    body: tuple[Stmt, ...] = (
        Alloc(acc),
        square(store(acc, (i, j), Const(0.0, FLOAT32))),
        loop(
            "k", n // depth,
            Sync("shared"),
            loop("v", 4, fetch_a, kind="vectorize"),
            loop("v", 4, fetch_b, kind="vectorize"),
            Sync("shared"),
            loop("ki", depth, square(update), kind="unroll"),
        ),
        square(store(c, (row + i, col + j), load(acc, i, j))),
    )  # fmt: skip
    for name, extent in (("tx", side), ("ty", side)):
        body = (For(name, of(extent), body, "threadIdx.x"),)
    body = (Alloc(a_tile), Alloc(b_tile), *body)
    for name in ("bx", "by"):
        body = (For(name, of(n // tile), body, "blockIdx.x"),)
    return Function("tiled_matmul", (a, b, c), 1, (), body)


def rows_softmax(rows: int = 5, columns: int = 96, threads: int = 48) -> Function:
    """A block per row, whose threads hold their part of it in registers."""
    x, y = buffer("X", rows, columns), buffer("Y", rows, columns)
    each = columns // threads
    held = buffer("X.local", each, scope="local")
    top, total = buffer("top", scope="local"), buffer("total", scope="local")
    b, t, e = map(var, ("b", "t", "e"))

    def over(*body: Stmt) -> For:
        return loop("e", each, *body, kind="unroll")

    shifted = Unary("exp", Binary("sub", load(held, e), load(top), FLOAT32), FLOAT32)
    at = (b, e * threads + t)
    body = (
        Alloc(held), Alloc(top), Alloc(total),
        store(top, (), Const(float("-inf"), FLOAT32)),
        over(store(held, (e,), load(x, *at))),
        over(store(top, (), Binary("max", load(top), load(held, e), FLOAT32))),
        Join((load(top),), plain_combiner("max", FLOAT32), threads),
        store(total, (), Const(0.0, FLOAT32)),
        over(store(held, (e,), shifted)),
        over(store(total, (), Binary("add", load(total), load(held, e), FLOAT32))),
        Join((load(total),), plain_combiner("add", FLOAT32), threads),
        over(store(y, at, Binary("div", load(held, e), load(total), FLOAT32))),
    )  # fmt: skip
    return Function("softmax", (x, y), 1, (), (launch(rows, threads, *body),))


def _first_of_largest(d: DType) -> Combiner:
    """(value, index) of the largest value, the smaller index among equals."""
    x, y = (Arg("x0", d), Arg("x1", INT32)), (Arg("y0", d), Arg("y1", INT32))
    larger = Binary("gt", x[0], y[0], BOOL)
    equal = Binary("eq", x[0], y[0], BOOL)
    least = Select(
        larger, x[1], Select(equal, Binary("min", x[1], y[1], INT32), y[1], INT32), INT32
    )
    low = Const(float("-inf"), d)
    return Combiner((Binary("max", x[0], y[0], d), least), (low, Const(0, INT32)))


def joined_groups(threads: int, extent: int, stride: int, op: str, twice: bool = False) -> Function:
    """y[b, t] is x[b, :] joined over the group of thread t: by an operator, or as (value, index) of
    the largest. `twice` does it in a loop, in which the memory of joins is used again.
    """
    x, y = buffer("x", 3, threads), buffer("y", 3, threads)
    at = buffer("at", 3, threads, dtype="int32")
    value, index = buffer("value", scope="local"), buffer("index", dtype="int32", scope="local")
    here = (var("b"), var("t"))
    body: list[Stmt] = [Alloc(value), store(value, (), load(x, *here))]
    if op == "argmax":
        body += [
            Alloc(index),
            store(index, (), IntValue(var("t"), INT32)),
            Join((load(value), load(index)), _first_of_largest(FLOAT32), extent, stride),
            store(y, here, load(value)),
            store(at, here, load(index)),
        ]
        return Function("joined", (x, y, at), 2, (), (launch(3, threads, *body),))
    join = Join((load(value),), plain_combiner(op, FLOAT32), extent, stride)
    halve = store(value, (), Binary("mul", load(value), Const(0.5, FLOAT32), FLOAT32))
    body += [loop("again", 2, join, halve)] if twice else [join]
    body.append(store(y, here, load(value)))
    return Function("joined", (x, y), 1, (), (launch(3, threads, *body),))


def moved(dtype: str, to: str, lanes: int, shift: int = 0, guard: int | None = None) -> Function:
    """y[t, v] = x[t, v + shift] for `lanes` values of v, by a vectorized loop with a guard on the
    number of the element.
    """
    n = 64
    x = buffer("x", n * lanes + 16, dtype=dtype)
    y = buffer("y", n * lanes, dtype=to)
    at = var("t") * lanes + var("v")
    value: Expr = load(x, at + shift)
    if dtype != to:
        value = Cast(value, ts.dtype(to))
    move: Stmt = store(y, (at,), value)
    if guard is not None:
        rest = store(y, (at,), Const(ts.dtype(to).wrap(7), ts.dtype(to)))
        inner = loop("v", lanes, If((of(guard - 1) - at,), (move,)), kind="vectorize")
        other = loop("v", lanes, If((at - guard,), (rest,)), kind="vectorize")
        return Function("moved", (x, y), 1, (), (launch(1, n, inner, other),))
    return Function(
        "moved", (x, y), 1, (), (launch(1, n, loop("v", lanes, move, kind="vectorize")),)
    )
