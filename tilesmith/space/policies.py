"""AutoTVM's policies for ordering and annotating loops: all the alternatives that a template may
choose from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

from tilesmith.base.errors import ScheduleError

Order = tuple[str, ...]
ORDERS = ("all", "interval_all", "interleave", "interleave_cuda")
ANNOTATIONS = ("none", "unroll", "vec", "try_unroll", "try_vec", "try_unroll_vec",
               "bind_gpu", "bind_gpu_virtual")  # fmt: skip
_MOST_ORDERS = 720  # the orders of six loops; each is a structure of its own

# Thread axes of the last loops, for at least so many loops. Loops before them join the first axis.
_BINDINGS = {
    "bind_gpu": (
        ("blockIdx.z", "blockIdx.y", "blockIdx.x", "threadIdx.z", "threadIdx.y", "threadIdx.x"),
        ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"),
        ("blockIdx.x", "threadIdx.x"),
    ),
    "bind_gpu_virtual": (
        ("blockIdx.z", "blockIdx.y", "blockIdx.x", "vthread", "vthread", "vthread",
         "threadIdx.z", "threadIdx.y", "threadIdx.x"),
        ("blockIdx.y", "blockIdx.x", "vthread", "vthread", "threadIdx.y", "threadIdx.x"),
        ("blockIdx.x", "vthread", "threadIdx.x"),
    ),
}  # fmt: skip


def orders_of(
    loops: Sequence[str],
    policy: str,
    interval: tuple[int, int] | None = None,
    spatial: Sequence[Sequence[str]] = (),
    reduce: Sequence[Sequence[str]] = (),
) -> tuple[Order, ...]:
    """The orders of `loops` that a policy allows.

    all: every permutation. interval_all: permutations of the loops from `interval[0]` up to
    `interval[1]` (exclusive). interleave: the tile levels of all axes in turns, where `spatial` and
    `reduce` hold the loops of one axis each; the innermost loops of `spatial` are ordered among
    those of `reduce`. interleave_cuda: the same, but inside of them.
    """
    match policy:
        case "all":
            return _every(loops)
        case "interval_all":
            if interval is None or not 0 <= interval[0] < interval[1] <= len(loops):
                raise ScheduleError(
                    f"sample_permutation by interval_all needs interval=(first, end) with "
                    f"0 <= first < end <= {len(loops)}; got {interval}"
                )
            first, end = interval
            head, tail = tuple(loops[:first]), tuple(loops[end:])
            return tuple((*head, *order, *tail) for order in _every(loops[first:end]))
        case "interleave" | "interleave_cuda":
            chains = [*spatial, *reduce]
            named = sorted(loop for chain in chains for loop in chain)
            if not spatial or not all(chains) or named != sorted(loops):
                raise ScheduleError(
                    f"sample_permutation by {policy} needs the loops of each axis, outermost "
                    f"first, in spatial=[[...]] and reduce=[[...]]: {', '.join(loops)}, each once"
                )
            outer = _in_turns([list(c[:-1]) for c in spatial])
            last = [c[-1] for c in spatial]
            if policy == "interleave_cuda":
                return ((*outer, *_in_turns(reduce), *last),)
            return ((*outer, *_in_turns([*([x] for x in last), *reduce])),)
    raise ScheduleError(
        f"sample_permutation: unknown policy {policy!r}; known are {', '.join(ORDERS)}, or give "
        "the orders themselves"
    )


def _every(loops: Sequence[str]) -> tuple[Order, ...]:
    if len(loops) > 6:
        raise ScheduleError(
            f"sample_permutation of {len(loops)} loops: there are more than {_MOST_ORDERS} orders; "
            "give some of them, or an interval"
        )
    return tuple(permutations(loops))


def _in_turns(chains: Sequence[Sequence[str]]) -> list[str]:
    """Merges the chains: always the next of the one with the most left, the first among equals."""
    left = [list(c) for c in chains]
    out = []
    while any(left):
        out.append(max(left, key=len).pop(0))
    return out


def annotations_of(loops: Sequence[str], policy: str) -> tuple[tuple[str, ...], ...]:
    """The annotations of the loops that a policy allows: "none", "unroll", "vec" or a thread axis
    for each loop, with at most one "vec".
    """
    n = len(loops)
    match policy:
        case "none" | "unroll" | "vec":
            rows = [(policy,) * n]
        case "try_unroll":
            rows = list(product(("none", "unroll"), repeat=n))
        case "try_vec":
            rows = list(product(("none", "vec"), repeat=n))
        case "try_unroll_vec":
            rows = list(product(("none", "unroll", "vec"), repeat=n))
        case "bind_gpu" | "bind_gpu_virtual":
            axes = next((a for a in _BINDINGS[policy] if len(a) <= n), None)
            if axes is None:
                least = len(_BINDINGS[policy][-1])
                raise ScheduleError(
                    f"sample_annotation by {policy} needs {least} loops or more; it is given {n}"
                )
            return ((*(axes[0],) * (n - len(axes)), *axes),)
        case _:
            raise ScheduleError(
                f"sample_annotation: unknown policy {policy!r}; known are {', '.join(ANNOTATIONS)}"
            )
    allowed = tuple(a for a in rows if a.count("vec") <= 1)
    if not allowed or not n:
        raise ScheduleError(
            f"sample_annotation by {policy} of {n} loops: at least one is needed, and at most one "
            "is vectorized"
        )
    return allowed
