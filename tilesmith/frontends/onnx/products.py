"""Matrix products, einsum, determinants, and losses that are sums of products.

Einsum is taken two operands at a time, and as a matrix product where it is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilesmith.base.errors import ExpressionError, GraphError
from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.shared.building import permuted, shaped
from tilesmith.frontends.shared.products import plus_bias, product, scaled
from tilesmith.graph.graph import Value
from tilesmith.ops.determinant import determinant, eliminate
from tilesmith.ops.einsum import einsum, terms_of
from tilesmith.ops.elementwise import divide, multiply
from tilesmith.ops.loss import class_weights, nll_loss
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.norm import log_softmax
from tilesmith.ops.reduce import reduce_mean, reduce_sum
from tilesmith.ops.transform import transpose

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Each order of a determinant is one more step of elimination.
_MAX_ORDER = 16


def import_gemm(
    call: Call, a: Value, b: Value, c: Value | None = None, *, alpha: float = 1.0,
    beta: float = 1.0, transA: bool = False, transB: bool = False, broadcast: bool = False,
) -> Value:  # fmt: skip
    """`broadcast` is of opset 6, where c is spread only if that is said."""
    turn_b = transB
    for x in (a, b):
        if len(x.shape) != 2:
            call.refuse(f"{x} must be a matrix")
    if turn_b and call.contents(b) is not None:  # constant weights have one form, whoever exported
        b, turn_b = call.add(transpose, b), False
    settings = {"transpose_a": True} if transA else {}
    settings |= {"transpose_b": True} if turn_b else {}
    y = scaled(call, call.add(matmul, a, b, **settings), alpha)
    if c is None or beta == 0:
        return y
    total = plus_bias(call, y, scaled(call, c, beta))
    if total.shape != y.shape:
        call.refuse(f"{c} does not broadcast to the product, of shape {list(y.shape)}")
    return total


# einsum
def import_einsum(call: Call, first: Value, *rest: Value, equation: str = "") -> Value:
    operands = [first, *rest]
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
        return call.add(einsum, *operands, equation=_ascii(labels[0], terms.output))
    return _pair(call, operands[0], operands[1], labels[0], labels[1], terms.output)


def _ascii(*terms: str) -> str:
    """The terms with plain letters, as an equation: 'ab,bc->ac'."""
    seen = {x: k for k, x in enumerate(dict.fromkeys("".join(terms)))}
    *inputs, output = ("".join(_LETTERS[seen[x]] for x in term) for term in terms)
    return f"{','.join(inputs)}->{output}"


def _pair(call: Call, a: Value, b: Value, la: str, lb: str, lo: str) -> Value:
    y = _as_product(call, a, b, la, lb, lo)
    return call.add(einsum, a, b, equation=_ascii(la, lb, lo)) if y is None else y


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
        y = permuted(call, x, order)
        lead = (size(batch),) if batch else ()
        return shaped(call, y, (*lead, size(parts[1]), size(parts[2]))), turned

    left, turn_a = folded(a, la, rows, inner)
    right, turn_b = folded(b, lb, inner, columns)
    settings = {"transpose_a": True} if turn_a else {}
    settings |= {"transpose_b": True} if turn_b else {}
    y = call.add(batch_matmul if batch else matmul, left, right, **settings)
    made = batch + rows + columns
    y = shaped(call, y, tuple(extent[x] for x in made))
    return permuted(call, y, [made.index(x) for x in lo])


# losses and determinants
def import_nll_loss(
    call: Call, x: Value, target: Value, weight: Value | None = None, *,
    ignore_index: int | None = None, reduction: str = "mean",
) -> Value:  # fmt: skip
    """The negative log likelihood of classes, reduced as the node says."""
    given = [] if weight is None else [weight]
    settings = {} if ignore_index is None else {"ignore": ignore_index}
    way = call.choice("reduction", reduction, ("none", "mean", "sum"))
    each = call.add(nll_loss, x, target, *given, **settings)
    if way == "none":
        return each
    plain = way == "mean" and not given and not settings
    total = call.add(reduce_mean if plain else reduce_sum, each)
    if plain or way == "sum":
        return total
    weights = call.add(class_weights, target, *given, dtype=x.dtype.name, **settings)
    return call.add(divide, total, call.add(reduce_sum, weights))


def import_cross_entropy(
    call: Call, x: Value, target: Value, weight: Value | None = None, *,
    ignore_index: int | None = None, reduction: str = "mean",
) -> tuple[Value, ...]:  # fmt: skip
    if len(x.shape) < 2:
        call.refuse(f"{x} must be (N, C, ...)")
    logs = call.add(log_softmax, x, axis=1)
    loss = import_nll_loss(
        call, logs, target, weight, ignore_index=ignore_index, reduction=reduction
    )
    return loss, logs


def import_det(call: Call, x: Value) -> Value:
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2] or not x.dtype.is_float:
        call.refuse(f"{x} must be of square matrices of floats")
    order, lead = x.shape[-1], x.shape[:-2]
    if not 1 <= order <= _MAX_ORDER:
        raise RunOnHost(f"its matrices are of order {order}; kernels are for 1 to {_MAX_ORDER}")
    rest = shaped(call, x, (prod(lead), order, order))
    if x.dtype.bits < 32:
        rest = call.cast(rest, "float32")
    factor: Value | None = None
    while rest.shape[1] > 3:
        rest, by = call.add_several(eliminate, rest)
        factor = by if factor is None else call.add(multiply, factor, by)
    y = call.add(determinant, rest)
    if factor is not None:
        y = call.add(multiply, y, factor)
    return shaped(call, call.cast(y, x.dtype), lead)


IMPORTERS: Mapping[str, Importer] = {
    "Det": import_det,
    "Einsum": import_einsum,
    "Gemm": import_gemm,
    "MatMul": product,
    "NegativeLogLikelihoodLoss": import_nll_loss,
    "SoftmaxCrossEntropyLoss": import_cross_entropy,
}
