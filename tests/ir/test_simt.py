"""The SIMT interpreter: hand-written launches, and a planted fault of each kind, which it names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.dtype import FLOAT32, INT32, dtype
from tilesmith.expr.dynamic import as_index
from tilesmith.expr.ints import of, parse_int
from tilesmith.expr.nodes import (
    Arg,
    Binary,
    Cast,
    Combiner,
    Const,
    IntValue,
    Load,
    Select,
    Unary,
    plain_combiner,
)
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Join, Store, Sync, Write, rewrite, statements
from tilesmith.ir.simt import run_simt
from tilesmith.ir.verify import verify

SYNC, WIDE_SYNC = Sync("shared"), Sync("global")


# a short notation for launch form
def at(text):
    return tuple(parse_int(p.strip()) for p in text.split(",")) if text else ()


def load(buffer, index, kind=FLOAT32):
    return Load(buffer, at(index), kind)


def store(buffer, index, value):
    return Store((Write(buffer, at(index), value),))


def buffer(name, *shape, scope="global", kind=FLOAT32):
    return Buffer(name, tuple(map(of, shape)), kind, scope)


def loop(name, extent, *body, kind="serial"):
    return For(name, of(extent), body, kind)


def when(conds, *body):
    return If(at(conds), body)


def add(a, b):
    return Binary("add", a, b, a.dtype)


def mul(a, b):
    return Binary("mul", a, b, a.dtype)


def launch(blocks, threads, *body, shared=()):
    inner = loop("t", threads, *body, kind="threadIdx.x")
    return loop("b", blocks, *map(Alloc, shared), inner, kind="blockIdx.x")


def program(params, *launches, outputs=1, scratch=()):
    func = Function("f", tuple(params), outputs, (), (*map(Alloc, scratch), *launches))
    verify(func)
    return func


def number(value, kind=FLOAT32):
    return Const(value, kind)


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# programs that are right
def test_elementwise_with_a_guard_on_an_odd_extent():
    func = program(
        [buffer("x", 37), buffer("y", 37)],
        launch(
            5,
            8,
            when("36 - 8*b - t", store("y", "8*b + t", mul(load("x", "8*b + t"), number(2.0)))),
        ),
    )
    x = data(37)
    np.testing.assert_array_equal(run_simt(func, x), x * 2)


def matmul(m=6, n=10, k=9, sync=(True, True)):
    """Tiles of 3 x 5 threads with 2 x 1 elements each; the tile of A lies in shared memory."""
    rows, columns, step, width = 6, 5, 3, 1
    tiles = -(-n // columns)
    fetch = when(
        "17 - (t + 15*v)",
        store(
            "A.shared",
            "(t + 15*v) // 3, (t + 15*v) % 3",
            load("A", "(t + 15*v) // 3, 3*k0 + (t + 15*v) % 3"),
        ),
    )
    body = (
        Alloc(buffer("C.local", 2, scope="local")),
        loop("i0", 2, store("C.local", "i0", number(0.0)), kind="unroll"),
        loop(
            "k0",
            k // step,
            *((SYNC,) if sync[0] else ()),
            loop("v", 2, fetch),
            *((SYNC,) if sync[1] else ()),
            loop(
                "k1",
                step,
                loop(
                    "i",
                    2,
                    store(
                        "C.local",
                        "i",
                        add(
                            load("C.local", "i"),
                            mul(
                                load("A.shared", "2*(t // 5) + i, k1"),
                                load("B", "3*k0 + k1, 5*b + t % 5"),
                            ),
                        ),
                    ),
                    kind="unroll",
                ),
            ),
        ),
        loop(
            "i", 2, store("C", "2*(t // 5) + i, 5*b + t % 5", load("C.local", "i")), kind="unroll"
        ),
    )
    shared = [buffer("A.shared", rows, step, scope="shared")]
    params = [buffer("A", m, k), buffer("B", k, n), buffer("C", m, n)]
    return program(params, launch(tiles, 15 * width, *body, shared=shared))


def test_matmul_through_shared_memory():
    a, b = data(6, 9), data(9, 10, seed=1)
    np.testing.assert_allclose(run_simt(matmul(), a, b), a @ b, rtol=1e-5, atol=1e-5)


def test_several_loops_count_blocks_and_threads():
    """The outermost loop counts slowest: pairs of neighbours are joined along t1."""
    body = (
        Alloc(buffer("p", 1, scope="local")),
        store("p", "0", load("x", "b0, b1, t0, t1")),
        Join((load("p", "0"),), plain_combiner("add", FLOAT32), 3),
        store("y", "b0, b1, t0, t1", load("p", "0")),
    )
    nest = loop("t0", 4, loop("t1", 3, *body, kind="threadIdx.x"), kind="threadIdx.x")
    nest = loop("b0", 2, loop("b1", 5, nest, kind="blockIdx.x"), kind="blockIdx.x")
    func = program([buffer("x", 2, 5, 4, 3), buffer("y", 2, 5, 4, 3)], nest)
    x = data(2, 5, 4, 3)
    want = np.broadcast_to(x.sum(axis=3, keepdims=True), x.shape)
    np.testing.assert_allclose(run_simt(func, x), want, rtol=1e-5, atol=1e-6)


def test_a_later_launch_sees_what_an_earlier_one_wrote():
    scratch = buffer("s", 12)
    func = program(
        [buffer("x", 12), buffer("y", 12)],
        launch(3, 4, store("s", "4*b + t", add(load("x", "4*b + t"), number(1.0)))),
        launch(2, 6, store("y", "6*b + t", load("s", "11 - 6*b - t"))),
        scratch=[scratch],
    )
    x = data(12)
    np.testing.assert_array_equal(run_simt(func, x), (x + 1)[::-1])


def test_a_block_sees_its_own_global_writes_after_a_sync():
    func = program(
        [buffer("x", 8), buffer("y", 8)],
        launch(
            2,
            4,
            store("s", "4*b + t", load("x", "4*b + t")),
            WIDE_SYNC,
            store("y", "4*b + t", load("s", "4*b + 3 - t")),
        ),
        scratch=[buffer("s", 8)],
    )
    x = data(8)
    np.testing.assert_array_equal(run_simt(func, x), x.reshape(2, 4)[:, ::-1].ravel())


def test_a_barrier_of_shared_memory_does_not_order_global_memory():
    """As in OpenCL, whose barriers name the memory."""
    func = program(
        [buffer("x", 4), buffer("y", 4)],
        launch(
            1,
            4,
            store("s", "t", load("x", "t")),
            SYNC,
            store("y", "t", load("s", "3 - t")),
        ),
        scratch=[buffer("s", 4)],
    )
    fails(func, r"race: s\[\d\] is written by thread", data(4))


def test_many_blocks_run_in_chunks(monkeypatch):
    monkeypatch.setattr("tilesmith.ir.simt._LANES", 8)
    test_a_block_sees_its_own_global_writes_after_a_sync()
    test_matmul_through_shared_memory()
    test_elementwise_with_a_guard_on_an_odd_extent()


def test_one_iteration_after_the_other_gives_the_same(monkeypatch):
    a, b = data(6, 9), data(9, 10, seed=1)
    want = run_simt(matmul(), a, b)
    monkeypatch.setattr("tilesmith.ir.simt._POINTS", 0)
    np.testing.assert_array_equal(run_simt(matmul(), a, b), want)


def test_a_select_reads_the_side_that_is_taken_only():
    inside = Binary("ge", IntValue(parse_int("t - 1"), INT32), number(0, INT32), dtype("bool"))
    value = Select(inside, load("x", "t - 1"), number(0.0), FLOAT32)
    func = program([buffer("x", 4), buffer("y", 4)], launch(1, 4, store("y", "t", value)))
    x = data(4)
    np.testing.assert_array_equal(run_simt(func, x), [0, *x[:3]])


def test_a_store_of_two_values_computes_both_first():
    swap = Store(
        (
            Write("p", at("0"), load("p", "1")),
            Write("p", at("1"), load("p", "0")),
        )
    )
    func = program(
        [buffer("x", 6), buffer("y", 6)],
        launch(
            1,
            3,
            Alloc(buffer("p", 2, scope="local")),
            loop("i", 2, store("p", "i", load("x", "2*t + i"))),
            swap,
            loop("i", 2, store("y", "2*t + i", load("p", "i"))),
        ),
    )
    x = data(6)
    np.testing.assert_array_equal(run_simt(func, x), x.reshape(3, 2)[:, ::-1].ravel())


def test_iterations_that_depend_on_each_other_run_in_order():
    """A running sum, a shift to the left, and an element that every iteration overwrites."""
    params = [buffer("x", 4, 5), buffer("y", 4, 5), buffer("z", 4)]
    func = program(
        params,
        launch(
            2,
            2,
            Alloc(buffer("p", 6, scope="local")),
            Alloc(buffer("q", scope="local")),
            store("p", "0", number(0.0)),
            loop("i", 5, store("p", "i + 1", add(load("p", "i"), load("x", "2*b + t, i")))),
            loop("i", 5, store("p", "i", load("p", "i + 1"))),
            loop("i", 5, when("3 - i", store("q", "", load("p", "i")))),
            loop("i", 5, store("y", "2*b + t, i", load("p", "i"))),
            store("z", "2*b + t", load("q", "")),
        ),
        outputs=2,
    )
    x = data(4, 5)
    y, z = run_simt(func, x)
    np.testing.assert_allclose(y, np.cumsum(x, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(z, y[:, 3])


# joins
def joined(threads, extent, stride, combiner, values, kinds, blocks=2):
    """Each thread brings one element per value, and stores what it gets."""
    n = len(values)
    params = [buffer(f"x{k}", blocks, threads, kind=kinds[k]) for k in range(n)]
    params += [buffer(f"y{k}", blocks, threads, kind=kinds[k]) for k in range(n)]
    body = []
    for k in range(n):
        body.append(Alloc(buffer(f"p{k}", 1, scope="local", kind=kinds[k])))
        body.append(store(f"p{k}", "0", load(f"x{k}", "b, t", kinds[k])))
    held = tuple(load(f"p{k}", "0", kinds[k]) for k in range(n))
    body.append(Join(held, combiner, extent, stride))
    body += [store(f"y{k}", "b, t", held[k]) for k in range(n)]
    return run_simt(program(params, launch(blocks, threads, *body), outputs=n), *values)


def groups(threads, extent, stride):
    key = [(u // (stride * extent), u % stride) for u in range(threads)]
    return [[u for u in range(threads) if key[u] == key[t]] for t in range(threads)]


@pytest.mark.parametrize(
    ("threads", "extent", "stride"),
    [(8, 8, 1), (12, 4, 3), (15, 5, 1), (7, 4, 1), (14, 3, 4), (9, 1, 1), (30, 3, 5), (6, 16, 1)],
)
def test_join_by_a_sum_over_groups(threads, extent, stride):
    x = data(2, threads)
    got = joined(threads, extent, stride, plain_combiner("add", FLOAT32), [x], [FLOAT32])
    for t, members in enumerate(groups(threads, extent, stride)):
        np.testing.assert_allclose(got[:, t], x[:, members].sum(axis=1), rtol=1e-5, atol=1e-6)


def test_join_of_a_value_and_its_place():
    """argmax: the larger value, or of equal ones the smaller index."""
    x0, y0 = Arg("x0", FLOAT32), Arg("y0", FLOAT32)
    x1, y1 = Arg("x1", INT32), Arg("y1", INT32)
    boolean = dtype("bool")
    larger = Binary("gt", x0, y0, boolean)
    first = Binary("and", Binary("eq", x0, y0, boolean), Binary("lt", x1, y1, boolean), boolean)
    left = Binary("or", larger, first, boolean)
    combiner = Combiner(
        (Select(left, x0, y0, FLOAT32), Select(left, x1, y1, INT32)),
        (Const(float("-inf"), FLOAT32), Const(0, INT32)),
    )
    x = np.random.default_rng(0).integers(0, 4, (2, 21)).astype(np.float32)
    place = np.broadcast_to(np.arange(21, dtype=np.int32), x.shape)
    best, index = joined(21, 7, 3, combiner, [x, place], [FLOAT32, INT32])
    for t, members in enumerate(groups(21, 7, 3)):
        np.testing.assert_array_equal(best[:, t], x[:, members].max(axis=1))
        np.testing.assert_array_equal(index[:, t], np.array(members)[x[:, members].argmax(axis=1)])


def test_join_of_online_softmax():
    """The maximum, and the sum of exponentials relative to it."""
    x0, x1, y0, y1 = (Arg(n, FLOAT32) for n in ("x0", "x1", "y0", "y1"))
    top = Binary("max", x0, y0, FLOAT32)

    def scaled(s, m):
        return mul(s, Unary("exp", Binary("sub", m, top, FLOAT32), FLOAT32))

    combiner = Combiner(
        (top, add(scaled(x1, x0), scaled(y1, y0))),
        (Const(float("-inf"), FLOAT32), Const(0.0, FLOAT32)),
    )
    x = data(2, 11)
    m, s = joined(11, 11, 1, combiner, [x, np.ones_like(x)], [FLOAT32, FLOAT32])
    np.testing.assert_array_equal(m, np.broadcast_to(x.max(axis=1, keepdims=True), x.shape))
    want = np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(s, np.broadcast_to(want, x.shape), rtol=1e-5)


def test_joins_in_an_unrolled_loop():
    func = program(
        [buffer("x", 3, 4), buffer("y", 3)],
        launch(
            1,
            4,
            Alloc(buffer("p", 3, scope="local")),
            loop("i", 3, store("p", "i", load("x", "i, t")), kind="unroll"),
            loop("i", 3, Join((load("p", "i"),), plain_combiner("max", FLOAT32), 4), kind="unroll"),
            when("-t", loop("i", 3, store("y", "i", load("p", "i")))),
        ),
    )
    x = data(3, 4)
    np.testing.assert_array_equal(run_simt(func, x), x.max(axis=1))


def test_arithmetic_wraps_and_converts_as_everywhere():
    wide = dtype("int64")
    value = Cast(Binary("add", load("x", "t", wide), number(200, wide), wide), dtype("uint8"))
    params = [buffer("x", 5, kind=wide), buffer("y", 5, kind=dtype("uint8"))]
    func = program(params, launch(1, 5, store("y", "t", value)))
    x = np.array([0, 55, 56, 100, -201])
    np.testing.assert_array_equal(run_simt(func, x), (x + 200).astype(np.uint8))


# planted faults
def fails(func, match, *arrays, error=ts.VerifyError):
    with pytest.raises(error, match=match):
        run_simt(func, *arrays)


@pytest.mark.parametrize("missing", [0, 1])
def test_each_sync_of_the_matmul_is_needed(missing):
    func = matmul(sync=(missing != 0, missing != 1))
    fails(
        func,
        r"race: A\.shared\[\d, \d\] is (written|read) by thread \d+ of block \d in `.*` and "
        r"(written|read) by thread \d+ of block \d in `.*`, without a Sync",
        data(6, 9),
        data(9, 10),
    )


def test_write_and_write_of_the_same_value_is_a_race():
    func = program([buffer("y", 1)], launch(1, 4, store("y", "0", number(1.0))))
    fails(
        func,
        r"race: y\[0\] is written by thread \d of block 0 in `y\[0\] = 1.0` and written by thread",
    )


def test_write_after_a_read_by_another_thread_is_a_race():
    shared = [buffer("s", 4, scope="shared")]
    func = program(
        [buffer("x", 4), buffer("y", 4)],
        launch(
            1,
            4,
            store("s", "t", load("x", "t")),
            SYNC,
            store("y", "t", load("s", "3 - t")),
            store("s", "t", number(0.0)),
            shared=shared,
        ),
    )
    fails(
        func,
        r"race: s\[\d\] is read by thread \d of block 0 in `y\[t\] = s\[-t \+ 3\]` and "
        r"written by thread \d of block 0 in `s\[t\] = 0.0`",
        data(4),
    )
    own = program(
        [buffer("x", 4), buffer("y", 4)],
        launch(
            1,
            4,
            store("s", "t", load("x", "t")),
            store("y", "t", load("s", "t")),
            store("s", "t", number(0.0)),
            shared=shared,
        ),
    )
    run_simt(own, data(4))


def test_a_race_between_blocks_is_not_cured_by_a_sync():
    func = program(
        [buffer("x", 8), buffer("y", 8)],
        launch(
            2,
            4,
            store("s", "4*b + t", load("x", "4*b + t")),
            WIDE_SYNC,
            store("y", "4*b + t", load("s", "7 - 4*b - t")),
        ),
        scratch=[buffer("s", 8)],
    )
    text = (
        r"race: s\[\d\] is written by thread \d of block \d .* and read by thread .*, in one launch"
    )
    fails(func, text, data(8))


def test_a_race_between_blocks_of_different_chunks(monkeypatch):
    monkeypatch.setattr("tilesmith.ir.simt._LANES", 1)
    func = program([buffer("y", 1)], launch(2, 1, store("y", "0", number(1.0))))
    fails(func, r"y\[0\] is written by thread 0 of block 0 .* written by thread 0 of block 1")


def test_accesses_outside_of_a_buffer():
    read = program(
        [buffer("x", 4), buffer("y", 4)], launch(1, 4, store("y", "t", load("x", "t + 1")))
    )
    fails(
        read,
        r"x is read at index t \+ 1 = 4 in dimension 0, which has 4 .* thread 3 of block 0",
        data(4),
    )
    write = program([buffer("y", 2, 3)], launch(2, 4, store("y", "b, t", number(0.0))))
    fails(write, r"y is written at index t = 3 in dimension 1, which has 3 elements")
    # a guard of the wrong size lets one thread through
    func = program(
        [buffer("x", 5), buffer("y", 5)],
        launch(2, 3, when("5 - 3*b - t", store("y", "3*b + t", load("x", "3*b + t")))),
    )
    fails(func, r"x is read at index 3\*b \+ t = 5 .* by thread 2 of block 1", data(5))


def test_an_index_from_a_tensor_is_the_callers():
    ids = load("ids", "t", INT32)
    index = (as_index(ids),)
    func = program(
        [buffer("ids", 3, kind=INT32), buffer("x", 4), buffer("y", 3)],
        launch(1, 3, store("y", "t", Load("x", index, FLOAT32))),
    )
    x = data(4)
    np.testing.assert_array_equal(run_simt(func, np.array([3, 0, 3]), x), x[[3, 0, 3]])
    fails(
        func,
        r"x is read at index .* = 4 .* thread 1",
        np.array([0, 4, 1]),
        x,
        error=ts.ArgumentError,
    )


@pytest.mark.parametrize("scope", ["local", "shared", "global"])
def test_reads_of_what_nobody_wrote(scope):
    held = buffer("s", 4, scope=scope)
    body = (when("2 - t", store("s", "t", number(1.0))), SYNC, store("y", "t", load("s", "t")))
    func = program(
        [buffer("y", 4)],
        launch(
            1,
            4,
            *((Alloc(held),) if scope == "local" else ()),
            *body,
            shared=[held] if scope == "shared" else [],
        ),
        scratch=[held] if scope == "global" else [],
    )
    fails(func, r"s\[3\] is read by thread 3 of block 0 in `y\[t\] = s\[t\]`, but nobody wrote it")


def test_shared_memory_starts_anew_in_each_block_and_launch():
    shared = [buffer("s", 4, scope="shared")]
    one = launch(
        2,
        4,
        when("-b", store("s", "t", number(1.0))),
        SYNC,
        store("y", "b, t", load("s", "t")),
        shared=shared,
    )
    fails(
        program([buffer("y", 2, 4)], one), r"s\[0\] is read by thread 0 of block 1 .* nobody wrote"
    )


def test_a_buffer_allocated_in_a_loop_starts_anew():
    body = (
        Alloc(buffer("p", 1, scope="local")),
        when("-i", store("p", "0", number(1.0))),
        store("y", "i, t", load("p", "0")),
    )
    fails(
        program([buffer("y", 2, 4)], launch(1, 4, loop("i", 2, *body))), r"p\[0\] .* nobody wrote"
    )


def test_an_output_that_is_not_filled():
    func = program([buffer("y", 5)], launch(1, 4, store("y", "t", number(0.0))))
    fails(func, r"y\[4\] is an element of an output, but nobody wrote it")


def test_divergent_syncs_and_joins():
    waits = launch(1, 4, when("2 - t", SYNC), store("y", "t", number(0.0)))
    func = Function("f", (buffer("y", 4),), 1, (), (waits,))
    fails(func, r"divergent `sync shared`: thread 0 of block 0 reaches it, thread 3 does not")
    with pytest.raises(ts.VerifyError, match=r"divergent `sync shared`: .* the condition -t \+ 2"):
        verify(func)
    add_all = Join((load("p", "0"),), plain_combiner("add", FLOAT32), 4)
    body = (Alloc(buffer("p", 1, scope="local")), store("p", "0", number(1.0)))
    joins = launch(1, 4, *body, when("t - 1", add_all), store("y", "t", load("p", "0")))
    func = Function("f", (buffer("y", 4),), 1, (), (joins,))
    fails(
        func,
        r"divergent `join p\[0\] by add over 4 threads`: thread 1 of block 0 .* thread 0 does not",
    )
    with pytest.raises(ts.VerifyError, match=r"divergent `join p\[0\]"):
        verify(func)
    inner = when("2 - t", loop("k", 2, when("-b", SYNC)))
    with pytest.raises(ts.VerifyError, match="divergent"):  # also further inside
        program([buffer("y", 4)], launch(1, 4, inner, store("y", "t", number(0.0))))
    always = when("3 - t", SYNC)  # all threads are below 4
    program([buffer("y", 4)], launch(1, 4, always, store("y", "t", number(0.0))))


def test_a_condition_on_the_block_is_uniform():
    shared = [buffer("s", 4, scope="shared")]
    body = (
        store("s", "t", load("x", "b, t")),
        when("-b", SYNC, store("y", "b, t", load("s", "3 - t"))),
        when("b - 1", store("y", "b, t", load("s", "t"))),
    )
    func = program([buffer("x", 2, 4), buffer("y", 2, 4)], launch(2, 4, *body, shared=shared))
    x = data(2, 4)
    np.testing.assert_array_equal(run_simt(func, x), [x[0, ::-1], x[1]])


def test_a_block_that_does_not_wait_keeps_its_trail():
    shared = [buffer("s", 4, scope="shared")]
    body = (
        store("s", "t", load("x", "b, t")),
        when("-b", SYNC),
        store("y", "b, t", load("s", "3 - t")),
    )
    func = program([buffer("x", 2, 4), buffer("y", 2, 4)], launch(2, 4, *body, shared=shared))
    fails(
        func,
        r"race: s\[\d\] is written by thread \d of block 1 .* read by thread \d of block 1",
        data(2, 4),
    )


def test_a_join_of_what_a_thread_did_not_write():
    body = (
        Alloc(buffer("p", 1, scope="local")),
        when("2 - t", store("p", "0", number(1.0))),
        Join((load("p", "0"),), plain_combiner("add", FLOAT32), 4),
        store("y", "t", load("p", "0")),
    )
    fails(
        program([buffer("y", 4)], launch(1, 4, *body)),
        r"p\[0\] is read by thread 3 of block 0 in `join",
    )


def test_buffers_belong_to_their_owner():
    def run(*body, shared=(), scratch=()):
        return program([buffer("y", 4)], launch(1, 4, *body, shared=shared), scratch=scratch)

    fill, copy = store("s", "t", number(0.0)), store("y", "t", load("s", "t"))
    fails(
        run(fill, copy, shared=[buffer("s", 4, scope="local")]),
        r"`s = local float32\[4\]` stands between blocks and threads",
    )
    fails(
        run(Alloc(buffer("s", 4, scope="shared")), fill, copy),
        r"s is shared, but each thread allocates it",
    )
    fails(
        run(fill, copy, scratch=[buffer("s", 4, scope="shared")]),
        r"s is shared, but allocated outside of the blocks",
    )
    # used after the statements its Alloc stands in; verify() would say so as well
    inner = when("3 - t", Alloc(buffer("s", 4, scope="local")), fill)
    func = Function("f", (buffer("y", 4),), 1, (), (launch(1, 4, inner, copy),))
    fails(
        func, r"s is used in `y\[t\] = s\[t\]`, outside of the statements that its Alloc stands in"
    )


def test_what_is_not_in_launch_form():
    x = ts.placeholder((4,), name="x")
    func = ts.function([x, ts.compute((4,), lambda i: x[i] + 1.0, name="y")])
    fails(func, "is not in launch form", data(4))
    inner = loop("u", 2, store("y", "2*t + u", number(0.0)), kind="threadIdx.x")
    deep = program([buffer("y", 4)], launch(1, 2, SYNC, inner))
    fails(deep, "loop u of kind threadIdx.x lies inside the threads")
    good = program([buffer("x", 4), buffer("y", 4)], launch(1, 4, store("y", "t", load("x", "t"))))
    fails(good, r"takes 1 arrays \(x\), got 0", error=ts.ArgumentError)
    fails(good, r"x has shape \[3\], f wants", data(3), error=ts.ArgumentError)


def test_every_statement_of_the_matmul_counts():
    """Removing any one store is found: as a read of what nobody wrote, or as a missing output."""
    func = matmul()
    stores = [s for s in statements(func.body) if isinstance(s, Store)]
    for gone in stores:
        body = rewrite(func.body, lambda s, gone=gone: () if s is gone else (s,))
        if gone.writes[0].buffer == "C.local" and gone.writes[0].accumulates:
            continue  # C.local stays 0: a wrong answer, but nothing unsafe
        fails(replace(func, body=body), "nobody wrote it", data(6, 9), data(9, 10))
