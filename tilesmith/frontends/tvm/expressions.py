"""Expressions of TVMScript, as parsed by Python, as values of the computation language."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DTYPES, DType
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import TilesmithError
from tilesmith.expr import functions, transcendental
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.values import as_value, cast, power, where


class Refused(Exception):
    """What cannot be imported, and the line where it stands."""

    def __init__(self, node: ast.AST, text: str) -> None:
        super().__init__(text)
        self.line, self.text = getattr(node, "lineno", 1), text


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: functions.left_shift, ast.RShift: functions.right_shift, ast.Pow: power,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
# What TVM calls them, with the number of their arguments.
_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "max": (2, functions.maximum), "min": (2, functions.minimum),
    "if_then_else": (3, where), "Select": (3, where), "likely": (1, lambda x: x),
    "pow": (2, power), "power": (2, power), "fma": (3, lambda a, b, c: a * b + c),
    "floordiv": (2, operator.floordiv), "floormod": (2, operator.mod),
    "FloorDiv": (2, operator.floordiv), "FloorMod": (2, operator.mod),
    "truncdiv": (2, functions.trunc_divide), "truncmod": (2, functions.fmod),
    "Div": (2, operator.truediv), "Mul": (2, operator.mul), "Add": (2, operator.add),
    "Sub": (2, operator.sub), "Max": (2, functions.maximum), "Min": (2, functions.minimum),
    "And": (2, operator.and_), "Or": (2, operator.or_), "Not": (1, operator.invert),
    "bitwise_and": (2, operator.and_), "bitwise_or": (2, operator.or_),
    "bitwise_xor": (2, operator.xor), "bitwise_not": (1, operator.invert),
    "shift_left": (2, functions.left_shift), "shift_right": (2, functions.right_shift),
    "abs": (1, functions.absolute), "fabs": (1, functions.absolute), "round": (1, functions.round_),
    "nearbyint": (1, functions.round_), "log1p": (1, transcendental.log1p),
    "exp2": (1, lambda x: power(2.0, x)), "exp10": (1, lambda x: power(10.0, x)),
    **{
        name: (1, getattr(functions, name))
        for name in (
            "exp", "log", "log2", "log10", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor",
            "ceil", "trunc", "sin", "cos", "atan", "isnan", "isinf",
        )
    },
    **{
        name: (1, getattr(transcendental, name))
        for name in ("tan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh")
    },
}  # fmt: skip
_DTYPES = {str(d) for d in DTYPES}


def is_call(node: ast.AST, *names: str) -> bool:
    """Whether it is a call of one of these functions of TVMScript, whatever its prefix is."""
    return isinstance(node, ast.Call) and called(node) in names


def called(node: ast.Call) -> str:
    """The name of the function, without its prefix."""
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def dtype_of(node: ast.expr) -> DType:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = "bool" if node.value in ("uint1", "int1", "boolean") else node.value
        try:
            return dtype_named(name)
        except TilesmithError as error:
            raise Refused(node, str(error)) from None
    raise Refused(node, f"{ast.unparse(node)} is no dtype; write it as a text, such as 'float32'")


def whole_number(node: ast.expr) -> int:
    """A number, which may be written as T.int64(8)."""
    match node:
        case ast.Constant(value=int(n)) if not isinstance(n, bool):
            return n
        case ast.Call(args=[one]) if called(node) in ("int64", "int32"):
            return whole_number(one)
        case ast.UnaryOp(op=ast.USub(), operand=one):
            return -whole_number(one)
        case ast.BinOp(left=a, op=ast.Mult() | ast.Add() | ast.Sub() as op, right=b):
            return int(_OPERATORS[type(op)](whole_number(a), whole_number(b)))
    raise Refused(node, f"{ast.unparse(node)} is not a number: only sizes that are known are taken")


@dataclass(frozen=True)
class Expressions:
    """What names stand for in a block: axes and values, and the tensors that buffers hold."""

    names: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def value(self, node: ast.expr) -> Any:
        """A value, an integer expression over axes, or a number."""
        try:
            return self._value(node)
        except TilesmithError as error:
            raise Refused(node, str(error)) from None

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return number
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Name(id=name):
                raise Refused(node, f"{name} is not defined here")
            case ast.Subscript():
                return self._load(node)
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.value(a), self.value(b))
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return -self.value(x)
            case ast.UnaryOp(op=ast.UAdd(), operand=x):
                return self.value(x)
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=x):
                return ~as_value(self.value(x))
            case ast.Compare(left=first, ops=ops, comparators=rest):
                return self._compared(first, ops, rest)
            case ast.BoolOp(op=op, values=several):
                join = operator.and_ if isinstance(op, ast.And) else operator.or_
                return self._joined(several, join)
            case ast.IfExp(test=c, body=a, orelse=b):
                return where(self.value(c), self.value(a), self.value(b))
            case ast.Call():
                return self._call(node)
        raise Refused(node, f"{ast.unparse(node)} is not an expression that can be imported")

    def _compared(self, first: ast.expr, ops: list[ast.cmpop], rest: list[ast.expr]) -> Any:
        """Also 0 <= i < 8."""
        parts, left = [], self.value(first)
        for op, node in zip(ops, rest, strict=True):
            if type(op) not in _COMPARISONS:
                raise Refused(node, "only <, <=, >, >=, == and != can be imported")
            right = self.value(node)
            parts.append(_COMPARISONS[type(op)](as_value(left), right))
            left = right
        out = parts[0]
        for part in parts[1:]:
            out = out & part
        return out

    def _joined(self, several: list[ast.expr], join: Callable[[Any, Any], Any]) -> Any:
        out, *rest = (as_value(self.value(x)) for x in several)
        for x in rest:
            out = join(out, x)
        return out

    def _load(self, node: ast.Subscript) -> Any:
        name = node.value.id if isinstance(node.value, ast.Name) else ast.unparse(node.value)
        if name not in self.tensors:
            raise Refused(node, f"{name} is not a buffer that was written or given before")
        return self.tensors[name][tuple(self.value(x) for x in indices_of(node))]

    def _call(self, node: ast.Call) -> Any:
        name = called(node)
        if name == "astype" and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            return cast(self.value(node.func.value), dtype_of(node.args[0]))
        if name in ("Cast", "cast") and len(node.args) == 2:
            to, x = node.args if isinstance(node.args[0], ast.Constant) else node.args[::-1]
            return cast(self.value(x), dtype_of(to))
        if name in ("min_value", "max_value", "infinity") and len(node.args) == 1:
            return _limit(name, dtype_of(node.args[0]))
        if name in _DTYPES and len(node.args) == 1:
            return self._number(node.args[0], dtype_named(name))
        if name in _FUNCTIONS:
            count, function = _FUNCTIONS[name]
            args = [self.value(x) for x in node.args[:count]]
            if len(args) == count:  # more are a span or a dtype
                return function(*args)
        raise Refused(node, f"{ast.unparse(node.func)} of {len(node.args)} cannot be imported")

    def _number(self, node: ast.expr, to: DType) -> Any:
        """T.float32(1.0), or T.float32(x) of a value, or T.float32('-inf')."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return cast(float(node.value), to)
            except ValueError:
                raise Refused(node, f"{node.value!r} is not a number") from None
        x = self.value(node)
        return cast(float(x) if to.is_float and isinstance(x, int | float) else x, to)


def _limit(name: str, d: DType) -> Any:
    if name == "infinity":
        return cast(float("inf"), d)
    lowest, highest = d.lowest(), d.highest()
    return cast(lowest if name == "min_value" else highest, d)


def indices_of(node: ast.Subscript) -> list[ast.expr]:
    index = node.slice
    out = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    for x in out:
        if isinstance(x, ast.Slice):
            raise Refused(x, f"{ast.unparse(node)} takes a part of a buffer; give one index each")
    return out
