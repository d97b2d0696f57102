"""Row operators on GPUs whose rows are computed while they are read: embeddings that are gathered,
a bias that every row gets. They are one launch, as those that read rows in memory.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import GpuCheck
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For
from tilesmith.space.spaces import variants

H200 = ts.Target.named("nvidia-h200")


def embeddings() -> Function:
    words = ts.placeholder((50, 40), name="words")
    tokens = ts.placeholder((1, 6), "int64", name="tokens")
    places, bias = ts.placeholder((6, 40), name="places"), ts.placeholder((40,), name="bias")
    x = ts.ops.add(ts.ops.add(ts.ops.gather(words, tokens, axis=0), places), bias)
    return ts.function([words, tokens, places, bias, ts.ops.layer_norm(x)], name="embeddings")


def biased_softmax() -> Function:
    x, bias = ts.placeholder((5, 70), name="X"), ts.placeholder((70,), name="bias")
    return ts.function([x, bias, ts.ops.softmax(ts.ops.add(x, bias))], name="biased")


@pytest.mark.parametrize("func", [embeddings(), biased_softmax()], ids=["embeddings", "softmax"])
def test_one_launch_computes_rows_as_it_reads_them(func: Function) -> None:
    task = ts.Task(func, H200)
    check = GpuCheck(func, H200)
    (sketch,) = ts.SketchSpace().sketches(task)
    for variant in variants(task, sketch):
        for row in variant.sample(np.random.default_rng(0), 3):
            lowered = check.run(variant.function(row))
            assert sum(isinstance(s, For) for s in lowered.body) == 1


def test_a_product_with_one_vector_is_no_row_operator() -> None:
    x, w = ts.placeholder((64,), name="x"), ts.placeholder((96, 64), name="W")
    func = ts.function([x, w, ts.ops.dense(x, w)], name="gemv")
    assert len(ts.SketchSpace().sketches(ts.Task(func, H200))) > 1
