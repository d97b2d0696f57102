"""Chains of reductions over the same rows, such as attention: which ones are found, and that what
is computed tile of rows by tile of rows is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close, assert_same_meaning
from tests.support.programs import random_inputs
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import walk
from tilesmith.schedule.location import ComputeAt
from tilesmith.space import analysis
from tilesmith.space.chains import Chain, chain_of
from tilesmith.space.spaces import SketchSpace, structured
from tilesmith.space.variant import lower

N1 = ts.Target.named("neoverse-n1").with_cores(1)
A100 = ts.Target.named("nvidia-a100")


def attention(
    queries: int = 17, keys: int = 33, depth: int = 20, heads: int = 2, *, batch: int = 0,
    scale: bool = True, mask: str = "", dtype: str = "float32", turned: bool = False,
    residual: bool = False, values: int = 0,
) -> Function:  # fmt: skip
    """`turned`: heads are behind the tokens. `mask`: "add", "where" or "causal"."""
    front = (batch, heads) if batch else (heads,)

    def given(name: str, rows: int, width: int) -> tuple[Any, Any]:
        if not turned:
            x = ts.placeholder((*front, rows, width), dtype, name=name)
            return x, x
        x = ts.placeholder((rows, heads, width), dtype, name=name)
        return x, ts.ops.transpose(x, (1, 0, 2))

    (q, qs), (k, ks), (v, vs) = (
        given("Q", queries, depth), given("K", keys, depth), given("V", keys, values or depth)
    )  # fmt: skip
    params = [q, k, v]
    wide = {"out_dtype": "float32"} if dtype != "float32" else {}
    s = ts.ops.batch_matmul(qs, ks, transpose_b=True, name="S", **wide)
    if scale:
        s = ts.compute(s.shape, lambda *i: s[i] * 0.37, name="scaled")
    if mask in ("add", "where"):
        m = ts.placeholder((queries, keys), "float32" if mask == "add" else "bool", name="M")
        params.append(m)
        plain = s

        def masked(*i: Any) -> Any:
            seen = m[i[-2:]]
            return plain[i] + seen if mask == "add" else ts.where(seen, plain[i], -1e9)

        s = ts.compute(s.shape, masked, name="masked")
    if mask == "causal":
        every = s
        s = ts.compute(
            s.shape, lambda *i: ts.where(i[-1] <= i[-2], every[i], float("-inf")), name="masked"
        )
    p = ts.ops.softmax(s, name="P")
    if dtype != "float32":
        soft = p
        p = ts.compute(p.shape, lambda *i: ts.cast(soft[i], dtype), name="narrow")
    y = ts.ops.batch_matmul(p, vs, name="Y")
    if residual:
        r = ts.placeholder(y.shape, dtype, name="R")
        params.append(r)
        o = y
        y = ts.compute(y.shape, lambda *i: ts.maximum(o[i] + r[i], 0), name="out")
    return ts.function([*params, y], name="attention")


def product_then(operator: Callable[[Any], Any], *, held: bool = False, m: int = 19) -> Function:
    a, b = ts.placeholder((m, 24), name="A"), ts.placeholder((24, 37), name="B")
    c = operator(ts.ops.matmul(a, b, name="C"))
    return ts.function([a, b, c], name="product", constants=[b] if held else [])


def normed(x: Any) -> Any:
    ones = [ts.placeholder((37,), name=n) for n in "GH"]
    return ts.ops.layer_norm(x, *ones), ones


def norm(held: bool = False) -> Function:
    a, b = ts.placeholder((19, 24), name="A"), ts.placeholder((24, 37), name="B")
    y, ones = normed(ts.ops.matmul(a, b, name="C"))
    return ts.function([a, b, *ones, y], name="norm", constants=[b] if held else [])


def two_products(rows: int = 41, width: int = 12) -> Function:
    a = ts.placeholder((rows, 16), name="A")
    b, c = ts.placeholder((16, width), name="B"), ts.placeholder((width, 20), name="C")
    y = ts.ops.matmul(ts.ops.relu(ts.ops.matmul(a, b, name="X")), c, name="Y")
    return ts.function([a, b, c, y], name="two_products")


def found(func: Function) -> Chain | None:
    (last,) = [b for _, b in walk(func.body) if analysis.is_output(func, b)]
    return chain_of(func, last)


def fused(func: Function, target: ts.Target = N1) -> list[ts.Trace]:
    """Sketches in which a product is computed within the loops of another block."""
    chain = found(func)
    products = {b.name for b in chain.products} if chain is not None else set()
    return [
        t
        for t in SketchSpace().derive(ts.Task(func, target)).traces
        if any(isinstance(s, ComputeAt) and s.block in products for s in t)
    ]


FUNCTIONS = {
    "plain": attention(scale=False),
    "batches": attention(9, 13, 8, 3, batch=2, mask="add"),
    "where": attention(mask="where", values=11),
    "causal": attention(21, 21, mask="causal"),
    "turned": attention(turned=True),
    "residual": attention(residual=True),
    "float16": attention(dtype="float16"),
    "bfloat16": attention(dtype="bfloat16", mask="add"),
    "softmax": product_then(ts.ops.softmax),
    "held": product_then(ts.ops.softmax, held=True),
    "norm": norm(),
    "long rows": product_then(ts.ops.softmax, m=70),
    "two products": two_products(30000),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_chains_are_found(name: str) -> None:
    func = FUNCTIONS[name]
    sketches = fused(func)
    assert sketches
    assert all(lower(ts.Task(func, N1), s) for t in sketches for s in [next(structured(t))])


def test_rows_and_batches() -> None:
    chain = found(attention(batch=2, turned=False))
    assert chain is not None
    assert (chain.rows["Y"], chain.outer["Y"]) == ("i", ("b0", "b1"))
    assert [b.name for b in chain.products] == ["S"]
    turned = found(attention(residual=True))
    assert turned is not None
    assert [b.name for b in turned.products] == ["S", "Y"]


def test_what_is_no_chain() -> None:
    a, b, c = (ts.placeholder((16, 16), name=n) for n in "ABC")
    product = ts.ops.matmul(a, b, name="X")
    assert found(ts.function([a, b, ts.ops.relu(product)])) is None  # element for element
    columns = ts.ops.softmax(ts.ops.transpose(product, (1, 0)))
    across = ts.ops.matmul(c, product, name="Y")  # each row needs all rows
    for func in (ts.function([a, b, columns]), ts.function([a, b, c, across])):
        assert not fused(func)
    both = ts.function([a, b, product, ts.ops.softmax(product)])  # scores are wanted themselves
    last = list(walk(both.body))[-1][1]
    assert chain_of(both, last) is None
    assert not fused(two_products())  # its result stays in the cache anyway
    assert not fused(attention(), A100)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "two products"])
def test_candidates_match_the_oracle(name: str) -> None:
    func = FUNCTIONS[name]
    task = ts.Task(func, ts.cpu(1 + len(name) % 2))
    rng = np.random.default_rng([*map(ord, name)])
    arrays = random_inputs(func, rng)
    want = ts.evaluate(func, *arrays)
    for sketch in fused(func, task.target):
        choices = list(structured(sketch))
        v = lower(task, choices[rng.integers(len(choices))])
        (row,) = v.mutate(rng, v.sample(rng, 1))
        scheduled, decided = v.function(row), v.decided(row)
        assert scheduled == decided.apply(func), f"{decided}"
        kernel = ts.build(scheduled, task.target)
        given = [
            kernel.pack(p.name, x) if p.scope == "constant" else x
            for p, x in zip(func.inputs, arrays, strict=True)
        ]
        assert_close(kernel(*given), want, f"{decided}", func)


def test_every_element_is_computed_before_it_is_read() -> None:
    """Nothing is read out of bounds, or from another tile of rows."""
    rng = np.random.default_rng(3)
    func = attention(5, 6, 3, 2, mask="add")
    for cores in (1, 2):
        task = ts.Task(func, N1.with_cores(cores))
        for sketch in fused(func, task.target)[:2]:
            v = lower(task, list(structured(sketch))[-1])
            assert_same_meaning(func, v.function(v.sample(rng, 1)[0]))


def test_scores_do_not_go_through_memory() -> None:
    """What one call needs besides its arguments is that of a tile of rows, not of all of them."""
    func = attention(256, 256, 16, 4)
    task = ts.Task(func, ts.cpu(1))
    (sketch, *_) = fused(func, task.target)
    v = lower(task, next(structured(sketch)))
    rows = v.sample(np.random.default_rng(0), 256)
    tiles = [c for c, n in enumerate(v.columns) if n in ("#Y.i.1", "#Y.i.2")]
    few = next(r for r in rows if np.prod(r[tiles]) <= 32)
    kernel = ts.build(v.function(few), task.target)
    assert kernel.artifact.workspace_nbytes < 4 * 256 * 256 * 4 // 2
