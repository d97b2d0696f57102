"""Tilesmith: fast tensor programs by searching."""

from tilesmith import ops
from tilesmith.base.dtype import DTYPES, DType, dtype
from tilesmith.base.errors import (
    ArgumentError,
    BuildError,
    ExpressionError,
    ScheduleError,
    TargetError,
    TilesmithError,
    TraceError,
    VerifyError,
)
from tilesmith.base.target import Target, cpu
from tilesmith.expr.dsl import (
    Tensor,
    Value,
    absolute as abs,  # noqa: A004
    amax,
    amin,
    argmax,
    argmin,
    cast,
    ceil,
    compute,
    cos,
    erf,
    exp,
    floor,
    isnan,
    log,
    maximum,
    minimum,
    placeholder,
    power,
    prod,
    reduce,
    reduce_axis,
    round_ as round,  # noqa: A004
    rsqrt,
    sigmoid,
    sin,
    size,
    sqrt,
    sum,  # noqa: A004
    tanh,
    where,
)
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function, instantiate
from tilesmith.ir.interpreter import interpret
from tilesmith.ir.lower import function
