"""Fused operators of nn.TransformerEncoderLayer and nn.MultiheadAttention in inference, decomposed:
each has a function of tensors that PyTorch traces in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_OF_QUERIES, _OF_KEYS = 0, 1  # mask types: (queries, keys) for all, (batch, keys)


def attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """A mask is True where nothing is seen."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2)
        for x, w, b in parts
    )
    hidden: Tensor | None = None
    if mask is not None:
        hidden = mask.to(torch.bool)
        if mask_type == _OF_KEYS:
            hidden = hidden[:, None, None, :]
        elif mask_type == _OF_QUERIES:
            hidden = hidden[None, None]
    weights: Tensor | None = None
    if need_weights:
        scores = q @ k.transpose(-1, -2) / (embed_dim // num_head) ** 0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        p = scores.softmax(-1)
        y, weights = p @ v, p.mean(1) if average_attn_weights else p
    else:
        y = F.scaled_dot_product_attention(q, k, v, None if hidden is None else ~hidden)
    y = y.transpose(1, 2).flatten(2)
    return F.linear(y, proj_weight, proj_bias), weights


def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    def norm1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def seen(x: Tensor) -> Tensor:
        return attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
            False, False, mask_type,
        )[0]  # fmt: skip

    def fed(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else inner.relu(), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + seen(norm1(src))
        return x + fed(norm2(x))
    x = norm1(src + seen(src))
    return norm2(x + fed(x))


def table() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    return {
        aten._native_multi_head_attention.default: attention,
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
    }
