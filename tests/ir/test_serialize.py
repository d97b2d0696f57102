"""Functions through JSON: what comes back equals what went in, and other text is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.programs import random_program
from tests.support.thorough import by_turns
from tests.support.traces import CPU_WEIGHTS, SYMBOLIC_WEIGHTS, random_trace
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.ints import atom, maximum, of, var
from tilesmith.expr.nodes import Binary, Const, Load
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Store,
    Sync,
    Write,
    rewrite_blocks,
    walk,
)
from tilesmith.ir.notes import FetchLines, Prefetch, UnrollDepth
from tilesmith.ir.serialize import function_to_json


def assert_survives(func: Function) -> None:
    text = function_to_json(func)
    again = function_from_json(text)
    assert again == func
    assert str(again) == str(func)
    assert function_to_json(again) == text
    assert again.digest == func.digest


def test_constants_survive_and_are_part_of_the_digest():
    x, w = ts.placeholder((4, 5), name="X"), ts.placeholder((5, 3), name="W")
    y = ts.ops.matmul(x, w, name="Y")
    func = ts.function([x, w, y], constants=[w])
    assert [b.scope for b in func.params] == ["global", "constant", "global"]
    assert "W: constant float32[5, 3]" in str(func)
    assert_survives(func)
    assert func.digest != ts.function([x, w, y]).digest
    with pytest.raises(ts.ExpressionError, match="none of its inputs"):
        ts.function([x, w, y], constants=[y])


def test_random_programs_survive():
    for seed in by_turns(100, 400):
        assert_survives(random_program(np.random.default_rng(seed), max_stages=6))


def test_scheduled_programs_survive():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        assert_survives(random_trace(random_program(rng), rng, 6, CPU_WEIGHTS).func)


def test_sketches_survive_with_their_facts():
    facts = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        sch = random_trace(random_program(rng), rng, 6, SYMBOLIC_WEIGHTS, symbolic=True)
        assert_survives(sch.func)
        facts += len(sch.func.facts)
    assert facts > 0


def matmul() -> Function:
    A, B = ts.placeholder((4, 6), name="A"), ts.placeholder((6, 8), name="B")
    return ts.function([A, B, ts.ops.matmul(A, B)], name="mm")


def constant(value: float | bool, dtype: str = "float32") -> Function:
    """One block that writes one constant."""
    c = ts.compute((2,), lambda i: 0.0 * i, name="C")

    def put(b: Block) -> Block:
        return replace(b, writes=(replace(b.writes[0], value=Const(value, ts.dtype(dtype))),))

    func = ts.function([c])
    return replace(func, body=rewrite_blocks(func.body, put))


@pytest.mark.parametrize(
    "value", [float("inf"), float("-inf"), float("nan"), -0.0, 0.0, 1e-310, 0.1, 0, True, 2**63]
)
def test_constants_come_back_exactly(value):
    func = constant(value)
    assert_survives(func)
    ((_, block),) = walk(function_from_json(function_to_json(func)).body)
    (got,) = (w.value.value for w in block.writes)
    assert type(got) is type(value)
    assert repr(got) == repr(value)


def test_the_dtype_of_a_constant_changes_the_digest_but_not_the_text():
    one, other = constant(1.0, "float32"), constant(1.0, "float16")
    assert str(one) == str(other)
    assert one.digest != other.digest
    assert constant(0.0).digest != constant(-0.0).digest
    assert constant(1).digest != constant(1.0).digest


def test_several_outputs_and_their_combiner_survive():
    x, k = ts.placeholder((3, 7), name="x"), ts.reduce_axis(7, name="k")
    at, best = ts.compute((3,), lambda i: ts.argmax(x[i, k], axis=k), name="top")
    func = ts.function([x, at, best])
    assert_survives(func)
    assert function_from_json(function_to_json(func)).num_outputs == 2


def test_data_dependent_indices_survive():
    table = ts.placeholder((5, 4), name="table")
    ids = ts.placeholder((3,), dtype="int8", name="ids")
    out = ts.compute((3, 4), lambda i, j: table[ids[i] * 2 % 5, (i + 3 * j) // 2 % 4])
    assert "value" in function_to_json(ts.function([table, ids, out]))
    assert_survives(ts.function([table, ids, out]))


def test_open_sizes_survive():
    m, n = ts.size("M"), ts.size("N")
    X = ts.placeholder((m, n), name="X")
    func = ts.function([X, ts.compute((m * n,), lambda i: X[i // n, i % n] * n)])
    assert_survives(func)
    assert function_from_json(function_to_json(func)).sizes == ("#M", "#N")


def test_every_statement_and_storage_survives():
    A = Buffer("A", (of(8), var("#n")), ts.dtype("int32"))
    packed = Buffer(
        "P", (of(8),), ts.dtype("int32"), "shared", (var("d0") // 4, var("d0") % 4), (0, 16, 4)
    )
    either = maximum(var("#n"), var("#m"))
    read = Load("P", (atom(Dynamic(Load("A", (var("i"), of(0)), A.dtype))),), A.dtype)
    store = Store((Write("A", (var("i"), of(1)), Binary("add", read, read, A.dtype)),))
    body = (
        Alloc(packed),
        For(
            "i",
            either,
            (If((var("i") - 1, of(3)), (store, Sync("shared"))),),
            "unroll",
            (Prefetch("A", 2), UnrollDepth("#n"), FetchLines("A", True, 1, 0, 2, (("i", 4),))),
        ),
    )
    assert_survives(Function("all", (A,), 1, (packed,), body))


def test_units_survive_with_their_intrinsic():
    u = ts.placeholder((2, 4), "uint8", name="u")
    s = ts.placeholder((16, 4), "int8", name="s")
    k = ts.reduce_axis(4, name="k")
    c = ts.compute(
        (2, 16),
        lambda i, j: ts.sum(ts.cast(u[i, k], "int32") * ts.cast(s[j, k], "int32"), axis=k),
        name="C",
    )
    sch = ts.Schedule(ts.function([u, s, c]))
    sch.tensorize(sch.loops("C")[1], ts.AVX512_DOT_U8S8)
    assert_survives(sch.func)
    with pytest.raises(ts.TraceError, match="pass your own in intrinsics="):
        function_from_json(function_to_json(sch.func), intrinsics=())


def test_what_is_shared_is_written_once():
    x = ts.placeholder((2,), name="x")

    def doubled(i):
        v = x[i]
        for _ in range(12):  # a tree of 4096 leaves, of 13 distinct nodes
            v = v * v
        return v

    text = function_to_json(ts.function([x, ts.compute((2,), doubled)]))
    assert len(text) < 1000


def test_a_convolution_takes_less_than_4_kb():
    x = ts.placeholder((1, 64, 56, 56), name="x")
    w = ts.placeholder((64, 64, 3, 3), name="w")
    func = ts.function([x, w, ts.ops.relu(ts.ops.conv2d(x, w, padding=1, stride=2))])
    assert len(function_to_json(func)) < 4096


def damaged(**changes: object) -> str:
    return json.dumps(json.loads(function_to_json(matmul())) | changes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("[1]", "list indices"),
        ("{}", "'version' is missing"),
        (damaged(version=99), "is of version 99; this library reads version 1"),
        (damaged(values=7), "7 stands where a list is due"),
        (damaged(values=[["load", "A", ["i"], "float31"]]), "unknown dtype 'float31'"),
        (damaged(values=[["frob", 0, "float32"]]), "is no value"),
        (damaged(values=[["exp", 0, "float32"]]), "value 0 is used before it is there"),
        (damaged(values=[]), "value 3 is used before it is there"),
        (damaged(body=[["goto", 3]]), "is no statement"),
        (damaged(body=[["for", 3, 4, []]]), "3 stands where a name is due"),
        (damaged(body=[["for", "i", [[2.5, "j"]], []]]), "2.5 stands where a number is due"),
        (damaged(body=[["for", "i", True, []]]), "True is no integer"),
        (damaged(body=[["block", {"name": "C"}]]), "'iters' is missing"),
        (damaged(params=[["A"]]), "is no buffer"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_other_text_is_refused(text, says):
    with pytest.raises(ts.TraceError, match=says):
        function_from_json(text)


def test_every_cut_of_a_text_is_refused():
    text = function_to_json(matmul())
    for end in range(0, len(text), 7):
        with pytest.raises(ts.TraceError):
            function_from_json(text[:end])


def test_a_chain_longer_than_the_stack_goes_through_text():
    x = ts.placeholder((4,), name="x")
    func = ts.function([x, ts.compute((4,), lambda i: x[i] + 1, name="y")])
    (loop,) = func.body
    (block,) = loop.body
    value = block.writes[0].value
    for _ in range(5000):
        value = replace(value, a=value)
    writes = (replace(block.writes[0], value=value),)
    long = replace(func, body=(replace(loop, body=(replace(block, writes=writes),)),))
    text = function_to_json(long)
    assert function_to_json(function_from_json(text)) == text
    assert text.count('"add"') == 5001
