"""Tensors, which are read one element at a time, and the stages that compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilesmith.base.dtype import INT64, DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.combiner import Combiner
from tilesmith.expr.dynamic import as_index
from tilesmith.expr.ints import Int, IntLike
from tilesmith.expr.nodes import Expr, IntValue, Load
from tilesmith.expr.text import brief
from tilesmith.expr.values import HasValue, Operand, Value, args_of, as_value, binary, fresh, power


class TensorName(str):
    """The name by which a Load refers to a tensor until the tensor has its final name."""

    __slots__ = ("tensor",)
    tensor: Tensor


class Tensor(HasValue):
    """A placeholder, or one output of a Stage."""

    def __init__(self, name: str, shape: tuple[Int, ...], dtype: DType, stage: Stage | None = None):
        self.name, self.shape_ints, self.dtype, self.stage = name, shape, dtype, stage
        self.uid = TensorName(f"{name}@{next(fresh)}")
        self.uid.tensor = self

    @property
    def shape(self) -> tuple[IntLike, ...]:
        """Numbers for known extents, Ints for size variables."""
        return tuple(e if (n := e.const) is None else n for e in self.shape_ints)

    @property
    def ndim(self) -> int:
        return len(self.shape_ints)

    def __getitem__(self, index: Any) -> Value:
        items: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
        if len(items) != self.ndim:
            raise ExpressionError(
                f"{self.name} has {self.ndim} dimensions but is read with {len(items)} "
                f"ind{'ex' if len(items) == 1 else 'ices'}"
            )
        return Value(Load(self.uid, tuple(map(self._index, items)), self.dtype))

    # A tensor stands for all its elements, so only a tensor of rank 0 has arithmetic.
    def _arithmetic(op: str, sign: str, turned: bool = False) -> Callable[..., Value]:  # type: ignore[misc]
        def operator(self: Tensor, other: Operand | Tensor) -> Value:
            if self.ndim:
                raise self._is_tensor(sign, op)
            return binary(op, other, self) if turned else binary(op, self, other)

        return operator

    __add__, __radd__ = _arithmetic("add", "+"), _arithmetic("add", "+", True)
    __sub__, __rsub__ = _arithmetic("sub", "-"), _arithmetic("sub", "-", True)
    __mul__, __rmul__ = _arithmetic("mul", "*"), _arithmetic("mul", "*", True)
    __truediv__, __rtruediv__ = _arithmetic("div", "/"), _arithmetic("div", "/", True)
    __floordiv__, __rfloordiv__ = (
        _arithmetic("floordiv", "//"),
        _arithmetic("floordiv", "//", True),
    )
    __mod__, __rmod__ = _arithmetic("mod", "%"), _arithmetic("mod", "%", True)
    __lt__, __le__ = _arithmetic("lt", "<"), _arithmetic("le", "<=")
    __gt__, __ge__ = _arithmetic("gt", ">"), _arithmetic("ge", ">=")

    def __pow__(self, other: Operand) -> Value:
        if self.ndim:
            raise self._is_tensor("**", "pow")
        return power(self[()], other)

    def __neg__(self) -> Value:
        if self.ndim:
            raise self._is_tensor("-", "neg")
        return -self[()]

    def __abs__(self) -> Value:
        if self.ndim:
            raise self._is_tensor("abs", "abs")
        return abs(self[()])

    def __matmul__(self, other: Any) -> Value:
        raise ExpressionError(
            f"{self.name} @ ...: the product of two tensors is ts.ops.matmul({self.name}, B), or a "
            "ts.compute with a ts.sum over a ts.reduce_axis"
        )

    __rmatmul__ = __matmul__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Value:
        raise self._is_tensor(f"np.{ufunc.__name__}", ufunc.__name__)

    def __bool__(self) -> bool:
        raise ExpressionError(f"the truth of the tensor {self.name} is not known; use ts.where")

    def __len__(self) -> int:
        raise ExpressionError(f"the extents of {self.name} are {self.name}.shape; len() has none")

    def __iter__(self) -> Any:
        raise ExpressionError(
            f"{self.name} cannot be iterated over: a computation is stated for all elements at "
            f"once, as in ts.compute({self.name}.shape, lambda *i: {self.name}[i] * 2)"
        )

    def _is_tensor(self, sign: str, op: str) -> ExpressionError:
        index = ", ".join("ijklmn"[: self.ndim]) if self.ndim <= 6 else "*i"
        named = {
            "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power",
            "neg": "negative", "abs": "absolute", "exp": "exp", "log": "log", "sqrt": "sqrt",
            "tanh": "tanh", "maximum": "maximum", "minimum": "minimum",
        }  # fmt: skip
        whole = f", or use ts.ops.{named[op]}" if op in named else ""
        return ExpressionError(
            f"{sign} of the tensor {self.name}: say what each element is, as in "
            f"ts.compute({self.name}.shape, lambda {index}: {self.name}[{index}] ...){whole}"
        )

    def _index(self, item: Any) -> Int:
        if isinstance(item, slice) or item is None or item is Ellipsis:
            raise ExpressionError(
                f"{self.name} is indexed by {item!r}; a tensor is read one element at a time, "
                "so give one integer for each dimension"
            )
        node = as_value(item).node if not isinstance(item, Int) else IntValue(item, INT64)
        if not node.dtype.is_int:
            raise ExpressionError(
                f"{self.name} is indexed by {brief(node)} of dtype {node.dtype}; "
                "an index is an integer: use ts.cast(x, 'int32')"
            )
        if any(True for _ in args_of(node)):
            raise ExpressionError(
                f"{self.name} is indexed by the result of a reduction; "
                "give that reduction its own ts.compute"
            )
        return as_index(node)

    def as_value(self) -> Value:
        if self.ndim:
            raise ExpressionError(
                f"{self.name} is a tensor; read an element of it: {self.name}[...]"
            )
        return self[()]

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.dtype}{list(self.shape)})"


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One step of a computation: the `values` at every point of `axes`, reduced over `reduce` by
    `combiner`.
    """

    name: str
    axes: tuple[tuple[str, Int], ...]
    reduce: tuple[tuple[str, Int], ...]
    values: tuple[Expr, ...]
    combiner: Combiner | None
    tensors: list[Tensor] = field(default_factory=list)
