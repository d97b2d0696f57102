"""What verify refuses, one broken rule at a time, and the text of every kind of statement."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.base.dtype import FLOAT32, FLOAT64, INT64
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.ints import atom, of, var
from tilesmith.expr.nodes import Const, Load
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import INTRINSICS, NEON_DOT_S8S8
from tilesmith.ir.nodes import Alloc, Block, Buffer, For, If, Iter, Store, Sync, Write
from tilesmith.ir.notes import PipelineStages, Prefetch
from tilesmith.ir.verify import verify

I = var("i")
ZERO = Const(0.0, FLOAT32)
HALF = atom(Dynamic(Load("Q", (I,), INT64))) // 2  # an index that is read from Q


def block(**changes) -> Block:
    """O[i] = X[i]"""
    b = Block(
        "O",
        (Iter("i", "S", of(4), var("O.i")),),
        (Write("O", (I,), Load("X", (I,), FLOAT32)),),
    )
    return replace(b, **changes)


def func(b: Block | None = None, loop: For | None = None, **changes) -> Function:
    x, o = Buffer("X", (of(4),), FLOAT32), Buffer("O", (of(4),), FLOAT32)
    body = (loop or For("O.i", of(4), (b or block(),)),)
    return replace(Function("f", (x, o), 1, (), body), **changes)


def write(index=(I,), value=None, buffer="O") -> tuple[Write, ...]:
    return (Write(buffer, index, value or Load("X", (I,), FLOAT32)),)


def sums(**changes) -> Block:
    """O[i] += X[k]"""
    x = ts.placeholder((4,), name="X")
    k = ts.reduce_axis(4, name="k")
    s = ts.function([x, ts.compute((), lambda: ts.sum(x[k], axis=k), name="S")])
    combiner = s.body[0].body[0].combiner
    iters = (Iter("i", "S", of(4), var("O.i")), Iter("k", "R", of(4), var("O.k")))
    b = Block("O", iters, write(value=Load("X", (var("k"),), FLOAT32)), combiner, True)
    return replace(b, **changes)


def sum_func(b: Block) -> Function:
    return func(loop=For("O.i", of(4), (For("O.k", of(4), (b,)),)))


def test_a_correct_function_passes():
    verify(func())
    verify(sum_func(sums()))
    for unit in INTRINSICS:
        verify(unit.description)


two = (Buffer("X", (of(4),), FLOAT32),) * 2
outside = Iter("i", "S", of(4), var("O.z"))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (func(params=two), "f: two buffers share a name"),
        (func(num_outputs=0), "f has 0 outputs"),
        (func(num_outputs=3), "f has 3 outputs"),
        (func(num_outputs=2), "f never writes its output X"),
        (func(block(writes=write(buffer="X"))), "f writes its input X"),
        (func(loop=For("O.i", I, (block(),))), "the extent i of loop O.i depends on a loop"),
        (func(loop=For("O.i", of(4), (block(),), "hyper")), "loop O.i is of unknown kind 'hyper'"),
        (func(loop=For("O.i", of(4), (block(), block()))), "two blocks are named 'O'"),
        (
            func(loop=For("O.i", of(4), (For("O.i", of(1), (block(),)),))),
            "two loops are named 'O.i'",
        ),
        (func(block(tile=(("O.i", of(2)),))), "two loops are named 'O.i'"),
        (func(block(iters=(outside,))), "the binding of i in block O uses O.z, which is not in"),
        (func(block(iters=(replace(outside, bind=var("O.i"), kind="Q"),))), "unknown kind 'Q'"),
        (
            func(block(iters=(replace(outside, bind=var("O.i"), extent=var("O.i")),))),
            "the extent O.i of i in O depends on a loop",
        ),
        (func(block(iters=block().iters * 2)), "block O has two iterators of one name"),
        (func(block(where=frozenset({I}))), "a guard of block O uses i"),
        (func(block(domain=frozenset({var("O.i")}))), "the domain of block O uses O.i"),
        (func(block(writes=())), "never writes its output O"),
        (func(block(init=True)), "block O has an init but no reduction"),
        (sum_func(sums(writes=sums().writes * 2)), "block O joins 1 values"),
        (sum_func(sums(writes=write((var("k"),)))), "at an index that it reduces over"),
        (func(block(writes=write(value=Load("O", (I,), FLOAT32)))), "block O reads O, which it"),
        (func(block(writes=write(value=Load("Q", (I,), FLOAT32)))), "buffer Q, which is not there"),
        (func(block(writes=write(value=Load("X", (I, I), FLOAT32)))), "X with 2 indices; it has 1"),
        (func(block(writes=write(value=Load("X", (I,), FLOAT64)))), "stores float64 into O"),
        (func(block(writes=write((var("z"),)))), "block O uses z, which is not in scope"),
        (func(block(writes=write(value=Load("X", (var("z"),), FLOAT32)))), "block O uses z"),
        (func(block(writes=write(value=Load("X", (HALF,), FLOAT32)))), "buffer Q, which is not"),
        (
            func(buffers=(Buffer("P", (var("O.i"),), FLOAT32),)),
            r"the shape \[O.i\] of P depends on a loop",
        ),
        (
            func(loop=For("O.i", of(4), (Alloc(Buffer("X", (of(1),), FLOAT32)), block()))),
            "buffer X is allocated twice",
        ),
        (
            func(loop=For("O.i", of(4), (If((var("z"),), (block(),)),))),
            "a condition in f uses z",
        ),
    ],
)
def test_broken_rules(broken, words):
    with pytest.raises(ts.VerifyError, match=words):
        verify(broken)


def test_text_of_every_statement(golden):
    """As it looks after lowering, units and barriers included."""
    small = Buffer("T", (of(2), of(2)), FLOAT32, "shared", (var("d1"), var("d0")), (0, 4, 1))
    unit = replace(block(), tile=(("O.i", of(4)),), intrinsic=NEON_DOT_S8S8)
    body = (
        Alloc(small),
        For(
            "n",
            of(3),
            (
                If((var("n") - 1, 2 - var("n")), (Store(write((var("n"),), ZERO)),)),
                Sync("shared"),
            ),
            "parallel",
            (PipelineStages(2), Prefetch("X", 4)),
        ),
        Store(write((of(0),), ZERO), (("t", of(4)),), NEON_DOT_S8S8),
        unit,
    )
    golden(func(body=body))


def test_text_of_facts_and_joins(golden):
    a = ts.placeholder((4, 6), name="A")
    k = ts.reduce_axis(6, name="k")
    at, best = ts.compute((4,), lambda i: ts.argmax(a[i, k], axis=k), name="M")
    sch = ts.Schedule(ts.function([a, at, best], name="argmax"))
    sch.split("M.k", ["#a", "#b"], exact=True)
    sch.split("M.i", [None, "#c"])
    golden(sch.func)
