"""Operators that walk along a sequence become nodes for each step, as long as these are few."""

from __future__ import annotations

from tilesmith.frontends.onnx.call import Call, RunOnHost
from tilesmith.graph.graph import Value
from tilesmith.ops.transform import concatenate

# Each step is some kernels of its own, which all have to be built and called.
MAX_STEPS = 128
# Operators that walk along a sequence.
WALKS = ("RNN", "GRU", "LSTM", "LinearAttention")
# A kernel that joins many tensors has to find the right one for each element.
_JOINED_AT_ONCE = 8


def need_few_steps(call: Call, count: int) -> None:
    """Leaves a long sequence to the host."""
    if count > MAX_STEPS:
        raise RunOnHost(
            f"its sequence has {count} steps; up to {MAX_STEPS} become nodes of the graph"
        )
    if count < 1:
        call.refuse("its sequence is empty")


def joined(call: Call, values: list[Value], axis: int) -> Value:
    """The results of all steps behind each other."""
    while len(values) > 1:
        parts = [values[k : k + _JOINED_AT_ONCE] for k in range(0, len(values), _JOINED_AT_ONCE)]
        values = [p[0] if len(p) == 1 else call.add(concatenate, *p, axis=axis) for p in parts]
    return values[0]
