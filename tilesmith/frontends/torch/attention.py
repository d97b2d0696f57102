"""Attention: products, masks and softmax. Heads stay a dimension of their own, so that moving
them to the front costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from tilesmith.frontends.shared.building import shaped
from tilesmith.frontends.shared.products import scaled
from tilesmith.frontends.torch.call import Call, Importer
from tilesmith.graph.graph import Value
from tilesmith.ops.attention import mask_scores, masked_softmax
from tilesmith.ops.matmul import batch_matmul
from tilesmith.ops.norm import softmax


def attention(
    call: Call, q: Value, k: Value, v: Value, attn_mask: Value | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:  # fmt: skip
    if dropout_p:
        call.leave("it drops at random")
    if not q.shape[-1] or 0 in k.shape:
        call.leave("it has no keys")
    shape = call.shape
    q, k, v = (_of_rank_4(call, x) for x in (q, k, v))
    if q.shape[:2] != k.shape[:2] or k.shape[:2] != v.shape[:2]:
        if q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1] or k.shape[:2] != v.shape[:2]:
            call.leave(f"its heads are {q.shape[:2]}, {k.shape[:2]} and {v.shape[:2]}")
        return _with_shared_keys(call, q, k, v, attn_mask, is_causal, scale)
    # Scores of half precision stay in float32 up to the softmax.
    wide = {"out_dtype": "float32"} if q.dtype.bits < 32 else {}
    scores: Value = call.add(batch_matmul, q, k, transpose_b=True, **wide)
    p = _weights(call, scores, q, attn_mask, is_causal, scale)
    y: Value = call.add(batch_matmul, p, v)
    return shaped(call, y, shape)


def _of_rank_4(call: Call, x: Value) -> Value:
    if len(x.shape) > 4 or len(x.shape) < 2:
        call.leave(f"its tensors have rank {len(x.shape)}")
    return shaped(call, x, (1,) * (4 - len(x.shape)) + x.shape)


def _weights(
    call: Call, scores: Value, q: Value, mask: Value | None, causal: bool, scale: float | None
) -> Value:
    scores = scaled(call, scores, 1 / sqrt(q.shape[-1]) if scale is None else float(scale))
    given = []
    if mask is not None:
        if len(mask.shape) < 4:
            mask = shaped(call, mask, (1,) * (4 - len(mask.shape)) + mask.shape)
        given.append(mask)
    if given or causal:
        settings = {"causal": True} if causal else {}
        scores = call.add(mask_scores, scores, *given, **settings)
    # A query that sees nothing gets 0 from PyTorch, and not NaN.
    p: Value = call.add(masked_softmax if given else softmax, scores)
    return call.cast(p, q.dtype)


def _with_shared_keys(
    call: Call, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float | None
) -> Value:
    """Heads that share keys are rows of one product."""
    batch, heads, queries, size = q.shape
    _, groups, keys, _ = k.shape
    rows = (batch, groups, heads // groups * queries)
    wide = {"out_dtype": "float32"} if q.dtype.bits < 32 else {}
    raw = call.add(batch_matmul, shaped(call, q, (*rows, size)), k, transpose_b=True, **wide)
    p = _weights(call, shaped(call, raw, (batch, heads, queries, keys)), q, mask, causal, scale)
    y: Value = call.add(batch_matmul, shaped(call, p, (*rows, keys)), v)
    return shaped(call, y, call.shape)


def flash(
    call: Call, q: Value, k: Value, v: Value, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value, None]:  # fmt: skip
    """Attention as PyTorch decomposes it for CPUs."""
    if call.wants(1):
        call.leave("it returns the logarithms of its sums")
    return attention(call, q, k, v, attn_mask, dropout_p, is_causal, scale=scale), None


IMPORTERS: Mapping[str, Importer] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": flash,
    "aten.scaled_dot_product_attention.default": attention,
}
