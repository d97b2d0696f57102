"""Tensors may be called whatever a kernel for GPUs calls things of its own: variables, loops and
helper functions.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_targets import H200

import tilesmith as ts
from tests.support.thorough import TURN, drawn
from tilesmith.codegen.c.backends import CudaBackend
from tilesmith.codegen.c.position import Names
from tilesmith.schedule.unit import Tensorize
from tilesmith.space.spaces import SketchSpace, structured
from tilesmith.space.variant import lower

pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
pytestmark = pytest.mark.usefixtures("quick_nvrtc")


def source_of(kind: str, names: tuple[str, str, str] = ("A", "B", "bias")) -> str:
    """The text of a product by an instruction of this kind, with tensors of these names."""
    shapes = (1024, 512), (512, 256), (256,)
    a, b, bias = (
        ts.placeholder(s, "float16", name=n) for s, n in zip(shapes, names, strict=True)
    )  # fmt: skip
    y = ts.ops.add(ts.ops.matmul(a, b, name="product0"), bias, name="result0")
    task = ts.Task(ts.function([a, b, bias, y]), H200)
    for sketch in SketchSpace().sketches(task):
        found = [s.intrinsic.name for s in sketch if isinstance(s, Tensorize)]
        if any(kind in n for n in found) or (kind == "plain" and not found):
            variant = lower(task, next(iter(structured(sketch))))
            (row,) = variant.sample(np.random.default_rng(0), 1)
            return CudaBackend().compile(variant.function(row), H200).source
    raise AssertionError(f"no {kind}")


@pytest.mark.parametrize("kind", ["wgmma", "mma", "plain"])
def test_tensors_are_called_what_the_kernel_calls_its_own(kind: str) -> None:
    source = source_of(kind)
    words = sorted(set(re.findall(r"\b[a-z]\w*", source)))
    rng = np.random.default_rng(TURN)
    rng.shuffle(words)
    chosen = [("tile", "stage", "release"), ("rest", "phase", "previous")]
    chosen += [(a, b, c) for a, b, c in zip(*(words[k::3] for k in range(3)), strict=False)]
    for names in chosen[: drawn(3, 40)]:
        assert source_of(kind, names).count("{") == source.count("{")


@pytest.mark.parametrize("kind", ["wgmma", "mma", "plain"])
def test_no_tensor_takes_the_name_of_a_helper(kind: str) -> None:
    helpers = re.findall(r"__forceinline__ [\w ]+?\b(\w+)\(", source_of(kind))
    assert len(helpers) >= 2
    assert [n for n in helpers if Names().fresh(n) == n] == []
