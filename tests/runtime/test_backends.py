"""Back ends: picked by the kind of the target, or passed by the user."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.runtime.build import BACKENDS, backend_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def copy_function() -> ts.Function:
    a = ts.placeholder((2, 3), name="A")
    return ts.function([a, ts.compute((2, 3), lambda i, j: a[i, j], name="B")], name="copy")


@dataclass
class Recorder:
    """What it is asked to compile, another does."""

    kind: str = "cpu"
    asked: list[tuple[str, bool]] = field(default_factory=list)

    def compile(
        self, func: ts.Function, target: ts.Target, *, checked: bool = False
    ) -> ts.Artifact:
        self.asked.append((func.name, checked))
        return replace(ts.LlvmBackend().compile(func, target), language="runes")


def test_one_back_end_for_each_kind() -> None:
    assert len({b.kind for b in BACKENDS}) == len(BACKENDS)
    assert backend_of(ts.cpu()) == ts.LlvmBackend()
    other = replace(ts.Target.named("nvidia-h200"), kind="abacus")
    with pytest.raises(ts.BuildError, match=r"for abacus targets here; .* cpu, .*parts="):
        backend_of(other)


def test_a_back_end_of_ones_own() -> None:
    own = Recorder()
    kernel = ts.build(copy_function(), backend=own)
    np.testing.assert_array_equal(kernel(X), X)
    ts.build(ts.Schedule(copy_function()), backend=own, checked=True)
    assert own.asked == [("copy", False), ("copy", True)]
    with pytest.raises(ts.BuildError, match="'copy' has no assembly: its source is runes"):
        _ = kernel.assembly


def test_a_pass_of_ones_own_runs_last() -> None:
    seen: list[Any] = []

    def look(func: ts.Function, target: ts.Target) -> ts.Function:
        seen.append((func.name, target))
        return func

    kernel = ts.build(copy_function(), backend=ts.LlvmBackend(passes=(*ts.CPU_PASSES, look)))
    np.testing.assert_array_equal(kernel(X), X)
    assert seen == [("copy", ts.cpu())]


def test_the_plain_passes_leave_what_any_back_end_can_print() -> None:
    x = ts.placeholder((5, 40), name="x")
    func = ts.function([x, ts.ops.softmax(x)])
    data = np.random.default_rng(0).standard_normal((5, 40), dtype=np.float32)
    done = ts.lower(func, ts.cpu(1), ts.PLAIN_PASSES)
    np.testing.assert_allclose(ts.interpret(done, data), ts.evaluate(func, data), rtol=1e-5)
