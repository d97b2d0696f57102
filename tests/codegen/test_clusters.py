"""Sums whose parts the blocks of a cluster compute and join through one another's shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tests.support.thorough import drawn
from tilesmith.base.errors import BuildError, VerifyError
from tilesmith.cli.operators import operator
from tilesmith.codegen.c.backends import emit_launches
from tilesmith.codegen.c.dialect import CUDA, OPENCL
from tilesmith.codegen.pipeline import GPU_PASSES, lower
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.nodes import Stmt, Sync, rewrite, statements
from tilesmith.space.spaces import SketchSpace, variants

H200 = ts.Target.named("nvidia-h200")
CASES = {
    "matmul": (24, 16, 512), "conv2d": (3, 32, 6, 3, 1, 1), "conv2d-bn-relu": (4, 16, 8, 3, 1, 1),
    "group-conv2d": (4, 32, 8, 3, 1, 1, 2),
}  # fmt: skip


def in_clusters(name: str) -> list[ts.Variant]:
    task = ts.Task(operator(name, CASES[name]), H200)
    found = [v for s in SketchSpace().sketches(task) for v in variants(task, s)]
    return [v for v in found if "cluster" in str(v.func)]


def a_program(count: int) -> tuple[ts.Variant, ts.Function]:
    """A product of which so many blocks compute parts."""
    v = in_clusters("matmul")[0]
    rows = v.sample(np.random.default_rng(0), 200)
    row = next(r for r in rows if r[list(v.columns).index("#C.local.k.0")] == count)
    return v, lower(v.function(row), H200, GPU_PASSES)


@pytest.mark.parametrize("name", CASES)
def test_they_mean_the_same(name: str) -> None:
    rng = np.random.default_rng(0)
    found = in_clusters(name)
    assert found
    sizes = set()
    for v in found:
        given = random_inputs(v.task.func, rng)
        want = evaluate(v.task.func, *given)
        for row in v.sample(rng, drawn(2, 4)):
            program = lower(v.function(row), H200, GPU_PASSES)
            assert_close(ts.run_simt(program, *given), want, "", v.task.func)
            text = emit_launches(program, CUDA).source
            sizes |= {n for n in (2, 4) if f"__cluster_dims__({n}, 1, 1)" in text}
    assert sizes if name != "matmul" else len(sizes) > 1


@pytest.mark.parametrize("count", [2, 4])
def test_a_missing_barrier_is_found(count: int) -> None:
    """Without the first one, parts are read that may not be there yet."""
    v, program = a_program(count)
    given = random_inputs(v.task.func, np.random.default_rng(0))
    ts.run_simt(program, *given)
    for scope in ("shared", None):
        syncs = [s for s in statements(program.body) if s == Sync("cluster")]
        assert len(syncs) == 2

        def weaker(s: Stmt, scope: str | None = scope) -> tuple[Stmt, ...]:
            if s != Sync("cluster"):
                return (s,)
            return () if scope is None else (Sync(scope),)

        with pytest.raises(VerifyError, match="race"):
            ts.run_simt(replace(program, body=rewrite(program.body, weaker)), *given)


def test_each_block_writes_a_share_of_the_results() -> None:
    _, program = a_program(2)
    text = emit_launches(program, CUDA).source
    assert "mapa" in text
    assert "if (" not in text.rpartition("barrier.cluster")[0].rpartition("barrier.cluster")[2]


def test_opencl_has_none() -> None:
    _, program = a_program(2)
    with pytest.raises(BuildError, match="clusters of blocks, which opencl does not have"):
        emit_launches(program, OPENCL)


def test_other_targets_have_none() -> None:
    task = ts.Task(operator("matmul", CASES["matmul"]), replace(H200, arch="sm_80"))
    assert not any("cluster" in str(s) for s in SketchSpace().sketches(task))
