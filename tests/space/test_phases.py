"""Transposed convolutions: each phase of the output has its own taps of the kernel, and candidates
are right.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_filtering import check_candidates

import tilesmith as ts
from tilesmith.ops.conv_transpose import conv1d_transpose, conv2d_transpose, conv3d_transpose
from tilesmith.schedule.zeros import InlinePadding
from tilesmith.space.spaces import SketchSpace

SETTINGS = {
    "conv1d": (1, 3, {"stride": 2}, 1),
    "conv2d": (2, 3, {"stride": 2, "padding": 1, "output_padding": 1}, 1),
    "whole": (2, 4, {"stride": 2, "padding": 1}, 1),
    "groups": (2, 3, {"stride": 2, "groups": 2}, 2),
    "gaps": (2, 2, {"stride": 3, "padding": 1}, 1),
    "conv3d": (3, (2, 3, 3), {"stride": (1, 2, 2), "padding": 1}, 1),
}
OPERATORS = (conv1d_transpose, conv2d_transpose, conv3d_transpose)
LAYOUTS = (("NCW", "NWC"), ("NCHW", "NHWC"), ("NCDHW", "NDHWC"))


def transposed(name: str, last: bool, channels: int = 6, filters: int = 17) -> ts.Function:
    rank, kernel, settings, groups = SETTINGS[name]
    sizes, window = (3, 9, 7)[3 - rank :], (kernel,) * rank if isinstance(kernel, int) else kernel
    image = (2, *sizes, channels) if last else (2, channels, *sizes)
    own = (channels, filters // groups)
    x = ts.placeholder(image, name="X")
    w = ts.placeholder((*window, *own) if last else (*own, *window), name="W")
    y = OPERATORS[rank - 1](x, w, layout=LAYOUTS[rank - 1][last], **settings)
    return ts.function([x, w, ts.ops.relu(y)], constants=[w])


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("last", [False, True])
def test_candidates_match_the_oracle(name: str, last: bool) -> None:
    func = transposed(name, last)
    task = ts.Task(func, ts.cpu(2))
    sketches = SketchSpace().sketches(task)
    uneven = name != "whole"
    assert all(any(isinstance(s, InlinePadding) for s in t.steps) == uneven for t in sketches)
    check_candidates(task, sketches, np.random.default_rng([3, *map(ord, name)]))
