"""The process that compute-sanitizer watches: runs candidates one after the other, each with memory
of its own, and compares results with the oracle's. bench.gpu_sanitize starts it.

    compute-sanitizer --tool memcheck python -m bench.gpu_sanitize_worker FOLDER NUMBERS [--no-fill]

It prints a mark when a candidate begins and when it ends (see sanitizer_log.py). After an error
that others cannot run behind, it ends with code 3, and another one goes on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_sanitize_draw import Saved, load
from bench.sanitizer_log import WORKER, mark
from tests.support.meaning import assert_close
from tilesmith.base.dtype import dtype
from tilesmith.base.errors import DeviceError
from tilesmith.codegen.artifact import Artifact, Parameter
from tilesmith.runtime.devices.open import open_device

DEVICE_FAILED = 3


def apart(artifact: Artifact) -> Artifact:
    """With each buffer between launches in memory of its own, as further parameters: in a common
    workspace, what one kernel writes beyond a buffer's end is another one's memory.
    """
    entry = artifact.entries[0]
    starts = sorted({offset for _, offset in entry.scratch} | {entry.workspace_nbytes})
    ends = dict(pairwise(starts))
    own = tuple(
        Parameter(name, (ends[offset] - offset,), dtype("uint8"), output=False)
        for name, offset in entry.scratch
    )
    split = replace(entry, parameters=(*entry.parameters, *own), scratch=(), workspace_nbytes=0)
    return replace(artifact, entries=(split,))


def run(saved: Saved, device: Any, fill: bool = True) -> Any:
    """What the candidate's kernels compute. With `fill`, results and buffers between launches are
    NaN before.
    """
    artifact = apart(saved.artifact)
    parameters = artifact.entries[0].parameters
    module = device.load(artifact)
    memory = [device.allocate(p.nbytes) for p in parameters]
    for m, a in zip(memory, saved.inputs, strict=False):
        device.write(m, np.ascontiguousarray(a))
    if fill:
        for m in memory[len(saved.inputs) :]:
            device.fill(m, 0xFF)
    pointers = [m.at(0, p.nbytes) for m, p in zip(memory, parameters, strict=True)]
    device.run((device.call(module, 0, pointers, None),))
    device.synchronize()
    results = []
    for m, p in zip(memory, parameters, strict=True):
        if p.output:
            results.append(np.empty(p.shape, p.dtype.numpy))
            device.read(m, results[-1])
    return results[0] if len(results) == 1 else tuple(results)


def work(folder: Path, numbers: Sequence[int], device: Any, fill: bool) -> int:
    """The exit code."""
    for number in numbers:
        print(mark(number, "begin"), flush=True)
        saved = load(folder, number)
        try:
            got = run(saved, device, fill)
            assert_close(got, saved.want, "", saved.func)
        except DeviceError as error:
            print(mark(number, "fails", str(error)), flush=True)
            if not _works(device):
                return DEVICE_FAILED
        except AssertionError as error:
            print(mark(number, "wrong", str(error)), flush=True)
        else:
            print(mark(number, "right"), flush=True)
    return 0


def _works(device: Any) -> bool:
    """Whether others can run. A launch that asks for too much fails alone."""
    try:
        device.fill(device.allocate(16), 0)
        device.synchronize()
    except DeviceError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("numbers", help="as 1,2,3")
    parser.add_argument("--no-fill", action="store_true")
    options = parser.parse_args()
    print(f"{WORKER} {os.getpid()}", flush=True)
    numbers = [int(n) for n in options.numbers.split(",")]
    device = open_device(load(options.folder, numbers[0]).artifact.target)
    raise SystemExit(work(options.folder, numbers, device, not options.no_fill))


if __name__ == "__main__":
    main()
