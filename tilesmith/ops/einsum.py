"""Einstein's sums: an equation such as "bij,bjk->bik" and tensors in, the sum of products out."""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.ints import ONE, Int
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Axis, Value, cast
from tilesmith.ops.arguments import accumulator, need_tensor, operator, show_shape


@dataclass(frozen=True, slots=True)
class Terms:
    """One label per dimension, for each operand and for the result. An ellipsis has become labels
    of its own, so that nothing else needs to know of it.
    """

    inputs: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return f"{','.join(self.inputs)}->{self.output}"


# Labels of the dimensions under an ellipsis; an equation itself has letters only.
_UNDER_ELLIPSIS = "0123456789" + "".join(map(chr, range(0x1D7D8, 0x1D7D8 + 40)))


def terms_of(equation: str, ranks: Sequence[int]) -> Terms:
    """The equation read for operands of these ranks. Without "->" the result has the labels that
    occur once, in the order of the alphabet, behind those of the ellipsis.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    given = left.split(",")
    if len(given) != len(ranks):
        raise ExpressionError(
            f"{equation!r} has {len(given)} terms for {len(ranks)} tensors; "
            "there must be one for each"
        )
    dots = [
        rank - len(term.replace("...", "", 1)) if "..." in term else 0
        for term, rank in zip(given, ranks, strict=True)
    ]
    if max(dots, default=0) > len(_UNDER_ELLIPSIS):
        raise ExpressionError(f"the ellipsis of {equation!r} stands for too many dimensions")
    broadcast = _UNDER_ELLIPSIS[: max(dots, default=0)]
    inputs = []
    for term, rank, count in zip(given, ranks, dots, strict=True):
        under = broadcast[len(broadcast) - max(count, 0) :]
        full = _expanded(term, under, equation)
        if len(full) != rank:
            raise ExpressionError(
                f"the term {term!r} of {equation!r} does not label a tensor of rank {rank}"
            )
        inputs.append(full)
    every = "".join(inputs)
    if arrow:
        output = _expanded(right, broadcast, equation)
        for label in output:
            if output.count(label) > 1 or label not in every:
                raise ExpressionError(
                    f"{label!r} in the result of {equation!r} must occur there once, "
                    "and in an operand"
                )
    else:
        once = {x for x in every if every.count(x) == 1 and x not in broadcast}
        output = broadcast + "".join(sorted(once))
    return Terms(tuple(inputs), output)


def _expanded(term: str, under: str, equation: str) -> str:
    letters = term.replace("...", "", 1)
    if not (letters == "" or (letters.isascii() and letters.isalpha())):
        raise ExpressionError(
            f"the term {term!r} of {equation!r} must have letters, and at most one '...'"
        )
    return term.replace("...", under, 1)


def extents_of(terms: Terms, operands: Sequence[Tensor]) -> dict[str, Int]:
    """The extent of each label; an extent of 1 takes the one it meets."""
    extents: dict[str, Int] = {}
    for labels, x in zip(terms.inputs, operands, strict=True):
        for label, extent in zip(labels, x.shape_ints, strict=True):
            held = extents.setdefault(label, extent)
            if held == ONE:
                extents[label] = extent
            elif extent not in (ONE, held):
                raise ExpressionError(
                    f"{label!r} in '{terms}' is {held} and {extent} in tensors of shapes "
                    f"{' and '.join(show_shape(t.shape) for t in operands)}; they must agree"
                )
    return extents


@operator
def einsum(*operands: Tensor, equation: str, name: str = "einsum") -> Tensor:
    """The sum of products over the labels that the result does not have, as in
    einsum(A, B, equation="bij,bjk->bik"). It is one stage for all operands: contract more than two
    pair by pair where their joint space is large.
    """
    for k, x in enumerate(operands):
        need_tensor(f"operand {k}", x)
        if x.dtype is BOOL:
            raise ExpressionError(f"operand {k} is bool; cast it to a number first")
        if x.dtype is not operands[0].dtype:
            raise ExpressionError(
                f"operands are {operands[0].dtype} and {x.dtype}; they must agree"
            )
    terms = terms_of(equation, [x.ndim for x in operands])
    extents = extents_of(terms, operands)
    summed = {
        label: reduce_axis(extent, name=f"k{n}")
        for n, (label, extent) in enumerate(extents.items())
        if label not in terms.output
    }
    result = operands[0].dtype
    plain = len(operands) == 1 and not summed
    acc = result if plain else accumulator(result)

    def body(*index: Value) -> Value:
        at: dict[str, Value] = {**dict(zip(terms.output, index, strict=True)), **summed}
        value: Value | None = None
        for labels, x in zip(terms.inputs, operands, strict=True):
            place = [
                0 if extent == ONE else at[label]
                for label, extent in zip(labels, x.shape_ints, strict=True)
            ]
            factor = cast(x[tuple(place)], acc)
            value = factor if value is None else value * factor
        assert value is not None
        axes: list[Axis] = list(summed.values())
        return cast(sum_over(value, axis=axes) if axes else value, result)

    return compute([extents[label] for label in terms.output], body, name=name)
