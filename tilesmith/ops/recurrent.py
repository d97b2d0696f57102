"""One step of recurrent cells: what the input gives (P), what the last state gives (S) and the
state itself in, the next state out.

P is (steps, batch, gates * hidden), for all steps at once, and T of rank 0 says which step it is:
as a tensor, so that all steps are one kernel. S is (batch, gates * hidden) and the state (batch,
hidden). Where `lengths` (batch) is given, sequences that have ended keep their state,
and one more result is the state with 0 for these.
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.functions import absolute, exp, log, maximum, minimum, sigmoid, tanh
from tilesmith.expr.ints import Int
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import need_equal, need_tensor, operator, widen


@dataclass(frozen=True, slots=True)
class Activation:
    """A function by name, with its numbers, and the bound that its input is held within."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float | None = None

    def __call__(self, x: Value) -> Value:
        if self.clip is not None:
            x = maximum(minimum(x, self.clip), -self.clip)
        return ACTIVATIONS[self.name][0](x, self.alpha, self.beta)


def _softplus(x: Value, a: float, b: float) -> Value:
    return maximum(x, 0.0) + log(1.0 + exp(-absolute(x)))


Formula = Callable[[Value, float, float], Value]
# The formula, and the numbers that it takes where nothing is said.
ACTIVATIONS: dict[str, tuple[Formula, tuple[float, ...]]] = {
    "affine": (lambda x, a, b: x * a + b, (1.0, 0.0)),
    "elu": (lambda x, a, b: where(x >= 0.0, x, a * (exp(x) - 1.0)), (1.0,)),
    "hardsigmoid": (lambda x, a, b: maximum(minimum(x * a + b, 1.0), 0.0), (0.2, 0.5)),
    "leakyrelu": (lambda x, a, b: where(x >= 0.0, x, x * a), (0.01,)),
    "relu": (lambda x, a, b: maximum(x, 0.0), ()),
    "scaledtanh": (lambda x, a, b: tanh(x * b) * a, (1.0, 1.0)),
    "sigmoid": (lambda x, a, b: sigmoid(x), ()),
    "softplus": (_softplus, ()),
    "softsign": (lambda x, a, b: x / (absolute(x) + 1.0), ()),
    "tanh": (lambda x, a, b: tanh(x), ()),
    "thresholdedrelu": (lambda x, a, b: where(x >= a, x, 0.0), (1.0,)),
}


class _Cell:
    """The tensors of a step, checked, and how their gates are read."""

    def __init__(
        self, gates: int, P: Tensor, T: Tensor, S: Tensor, H: Tensor,
        given: tuple[Tensor, ...], lengths: bool,
    ) -> None:  # fmt: skip
        need_tensor("P", P, "steps batch gates")
        need_tensor("S", S, "batch gates")
        if T.ndim or not T.dtype.is_int:
            raise ExpressionError(f"T is {T!r}; it must be one whole number, of rank 0")
        need_tensor("H", H, "batch hidden")
        self.batch, self.hidden = H.shape_ints
        need_equal("the batch of P", P.shape_ints[1], self.batch, "H has")
        need_equal("the gates of P", P.shape_ints[2], self.hidden * gates, "H gives")
        self.P, self.T, self.S, self.dtype = P, T, S, H.dtype
        self.lengths = given[-1] if lengths else None
        self.given = given[:-1] if lengths else given

    @property
    def step(self) -> Value:
        return self.T[()]

    @property
    def shape(self) -> tuple[Int, ...]:
        return self.batch, self.hidden

    def fed(self, gate: int, b: Value, j: Value) -> Value:
        """What the input gives to a gate."""
        return widen(self.P[self.step, b, j + self.hidden * gate])

    def gate(self, gate: int, b: Value, j: Value) -> Value:
        return self.fed(gate, b, j) + widen(self.S[b, j + self.hidden * gate])

    def state(self, new: Callable[[Value, Value], Value], old: Tensor, name: str) -> Tensor:
        def body(b: Value, j: Value) -> Value:
            y = cast(new(b, j), self.dtype)
            if self.lengths is None:
                return y
            return where(self.lengths[b] > self.step, y, old[b, j])

        return compute(self.shape, body, name=name)

    def results(self, *states: Tensor) -> tuple[Tensor, ...]:
        """The states, and behind them the first one with 0 for sequences that have ended."""
        if self.lengths is None:
            return states
        lengths, h = self.lengths, states[0]

        def body(b: Value, j: Value) -> Value:
            return where(lengths[b] > self.step, h[b, j], cast(0.0, self.dtype))

        shown = compute(self.shape, body, name=f"{h.name}_shown")
        return (*states, shown)


