"""BERT (Devlin et al., NAACL 2019): an encoder over token identifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tilesmith.base.dataclass import dataclass

_EPSILON = 1e-12  # of the layer norms, as published


@dataclass(frozen=True, slots=True)
class Sizes:
    layers: int
    hidden: int
    heads: int
    inner: int
    vocabulary: int
    positions: int


BASE = Sizes(layers=12, hidden=768, heads=12, inner=3072, vocabulary=30522, positions=512)


class Attention(nn.Module):  # type: ignore[misc]
    """`fused` computes the same with PyTorch's fused kernel. The exporters get the separate steps,
    which is how most exported files have it.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.width = sizes.heads, sizes.hidden // sizes.heads
        self.fused = False
        self.query = nn.Linear(sizes.hidden, sizes.hidden)
        self.key = nn.Linear(sizes.hidden, sizes.hidden)
        self.value = nn.Linear(sizes.hidden, sizes.hidden)
        self.out = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._split(f(x)) for f in (self.query, self.key, self.value))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / self.width**0.5
            y = torch.matmul(torch.softmax(scores, -1), v)
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.width).transpose(1, 2)


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes)
        self.norm1 = nn.LayerNorm(sizes.hidden, eps=_EPSILON)
        self.up = nn.Linear(sizes.hidden, sizes.inner)
        self.down = nn.Linear(sizes.inner, sizes.hidden)
        self.norm2 = nn.LayerNorm(sizes.hidden, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):  # type: ignore[misc]
    """Gives the hidden states of all tokens, and the pooled state of the first."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = nn.Embedding(sizes.positions, sizes.hidden)
        self.types = nn.Embedding(2, sizes.hidden)
        self.norm = nn.LayerNorm(sizes.hidden, eps=_EPSILON)
        self.layers = nn.Sequential(*(Layer(sizes) for _ in range(sizes.layers)))
        self.pooler = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places) + self.types.weight[0]
        hidden = self.layers(self.norm(x))
        return hidden, torch.tanh(self.pooler(hidden[:, 0]))
