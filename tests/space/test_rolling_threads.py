"""Attention on GPUs without matrix instructions: sketches of the rule in the SIMT interpreter
against the oracle, on PoCL, and what compiles of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.schedule.test_roll import attention, window
from tests.space.test_few_rows import arrays_of, capped, first_keys, stated
from tests.support.gpu_programs import launch_form
from tests.support.meaning import assert_close
from tests.support.thorough import TURN, drawn
from tilesmith.ir.nodes import If, Sync, statements
from tilesmith.ir.simt import run_simt
from tilesmith.schedule.roll import Roll
from tilesmith.schedule.trace import Trace
from tilesmith.space.derive import State
from tilesmith.space.rolling_threads import RollByThreads
from tilesmith.space.sets import Where, default_rules
from tilesmith.space.spaces import SketchSpace
from tilesmith.space.variant import lower

H200 = ts.Target.named("nvidia-h200")
OLD = replace(H200, arch="sm_75", cpu="sm_75")  # no matrix instructions that are used


def causal(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return ts.where(j <= i, s, float("-inf"))


def with_bias(queries: int, keys: int) -> ts.Function:
    """A bias of each score, and documents that see themselves alone."""
    shapes = ((1, 2, queries, 32), (1, 2, keys, 32), (1, 2, keys, 48))
    q, k, v = (ts.placeholder(s, name=n) for s, n in zip(shapes, "QKV", strict=True))
    bias = ts.placeholder((2, queries, keys), name="bias")

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return ts.where(i // 30 == j // 30, s + bias[h, i, j], float("-inf"))

    return ts.function([q, k, v, bias, ts.ops.attention(q, k, v, score=score)])


def arrays(func: ts.Function) -> list[np.ndarray]:
    """Scores that grow from key to key: every tile repairs what was summed before."""
    if len(func.inputs) == 3 and len(func.inputs[0].shape) == 4:
        return arrays_of(func)
    rng = np.random.default_rng(3)
    made = [rng.standard_normal([n.number for n in b.shape]) for b in func.inputs]
    return [a.astype(b.dtype.numpy) for a, b in zip(made, func.inputs, strict=True)]


FORMS = [(8, 64, 4, 8), (16, 64, 8, 4), (32, 128, 8, 2), (16, 128, 4, 4), (8, 128, 8, 4)]


def candidates(task: ts.Task, most: int) -> Iterator[ts.Function]:
    """Of some forms: threads along rows, threads, rows and keys of each."""
    rng = np.random.default_rng(TURN)
    start = State(task, task.func)
    for at in rng.permutation(len(FORMS))[:most].tolist():
        across, threads, rows, keys = FORMS[at]
        rule = RollByThreads((), (across,), (threads,), (rows,), (keys,))
        for state in rule.sketches(start):
            v = lower(task, Trace(state.steps))
            yield v.function(v.sample(rng, 4)[-1])


CASES = {
    "plain": (stated(2, 2, 64, 96, 64, "float32"), H200),
    "odd": (stated(1, 1, 70, 77, 36, "float32"), H200),
    "causal": (stated(1, 1, 100, 100, 32, "float32", causal), H200),
    "groups": (stated(4, 2, 40, 50, 64, "float32", capped), H200),
    "rows without a key": (stated(1, 1, 64, 150, 64, "float32", first_keys), H200),
    "window": (attention(70, 90, window, "float32", 20, 12), H200),
    "bias": (with_bias(65, 70), H200),
    "float16": (stated(1, 1, 64, 70, 64, "float16"), OLD),
    "bfloat16": (stated(1, 1, 40, 33, 32, "bfloat16", causal), OLD),
    "wide": (stated(1, 1, 32, 40, 128, "float32"), H200),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_candidates_match_the_oracle(name: str) -> None:
    func, target = CASES[name]
    given = arrays(func)
    want = ts.evaluate(func, *given)
    for made in candidates(ts.Task(func, target), drawn(1, 4)):
        lowered = launch_form(made, target)
        assert len(lowered.body) == 1  # one launch
        assert_close(run_simt(lowered, *given), want, f"{made}", func)


def test_infinite_scores_give_what_the_oracle_gives() -> None:
    func = stated(1, 1, 32, 80, 32, "float32")
    given = arrays(func)
    given[1][0, 0, 70] = np.inf
    assert np.isnan(ts.evaluate(func, *given)).all()
    made = next(candidates(ts.Task(func, H200), 5))
    assert np.isnan(run_simt(launch_form(made, H200), *given)).all()


def test_tiles_that_a_mask_leaves_out_are_skipped_with_all_their_copies() -> None:
    task = ts.Task(stated(1, 1, 256, 256, 32, "float32", causal), H200)
    lowered = launch_form(next(candidates(task, 5)), H200)
    guarded = [s for s in statements(lowered.body) if isinstance(s, If)]
    assert any(any(isinstance(t, Sync) for t in statements(s.body)) for s in guarded)


def test_scores_and_results_stay_in_registers() -> None:
    task = ts.Task(stated(4, 4, 128, 128, 64, "float32"), H200)
    for func in candidates(task, 1):
        scopes = {b.name: b.scope for b in func.buffers}
        assert scopes["attention_scores"] == "fragment"
        assert {n for n, s in scopes.items() if s == "shared"} == {
            "Q.shared", "K.shared", "V.shared", "attention_softmax_exp"
        }  # fmt: skip


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ["plain", "odd", "causal", "wide", "float16"])
def test_candidates_compile_with_hardly_a_spill(name: str) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    func, target = CASES[name]
    for made in candidates(ts.Task(func, target), drawn(1, 4)):
        (launch,) = ts.CudaBackend().compile(made, target).entries[0].launches
        assert launch.resources is not None
        assert launch.resources.spilled_nbytes <= 64, made


def test_what_it_takes() -> None:
    def takes(func: ts.Function, target: ts.Target = H200) -> bool:
        return (
            RollByThreads(across=(16, 32), threads=(128,))(State(ts.Task(func, target), func))
            is not None
        )

    assert takes(stated(2, 2, 64, 96, 64, "float32"))
    assert takes(stated(2, 2, 64, 96, 80, "float16"))
    assert not takes(stated(2, 2, 8, 96, 64, "float32"))  # few rows
    assert not takes(stated(1, 1, 64, 96, 1024, "float32"))  # more than a block can hold


def test_float32_is_rolled_by_default() -> None:
    task = ts.Task(stated(16, 16, 512, 512, 64, "float32"), H200)
    sketches = SketchSpace().sketches(task)
    assert len(sketches) >= 8
    assert all(any(isinstance(s, Roll) for s in x.steps) for x in sketches)


def test_several_launches_are_in_the_space_where_matrix_instructions_fit() -> None:
    """It ends a derivation elsewhere, and is there where they do not."""
    for dtype, target, accuracy, final in (
        ("float32", H200, None, True),
        ("float32", H200, 1e-3, False),
        ("float16", ts.Target.named("nvidia-a100"), None, False),
        ("float16", OLD, None, True),
    ):
        task = ts.Task(stated(8, 8, 128, 128, 64, dtype), target)
        rules = default_rules(target, accuracy)
        (rule,) = (
            r.rule for r in rules if isinstance(r, Where) and isinstance(r.rule, RollByThreads)
        )
        derived = replace(rule, across=(16,), threads=(128,))(State(task, task.func))
        assert derived is not None
        assert derived.final == final


def test_it_runs_by_opencl() -> None:
    try:
        target = ts.opencl()
    except ts.TilesmithError as e:
        pytest.skip(str(e))
    func = CASES["causal"][0]
    given = arrays(func)
    want = ts.evaluate(func, *given)
    made = next(candidates(ts.Task(func, target), 5))
    assert_close(ts.build(made, target)(*given), want, f"{made}", func)


@pytest.mark.turns(2)
@pytest.mark.parametrize("mask", ["causal", "which are seen", "added", "of one query"])
def test_a_model_computes_float32_attention_in_one_kernel(mask: str) -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, q, k, v, *given):  # type: ignore[no-untyped-def]
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, *given, is_causal=mask == "causal"
            )

    rows = 1 if mask == "of one query" else 50
    tensors = [torch.randn(1, 2, n, 32) for n in (rows, 50, 50)]
    masks = {"which are seen": [torch.rand(50, 50) > 0.3], "added": [torch.randn(1, 2, 50, 50)]}
    graph = ts.from_torch(Attention(), (*tensors, *masks.get(mask, [])))
    ((task, _),) = ts.extract_tasks(graph, H200)
    rng = np.random.default_rng(4)
    given = [
        rng.random([n.number for n in b.shape]) > 0.4
        if b.dtype.name == "bool"
        else rng.standard_normal([n.number for n in b.shape], np.float32)
        for b in task.func.inputs
    ]
    want = ts.evaluate(task.func, *given)
    sketch = SketchSpace().sketches(task)[0]
    v = lower(task, sketch)
    func = v.function(v.sample(rng, 1)[0])
    assert_close(run_simt(launch_form(func, H200), *given), want, f"{func}", task.func)
