"""Modules and functions of torch.nn with small inputs: what the PyTorch front end is tested with.

A case that needs weights makes them; inputs are drawn with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    name: str
    module: Callable[[], Any]
    inputs: Callable[[], tuple[Any, ...]]
    tolerance: float = 2e-5
    host: tuple[str, ...] = ()  # operators that PyTorch runs

    def __str__(self) -> str:
        return self.name


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=_RNG).to(dtype)


def i(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=_RNG)


def b(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_RNG) > 0.5


_RNG = torch.Generator()

MODULES: list[tuple[str, Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = [
    ("Linear", lambda: nn.Linear(5, 3), lambda: (f(4, 5),)),
    ("Linear 3d, no bias", lambda: nn.Linear(5, 3, bias=False), lambda: (f(2, 4, 5),)),
    ("Linear of a vector", lambda: nn.Linear(5, 3), lambda: (f(5),)),
    ("Bilinear", lambda: nn.Bilinear(3, 4, 2), lambda: (f(5, 3), f(5, 4))),
    ("Conv1d", lambda: nn.Conv1d(4, 6, 3, 2, 1, 2, 2), lambda: (f(2, 4, 11),)),
    ("Conv2d", lambda: nn.Conv2d(3, 4, 3), lambda: (f(1, 3, 6, 7),)),
    ("Conv2d, all settings", lambda: nn.Conv2d(4, 6, (3, 2), (1, 2), (2, 1), (2, 1), 2),
     lambda: (f(2, 4, 7, 6),)),
    ("Conv2d depthwise", lambda: nn.Conv2d(4, 4, 3, 1, 1, groups=4), lambda: (f(1, 4, 5, 5),)),
    ("Conv2d without a batch", lambda: nn.Conv2d(3, 4, 3), lambda: (f(3, 5, 5),)),
    ("Conv2d same", lambda: nn.Conv2d(3, 4, (3, 2), padding="same"), lambda: (f(1, 3, 5, 5),)),
    ("Conv2d reflect", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
     lambda: (f(1, 2, 5, 5),)),
    ("Conv2d circular", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
     lambda: (f(1, 2, 5, 5),)),
    ("Conv2d replicate", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"),
     lambda: (f(1, 2, 5, 5),)),
    ("Conv3d", lambda: nn.Conv3d(2, 4, 2, 1, 1, groups=2), lambda: (f(1, 2, 3, 4, 4),)),
    ("ConvTranspose1d", lambda: nn.ConvTranspose1d(3, 4, 3, 2, 1, 1), lambda: (f(2, 3, 5),)),
    ("ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, dilation=2),
     lambda: (f(1, 4, 4, 3),)),
    ("ConvTranspose3d", lambda: nn.ConvTranspose3d(2, 3, 2, 2), lambda: (f(1, 2, 2, 3, 2),)),
    ("BatchNorm1d", lambda: normalized(nn.BatchNorm1d(4)), lambda: (f(3, 4),)),
    ("BatchNorm2d", lambda: normalized(nn.BatchNorm2d(4)), lambda: (f(2, 4, 3, 3),)),
    ("BatchNorm3d, no weights", lambda: normalized(nn.BatchNorm3d(4, affine=False)),
     lambda: (f(2, 4, 2, 2, 2),)),
    ("BatchNorm2d in training", lambda: nn.BatchNorm2d(4, track_running_stats=False).train(),
     lambda: (f(2, 4, 3, 3),)),
    ("LayerNorm", lambda: nn.LayerNorm((3, 4)), lambda: (f(2, 3, 4),)),
    ("LayerNorm, no weights", lambda: nn.LayerNorm(4, elementwise_affine=False),
     lambda: (f(2, 3, 4),)),
    ("GroupNorm", lambda: nn.GroupNorm(2, 4), lambda: (f(2, 4, 3, 3),)),
    ("InstanceNorm2d", lambda: nn.InstanceNorm2d(4, affine=True), lambda: (f(2, 4, 3, 3),)),
    ("RMSNorm", lambda: nn.RMSNorm(6), lambda: (f(2, 3, 6),)),
    ("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), lambda: (f(1, 5, 3, 3),)),
    ("MaxPool1d", lambda: nn.MaxPool1d(3, 2), lambda: (f(1, 2, 9),)),
    ("MaxPool2d", lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), lambda: (f(1, 2, 6, 6),)),
    ("MaxPool2d with indices", lambda: nn.MaxPool2d(2, return_indices=True),
     lambda: (f(1, 2, 4, 4),)),
    ("MaxPool3d", lambda: nn.MaxPool3d(2), lambda: (f(1, 2, 4, 4, 4),)),
    ("AvgPool1d", lambda: nn.AvgPool1d(3, 2, 1), lambda: (f(1, 2, 8),)),
    ("AvgPool2d", lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
     lambda: (f(1, 2, 6, 6),)),
    ("AvgPool2d with a divisor", lambda: nn.AvgPool2d(2, divisor_override=3),
     lambda: (f(1, 2, 4, 4),)),
    ("AvgPool3d", lambda: nn.AvgPool3d(2), lambda: (f(1, 2, 4, 4, 4),)),
    ("LPPool2d", lambda: nn.LPPool2d(2, 2), lambda: (f(1, 2, 4, 4),)),
    ("AdaptiveAvgPool1d", lambda: nn.AdaptiveAvgPool1d(3), lambda: (f(1, 2, 7),)),
    ("AdaptiveAvgPool2d of 1", lambda: nn.AdaptiveAvgPool2d(1), lambda: (f(1, 2, 5, 4),)),
    ("AdaptiveAvgPool2d", lambda: nn.AdaptiveAvgPool2d((3, 2)), lambda: (f(1, 2, 7, 5),)),
    ("AdaptiveAvgPool3d", lambda: nn.AdaptiveAvgPool3d((2, 1, 2)), lambda: (f(1, 2, 4, 3, 4),)),
    ("AdaptiveMaxPool2d", lambda: nn.AdaptiveMaxPool2d((3, 2)), lambda: (f(1, 2, 7, 5),)),
    ("Embedding", lambda: nn.Embedding(7, 4, padding_idx=0), lambda: (i(7, 2, 5),)),
    ("EmbeddingBag", lambda: nn.EmbeddingBag(7, 4, mode="mean"), lambda: (i(7, 2, 5),)),
    ("MultiheadAttention", lambda: nn.MultiheadAttention(8, 2, batch_first=True),
     lambda: (f(2, 3, 8), f(2, 5, 8), f(2, 5, 8))),
    ("TransformerEncoderLayer",
     lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu"),
     lambda: (f(2, 3, 8),)),
    ("TransformerDecoderLayer", lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
     lambda: (f(2, 3, 8), f(2, 4, 8))),
    ("LSTM", lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True), lambda: (f(4, 2, 3),)),
    ("GRU", lambda: nn.GRU(3, 4, batch_first=True), lambda: (f(2, 4, 3), f(1, 2, 4))),
    ("RNN", lambda: nn.RNN(3, 4), lambda: (f(4, 2, 3),)),
    ("LSTMCell", lambda: nn.LSTMCell(3, 4), lambda: (f(2, 3),)),
    ("GRUCell", lambda: nn.GRUCell(3, 4), lambda: (f(2, 3),)),
    ("PixelShuffle", lambda: nn.PixelShuffle(2), lambda: (f(1, 8, 2, 3),)),
    ("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), lambda: (f(1, 2, 4, 6),)),
    ("ChannelShuffle", lambda: nn.ChannelShuffle(2), lambda: (f(1, 6, 2, 2),)),
    ("Upsample nearest", lambda: nn.Upsample(scale_factor=2), lambda: (f(1, 2, 3, 4),)),
    ("Upsample bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
     lambda: (f(1, 2, 3, 4),)),
    ("Unfold", lambda: nn.Unfold(2, padding=1), lambda: (f(1, 2, 3, 4),)),
    ("Fold", lambda: nn.Fold((4, 5), 2), lambda: (f(1, 8, 12),)),
    ("CosineSimilarity", lambda: nn.CosineSimilarity(), lambda: (f(3, 5), f(3, 5))),
    ("PairwiseDistance", lambda: nn.PairwiseDistance(), lambda: (f(3, 5), f(3, 5))),
    ("CrossEntropyLoss", lambda: nn.CrossEntropyLoss(), lambda: (f(4, 5), i(5, 4))),
    ("MSELoss", lambda: nn.MSELoss(), lambda: (f(4, 5), f(4, 5))),
    ("BCEWithLogitsLoss", lambda: nn.BCEWithLogitsLoss(), lambda: (f(4, 5), f(4, 5).sigmoid())),
    ("SmoothL1Loss", lambda: nn.SmoothL1Loss(), lambda: (f(4, 5), f(4, 5))),
    ("Dropout, not in training", lambda: nn.Dropout(), lambda: (f(3, 4),)),
    ("Flatten, Unflatten", lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 3))),
     lambda: (f(2, 2, 6),)),
]  # fmt: skip

ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU,
    lambda: nn.GELU("tanh"), nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign, nn.Sigmoid, nn.Tanh,
    nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LogSigmoid, nn.Softshrink, nn.Hardshrink,
    nn.Tanhshrink, lambda: nn.Threshold(0.1, 20.0), lambda: nn.GLU(1), lambda: nn.Softmax(1),
    lambda: nn.LogSoftmax(-1), lambda: nn.Softmin(0), nn.Identity, lambda: nn.RReLU(),
]  # fmt: skip

FUNCTIONS: list[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    # element-wise
    ("arithmetic", lambda x, y: (x + 2 * y - 1) / (y * y + 1) + torch.add(x, y, alpha=3),
     lambda: (f(3, 4), f(4))),
    ("rsub, neg, reciprocal, abs, sign", lambda x: (1 - x, -x, 1 / x, abs(x), x.sign()),
     lambda: (f(3, 4),)),
    ("pow", lambda x: (x**2, x.abs() ** 0.5, x.abs() ** -1.5, 2**x, x**3), lambda: (f(3, 4),)),
    ("exp and log", lambda x: (x.exp(), x.abs().log(), x.expm1(), x.abs().log1p(), x.exp2(),
                              x.abs().log2(), x.abs().log10()), lambda: (f(3, 4),)),
    ("roots", lambda x: (x.abs().sqrt(), x.abs().rsqrt(), x.square()), lambda: (f(3, 4),)),
    ("rounding", lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), (3 * x).frac()),
     lambda: (f(3, 4),)),
    ("trigonometry", lambda x: (x.sin(), x.cos(), x.tan(), x.atan(), x.sinh(), x.cosh(),
                               x.clamp(-0.9, 0.9).asin(), x.clamp(-0.9, 0.9).acos(),
                               x.asinh(), (x.abs() + 1.1).acosh(), x.clamp(-0.9, 0.9).atanh()),
     lambda: (f(3, 4),)),
    ("erf", lambda x: (x.erf(), x.erfc()), lambda: (f(3, 4),)),
    ("atan2", torch.atan2, lambda: (f(3, 4), f(3, 4))),
    ("division", lambda x, y: (x // y, x % y, torch.fmod(x, y),
                              torch.div(x, y, rounding_mode="trunc")),
     lambda: (f(3, 4) * 5, f(4).abs() + 0.5)),
    ("integer division", lambda x, y: (x // y, x % y, x / y, torch.fmod(x, y),
                                      torch.div(x, y, rounding_mode="trunc")),
     lambda: (i(50, 3, 4) - 25, i(5, 4) + 1)),
    ("comparisons", lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y, x > 0),
     lambda: (i(3, 3, 4), i(3, 4))),
    ("logic", lambda x, y: (x & y, x | y, x ^ y, ~x, torch.logical_and(x, y),
                           torch.logical_not(x), torch.logical_or(x, y), torch.logical_xor(x, y)),
     lambda: (b(3, 4), b(4))),
    ("bits", lambda x, y: (x & y, x | y, x ^ y, ~x, x << 2, x >> 1), lambda: (i(50, 4), i(50, 4))),
    ("nan and inf", lambda x: ((x / 0).isnan(), (x / 0).isinf(), (x / 0).isfinite(),
                              torch.nan_to_num(x / 0)), lambda: (f(3, 4).round(),)),
    ("clamp", lambda x, y: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp_max(0.3),
                           torch.clamp(x, min=y)), lambda: (f(3, 4), f(4))),
    ("maximum, minimum", lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)),
     lambda: (f(3, 4), f(4))),
    ("where", lambda c, x: (torch.where(c, x, 0.0), torch.where(x > 0, x, -x)),
     lambda: (b(3, 4), f(3, 4))),
    ("masked_fill", lambda x, m: (x.masked_fill(m, -1e9), x.masked_fill(m, float("-inf"))),
     lambda: (f(3, 4), b(4))),
    ("lerp, addcmul, addcdiv", lambda x, y: (torch.lerp(x, y, 0.3), torch.addcmul(x, x, y),
                                            torch.addcdiv(x, y, y.abs() + 1, value=2)),
     lambda: (f(3, 4), f(3, 4))),
    ("casts", lambda x: (x.to(torch.int32), x.double(), x.bool(), x.to(torch.float16),
                        x.to(torch.bfloat16), x.to(torch.uint8), x.long() / 2),
     lambda: (f(3, 4).abs() * 5,)),
    ("mixed types", lambda x, n, h: (x + n, n * 1.5, h + x, n + True, h * n),
     lambda: (f(3, 4), i(5, 4), f(4, dtype=torch.bfloat16))),
    # reductions
    ("sum", lambda x: (x.sum(), x.sum(0), x.sum((0, 2), keepdim=True)), lambda: (f(2, 3, 4),)),
    ("mean", lambda x: (x.mean(), x.mean(-1), x.mean((0, 2), True)), lambda: (f(2, 3, 4),)),
    ("sum of integers", lambda x, m: (x.sum(), m.sum(-1), x.to(torch.int32).sum(0)),
     lambda: (i(9, 3, 4), b(3, 4))),
    ("var, std", lambda x: (x.var(1), x.std(-1, keepdim=True), x.var(0, correction=0),
                           torch.var_mean(x, 1)[1]), lambda: (f(3, 4),)),
    ("squares beyond the range of halves", lambda x: (x.var(), x.std(0), torch.var_mean(x, 1)[0],
                                                      torch.linalg.vector_norm(x, 3.0)),
     lambda: (9 * f(40, 60, dtype=torch.float16),)),
    ("extremes", lambda x: (x.amax(1), x.amin((0, 1)), x.max(), x.min(), x.max(1), x.min(0)),
     lambda: (f(3, 4),)),
    ("argmax, argmin", lambda x: (x.argmax(), x.argmax(1), x.argmin(0, keepdim=True)),
     lambda: (f(3, 4),)),
    ("prod, any, all", lambda x, m: (x.prod(), x.prod(1), m.any(), m.any(1), m.all(0), m.all()),
     lambda: (f(3, 4), b(3, 4))),
    ("norms", lambda x: (x.norm(), x.norm(dim=1), x.norm(1, dim=0),
                        torch.linalg.vector_norm(x, float("inf"))), lambda: (f(3, 4),)),
    ("logsumexp", lambda x: torch.logsumexp(x, (0, 1)), lambda: (f(3, 4),)),
    ("normalize", lambda x: F.normalize(x, dim=1), lambda: (f(3, 4),)),
    ("cumsum, cumprod", lambda x: (x.cumsum(1), x.cumprod(0)), lambda: (f(3, 4),)),
    ("cumsum of bools", lambda m: m.cumsum(-1), lambda: (b(3, 4),)),
    ("count_nonzero", lambda x: (x > 0).sum(), lambda: (f(3, 4),)),
    # products
    ("matmul 1", torch.matmul, lambda: (f(3), f(3))),
    ("matmul 2", torch.matmul, lambda: (f(2, 3), f(3, 4))),
    ("matmul 3", torch.matmul, lambda: (f(2, 5, 3), f(3, 4))),
    ("matmul 4", torch.matmul, lambda: (f(2, 1, 5, 3), f(3, 3, 4))),
    ("matmul 5", torch.matmul, lambda: (f(3), f(2, 3, 4))),
    ("bmm, baddbmm", lambda x, y, z: (torch.bmm(x, y), torch.baddbmm(z, x, y, beta=2, alpha=0.5)),
     lambda: (f(2, 3, 4), f(2, 4, 5), f(2, 3, 5))),
    ("addmm", lambda z, x, y: torch.addmm(z, x, y, beta=0.5, alpha=2),
     lambda: (f(3, 5), f(3, 4), f(4, 5))),
    ("outer, dot, mv", lambda x, y, m: (torch.outer(x, y), torch.dot(x, x), torch.mv(m, x)),
     lambda: (f(3), f(4), f(2, 3))),
    ("einsum", lambda x, y: (torch.einsum("bhqd,bhkd->bhqk", x, y), torch.einsum("bhqd->bdq", x)),
     lambda: (f(2, 2, 3, 4), f(2, 2, 5, 4))),
    ("integer matmul", torch.matmul, lambda: (i(9, 2, 3), i(9, 3, 4))),
    ("sdpa", F.scaled_dot_product_attention, lambda: (f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4))),
    ("sdpa causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
     lambda: (f(2, 2, 4, 4), f(2, 2, 4, 4), f(2, 2, 4, 4))),
    ("sdpa, mask of bools", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
     lambda: (f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4), b(2, 1, 3, 5))),
    ("sdpa, mask of floats, scale",
     lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
     lambda: (f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4), f(3, 5))),
    ("sdpa, shared keys", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
     lambda: (f(2, 4, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4))),
    # shapes
    ("reshape, view, flatten", lambda x: (x.reshape(6, 4), x.view(-1), x.flatten(1)),
     lambda: (f(2, 3, 4),)),
    ("permute, transpose, t", lambda x: (x.permute(2, 0, 1), x.transpose(1, 2).contiguous(),
                                        x[0].t(), x.mT, x.movedim(0, 1)), lambda: (f(2, 3, 4),)),
    ("squeeze, unsqueeze", lambda x: (x.squeeze(), x.squeeze(1), x.unsqueeze(-1)),
     lambda: (f(2, 1, 3),)),
    ("expand, repeat", lambda x: (x.expand(4, 3, 2), x.repeat(2, 1, 3), x.repeat_interleave(2, 0)),
     lambda: (f(3, 2).unsqueeze(0).expand(1, 3, 2),)),
    ("slices", lambda x: (x[1:, ::2], x[..., -1], x[0], x[:, 1:3].narrow(0, 0, 1), x[:, None]),
     lambda: (f(3, 5),)),
    ("cat, stack", lambda x, y: (torch.cat([x, y], 1), torch.stack([x, x], 1), torch.hstack((x, y)),
                                torch.vstack((x, x))), lambda: (f(2, 3), f(2, 4))),
    ("split, chunk, unbind", lambda x: (x.split(2), x.chunk(2, 1), x.split([1, 4]), x.unbind(1)),
     lambda: (f(5, 4),)),
    ("flip, roll", lambda x: (x.flip(0, 1), x.roll(1, 1), x.roll((1, -1), (0, 1))),
     lambda: (f(3, 4),)),
    ("pad constant", lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, -1, 0, 2), value=3.0)),
     lambda: (f(2, 3, 4),)),
    ("pad reflect", lambda x: (F.pad(x, (2, 1, 1, 0), mode="reflect"), F.pad(x[0], (1, 2),
                                                                            mode="reflect")),
     lambda: (f(1, 2, 4, 4),)),
    ("pad replicate", lambda x: F.pad(x, (2, 1, 1, 0), mode="replicate"), lambda: (f(1, 2, 3, 3),)),
    ("pad circular", lambda x: F.pad(x, (2, 1, 1, 0), mode="circular"), lambda: (f(1, 2, 3, 3),)),
    ("tril, triu", lambda x: (x.tril(), x.triu(1)), lambda: (f(4, 5),)),
    ("diagonal", lambda x: (x.diagonal(), x.diag()), lambda: (f(4, 4),)),
    ("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), lambda: (f(3), f(2))),
    ("unfold", lambda x: x.unfold(1, 3, 2), lambda: (f(2, 7),)),
    ("as_strided", lambda x: x.as_strided((2, 2), (1, 3), 1), lambda: (f(3, 3),)),
    # places
    ("gather", lambda x, n: torch.gather(x, 1, n), lambda: (f(3, 4), i(4, 3, 2))),
    ("index_select", lambda x, n: x.index_select(1, n), lambda: (f(3, 4), i(4, 2))),
    ("index", lambda x, n: (x[n], x[:, n], x[n, n], x[n[:, None], n]), lambda: (f(4, 4), i(4, 3))),
    ("take_along_dim", lambda x: x.take_along_dim(x.argmax(1, keepdim=True), 1),
     lambda: (f(3, 4),)),
    ("scatter", lambda x, n, y: (x.scatter(1, n, y), x.scatter(1, n, 2.0)),
     lambda: (f(3, 4), torch.tensor([[0, 2], [1, 3], [3, 0]]), f(3, 2))),
    ("scatter_add", lambda x, n, y: x.scatter_add(1, n, y), lambda: (f(3, 4), i(4, 3, 2), f(3, 2))),
    ("index_add, index_copy", lambda x, n, y: (x.index_add(0, n, y), x.index_copy(0, n, y)),
     lambda: (f(4, 3), torch.tensor([2, 0]), f(2, 3))),
    ("index_put", lambda x, n, y: x.index_put((n,), y),
     lambda: (f(4, 3), torch.tensor([2, 0]), f(2, 3))),
    ("slice_scatter, select_scatter",
     lambda x, y: (x.slice_scatter(y, 0, 1, 3), x.select_scatter(y[0], 0, 1)),
     lambda: (f(4, 3), f(2, 3))),
    ("one_hot", lambda n: F.one_hot(n, 5), lambda: (i(5, 3),)),
    ("embedding", F.embedding, lambda: (i(5, 2, 3), f(5, 4))),
    ("topk", lambda x: (x.topk(2), x.topk(2, 0, largest=False)), lambda: (f(3, 5),)),
    ("sort, argsort", lambda x: (x.sort(), x.argsort(0, descending=True)), lambda: (f(3, 5),)),
    ("searchsorted-like", lambda x, y: (x[None] < y[:, None]).sum(1), lambda: (f(5), f(3))),
    # images
    ("interpolate nearest", lambda x: F.interpolate(x, size=(5, 7)), lambda: (f(1, 2, 3, 4),)),
    ("interpolate bilinear", lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"),
     lambda: (f(1, 2, 3, 4),)),
    ("interpolate corners",
     lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
     lambda: (f(1, 2, 3, 4),)),
    ("interpolate bicubic", lambda x: F.interpolate(x, size=(5, 7), mode="bicubic"),
     lambda: (f(1, 2, 4, 4),)),
    ("interpolate linear", lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"),
     lambda: (f(1, 2, 6),)),
    ("interpolate trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
     lambda: (f(1, 1, 2, 2, 3),)),
    ("interpolate area", lambda x: F.interpolate(x, size=(2, 2), mode="area"),
     lambda: (f(1, 2, 4, 4),)),
    ("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False),
     lambda: (f(1, 2, 4, 4), f(1, 3, 3, 2).clamp(-1.2, 1.2))),
    # factories
    ("arange", lambda x: x + torch.arange(4) + torch.arange(0, 1, 0.25), lambda: (f(3, 4),)),
    ("ones_like, zeros", lambda x: (torch.ones_like(x) + x, torch.zeros(2) + x[:, :2],
                                   torch.full((4,), 2.5) * x, x.new_ones(4) * x,
                                   torch.full_like(x, 3)), lambda: (f(3, 4),)),
    ("linspace, eye", lambda x: (x * torch.linspace(0, 1, 4), x @ torch.eye(4)),
     lambda: (f(3, 4),)),
    ("causal mask",
     lambda x: x.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), float("-inf")).softmax(-1),
     lambda: (f(2, 4, 4),)),
    ("tensor of the code", lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), lambda: (f(3, 4),)),
    # in place
    ("in place", lambda x: x.clone().add_(1).mul_(2).relu_(), lambda: (f(3, 4),)),
    ("slices in place", lambda x: _written(x), lambda: (f(3, 4),)),
]  # fmt: skip


def _written(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:, 1:3] = x[:, :2]
    y[0] += 1
    return y


def normalized(module: nn.Module) -> nn.Module:
    """A batch normalisation that is not the identity."""
    rng = torch.Generator().manual_seed(1)
    for name, t in module.state_dict().items():
        if t.is_floating_point():
            t.copy_(torch.rand(t.shape, generator=rng) + (0.5 if "mean" not in name else 0.0))
    return module


def cases() -> list[Case]:
    made = [Case(name, module, inputs) for name, module, inputs in MODULES]
    for make in ACTIVATIONS:
        made.append(Case(str(make()), make, lambda: (f(3, 6),)))
    made += [Case(name, lambda g=g: Of(g), inputs) for name, g, inputs in FUNCTIONS]
    return made


def build(case: Case) -> tuple[nn.Module, tuple[Any, ...]]:
    """The module in inference mode (unless it asks for the other one), and its inputs."""
    torch.manual_seed(0)
    _RNG.manual_seed(0)
    module = case.module()
    if "in training" not in case.name or "not" in case.name:
        module.eval()
    return module.requires_grad_(False), case.inputs()
