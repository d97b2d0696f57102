"""Operations on values as C text. expr/semantics.py defines what each operation means (overflow,
division by zero, NaN).
"""

from __future__ import annotations

from tilesmith.base.dtype import BFLOAT16, BOOL, FLOAT16, DType
from tilesmith.base.errors import BuildError
from tilesmith.codegen.c import piece
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.piece import Piece
from tilesmith.codegen.expressions import compute_dtype
from tilesmith.expr.nodes import COMPARISONS

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "and": "&&", "or": "||", "bitand": "&", "bitor": "|", "bitxor": "^",
    "shl": "<<", "shr": ">>", "floordiv": "/", "truncdiv": "/", "mod": "%", "fmod": "%",
}  # fmt: skip
_BOOLS = {
    "bitand": "&&", "bitor": "||", "bitxor": "!=", "max": "||", "min": "&&", "mul": "&&",
    "add": "||",
}  # fmt: skip


class Operations:
    def __init__(self, dialect: Dialect, helpers: Helpers) -> None:
        self.dialect, self.helpers = dialect, helpers

    def unary(self, op: str, x: Piece, d: DType) -> Piece:
        match op:
            case "not":
                return piece.prefix("!", x)
            case "neg":
                if d.is_float:
                    return piece.prefix("-", x)
                return self._wrapped("-", Piece("0"), x, d)
            case "bitnot":
                return (
                    piece.prefix("!", x) if d is BOOL else self._narrow_int(piece.prefix("~", x), d)
                )
            case "abs" if not d.is_float:
                return x if d.kind in "ub" else piece.call(self.helpers.absolute(d), x)
            case "log10" if d.bits <= 32 and self.dialect.name == "cuda":
                # log10f is off by up to two units, and not exact for powers of ten
                return piece.cast("float", piece.call("log10", piece.cast("double", x)))
            case "sigmoid":
                return piece.call(self.helpers.sigmoid(d), x)
        if not d.is_float:
            if op in ("floor", "ceil", "round", "trunc"):
                return x
            raise BuildError(f"{op} of {d} has no code")
        return piece.call(self.dialect.call(op, d), x)

    def binary(self, op: str, x: Piece, y: Piece, d: DType) -> Piece:
        if d is BOOL and op in _BOOLS:
            return piece.operation(_BOOLS[op], x, y)
        if op in COMPARISONS or op in ("and", "or"):
            return piece.operation(_SIGNS[op], x, y)
        return self._float(op, x, y, d) if d.is_float else self._integer(op, x, y, d)

    def atomic(self, op: str, d: DType) -> str:
        """The function of a pointer and a value that joins the value to the element."""
        joined = self.binary(op, Piece("a"), Piece("b"), d)
        return self.helpers.atomic(op, d, joined.text)

    def _float(self, op: str, x: Piece, y: Piece, d: DType) -> Piece:
        match op:
            case "add" | "sub" | "mul" | "div":
                return piece.operation(_SIGNS[op], x, y)
            case "floordiv":
                return piece.call(self.dialect.call("floor", d), piece.operation("/", x, y))
            case "max" | "min" | "mod":
                return piece.call(self.helpers.binary(op, compute_dtype(d, frozenset())), x, y)
            case "pow" | "fmod":
                return piece.call(self.dialect.call(op, d), x, y)
        raise BuildError(f"{op} of {d} has no code")

    def _integer(self, op: str, x: Piece, y: Piece, d: DType) -> Piece:
        match op:
            case "add" | "sub" | "mul":
                return self._wrapped(_SIGNS[op], x, y, d)
            case "max" | "min":
                return piece.call(op, x, y)
            case "bitand" | "bitor" | "bitxor":
                return self._narrow_int(piece.operation(_SIGNS[op], x, y), d)
            case "shl" | "shr":
                if y.text.isdigit() and int(y.text) < d.bits and op == "shr":
                    return self._narrow_int(piece.operation(">>", x, y), d)
                return piece.call(self.helpers.binary(op, d), x, y)
            case "floordiv" | "mod" | "truncdiv" | "fmod":
                return piece.call(self.helpers.binary(op, d), x, y)
        raise BuildError(f"{op} of {d} has no code")

    def _wrapped(self, sign: str, x: Piece, y: Piece, d: DType) -> Piece:
        """Arithmetic that wraps around. Of signed integers it is undefined in C, so they are added
        and multiplied as unsigned ones.
        """
        t = self.dialect.value_type(d)
        if d.bits < 32:
            if d.bits == 16 and sign == "*":  # the product of two promoted to int may overflow
                x = piece.cast(self.helpers.unsigned(d, least=32), x)
            return piece.cast(t, piece.operation(sign, x, y))
        if d.kind == "u":
            return piece.operation(sign, x, y)
        inner = piece.operation(sign, self._unsigned(x, d), self._unsigned(y, d))
        return Piece(*piece.cast(t, inner)[:2], unsigned=inner)

    def _unsigned(self, x: Piece, d: DType) -> Piece:
        if x.unsigned is not None:
            return x.unsigned
        if x.text.isdigit() and d.bits == 32:
            return Piece(f"{x.text}u")
        return piece.cast(self.helpers.unsigned(d), x)

    def _narrow_int(self, x: Piece, d: DType) -> Piece:
        return piece.cast(self.dialect.value_type(d), x) if d.bits < 32 else x

    # conversions
    def cast(self, x: Piece, have: DType, want: DType) -> Piece:
        if have is want:
            return x
        if want is BOOL:
            return piece.operation("!=", x, Piece("0"))
        if have.is_float and want.is_int:
            return piece.call(self.helpers.to_integer(have, want), x)
        if want in (FLOAT16, BFLOAT16):
            return self.widen(self.narrow(x, have, want), want)
        t = self.dialect.value_type(want)
        if self.dialect.value_type(have) == t:
            return x
        return piece.cast(t, x)

    def widen(self, raw: Piece, d: DType) -> Piece:
        """A value as loaded from memory, in the type it is computed in."""
        if d is BOOL:
            return piece.operation("!=", raw, Piece("0"))
        if d in (FLOAT16, BFLOAT16):
            return piece.call(self.helpers.half(f"{d.name}_to_float"), raw)
        return raw

    def narrow(self, x: Piece, have: DType, d: DType) -> Piece:
        """A computed value of dtype `have` as it is stored, rounded to nearest, ties to even.
        float64 goes to float16 in one rounding, to bfloat16 by way of float32.
        """
        if d not in (FLOAT16, BFLOAT16):
            return x
        if have.bits == 64 and have.is_float and d is FLOAT16:
            return piece.call(self.helpers.half("double_to_float16"), x)
        if not have.is_float or have.bits == 64:
            x = piece.cast("float", x)
        return piece.call(self.helpers.half(f"float_to_{d.name}"), x)
