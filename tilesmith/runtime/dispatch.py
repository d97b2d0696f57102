"""Which of several kernels runs at which sizes: samples of sizes with the kernel of each in, a tree
of comparisons out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isqrt, log

from tilesmith.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """The sizes that are near to `sizes`, as ratios. `member` is the number of the kernel that
    computes them. Where they were timed, `seconds` are those of the kernel, and `regret` is how
    many times longer that is than the fastest one known.
    """

    sizes: tuple[tuple[str, int], ...]
    member: int
    seconds: float | None = None
    regret: float | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """A comparison: `below` decides where the size is less than `least`, `other` elsewhere."""

    size: str
    least: int
    below: Choice
    other: Choice


# The number of a kernel, or a comparison.
Choice = int | Branch


def choice_of(regions: Sequence[Region], limits: Mapping[str, tuple[int, int]]) -> Choice:
    """The tree for samples of the sizes: two neighbouring values of a size part where both are
    equally far, as ratios. Kernel 0 runs outside of the limits.
    """
    if not regions:
        return 0
    out = _parted(tuple(regions))
    for name, (low, high) in limits.items():
        out = _branch(name, high + 1, _branch(name, low, 0, out), 0)
    return out


def _parted(regions: tuple[Region, ...]) -> Choice:
    """The comparison that tells most of the kernels; of equally good ones, the most balanced."""
    if len({r.member for r in regions}) == 1:
        return regions[0].member
    best: tuple[tuple[float, int], str, int] | None = None
    for name, _ in regions[0].sizes:
        values = sorted({dict(r.sizes)[name] for r in regions})
        for low, high in pairwise(values):
            below = [r for r in regions if dict(r.sizes)[name] <= low]
            other = [r for r in regions if dict(r.sizes)[name] > low]
            cost = _doubt(below) + _doubt(other), abs(len(below) - len(other))
            if best is None or cost < best[0]:
                best = cost, name, isqrt(low * high) + 1
    if best is None:  # the same sizes twice
        return regions[0].member
    _, name, least = best
    near = tuple(r for r in regions if dict(r.sizes)[name] < least)
    far = tuple(r for r in regions if dict(r.sizes)[name] >= least)
    return _branch(name, least, _parted(near), _parted(far))


def _branch(size: str, least: int, below: Choice, other: Choice) -> Choice:
    """The comparison, without what it does not change."""
    if below == other:
        return below
    if isinstance(other, Branch) and (other.size, other.below) == (size, below):
        return other
    if isinstance(below, Branch) and (below.size, below.other) == (size, other):
        return below
    return Branch(size, least, below, other)


def _doubt(regions: Sequence[Region]) -> float:
    """What is not known of the kernel after a comparison, in nats."""
    counts = Counter(r.member for r in regions).values()
    return round(sum(n * log(len(regions) / n) for n in counts), 9)


def member_of(choice: Choice, sizes: Mapping[str, int]) -> int:
    """The number of the kernel that runs at these sizes."""
    while isinstance(choice, Branch):
        choice = choice.below if sizes[choice.size] < choice.least else choice.other
    return choice


def leaves(choice: Choice) -> Iterator[int]:
    """The numbers of the kernels in a tree, in order."""
    if isinstance(choice, Branch):
        yield from leaves(choice.below)
        yield from leaves(choice.other)
    else:
        yield choice


def renumbered(choice: Choice, numbers: Mapping[int, int]) -> Choice:
    """The tree with other numbers of the kernels."""
    if isinstance(choice, Branch):
        below, other = (renumbered(c, numbers) for c in (choice.below, choice.other))
        return Branch(choice.size, choice.least, below, other)
    return numbers[choice]


def pieces(choice: Choice, within: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """What holds at each leaf, in words, with its kernel."""
    if isinstance(choice, Branch):
        yield from pieces(choice.below, (*within, f"{choice.size} < {choice.least}"))
        yield from pieces(choice.other, (*within, f"{choice.size} >= {choice.least}"))
    else:
        yield within, choice
