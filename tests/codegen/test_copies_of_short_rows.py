"""Copies to shared memory of rows that are shorter than a vector but follow one another in memory,
such as the 3x3 weights of a convolution.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.codegen.c.backends import emit_launches
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.search.features.nest import shared_nests
from tilesmith.search.gpu_needs import gpu_nest
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.space.variant import Variant

H200 = ts.Target.named("nvidia-h200")


def convolution(turned: bool) -> Variant:
    """The sketches with the weights as they lie in shared memory, or turned."""
    task = ts.Task(operator("conv2d", (2, 8, 8, 3, 1, 1)), H200)
    for sketch in SketchSpace().sketches(task):
        v = next(iter(variants(task, sketch)))
        buffers = v.func.all_buffers
        if "Y.rf" in buffers or "W.shared" not in buffers:
            continue
        if (buffers["W.shared"].layout is not None) == turned:
            return v
    raise AssertionError("no such sketch")


def row_of(v: Variant, channels: int, taps: int, width: int, pipeline: int) -> np.ndarray:
    """Steps of so many channels, and of `taps` taps along the row."""
    sizes = dict.fromkeys(v.columns, 1)
    sizes |= {"#Y.local.f.2": 8, "#Y.local.h.2": 2, "#Y.local.w.3": 2}
    sizes |= {"#Y.local.rc.0": 8 // channels, "#Y.local.rc.1": channels, "#Y.local.rh.1": 3}
    sizes |= {"#Y.local.rw.0": 3 // taps, "#Y.local.rw.1": taps}
    sizes |= {"#W.shared.width": width, "#Y.local.pipeline": pipeline, "#Y.local.unroll": 16}
    row = np.array([sizes[c] for c in v.columns], np.int32)
    assert v.contains(row[None]).all()
    return row


@pytest.mark.parametrize(("turned", "pipeline"), [(False, 1), (True, 2)])
@pytest.mark.parametrize(
    ("channels", "taps", "asked", "width"),
    [(4, 3, 4, 4), (2, 3, 4, 2), (4, 3, 2, 2), (1, 3, 4, 1), (4, 1, 4, 1)],
)
def test_a_thread_moves_elements_of_several_rows(
    channels: int, taps: int, asked: int, width: int, pipeline: int, turned: bool
) -> None:
    v = convolution(turned)
    row = row_of(v, channels, taps, asked, pipeline)
    func = ts.lower(v.function(row), H200, ts.GPU_PASSES)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal([n.const for n in b.shape], np.float32) for b in func.inputs]
    want = ts.interpret(v.task.func, *given)
    np.testing.assert_allclose(ts.run_simt(func, *given), want, rtol=1e-4, atol=1e-4)
    text = emit_launches(func, CUDA).source
    for n in (2, 4):
        assert (f"(const float{n}*)&W_at[" in text) == (n == width)
    _, nests = shared_nests(v)
    (copy,) = (n for n in nests if n.block.writes[0].buffer == "W.shared")
    (scored,) = np.ravel(copy.graph.evaluate([gpu_nest(copy).width], row[None]))
    assert scored == width
