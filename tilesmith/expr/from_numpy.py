"""NumPy's functions as ours: the name of a ufunc in, the name of an operation on values out."""

from __future__ import annotations

UNARY_UFUNCS = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "sin": "sin", "cos": "cos",
    "negative": "neg", "absolute": "abs", "fabs": "abs", "floor": "floor", "ceil": "ceil",
    "rint": "round", "logical_not": "not", "invert": "not",
}  # fmt: skip
BINARY_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "floor_divide": "floordiv", "remainder": "mod", "mod": "mod", "maximum": "max",
    "minimum": "min", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
    "equal": "eq", "not_equal": "ne", "logical_and": "and", "logical_or": "or",
    "bitwise_and": "and", "bitwise_or": "or",
}  # fmt: skip
