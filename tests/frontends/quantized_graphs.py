"""Random ONNX models as quantisers write them: operators in float32 between QuantizeLinear and
DequantizeLinear. All scales are powers of two and all numbers small, so that float32 is exact and
results can be compared bit for bit.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F = np.float32
Shape = tuple[int, ...]
Value = tuple[str, Shape, int]  # the name, and how many products lie behind the last quantisation

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_OTHERS = (
    "Add", "Bias", "Clip", "Concat", "Flatten", "Gather", "MaxPool", "Pad", "Relu", "Reshape",
    "Slice", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip


class Drawn:
    """A model that grows by one drawn operator at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = self.pick(13, 19, 21)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}
        shape = tuple(map(int, self.rng.integers(1, 6, self.pick(1, 2, 2, 3, 4, 4))))
        self.x = (self.rng.integers(-60, 60, shape) / 8).astype(F)
        self.values = [self.quantized(("x", shape, 0))]
        for _ in range(int(self.rng.integers(1, 6))):
            self.grow()
        if self.values[-1][2]:
            self.values.append(self.quantized(self.values[-1]))

    @property
    def model(self) -> onnx.ModelProto:
        last = self.values[-1][0]
        graph = helper.make_graph(
            self.nodes, "drawn",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.x.shape)],
            [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )  # fmt: skip
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10)

    # drawing
    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def scale(self, low: int, high: int, shape: Shape = ()) -> Any:
        return np.exp2(self.rng.integers(low, high, shape)).astype(F)

    def constant(self, a: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(a)
        return name

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def spread(self, shape: Shape, axis: int) -> tuple[Shape, dict[str, int]]:
        """The shape of the scales of a tensor, and the attributes that say so."""
        kind = self.rng.random()
        given = {"axis": axis - (len(shape) if self.chance(0.4) else 0)}
        if kind < 0.1 and self.opset >= 21:
            block = self.pick(1, 2, shape[axis])
            count = -(-shape[axis] // block)
            return (*shape[:axis], count, *shape[axis + 1 :]), given | {"block_size": block}
        if kind < 0.5:
            return (shape[axis],), given
        return self.pick((), (), (), (1,)), {}

    def zeros(self, kind: str, shape: Shape) -> Any:
        of = np.iinfo(kind)
        return self.rng.integers(max(of.min, -300), min(of.max, 300) + 1, shape).astype(kind)

    def quantized(self, v: Value) -> Value:
        name, shape, _ = v
        kinds = ("uint8", "int8", "int16") if self.opset >= 21 else ("uint8", "int8")
        kind = self.pick("uint8", "int8", *kinds)
        own, along = (
            self.spread(shape, int(self.rng.integers(len(shape))))
            if shape and self.chance(0.1)
            else ((), {})
        )
        terms = [self.scale(-4, 3, own), self.zeros(kind, own)]
        back, back_along = terms, along
        if kind == "uint8" and self.chance(0.2):
            terms[1][...] = 0
            terms, back = terms[:1], terms[: self.pick(1, 2)]
        elif shape and self.chance(0.1):  # read with other scales than written
            own, back_along = self.spread(shape, 0)
            back = [self.scale(-4, 3, own), self.zeros(kind, own)]
        q = self.node("QuantizeLinear", [name, *map(self.constant, terms)], **along)
        y = self.node("DequantizeLinear", [q, *map(self.constant, back)], **back_along)
        return y, shape, 0

    def weights(self, shape: Shape, axis: int) -> str:
        """Dequantised constants, some stored under another shape or in another order."""
        route, stored, at = self.pick("", "", "", "Transpose", "Reshape"), shape, axis
        order = tuple(map(int, self.rng.permutation(len(shape))))
        if route == "Transpose":
            stored, at = tuple(shape[d] for d in order), order.index(axis)
        elif route == "Reshape":
            size = prod(shape)
            stored = self.pick((shape[0], size // shape[0]), (size // shape[-1], shape[-1]))
            at = self.pick(0, 1)
        if self.chance(0.15):
            at = int(self.rng.integers(len(stored)))
        own, along = self.spread(stored, at)
        w = self.rng.integers(-7, 8, stored).astype(np.int8)
        terms = [w, self.scale(-6, 2, own)]
        if self.chance(0.5):
            terms.append(self.rng.integers(-3, 4, own).astype(np.int8))
        y = self.node("DequantizeLinear", [*map(self.constant, terms)], **along)
        if route == "Transpose":
            return self.node("Transpose", [y], perm=[int(d) for d in np.argsort(order)])
        return self.node("Reshape", [y, self.constant(np.array(shape))]) if route else y

    def bias(self, count: int) -> str:
        """Floats, of which some are multiples of no scale, or dequantised integers."""
        if self.chance(0.5):
            return self.constant((self.rng.integers(-2000, 2000, count) / 512).astype(F))
        own: Shape = self.pick((), (count,))
        whole = self.rng.integers(-400, 400, count).astype(np.int32)
        inputs = [self.constant(whole), self.constant(self.scale(-10, 0, own))]
        return self.node("DequantizeLinear", inputs, **({"axis": 0} if own else {}))

    # growing
    def grow(self) -> None:
        v = self.values[-1] if self.chance(0.85) else self.pick(*self.values)
        op = self.pick(*_PRODUCTS) if v[2] == 0 and self.chance(0.6) else self.pick(*_OTHERS)
        drawn = self.product(op, *v) if op in _PRODUCTS else self.other(op, *v)
        if drawn is not None and prod(drawn[1]) < 1500:
            self.values.append(drawn)
            if drawn[2] > 1 or self.chance(0.5):
                self.values.append(self.quantized(drawn))

    def product(self, op: str, x: str, shape: Shape, depth: int) -> Value | None:
        rank, n = len(shape), int(self.rng.integers(1, 5))
        if op in ("Conv", "ConvTranspose") and rank > 2:
            groups = self.pick(1, shape[1])
            kernel = tuple(self.pick(1, min(2, e), min(3, e)) for e in shape[2:])
            inside = shape[1] // groups
            w = (
                self.weights((n * groups, inside, *kernel), 0)
                if op == "Conv"
                else self.weights((shape[1], n, *kernel), 1)
            )
            bias = [self.bias(n * groups)] if self.chance(0.6) else []
            pads = [int(k > 1) for k in kernel] * 2
            y = self.node(op, [x, w, *bias], group=groups, pads=pads)
            way = 1 if op == "Conv" else -1
            extents = tuple(
                e + way * (2 * p - k + 1) for e, p, k in zip(shape[2:], pads, kernel, strict=False)
            )
            if min(extents) < 1:
                return None
            return y, (shape[0], n * groups, *extents), depth + 1
        if op == "Gemm" and rank == 2:
            a, b = self.chance(0.25), self.chance(0.5)
            rows, length = shape[::-1] if a else shape
            w = self.weights((n, length), 0) if b else self.weights((length, n), 1)
            terms = [self.bias(n)] if self.chance(0.7) else []
            numbers = {k: self.pick(1.0, 1.0, 0.5, 3.0) for k in ("alpha", "beta")}
            y = self.node(op, [x, w, *terms], transA=int(a), transB=int(b), **numbers)
            return y, (rows, n), depth + 1
        if op == "MatMul" and rank:
            batch: Shape = (shape[0],) if rank == 3 and self.chance(0.3) else ()
            y = self.node(op, [x, self.weights((*batch, shape[-1], n), len(batch) + 1)])
            if self.chance(0.5):
                y = self.node("Add", [y, self.bias(n)])
            return y, (*shape[:-1], n), depth + 1
        return None

    def other(self, op: str, x: str, shape: Shape, depth: int) -> Value | None:
        rank, size = len(shape), prod(shape)
        axis = int(self.rng.integers(rank)) if rank else 0
        before, after = shape[:axis], shape[axis + 1 :]
        made: Shape

        def whole(*numbers: int) -> str:
            return self.constant(np.array(numbers))

        match op:
            case "Relu":
                return self.node(op, [x]), shape, depth
            case "Clip":
                return self.node(op, [x, self.constant(F(-1)), self.constant(F(6))]), shape, depth
            case "Add":
                other = self.pick(*(v for v in self.values if v[1] == shape))
                return self.node(op, [x, other[0]]), shape, max(depth, other[2])
            case "Flatten":
                made = prod(before), size // max(1, prod(before))
                return self.node(op, [x], axis=axis), made, depth
            case "Unsqueeze" if rank < 4:
                made = (*shape[:axis], 1, *shape[axis:])
                return self.node(op, [x, whole(axis)]), made, depth
            case "Squeeze" if rank and shape[axis] == 1:
                return self.node(op, [x, whole(axis - rank)]), before + after, depth
            case "Bias" if rank:
                return self.node("Add", [x, self.bias(shape[-1])]), shape, depth
            case "Transpose" if rank:
                order = [int(d) for d in self.rng.permutation(rank)]
                return self.node(op, [x], perm=order), tuple(shape[d] for d in order), depth
            case "Reshape" if rank > 1:
                joined = (*shape[: rank - 2], shape[-2] * shape[-1])
                front = (shape[0] * shape[1], *shape[2:])
                made = self.pick((size,), joined, front, (1, *shape))
                return self.node(op, [x, whole(*made)]), made, depth
            case "Concat" if rank:
                other = self.pick(*(v for v in self.values if v[1] == shape))
                made = (*before, 2 * shape[axis], *after)
                return self.node(op, [x, other[0]], axis=axis), made, max(depth, other[2])
            case "Slice" if rank and shape[axis] > 1:
                y = self.node(op, [x, whole(-1), whole(-9), whole(axis), whole(-1)])
                return y, shape, depth
            case "Gather" if rank:
                y = self.node(op, [x, whole(-1, 0)], axis=axis)
                return y, (*before, 2, *after), depth
            case "Pad" if rank:
                pads = [int(p) for p in self.rng.integers(0, 2, 2 * rank)]
                made = tuple(e + pads[d] + pads[d + rank] for d, e in enumerate(shape))
                return self.node(op, [x, whole(*pads), self.constant(F(1.5))]), made, depth
            case "MaxPool" if rank > 2:
                kernel = [min(2, e) for e in shape[2:]]
                extents = tuple(e - k + 1 for e, k in zip(shape[2:], kernel, strict=True))
                return self.node(op, [x], kernel_shape=kernel), (*shape[:2], *extents), depth
        return None
