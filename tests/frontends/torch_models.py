"""Small networks as people write them in PyTorch: an encoder with a mask, and a decoder with a
key/value cache that grows, or that is a buffer of fixed size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Encoder(nn.Module):
    """Like MiniLM: token, position and type embeddings, layers, mean pooling over the mask."""

    def __init__(self, layers: int = 2, hidden: int = 16, heads: int = 2, words: int = 50) -> None:
        super().__init__()
        self.words = nn.Embedding(words, hidden, padding_idx=0)
        self.places = nn.Embedding(32, hidden)
        self.types = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden, heads, 2 * hidden, dropout=0.1, activation="gelu", batch_first=True
            )
            for _ in range(layers)
        )
        self.register_buffer("ids", torch.arange(32).unsqueeze(0), persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Any]:
        n = tokens.shape[1]
        x = self.words(tokens) + self.places(self.ids[:, :n]) + self.types(torch.zeros_like(tokens))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=mask == 0)
        weights = mask.unsqueeze(-1).to(x.dtype)
        pooled = (x * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return {"hidden": x, "sentence": F.normalize(pooled, dim=1), "parts": (pooled, [n])}


class Decoder(nn.Module):
    """One layer of rotary attention with shared keys and a gated product, as LLaMA has them; the
    output weights are those of the embedding.
    """

    def __init__(self, hidden: int = 16, heads: int = 4, groups: int = 2, words: int = 40) -> None:
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, hidden // heads
        self.words = nn.Embedding(words, hidden)
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.kv = nn.Linear(hidden, 2 * groups * self.width, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, 2 * hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, words, bias=False)
        self.head.weight = self.words.weight
        angle = torch.outer(torch.arange(32.0), 100 ** -(torch.arange(self.width // 2) / 2))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def _rotated(self, x: Tensor, at: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[at], self.sin[at]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.width).transpose(1, 2)

    def _new(self, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norm1(x)
        k, v = self.kv(y).chunk(2, -1)
        q = self._rotated(self._split(self.q(y), self.heads), at)
        return q, self._rotated(self._split(k, self.groups), at), self._split(v, self.groups)

    def _finish(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        z = self.norm2(x)
        return self.head(x + self.down(F.silu(self.gate(z)) * self.up(z)))

    def forward(
        self, tokens: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = self.words(tokens)
        before = 0 if past is None else past[0].shape[2]
        q, k, v = self._new(x, torch.arange(before, before + tokens.shape[1]))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
        return self._finish(x, y), (k, v)


class StaticDecoder(Decoder):
    """The cache is a buffer, which each call writes at a position that is a tensor."""

    def __init__(self, length: int = 8) -> None:
        super().__init__()
        shape = (1, self.groups, length, self.width)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, token: Tensor, at: Tensor) -> Tensor:
        x = self.words(token)
        q, k, v = self._new(x, at)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = (torch.arange(self.keys.shape[2]) <= at)[None, None, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, mask, enable_gqa=True)
        return self._finish(x, y)