@operator
def rnn_cell(
    P: Tensor, T: Tensor, S: Tensor, H: Tensor, *given: Tensor, f: Activation,
    lengths: bool = False, name: str = "rnn",
) -> tuple[Tensor, ...]:  # fmt: skip
    """f(p + s)."""
    cell = _Cell(1, P, T, S, H, given, lengths)
    return cell.results(cell.state(lambda b, j: f(cell.gate(0, b, j)), H, name))


@operator
def lstm_cell(
    P: Tensor, T: Tensor, S: Tensor, H: Tensor, C: Tensor, *given: Tensor, f: Activation,
    g: Activation, h: Activation, peephole: bool = False, coupled: bool = False,
    lengths: bool = False, name: str = "lstm",
) -> tuple[Tensor, ...]:  # fmt: skip
    """The next H and C, with gates in the order input, output, forget, cell. `given` begins with
    the weights (3 * hidden) by which the first three see the cell, where it has peepholes. Coupled
    gates forget what they do not take in.
    """
    cell = _Cell(4, P, T, S, H, given, lengths)
    if len(cell.given) != peephole:
        raise ExpressionError(f"{len(given)} more tensors for peephole={peephole}")

    def seen(gate: int, state: Tensor, b: Value, j: Value) -> Value:
        x = cell.gate(gate, b, j)
        if not peephole:
            return x
        return x + widen(cell.given[0][j + cell.hidden * gate]) * widen(state[b, j])

    def next_cell(b: Value, j: Value) -> Value:
        i = f(seen(0, C, b, j))
        keep = 1.0 - i if coupled else f(seen(2, C, b, j))
        return keep * widen(C[b, j]) + i * g(cell.gate(3, b, j))

    new = cell.state(next_cell, C, f"{name}_c")
    out = cell.state(lambda b, j: f(seen(1, new, b, j)) * h(widen(new[b, j])), H, f"{name}_h")
    return cell.results(out, new)


@operator
def gru_reset(
    P: Tensor, T: Tensor, S: Tensor, H: Tensor, *, f: Activation, name: str = "gru_reset"
) -> Tensor:
    """The state times its reset gate; S has the gates update and reset."""
    cell = _Cell(3, P, T, S, H, (), False)
    return cell.state(lambda b, j: f(cell.gate(1, b, j)) * widen(H[b, j]), H, name)


@operator
def gru_cell(
    P: Tensor, T: Tensor, S: Tensor, H: Tensor, R: Tensor, *given: Tensor, f: Activation,
    g: Activation, before: bool = False, lengths: bool = False, name: str = "gru",
) -> tuple[Tensor, ...]:  # fmt: skip
    """The next state, with gates in the order update, reset, hidden. R is what the reset state
    gives to the hidden gate. With `before` the reset is applied behind the product: then S has all
    three gates and R is the bias (hidden) of the third.
    """
    cell = _Cell(3, P, T, S, H, given, lengths)

    def body(b: Value, j: Value) -> Value:
        z = f(cell.gate(0, b, j))
        if before:
            third = widen(S[b, j + cell.hidden * 2]) + widen(R[j])
            x = cell.fed(2, b, j) + f(cell.gate(1, b, j)) * third
        else:
            x = cell.fed(2, b, j) + widen(R[b, j])
        return (1.0 - z) * g(x) + z * widen(H[b, j])

    return cell.results(cell.state(body, H, name))
