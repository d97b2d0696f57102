"""Attention and its relatives, composed of products, masks and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from tilesmith.base.dtype import BOOL
from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.onnx.loop_form import need_few_steps
from tilesmith.frontends.shared.building import joined, shaped
from tilesmith.frontends.shared.products import attended, scaled, scores_of
from tilesmith.graph.graph import Value
from tilesmith.ops.attention import (
    linear_attention_step,
    mask_scores,
    masked_softmax,
    rotary_embedding,
    swiglu,
)
from tilesmith.ops.attention import softcap as cap
from tilesmith.ops.norm import softmax
from tilesmith.ops.transform import concatenate, pad, transpose

_DOUBLE = 11  # TensorProto.DOUBLE


def import_attention(
    call: Call, q: Value, k: Value, v: Value, mask: Value | None = None,
    past_key: Value | None = None, past_value: Value | None = None, lengths: Value | None = None, *,
    q_num_heads: int = 0, kv_num_heads: int = 0, scale: float | None = None, softcap: float = 0.0,
    softmax_precision: int = 1, is_causal: bool = False, left_window_size: int = -1,
    right_window_size: int = -1, qk_matmul_output_mode: int = 0,
) -> tuple[Value | None, ...]:  # fmt: skip
    flat = len(q.shape) == 3
    q = _heads(call, q, "q_num_heads", q_num_heads)
    k, v = (_heads(call, x, "kv_num_heads", kv_num_heads) for x in (k, v))
    if (past_key is None) != (past_value is None):
        call.refuse("past_key and past_value must be given together")
    past = past_key.shape[2] if past_key is not None and len(past_key.shape) == 4 else 0
    if past_key is not None and past_value is not None:
        k = call.add(concatenate, past_key, k, axis=2)
        v = call.add(concatenate, past_value, v, axis=2)
    batch, heads, queries, size = q.shape
    _, groups, keys, _ = k.shape
    if k.shape != (batch, groups, keys, size) or v.shape[:3] != k.shape[:3]:
        call.refuse(f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit")
    if not keys or not size:
        call.refuse(f"there is nothing to attend to in keys {k.shape}")
    if not heads or not groups or heads % groups:
        call.refuse(f"queries {q.shape} have no whole number of heads for each of keys {k.shape}")

    scores = scores_of(call, q, k, (batch * groups,))
    scores = scaled(call, scores, 1 / sqrt(size) if scale is None else scale)
    shown = [scores] * 4
    if softcap:
        if softcap < 0:
            call.refuse(f"softcap is {softcap}; it must be at least 0")
        scores = call.add(cap, scores, limit=softcap)
    shown[1] = scores
    windows = {"left": left_window_size, "right": right_window_size}
    scores, plain = _masked(call, scores, mask, lengths, past, is_causal, windows)
    shown[2] = scores
    if softmax_precision == _DOUBLE:
        scores = call.cast(scores, "float64")
    p = call.add(softmax if plain else masked_softmax, scores)
    shown[3] = p = call.cast(p, q.dtype)
    y = attended(call, p, v, (batch * groups,))
    if flat:
        y = call.add(transpose, y, axes=(0, 2, 1, 3))
        y = shaped(call, y, (batch, queries, heads * v.shape[3]))
    mode = qk_matmul_output_mode
    if not 0 <= mode <= 3:
        call.refuse(f"qk_matmul_output_mode is {mode}; it must be 0 to 3")
    return y, k, v, call.cast(shown[mode], q.dtype) if call.wants(3) else None


def _heads(call: Call, x: Value, attribute: str, heads: int) -> Value:
    """An input as (batch, heads, sequence, size)."""
    if not x.dtype.is_float:
        call.refuse(f"{x} must be of floats")
    if len(x.shape) == 4:
        return x
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        call.refuse(f"{x} does not have {heads} heads ({attribute})")
    batch, sequence, width = x.shape
    x = shaped(call, x, (batch, sequence, heads, width // heads))
    return call.add(transpose, x, axes=(0, 2, 1, 3))


def _masked(
    call: Call, scores: Value, mask: Value | None, lengths: Value | None, past: int,
    is_causal: bool, windows: Mapping[str, int],
) -> tuple[Value, bool]:  # fmt: skip
    """Scores with -inf for what is not seen, and whether every query sees something."""
    given: list[Value] = []
    keys = scores.shape[3]
    if mask is not None:
        if not mask.shape or len(mask.shape) > 4 or not (mask.dtype is BOOL or mask.dtype.is_float):
            call.refuse(f"the mask {mask} must be of rank 1 to 4, of bools or floats")
        if mask.shape[-1] < keys:  # even where it is 1: it is not spread
            widths = ((0, 0),) * (len(mask.shape) - 1) + ((0, keys - mask.shape[-1]),)
            empty = False if mask.dtype is BOOL else float("-inf")
            mask = call.add(pad, mask, widths=widths, value=empty)
        given.append(mask)
    settings: dict[str, int | bool] = {}
    if lengths is not None:
        if past:
            call.refuse("nonpad_kv_seqlen cannot be combined with past_key")
        given.append(lengths)
        settings["lengths"] = True
    if is_causal:
        settings["causal"] = True
    for side, reach in windows.items():
        if reach < -1:
            call.refuse(f"{side}_window_size is {reach}; it must be -1 or more")
        if reach >= 0:
            settings[side] = reach
    if not given and not settings:
        return scores, True
    plain = not given and set(settings) == {"causal"}
    if past and settings:
        settings["offset"] = past
    return call.add(mask_scores, scores, *given, **settings), plain


def import_rotary_embedding(
    call: Call, x: Value, cos: Value, sin: Value, positions: Value | None = None, *,
    interleaved: bool = False, num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Value:  # fmt: skip
    shape, axis = x.shape, 2
    if len(shape) == 3:
        if num_heads < 1 or shape[2] % num_heads:
            call.refuse(f"{x} does not have {num_heads} heads (num_heads)")
        x, axis = shaped(call, x, (*shape[:2], num_heads, shape[2] // num_heads)), 1
    settings: dict[str, int | bool] = {"axis": axis}
    if interleaved:
        settings["interleaved"] = True
    if rotary_embedding_dim:
        settings["width"] = rotary_embedding_dim
    given = [] if positions is None else [positions]
    y = call.add(rotary_embedding, x, cos, sin, *given, **settings)
    return shaped(call, y, shape)


def import_linear_attention(
    call: Call, q: Value, k: Value, v: Value, past: Value | None = None,
    decay: Value | None = None, beta: Value | None = None, *, q_num_heads: int = 0,
    kv_num_heads: int = 0, scale: float = 0.0, update_rule: str = "gated_delta",
    chunk_size: int = 64,
) -> tuple[Value, ...]:  # fmt: skip
    """`chunk_size` is advice on how to compute it."""
    heads, rule = kv_num_heads, update_rule
    call.choice("update_rule", rule, ("linear", "gated", "delta", "gated_delta"))
    for n, x, wanted in ((4, decay, "gated" in rule), (5, beta, "delta" in rule)):
        if (x is not None) != wanted:
            call.refuse(f"update_rule {rule!r} {'needs' if wanted else 'takes no'} input {n}")
    q, k, v = (_split(call, x, n) for x, n in ((q, q_num_heads), (k, heads), (v, heads)))
    batch, count = q.shape[:2]
    need_few_steps(call, count)
    size = k.shape[3]
    given: list[Value] = []
    settings: dict[str, float | bool] = {"scale": scale or 1 / sqrt(size)}
    if decay is not None:
        given.append(_split(call, decay, heads))
        settings["decay"] = True
    if beta is not None:
        given.append(beta)
        settings["beta"] = True
    shape = (batch, heads, size, v.shape[3])
    if past is None:
        state = call.constant(np.zeros(shape, np.float32))
    else:
        state = call.cast(past, "float32")
    steps = []
    for t in range(count):
        at = call.constant(np.array(t, np.int32))
        y, state = call.add_several(linear_attention_step, q, k, v, state, at, *given, **settings)
        steps.append(y)
    whole = joined(call, steps, 1)
    like = q if past is None else past
    made = shaped(call, whole, (batch, count, q_num_heads * v.shape[3]))
    return made, call.cast(state, like.dtype)


def _split(call: Call, x: Value, heads: int) -> Value:
    """(batch, sequence, heads * size) as (batch, sequence, heads, size)."""
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads or not x.size:
        call.refuse(f"{x} must be (batch, sequence, heads * size), for {heads} heads")
    return shaped(call, x, (*x.shape[:2], heads, x.shape[2] // heads))


IMPORTERS: Mapping[str, Importer] = {
    "Attention": import_attention,
    "RotaryEmbedding": import_rotary_embedding,
    "LinearAttention": import_linear_attention,
    "SwiGLU": swiglu,
}
