"""The operations on values that NumPy's ufuncs correspond to, by name."""

from __future__ import annotations

UNARY_UFUNCS = {
    "exp": "exp", "log": "log", "log2": "log2", "log10": "log10",
    "sqrt": "sqrt", "tanh": "tanh", "sin": "sin", "cos": "cos",
    "arctan": "atan", "expm1": "expm1", "trunc": "trunc",
    "negative": "neg", "absolute": "abs", "fabs": "abs", "floor": "floor", "ceil": "ceil",
    "rint": "round", "logical_not": "not", "invert": "bitnot",
}  # fmt: skip
BINARY_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "floor_divide": "floordiv", "remainder": "mod", "mod": "mod", "fmod": "fmod", "maximum": "max",
    "minimum": "min", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
    "equal": "eq", "not_equal": "ne", "logical_and": "and", "logical_or": "or",
}  # fmt: skip
BITWISE_UFUNCS = {
    "bitwise_and": "bitand", "bitwise_or": "bitor", "bitwise_xor": "bitxor", "left_shift": "shl",
    "right_shift": "shr",
}  # fmt: skip
