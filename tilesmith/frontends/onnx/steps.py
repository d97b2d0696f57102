"""Unrolls operators that iterate over a sequence into nodes for each step, if the steps are few."""

from __future__ import annotations

from tilesmith.frontends.onnx.call import Call, RunOnHost

# Each step is some kernels of its own, which all have to be built and called.
MAX_STEPS = 128
# Operators that walk along a sequence.
WALKS = ("RNN", "GRU", "LSTM", "LinearAttention")


def need_few_steps(call: Call, count: int) -> None:
    """Leaves a long sequence to the host."""
    if count > MAX_STEPS:
        raise RunOnHost(
            f"its sequence has {count} steps; up to {MAX_STEPS} become nodes of the graph"
        )
    if count < 1:
        call.refuse("its sequence is empty")
