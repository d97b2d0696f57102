"""Attention on tensor cores: sketches of the rule in the SIMT interpreter against the oracle, and
what compiles of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.schedule.test_roll import Score, attention, capped, causal, scaled, window
from tests.support.gpu_programs import launch_form
from tests.support.meaning import assert_close
from tests.support.thorough import drawn
from tilesmith.ir.nodes import If, Join, Store, statements
from tilesmith.ir.simt import run_simt
from tilesmith.schedule.roll import Roll
from tilesmith.space.rolling import is_rolled
from tilesmith.space.spaces import SketchSpace, variants

H200 = ts.Target.named("nvidia-h200")


def task_of(queries: int, keys: int, width: int, score: Score, dtype: str = "float16") -> ts.Task:
    return ts.Task(attention(queries, keys, score, dtype, width, width), H200)


def candidates(task: ts.Task, every: int = 1) -> Iterator[ts.Function]:
    rng = np.random.default_rng(5)
    for sketch in SketchSpace().sketches(task)[::every]:
        for v in variants(task, sketch):
            yield v.function(v.sample(rng, 1)[0])


def arrays_of(func: ts.Function) -> list[np.ndarray]:
    """Scores that grow from key to key: every tile repairs what was summed before."""
    rng = np.random.default_rng(3)
    q, k, v = ([n.number for n in b.shape] for b in func.inputs)
    growth = np.linspace(0.1, 1, k[1])[None, :, None]
    made = (np.abs(rng.standard_normal(q)) / 2, np.abs(rng.standard_normal(k)) * growth)
    made = (*made, rng.standard_normal(v))
    return [a.astype(b.dtype.numpy) for a, b in zip(made, func.inputs, strict=True)]


CASES = [
    (128, 128, 64, scaled, "float16"),  # whole tiles
    (70, 150, 128, scaled, "bfloat16"),
    (197, 197, 64, causal, "float16"),
    (130, 130, 80, causal, "float16"),  # columns that no instruction has
    (65, 300, 32, capped, "float16"),
    (200, 200, 64, window, "float16"),
]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("queries", "keys", "width", "score", "dtype"), CASES)
def test_candidates_match_the_oracle(
    queries: int, keys: int, width: int, score: Score, dtype: str
) -> None:
    task = task_of(queries, keys, width, score, dtype)
    arrays = arrays_of(task.func)
    want = ts.evaluate(task.func, *arrays)
    for func in candidates(task, every=drawn(22, 5)):
        assert_close(run_simt(launch_form(func, H200), *arrays), want, f"{func}", task.func)


@pytest.mark.turns(2)
@pytest.mark.parametrize(("queries", "keys", "width", "score", "dtype"), CASES[:4])
def test_candidates_compile_with_hardly_a_spill(
    queries: int, keys: int, width: int, score: Score, dtype: str
) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    task = task_of(queries, keys, width, score, dtype)
    for func in candidates(task, every=drawn(27, 9)):
        artifact = ts.CudaBackend().compile(func, H200)
        for launch in artifact.entries[0].launches:
            assert launch.resources is not None
            assert launch.resources.spilled_nbytes <= 128, func


def stated(
    heads: int, groups: int, queries: int, keys: int, size: int, values: int, score: Any = None
) -> ts.Function:
    shapes = ((1, heads, queries, size), (1, groups, keys, size), (1, groups, keys, values))
    q, k, v = (ts.placeholder(s, "float16", name=n) for s, n in zip(shapes, "QKV", strict=True))
    return ts.function([q, k, v, ts.ops.attention(q, k, v, score=score)])


def later(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """The first queries see no key, whatever the key is."""
    return ts.where((j < 70) & (i >= 3), s, float("-inf"))


def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s - ts.cast(ts.abs(i - j) * (h + 1), "float32") * 0.01


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    "func",
    [
        stated(2, 2, 64, 96, 64, 64),
        stated(4, 2, 70, 100, 64, 64, alibi),  # two heads share keys
        stated(1, 1, 64, 100, 64, 64, later),
        stated(1, 1, 64, 128, 192, 128),
        stated(1, 1, 64, 80, 64, 128),
    ],
    ids=["plain", "groups", "rows without a key", "192 and 128", "64 and 128"],
)
def test_the_operator_is_one_kernel_with_any_heads_and_widths(func: ts.Function) -> None:
    task = ts.Task(func, H200)
    assert is_rolled(func, H200)
    rng = np.random.default_rng(3)
    arrays = [
        rng.standard_normal([n.number for n in b.shape]).astype(b.dtype.numpy) for b in func.inputs
    ]
    want = ts.evaluate(func, *arrays)
    for made in list(candidates(task, every=13))[:2]:
        assert_close(run_simt(launch_form(made, H200), *arrays), want, f"{made}", func)


def test_the_space_holds_many_programs_and_each_decision() -> None:
    task = ts.Task(stated(16, 16, 2048, 2048, 64, 64), H200)
    rolls, notes, programs = set(), dict[str, set[int]](), 0
    rng = np.random.default_rng(0)
    for sketch in SketchSpace().sketches(task)[:8]:
        rolls |= {s.slack > 0 for s in sketch.steps if isinstance(s, Roll)}
        for v in variants(task, sketch):
            rows = np.unique(v.sample(rng, 200), axis=0)
            programs += len(rows)
            for column in ("pipeline", "resident", "turns"):
                found = [k for k, c in enumerate(v.columns) if c.endswith(f".{column}")]
                notes.setdefault(column, set()).update(rows[:, found].ravel().tolist())
    assert programs >= 200
    assert rolls == {False, True}
    assert notes["turns"] == {0, 1}
    assert len(notes["resident"]) == 2


@pytest.mark.usefixtures("quick_nvrtc")
def test_persistent_blocks_and_turns_of_groups_are_in_the_text_and_compile() -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    task = ts.Task(stated(80, 80, 256, 256, 64, 64, lambda s, b, h, i, j: causal(s, i, j)), H200)
    (v,) = variants(task, SketchSpace().sketches(task)[0])
    seen = set()
    for row in v.sample(np.random.default_rng(0), 30):
        chosen = {c.rpartition(".")[2]: n for c, n in zip(v.columns, row.tolist(), strict=True)}
        resident, turns = chosen["resident"], chosen["turns"]
        if (resident, turns) in seen:
            continue
        seen.add((resident, turns))
        artifact = ts.CudaBackend().compile(v.function(row), H200)
        (launch,) = artifact.entries[0].launches
        assert launch.grid == min(resident, 160)
        assert ("turn += stride" in artifact.source) == (resident < 160)
        assert ("bar.sync" in artifact.source) == bool(turns)
    assert len(seen) == 4


def test_every_sketch_rolls_and_nothing_as_large_as_the_scores_is_stored() -> None:
    task = task_of(256, 256, 64, scaled)
    sketches = SketchSpace().sketches(task)
    assert len(sketches) >= 4
    assert all(any(isinstance(s, Roll) for s in x.steps) for x in sketches)
    for func in candidates(task):
        scopes = {b.scope for b in func.buffers}
        assert scopes == {"fragment", "shared"}


def test_tiles_that_a_mask_leaves_out_are_skipped_and_whole_ones_are_not_masked() -> None:
    task = task_of(256, 256, 64, causal)
    for func in candidates(task, every=2):
        lowered = launch_form(func, H200)
        products = [
            s for s in statements(lowered.body) if isinstance(s, Store) and s.intrinsic is not None
        ]
        assert products
        guards = [
            s for s in statements(lowered.body)
            if isinstance(s, If) and any(t in products for t in statements(s.body))
        ]  # fmt: skip
        assert guards
        joins = sum(isinstance(s, Join) for s in statements(lowered.body))
        assert joins >= 3  # maxima of whole tiles and of cut ones, and the sum


def test_what_it_does_not_take() -> None:
    assert is_rolled(attention(64, 64, scaled, "float16", 64, 64), H200)
    assert not is_rolled(attention(1, 64, scaled, "float16", 64, 64), H200)  # few rows
    assert not is_rolled(attention(64, 64, scaled, "float32", 64, 64), H200)  # no instruction
    assert not is_rolled(attention(64, 64, scaled, "float16", 60, 60), H200)  # rows not aligned
    assert not is_rolled(attention(64, 64, scaled, "float16", 64, 64), ts.cpu(1))


@pytest.mark.turns(2)
@pytest.mark.parametrize("mask", ["causal", "which are seen", "added", "of keys"])
def test_a_model_computes_attention_in_one_kernel(mask: str) -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, q, k, v, *given):  # type: ignore[no-untyped-def]
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, *given, is_causal=not given
            )

    tensors = [torch.randn(1, 2, 70, 64, dtype=torch.float16) for _ in range(3)]
    seen = torch.rand(70, 70) > 0.3
    masks = {
        "causal": [],
        "which are seen": [seen],
        "added": [torch.randn(1, 2, 70, 70, dtype=torch.float16)],
        "of keys": [seen[:1][None, None]],
    }
    ((task, _),) = ts.extract_tasks(ts.from_torch(Attention(), (*tensors, *masks[mask])), H200)
    rng = np.random.default_rng(4)
    arrays = [
        rng.random([n.number for n in b.shape]) > 0.4
        if b.dtype.name == "bool"
        else rng.standard_normal([n.number for n in b.shape]).astype(b.dtype.numpy)
        for b in task.func.inputs
    ]
    want = ts.evaluate(task.func, *arrays)
    func = next(candidates(task))
    assert_close(run_simt(launch_form(func, H200), *arrays), want, f"{func}", task.func)
