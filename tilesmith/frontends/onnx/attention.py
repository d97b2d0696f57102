"""Attention and its relatives, composed of products, masks and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from tilesmith.base.dtype import BOOL, FLOAT32, FLOAT64
from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.onnx.steps import need_few_steps
from tilesmith.frontends.shared.products import scaled
from tilesmith.frontends.shared.views import joined, shaped
from tilesmith.graph.graph import Value
from tilesmith.ops import attention as parts
from tilesmith.ops.elementwise import cast
from tilesmith.ops.linear_attention import linear_attention_step
from tilesmith.ops.matmul import batch_matmul
from tilesmith.ops.norm import softmax
from tilesmith.ops.transform import concatenate, pad, transpose

_DOUBLE = 11  # TensorProto.DOUBLE


def import_attention(call: Call) -> tuple[Value | None, ...]:
    flat = len(call.value(0).shape) == 3
    q, k, v = (_heads(call, n, "q_num_heads" if n == 0 else "kv_num_heads") for n in range(3))
    if call.has(4) != call.has(5):
        call.refuse("past_key and past_value must be given together")
    past = call.value(4).shape[2] if call.has(4) and len(call.value(4).shape) == 4 else 0
    if call.has(4):
        k = call.add(concatenate, call.value(4), k, axis=2)
        v = call.add(concatenate, call.value(5), v, axis=2)
    batch, heads, queries, size = q.shape
    _, groups, keys, _ = k.shape
    if k.shape != (batch, groups, keys, size) or v.shape[:3] != k.shape[:3]:
        call.refuse(f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit")
    if not keys or not size:
        call.refuse(f"there is nothing to attend to in keys {k.shape}")
    if not heads or not groups or heads % groups:
        call.refuse(f"queries {q.shape} have no whole number of heads for each of keys {k.shape}")

    # Heads that share keys are rows of one product.
    rows = (batch * groups, heads // groups * queries)
    raw: Value = call.add(
        batch_matmul, shaped(call, q, (*rows, size)),
        shaped(call, k, (batch * groups, keys, size)), transpose_b=True, **_wide(q),
    )  # fmt: skip
    scores = shaped(call, raw, (batch, heads, queries, keys))
    scores = scaled(call, scores, call.attribute("scale", 1 / sqrt(size)))
    shown = [scores] * 4
    if limit := call.attribute("softcap", 0.0):
        if limit < 0:
            call.refuse(f"softcap is {limit}; it must be at least 0")
        scores = call.add(parts.softcap, scores, limit=limit)
    shown[1] = scores
    scores, plain = _masked(call, scores, past)
    shown[2] = scores
    if call.attribute("softmax_precision", 1) == _DOUBLE and scores.dtype is not FLOAT64:
        scores = call.add(cast, scores, dtype="float64")
    p: Value = call.add(softmax if plain else parts.masked_softmax, scores)
    shown[3] = p = _as(call, p, q)
    y: Value = call.add(
        batch_matmul, shaped(call, p, (*rows, keys)),
        shaped(call, v, (batch * groups, keys, v.shape[3])),
    )  # fmt: skip
    y = shaped(call, y, (batch, heads, queries, v.shape[3]))
    if flat:
        y = call.add(transpose, y, axes=(0, 2, 1, 3))
        y = shaped(call, y, (batch, queries, heads * v.shape[3]))
    mode = call.attribute("qk_matmul_output_mode", 0)
    if not 0 <= mode <= 3:
        call.refuse(f"qk_matmul_output_mode is {mode}; it must be 0 to 3")
    return y, k, v, _as(call, shown[mode], q) if call.wants(3) else None


def _heads(call: Call, n: int, attribute: str) -> Value:
    """Input n as (batch, heads, sequence, size)."""
    x = call.value(n)
    if not x.dtype.is_float:
        call.refuse(f"{x} must be of floats")
    if len(x.shape) == 4:
        return x
    heads = call.attribute(attribute, 0)
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        call.refuse(f"{x} does not have {heads} heads ({attribute})")
    batch, sequence, width = x.shape
    x = shaped(call, x, (batch, sequence, heads, width // heads))
    y: Value = call.add(transpose, x, axes=(0, 2, 1, 3))
    return y


def _wide(x: Value) -> dict[str, str]:
    """Scores of half precision stay in float32 up to the softmax."""
    return {"out_dtype": "float32"} if x.dtype.bits < 32 else {}


def _as(call: Call, x: Value, like: Value) -> Value:
    y: Value = x if x.dtype is like.dtype else call.add(cast, x, dtype=like.dtype.name)
    return y


def _masked(call: Call, scores: Value, past: int) -> tuple[Value, bool]:
    """Scores with -inf for what is not seen, and whether every query sees something."""
    given: list[Value] = []
    mask, lengths = call.optional(3), call.optional(6)
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
    if call.attribute("is_causal", 0):
        settings["causal"] = True
    for side in ("left", "right"):
        reach = call.attribute(f"{side}_window_size", -1)
        if reach < -1:
            call.refuse(f"{side}_window_size is {reach}; it must be -1 or more")
        if reach >= 0:
            settings[side] = reach
    if not given and not settings:
        return scores, True
    plain = not given and set(settings) == {"causal"}
    if past and settings:
        settings["offset"] = past
    y: Value = call.add(parts.mask_scores, scores, *given, **settings)
    return y, plain


def import_rotary_embedding(call: Call) -> Value:
    x, cos, sin = call.value(0), call.value(1), call.value(2)
    heads = call.attribute("num_heads", 0)
    shape, axis = x.shape, 2
    if len(shape) == 3:
        if heads < 1 or shape[2] % heads:
            call.refuse(f"{x} does not have {heads} heads (num_heads)")
        x, axis = shaped(call, x, (*shape[:2], heads, shape[2] // heads)), 1
    settings: dict[str, int | bool] = {"axis": axis}
    if call.attribute("interleaved", 0):
        settings["interleaved"] = True
    if width := call.attribute("rotary_embedding_dim", 0):
        settings["width"] = width
    positions = call.optional(3)
    given = [] if positions is None else [positions]
    y: Value = call.add(parts.rotary_embedding, x, cos, sin, *given, **settings)
    return shaped(call, y, shape)


def import_swiglu(call: Call) -> Value:
    y: Value = call.add(
        parts.swiglu, call.value(0), call.value(1), alpha=call.attribute("alpha", 1.0)
    )
    return y


def import_linear_attention(call: Call) -> tuple[Value, ...]:
    q, k, v = (call.value(n) for n in range(3))
    q_heads, heads = call.attribute("q_num_heads", 0), call.attribute("kv_num_heads", 0)
    rule = call.attribute("update_rule", "gated_delta")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        call.refuse(f"update_rule is {rule!r}; it must be linear, gated, delta or gated_delta")
    for n, wanted in ((4, "gated" in rule), (5, "delta" in rule)):
        if call.has(n) != wanted:
            call.refuse(f"update_rule {rule!r} {'needs' if wanted else 'takes no'} input {n}")
    q, k, v = (_split(call, x, n) for x, n in ((q, q_heads), (k, heads), (v, heads)))
    batch, count = q.shape[:2]
    need_few_steps(call, count)
    size = k.shape[3]
    given: list[Value] = []
    settings: dict[str, float | bool] = {"scale": call.attribute("scale", 0.0) or 1 / sqrt(size)}
    if "gated" in rule:
        given.append(_split(call, call.value(4), heads))
        settings["decay"] = True
    if "delta" in rule:
        given.append(call.value(5))
        settings["beta"] = True
    past = call.optional(3)
    shape = (batch, heads, size, v.shape[3])
    if past is None:
        state = call.constant(np.zeros(shape, np.float32))
    else:
        state = past if past.dtype is FLOAT32 else call.add(cast, past, dtype="float32")
    steps = []
    for t in range(count):
        at = call.constant(np.array(t, np.int32))
        y, state = call.add(linear_attention_step, q, k, v, state, at, *given, **settings)
        steps.append(y)
    whole = joined(call, steps, 1)
    return shaped(call, whole, (batch, count, q_heads * v.shape[3])), _as(call, state, past or q)


def _split(call: Call, x: Value, heads: int) -> Value:
    """(batch, sequence, heads * size) as (batch, sequence, heads, size)."""
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads or not x.size:
        call.refuse(f"{x} must be (batch, sequence, heads * size), for {heads} heads")
    return shaped(call, x, (*x.shape[:2], heads, x.shape[2] // heads))


IMPORTERS: Mapping[str, Importer] = {
    "Attention": import_attention,
    "RotaryEmbedding": import_rotary_embedding,
    "LinearAttention": import_linear_attention,
    "SwiGLU": import_swiglu,
}
