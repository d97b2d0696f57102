"""XGBoost takes a second or more to load: a search for a GPU does not wait for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FIT = """
import sys, threading
import numpy as np
import tilesmith as ts
from tilesmith.cli.operators import operator

task = ts.Task(operator("matmul", (64, 64, 64)), ts.Target.named(sys.argv[1]))
variant = next(iter(ts.variants(task, ts.SketchSpace().sketches(task)[0])))
rows = variant.sample(np.random.default_rng(0), 3)
measured = [ts.Measurement(variant.candidate(r), (1e-5 * (k + 1),) * 3) for k, r in enumerate(rows)]
assert ts.Gbdt().fit(()) is None
assert "xgboost" not in sys.modules
assert ts.Gbdt().fit(measured) is None
for t in threading.enumerate():
    if t is not threading.current_thread():
        t.join()
print("xgboost" in sys.modules)
"""


@pytest.mark.parametrize(("target", "loaded"), [("nvidia-h200", "True"), ("neoverse-n1", "False")])
def test_it_is_loaded_beside_the_first_candidates_of_a_gpu(target: str, loaded: str) -> None:
    """On a CPU it would disturb measurements."""
    done = subprocess.run(
        [sys.executable, "-c", _FIT, target], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == loaded
