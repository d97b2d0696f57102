"""Attention and its relatives: combinations that ONNX's own cases leave out, against PyTorch and
the onnx package's reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_node import feeds_of, model_of, ran, ran_all
from onnx.reference import ReferenceEvaluator

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.loop_form import MAX_STEPS
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

RNG = np.random.default_rng(11)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def qkv(heads: int = 4, groups: int = 2, queries: int = 3, keys: int = 5) -> dict[str, Any]:
    return {
        "q": normal(2, heads, queries, 8),
        "k": normal(2, groups, keys, 8),
        "v": normal(2, groups, keys, 6),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_attention_is_that_of_torch(causal: bool, groups: int) -> None:
    arrays = qkv(4, groups, 5, 5)
    got = ran(model_of("Attention", arrays, opset=23, is_causal=int(causal)), arrays)
    q, k, v = (torch.from_numpy(arrays[n]) for n in "qkv")
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=groups != 4
    )
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


def test_flex_attention_is_what_its_function_says() -> None:
    arrays = qkv(4, 4, 5, 5)
    model = model_of("FlexAttention", arrays, opset=1, domain="ai.onnx.preview")
    q, k, v = (torch.from_numpy(arrays[n]) for n in "qkv")
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    np.testing.assert_allclose(ran(model, arrays), want.numpy(), rtol=1e-5, atol=1e-6)


MASKS = [(5,), (3, 5), (1, 3, 5), (4, 1, 5), (2, 1, 3, 5), (3, 1)]


@pytest.mark.parametrize("kind", [bool, np.float32])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_of_every_rank(shape: tuple[int, ...], kind: Any) -> None:
    seen = RNG.random(shape) < 0.7
    mask = seen if kind is bool else np.where(seen, normal(*shape), -np.inf).astype(np.float32)
    arrays = {**qkv(), "mask": mask}
    model = model_of("Attention", arrays, opset=24, softcap=1.5, qk_matmul_output_mode=2,
                     outputs=("y", "", "", "s"))  # fmt: skip
    want = ReferenceEvaluator(model).run(None, feeds_of(model, arrays))
    got = ran_all(model, arrays)
    np.testing.assert_allclose(got["y"], want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["s"], want[-1], rtol=1e-5, atol=1e-6)


def test_heads_that_share_keys_are_rows_of_one_product() -> None:
    graph = load_onnx(model_of("Attention", qkv(4, 2), opset=23))
    assert isinstance(graph, Graph)
    products = [n for n in graph.nodes if n.op == "batch_matmul"]
    assert [graph.values[n.outputs[0]].shape for n in products] == [(4, 6, 5), (4, 6, 6)]
    assert "softmax" in [n.op for n in graph.nodes]


def test_an_infinite_score_under_a_mask_is_not_nan() -> None:
    arrays = {**qkv(1, 1, 2, 3), "mask": np.array([0, -np.inf, 0], np.float32)}
    arrays["k"][:, :, 1] = np.inf
    arrays["v"][:, :, 1] = 1e30
    assert np.abs(ran(model_of("Attention", arrays, opset=23), arrays)).max() < 10


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 2, 6])
def test_rotary_embedding_of_odd_sizes(interleaved: int, width: int) -> None:
    dim = 7 if width else 6
    half = (width or dim) // 2
    arrays = {
        "x": normal(2, 5, 3 * dim), "cos": normal(9, half), "sin": normal(9, half),
        "at": RNG.integers(0, 9, (2, 5)),
    }  # fmt: skip
    model = model_of("RotaryEmbedding", arrays, opset=23, num_heads=3, interleaved=interleaved,
                     rotary_embedding_dim=width)  # fmt: skip
    want = ReferenceEvaluator(model).run(None, arrays)[0]
    np.testing.assert_allclose(ran(model, arrays), want, rtol=1e-5, atol=1e-6)


def test_a_long_sequence_of_linear_attention_runs_on_the_host() -> None:
    count = MAX_STEPS + 1
    arrays = {n: normal(1, count, 4) for n in "qkv"}
    model = model_of("LinearAttention", arrays, opset=27, outputs=("y", "s"), q_num_heads=2,
                     kv_num_heads=2, update_rule="linear")  # fmt: skip
    loaded = load_onnx(model)
    assert not isinstance(loaded, Graph)
    want = ReferenceEvaluator(model).run(None, arrays)[0]
    np.testing.assert_allclose(ran(model, arrays), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "arrays", "settings", "words"),
    [
        ("Attention", qkv(3, 2), {}, "no whole number of heads"),
        ("Attention", {**qkv(), "v": normal(2, 2, 4, 6)}, {}, "do not fit"),
        ("Attention", {n: normal(2, 3, 8) for n in "qkv"}, {}, "does not have 0 heads"),
        ("Attention", {**qkv(), "m": normal(7, 5)}, {}, "do not broadcast"),
        ("Attention", qkv(), {"qk_matmul_output_mode": 4}, "must be 0 to 3"),
        ("Attention", {**qkv(), "_m": None, "p": normal(2, 2, 1, 8)}, {}, "given together"),
        ("Attention", qkv(), {"left_window_size": -2}, "must be -1 or more"),
        ("RotaryEmbedding", {"x": normal(1, 2, 3, 4), "c": normal(1, 3, 3), "s": normal(1, 3, 3)},
         {}, "its last extent must be 2"),
        ("RotaryEmbedding", {"x": normal(1, 2, 3, 5), "c": normal(1, 3, 2), "s": normal(1, 3, 2)},
         {}, "in pairs"),
        ("SwiGLU", {"a": normal(2, 3), "b": normal(3)}, {}, "must agree"),
        ("LinearAttention", {n: normal(1, 2, 4) for n in "qkv"},
         {"q_num_heads": 2, "kv_num_heads": 2}, "needs input 4"),
        ("LinearAttention", {n: normal(1, 2, 4) for n in "qkv"},
         {"q_num_heads": 3, "kv_num_heads": 3, "update_rule": "linear"}, "for 3 heads"),
    ],
)  # fmt: skip
def test_errors_name_the_node(op: str, arrays: Any, settings: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        load_onnx(model_of(op, arrays, opset=27, **settings))
    assert f"{op} 'n'" in str(caught.value)
