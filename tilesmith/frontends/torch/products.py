"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilesmith.frontends.shared.building import shaped
from tilesmith.frontends.shared.products import plus_bias, product, scaled
from tilesmith.frontends.torch.call import Call, Importer, Number
from tilesmith.frontends.torch.movement import reshaped
from tilesmith.frontends.torch.reduction import reduced
from tilesmith.graph.graph import Value
from tilesmith.ops import elementwise as e
from tilesmith.ops.matmul import batch_matmul
from tilesmith.ops.reduce import reduce_sum


def _unfolded(call: Call, x: Value) -> Value:
    """A batch of matrices as it was before its leading dimensions were folded into one."""
    base = call.bases.get(x.name)
    if base is None or len(base.shape) <= 3 or base.shape[-2:] != x.shape[-2:]:
        return x
    return base


def mm(call: Call, a: Value, b: Value) -> Value:
    call.need_same(a, b)
    return call.cast(product(call, a, b), call.dtype)


def bmm(call: Call, a: Value, b: Value) -> Value:
    left, right = _unfolded(call, a), _unfolded(call, b)
    if left.shape[:-2] != right.shape[:-2]:
        left, right = a, b
    y = call.cast(call.add(batch_matmul, left, right), call.dtype)
    return reshaped(call, y, call.shape)


def plus(product: Importer) -> Importer:
    """A bias times beta, plus a product times alpha."""

    def read(
        call: Call, bias: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1
    ) -> Value:
        call.need_same(bias, a, b)
        y = scaled(call, product(call, a, b), float(alpha))
        if beta == 0:
            return y
        return plus_bias(call, y, scaled(call, call.cast(bias, y.dtype), float(beta)))

    return read


def trilinear(
    call: Call, a: Value, b: Value, c: Value, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> Value:  # fmt: skip
    """The sum of products of three tensors, each with new dimensions of 1."""
    factors = []
    for x, new in ((a, expand1), (b, expand2), (c, expand3)):
        shape = list(x.shape)
        for d in sorted(new):
            shape.insert(d, 1)
        factors.append(shaped(call, x, shape))
    left = call.add(e.multiply, factors[0], factors[1])
    return reduced(call, reduce_sum, call.add(e.multiply, left, factors[2]), sumdim, False)


IMPORTERS: Mapping[str, Importer] = {
    "aten._trilinear.default": trilinear,
    "aten.addmm.default": plus(mm),
    "aten.baddbmm.default": plus(bmm),
    "aten.bmm.default": bmm,
    "aten.mm.default": mm,
    "aten.mv.default": mm,
    "aten.dot.default": mm,
}
