"""Which operators PyTorch decomposes before they are imported: all that are not in its core set,
except for some that have an operator of their own here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from tilesmith.frontends.torch import fast_paths

_KEPT = (
    "_scaled_dot_product_flash_attention_for_cpu", "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa", "col2im", "hardsigmoid", "hardswish", "index_add", "index_copy",
    "logsumexp", "mish", "mv",
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "silu", "softplus", "tril", "triu",
    "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d", "_fused_rms_norm",
    "all",
)  # fmt: skip
# PyTorch decomposes these before torch.compile sees them; only an export can keep them.
_KEPT_BY_EXPORT = ("rms_norm", "scaled_dot_product_attention")

Table = dict[Any, Callable[..., Any]]


@cache  # PyTorch takes a second for it
def core_table() -> Table:
    """For a graph of torch.compile."""
    return _without(torch._decomp.core_aten_decompositions(), _KEPT)


@cache
def export_table() -> Table:
    """For a graph of torch.export."""
    return _without(torch.export.default_decompositions(), (*_KEPT, *_KEPT_BY_EXPORT))


def lstm_with_states(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch up to 2.11 gives the last states an axis more when oneDNN is off."""

    def lstm(x: Any, states: Any, *others: Any) -> Any:
        out, *last = decompose(x, states, *others)
        return out, *(s.reshape(was.shape) for s, was in zip(last, states, strict=True))

    return lstm


@contextmanager
def without_onednn() -> Iterator[None]:
    """Switches oneDNN off: with it, some versions of PyTorch decompose a recurrent layer into calls
    of oneDNN. Their `torch.backends.mkldnn.flags` sets more than this, and warns of it.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _without(table: Any, names: tuple[str, ...]) -> Table:
    kept = {getattr(torch.ops.aten, n) for n in names if hasattr(torch.ops.aten, n)}
    overloads = {getattr(packet, o) for packet in kept for o in packet.overloads()}
    found = {op: f for op, f in dict(table).items() if op not in overloads}
    lstm = torch.ops.aten.lstm.input
    if lstm in found:
        found[lstm] = lstm_with_states(found[lstm])
    return found | fast_paths.table() | {torch.ops.aten._assert_async.default: _with_message}


def _with_message(x: torch.Tensor) -> None:
    """PyTorch drops an assertion without a message, as it has no result."""
    torch.ops.aten._assert_async.msg(x, "Expected a tensor of one value that is not 0")
