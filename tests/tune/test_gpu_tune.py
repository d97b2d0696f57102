"""Tuning on a GPU end to end, on PoCL: killed in the middle, resumed, and the answer is right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_run
import numpy as np
import pytest

import tilesmith as ts
from tilesmith.testing.measurers import children


@pytest.fixture(autouse=True)
def _needs_a_device() -> None:
    try:
        ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))


def test_killed_and_resumed(tmp_path: Path) -> None:
    file = tmp_path / "gpu.db"
    script = Path(gpu_run.__file__)
    root = str(Path(ts.__file__).parents[1])
    run = subprocess.Popen(
        [sys.executable, str(script), str(file)], stdout=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    with run:
        assert run.stdout is not None
        count = int(run.stdout.readline() or 0)
        os.killpg(run.pid, signal.SIGKILL)
    assert count > 0
    task = ts.Task(gpu_run.product(), ts.opencl())
    with ts.open_database(file) as database:
        before = database.of(task)
        assert len(before) >= count
        result = gpu_run.tune(database, len(before) + 2)
        after = database.of(task)
    assert [m.candidate.key for m in after[: len(before)]] == [m.candidate.key for m in before]
    assert len(after) > len(before)
    assert result.best.failure is None
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((20, 24), (24, 28)))
    np.testing.assert_allclose(result.kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert "get_local_id" in result.kernel.source


def test_no_process_outlives_a_run(tmp_path: Path) -> None:
    before = children()
    with ts.open_database(tmp_path / "gpu.db") as database:
        gpu_run.tune(database, 2)
    deadline = time.monotonic() + 300
    while children() - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
