"""What a template may leave to the tuner: numbers as knobs, and AutoTVM's policies for ordering and
annotating loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product
from typing import Protocol, Union, cast

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int

Operand = Union["Knob", Int, int]


class Asker(Protocol):
    """The runner of a template, which answers questions about knobs and records the answers."""

    def number_of(self, value: Int) -> int:
        """One of the values that `value` can take."""
        ...

    def lies_in(self, value: Int, least: int | None, most: int | None) -> bool:
        """Whether `value` lies in [least, most]; None is no bound."""
        ...


def _arithmetic(op: Callable[[Int, Int], Int]) -> Callable[[Knob, Operand], Knob]:
    return lambda knob, other: knob._with(other, op)


class Knob:
    """An integer expression over decisions. `str` gives its text, such as "#C.i.1"."""

    __slots__ = ("_asker", "value")

    def __init__(self, asker: Asker, value: Int) -> None:
        self._asker = asker
        self.value = value

    def _with(self, other: object, op: Callable[[Int, Int], Int]) -> Knob:
        if isinstance(other, Knob):
            return Knob(self._asker, op(self.value, other.value))
        if isinstance(other, Int | int) and not isinstance(other, bool):
            return Knob(self._asker, op(self.value, Int({}) + other))
        return cast("Knob", NotImplemented)  # the protocol of Python's operators

    __add__ = __radd__ = _arithmetic(lambda a, b: a + b)
    __sub__, __rsub__ = _arithmetic(lambda a, b: a - b), _arithmetic(lambda a, b: b - a)
    __mul__ = __rmul__ = _arithmetic(lambda a, b: a * b)
    __floordiv__, __rfloordiv__ = _arithmetic(lambda a, b: a // b), _arithmetic(lambda a, b: b // a)
    __mod__, __rmod__ = _arithmetic(lambda a, b: a % b), _arithmetic(lambda a, b: b % a)

    def __neg__(self) -> Knob:
        return Knob(self._asker, -self.value)

    # operations that need the number
    def __truediv__(self, other: float) -> float:
        return int(self) / float(other)

    def __rtruediv__(self, other: float) -> float:
        return float(other) / int(self)

    def __int__(self) -> int:
        return self._asker.number_of(self.value)

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __hash__(self) -> int:
        return hash(int(self))

    def __bool__(self) -> bool:
        return self != 0

    def _lies(self, other: object, least: int | None, most: int | None) -> bool:
        """Whether self - other lies in [least, most]."""
        difference = self._with(other, lambda a, b: a - b)
        if difference is NotImplemented:
            return cast(bool, NotImplemented)
        if (n := difference.value.const) is not None:
            return (least is None or n >= least) and (most is None or n <= most)
        return self._asker.lies_in(difference.value, least, most)

    def __eq__(self, other: object) -> bool:
        return self._lies(other, 0, 0)

    def __lt__(self, other: Operand) -> bool:
        return self._lies(other, None, -1)

    def __le__(self, other: Operand) -> bool:
        return self._lies(other, None, 0)

    def __gt__(self, other: Operand) -> bool:
        return self._lies(other, 1, None)

    def __ge__(self, other: Operand) -> bool:
        return self._lies(other, 0, None)

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__


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
