"""Einsum: two operands at a time, and as a matrix product where it is one."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilesmith.base.errors import ExpressionError, GraphError
from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.shared.views import shaped
from tilesmith.graph.graph import Value
from tilesmith.ops.einsum import einsum, terms_of
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.transform import transpose

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def import_einsum(call: Call) -> Value:
    operands = list(call.values)
    if not operands:
        call.refuse("it has no inputs")
    equation = call.attribute("equation", "")
    try:
        terms = terms_of(equation, [len(x.shape) for x in operands])
    except ExpressionError as error:
        raise GraphError(f"{call.node}: {error}") from None
    if len(set("".join(terms.inputs))) > len(_LETTERS):
        call.refuse(f"{equation!r} stands for more than {len(_LETTERS)} dimensions")
    labels = list(terms.inputs)
    while len(operands) > 2:  # what later terms and the result do not need is summed at once
        later = set(terms.output).union(*labels[2:])
        kept = "".join(dict.fromkeys(x for x in labels[0] + labels[1] if x in later))
        joined = _pair(call, operands[0], operands[1], labels[0], labels[1], kept)
        operands, labels = [joined, *operands[2:]], [kept, *labels[2:]]
    if len(operands) == 1:
        y: Value = call.add(einsum, *operands, equation=_ascii(labels[0], terms.output))
        return y
    return _pair(call, operands[0], operands[1], labels[0], labels[1], terms.output)


def _ascii(*terms: str) -> str:
    """The terms with plain letters, as an equation: 'ab,bc->ac'."""
    seen = {x: k for k, x in enumerate(dict.fromkeys("".join(terms)))}
    *inputs, output = ("".join(_LETTERS[seen[x]] for x in term) for term in terms)
    return f"{','.join(inputs)}->{output}"


def _pair(call: Call, a: Value, b: Value, la: str, lb: str, lo: str) -> Value:
    y = _as_product(call, a, b, la, lb, lo)
    if y is None:
        y = call.add(einsum, a, b, equation=_ascii(la, lb, lo))
    return y


def _as_product(call: Call, a: Value, b: Value, la: str, lb: str, lo: str) -> Value | None:
    """The sum as a product of matrices; None where it is none."""
    extent = {**dict(zip(la, a.shape, strict=True)), **dict(zip(lb, b.shape, strict=True))}
    if len(set(la)) < len(la) or len(set(lb)) < len(lb):  # a diagonal
        return None
    if not a.dtype.is_float and a.dtype.bits < 32:  # a matrix product of these would be int32
        return None
    if any(extent[x] != n for x, n in zip(la, a.shape, strict=True)):  # an extent of 1 is spread
        return None
    batch = "".join(x for x in lo if x in la and x in lb)
    rows = "".join(x for x in lo if x in la and x not in lb)
    columns = "".join(x for x in lo if x in lb and x not in la)
    inner = "".join(x for x in la if x in lb and x not in lo)
    if not rows or not columns or not inner or len(batch + rows + inner) != len(la):
        return None
    if len(batch + inner + columns) != len(lb):  # something is summed in one operand alone
        return None

    def size(labels: str) -> int:
        return prod(extent[x] for x in labels)

    def folded(x: Value, labels: str, first: str, second: str) -> tuple[Value, bool]:
        """(batch, first, second), or with the last two the other way round, as it lies."""
        turned = labels == batch + second + first and labels != batch + first + second
        parts = (batch, second, first) if turned else (batch, first, second)
        order = tuple(labels.index(c) for c in "".join(parts))
        y = x if order == tuple(range(len(order))) else call.add(transpose, x, axes=order)
        lead = (size(batch),) if batch else ()
        return shaped(call, y, (*lead, size(parts[1]), size(parts[2]))), turned

    left, turn_a = folded(a, la, rows, inner)
    right, turn_b = folded(b, lb, inner, columns)
    settings = {"transpose_a": True} if turn_a else {}
    settings |= {"transpose_b": True} if turn_b else {}
    y: Value = call.add(batch_matmul if batch else matmul, left, right, **settings)
    made = batch + rows + columns
    y = shaped(call, y, tuple(extent[x] for x in made))
    if made != lo:
        y = call.add(transpose, y, axes=tuple(made.index(x) for x in lo))
    return y


IMPORTERS: Mapping[str, Importer] = {"Einsum": import_einsum}
