"""Attention: products, masks and softmax. Heads stay a dimension of their own, so that moving
them to the front costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from tilesmith.frontends.shared.building import shaped
from tilesmith.frontends.shared.products import attended, scaled, scores_of
from tilesmith.frontends.torch.call import Call, Importer
from tilesmith.graph.graph import Value
from tilesmith.ops.attention import mask_scores, masked_softmax
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
    lead = k.shape[:2]
    if q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1] or lead != v.shape[:2]:
        call.leave(f"its heads are {q.shape[:2]}, {k.shape[:2]} and {v.shape[:2]}")
    scores = scores_of(call, q, k, lead)
    scores = scaled(call, scores, 1 / sqrt(q.shape[-1]) if scale is None else float(scale))
    given = [] if attn_mask is None else [_of_rank_4(call, attn_mask, 0)]
    if given or is_causal:
        settings = {"causal": True} if is_causal else {}
        scores = call.add(mask_scores, scores, *given, **settings)
    # A query that sees nothing gets 0 from PyTorch, and not NaN.
    p = call.cast(call.add(masked_softmax if given else softmax, scores), q.dtype)
    return shaped(call, attended(call, p, v, lead), shape)


def _of_rank_4(call: Call, x: Value, least: int = 2) -> Value:
    if not least <= len(x.shape) <= 4:
        call.leave(f"its tensors have rank {len(x.shape)}")
    return shaped(call, x, (1,) * (4 - len(x.shape)) + x.shape)


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
