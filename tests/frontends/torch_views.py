"""Random functions of PyTorch over views, strides and indices, for tests that compare with eager.

A function is a list of steps. Its tensors are small, and some are empty, of rank 0, or not
contiguous.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[torch.Tensor], torch.Tensor]
DTYPES = (torch.float32, torch.float32, torch.int64, torch.int32, torch.bool, torch.bfloat16)


class Chain(torch.nn.Module):
    """Applies steps one after the other, and returns some of what is between them. It may write the
    last of them, which may be a view of its argument.
    """

    def __init__(self, steps: list[tuple[str, Step]], kept: set[int], writes: bool) -> None:
        super().__init__()
        self.steps, self.kept, self.writes = steps, kept, writes

    def __repr__(self) -> str:
        return f"{[n for n, _ in self.steps]}, returns {self.kept}, writes {self.writes}"

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for k, (_, step) in enumerate(self.steps):
            x = step(x)
            if k in self.kept:
                found.append(x)
        if self.writes:
            x.fill_(1)
        return (*found, x)


def argument(r: random.Random) -> torch.Tensor:
    shape = [r.choice((0, 1, 2, 2, 3, 3, 4, 5, 6)) for _ in range(r.randint(0, 4))]
    kind = r.choice(DTYPES)
    x = torch.randint(-9, 9, [n + 2 for n in shape], generator=_seeded(r)).to(kind)
    for d, n in enumerate(shape):
        x = x.narrow(d, r.randint(0, 2), n)
    if r.random() < 0.4:
        order = r.sample(range(len(shape)), len(shape))
        return x.permute(order) if shape else x
    return x if r.random() < 0.3 else x.contiguous()


def _seeded(r: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(r.randrange(1 << 30))


def chain(r: random.Random, x: torch.Tensor) -> Chain:
    steps = []
    for _ in range(r.randint(2, 4)):
        name, step = _step(r, x)
        try:
            x = step(x)
        except (RuntimeError, IndexError):  # not for such a tensor
            continue
        steps.append((name, step))
    kept = {k for k in range(len(steps)) if r.random() < 0.4}
    writable = x.numel() > 0 and not _overlaps(x) and x.dtype is not torch.bool
    writable = writable and not any("as_strided" in name for name, _ in steps)
    return Chain(steps, kept, r.random() < 0.25 and writable)


def _overlaps(x: torch.Tensor) -> bool:
    places = torch.arange(x.untyped_storage().nbytes() // x.element_size())
    seen = places.as_strided(x.shape, x.stride(), x.storage_offset()).flatten()
    return seen.unique().numel() < seen.numel()


def _step(r: random.Random, x: torch.Tensor) -> tuple[str, Step]:
    rank = x.dim()
    d = r.randrange(rank) if rank else 0
    n = x.shape[d] if rank else 0
    e = r.randrange(rank) if rank else 0
    a, b = sorted((r.randint(0, n), r.randint(0, n)))
    step = r.randint(1, 3)
    listed = [r.randrange(n) for _ in range(r.randint(0, 4))] if n else []
    ids = torch.tensor(listed, dtype=torch.int64)
    order = r.sample(range(rank), rank)
    places = [r.choice((1, x.shape[k])) for k in range(rank)]
    sizes = [r.randint(1, 3) for _ in range(r.randint(0, 3))]
    strides = [r.randint(0, 3) for _ in sizes]
    offset = r.randint(-2, 2)
    steps: list[tuple[str, Step]] = [
        ("transpose", lambda x: x.transpose(d, e)),
        ("permute", lambda x: x.permute(order)),
        ("narrow", lambda x: x.narrow(d, a, b - a)),
        ("slice", lambda x: x[(slice(None),) * d + (slice(a, b, step),)]),
        ("select", lambda x: x.select(d, a - 1)),
        ("chunk", lambda x: x.chunk(2, d)[-1]),
        ("split", lambda x: x.split(max(1, a), d)[0]),
        ("unbind", lambda x: x.unbind(d)[-1]),
        ("unsqueeze", lambda x: x.unsqueeze(d)),
        ("squeeze", lambda x: x.squeeze()),
        ("expand", lambda x: x.expand(2, *x.shape)),
        ("expand one", lambda x: x[(slice(None),) * d + (slice(0, 1),)].expand(x.shape)),
        ("diagonal", lambda x: x.diagonal(offset, d, e)),
        ("unfold", lambda x: x.unfold(d, min(2, n), step)),
        ("flatten", lambda x: x.flatten()),
        ("reshape", lambda x: x.reshape(-1, x.shape[-1])),
        ("as_strided", lambda x: x.as_strided(sizes, strides)),
        ("as_strided at", lambda x: x.as_strided(sizes, strides, a)),
        ("movedim", lambda x: x.movedim(d, e)),
        ("flip", lambda x: x.flip(d)),
        ("roll", lambda x: x.roll(1, d)),
        ("clone", lambda x: x.clone()),
        ("contiguous", lambda x: x.contiguous()),
        ("add", lambda x: x + 1),
        ("float", lambda x: x.float()),
        ("long", lambda x: x.long()),
        ("index_select", lambda x: x.index_select(d, ids)),
        ("index", lambda x: x[(slice(None),) * d + (ids - n,)]),
        ("gather", lambda x: x.gather(d, torch.zeros(places, dtype=torch.int64))),
        ("index_fill", lambda x: x.index_fill(d, ids, 1)),
        ("index_copy", lambda x: x.index_copy(d, ids, x.index_select(d, ids) * 0)),
        ("add to a part", lambda x: _added(x.clone(), d, a, b)),
        ("cat", lambda x: torch.cat([x, x.narrow(d, a, b - a)], d)),
        ("stack", lambda x: torch.stack([x, x], d)),
    ]  # fmt: skip
    return r.choice(steps)


def _added(x: torch.Tensor, d: int, a: int, b: int) -> torch.Tensor:
    x.narrow(d, a, b - a).add_(1)
    return x


def assert_same_memory(got: list[Any], want: list[Any], about: Any) -> None:
    """The same values, strides and sharing of memory."""
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (about, k)
        assert torch.equal(a, b), (about, k, a, b)
        strides = zip(a.shape, a.stride(), b.stride(), strict=True)
        # PyTorch itself, when it traces, gives others where they say nothing.
        assert not a.numel() or all(n == 1 or s == t for n, s, t in strides), (about, k)
    assert shared(got) == shared(want), about


def shared(tensors: list[torch.Tensor]) -> list[bool]:
    """Which pairs of tensors have the same memory."""
    held = [t.untyped_storage().data_ptr() if t.numel() else -k for k, t in enumerate(tensors)]
    return [a == b for k, a in enumerate(held) for b in held[:k]]
