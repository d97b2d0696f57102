"""Golden files: a test's text is compared with a file, which `pytest --update-golden` writes. A
cache folder for the whole run, so that no test writes to the user's. The order of files, and what
keeps the tests of whole models short.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no defect: examples have no time limit, neither to be drawn nor to run.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Threads of BLAS and OpenMP spin while they wait for each other: beside other busy processes, 40 %
# of what the tests of TreeGru take. Libraries read this when they are loaded, so it is set first.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# PoCL takes ten times as long over a kernel with optimisation. Tests that want it set "".
os.environ.setdefault("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")

ROOT = Path(__file__).parent
MANY = 4, 8, 16  # cases of a test, of which each day one of two, of three, of four neighbours runs
GOLDEN = ROOT / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Before processes are started that run tests: all draw the cases of the same day.
    os.environ.setdefault("TILESMITH_TURN", str(int(time.time() // 86_400)))
    _keep_code(is_first=not hasattr(config, "workerinput"))
    folder = tempfile.mkdtemp(prefix="tilesmith-tests-")
    os.environ["XDG_CACHE_HOME"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # What this machine's processor would find there is no part of what is tested.
    import_module("tilesmith.records.pack").FOLDER = Path(folder) / "no packs"
    # Tests start hundreds of processes, each of which imports the package: that takes half the time
    # if the first one keeps what it compiled, whatever the shell says of that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Trees of thousands of small objects are built and dropped; looking for cycles among them each
    # 10,000 objects takes a twentieth of the tests' time.
    gc.set_threshold(50_000, 20, 100)
    # A shell starts background jobs with Ctrl-C ignored; the tests of Ctrl-C need Python's handler.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep_code(is_first: bool) -> None:
    """Code that is compiled from the same text again is taken from a folder that runs share, see
    support/kept_code.py. PoCL keeps its own there, also for the processes that tests start.
    """
    if "TILESMITH_TEST_CACHE" not in os.environ:  # if given, or by the first of several processes
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        os.environ["TILESMITH_TEST_CACHE"] = str(home / "tilesmith-tests")
    if place := os.environ["TILESMITH_TEST_CACHE"]:
        with suppress(OSError):  # the folder may be closed to this user
            (Path(place) / "pocl").mkdir(parents=True, exist_ok=True)
            os.environ["POCL_CACHE_DIR"] = f"{place}/pocl"
        kept_code = import_module("tests.support.kept_code")
        kept = kept_code.KeptCode(Path(place))
        if is_first:
            kept.prune()
        kept_code.keep(kept)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The cases of the day, and the files of long.txt first: their longest test takes 10 seconds or
    more, the longest of all in the first. No process is then left with such a test when the others
    have nothing to do. Files as a whole: the tests of one share fixtures, and some build on each
    other.
    """
    all_of_them = config.option.update_golden or any("::" in name for name in config.args)
    if not import_module("tests.support.thorough").THOROUGH and not all_of_them:
        _keep_those_of_the_day(config, items)
    long = (ROOT / "long.txt").read_text().split()
    place = {ROOT.parent / name: k for k, name in enumerate(long)}
    items.sort(key=lambda item: place.get(item.path, len(long)))


def _keep_those_of_the_day(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with many cases each day runs one of two neighbours, the next day the other, or one
    of more; of one marked `turns(n)` one of n. Which is first differs from group to group:
    neighbours along a second parameter are the same for each value of the first.
    """
    turn = import_module("tests.support.thorough").TURN
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for cases in tests.values():
        mark = cases[0].get_closest_marker("turns")
        turns = int(mark.args[0]) if mark else 1 + sum(len(cases) >= n for n in MANY)
        for begin in range(0, len(cases), turns):
            some = cases[begin : begin + turns]
            own = (crc32(some[0].nodeid.encode()) + turn) % turns
            left_out.update(item for k, item in enumerate(some) if k != min(own, len(some) - 1))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """What was imported and collected stays: looking through it for garbage again and again, as
    Python does, takes seconds in all.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed"):
        turn = os.environ["TILESMITH_TURN"]
        terminalreporter.write_line(f"TILESMITH_TURN={turn} draws the same random cases again")


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of a model are built in this process, however many: the cores have tests to run,
    and those of small models are built sooner than processes start.
    """
    monkeypatch.setattr(import_module("tilesmith.tune.build_pool"), "_ALONE_SECONDS", inf)
    # Nor do processes start while a graph is planned, however many nodes it has.
    compile_model = import_module("tilesmith.tune.compile_model")
    monkeypatch.setattr(compile_model, "_DRAFTS_OF_A_PROCESS", inf)
    monkeypatch.setattr(compile_model, "_RECORDED_OF_A_PROCESS", inf)


@pytest.fixture
def short_drafts(monkeypatch: pytest.MonkeyPatch, built_here: None) -> None:
    """For tests of what a model computes, not of how fast: a kernel without a record gets the best
    of two schedules instead of twelve, by a few random rows of each. Whether a large group is one
    kernel or several goes by its iterations. Finding the schedule is most of what compiling a model
    takes.
    """
    # By their names, since `ts.tune` is a function.
    build_request = import_module("tilesmith.tune.build_request")
    partition_choice = import_module("tilesmith.tune.partition_choice")
    evolution = import_module("tilesmith.search.evolution")
    few = partial(evolution.Evolution, population=128, drafts=4, refined=0, generations=0)
    drafts_of = build_request.drafts_of

    def fewer(task: Any, n: int = 1, familiar: Any = (), *args: Any, **kwargs: Any) -> Any:
        given = {**kwargs, **dict(zip(("accuracy", "variants", "rows"), args, strict=False))}
        return drafts_of(task, n, familiar, **{**given, "variants": 2, "rows": 32})

    monkeypatch.setattr(evolution, "Evolution", few)  # which draws the drafts
    monkeypatch.setattr(build_request, "drafts_of", fewer)
    monkeypatch.setattr(
        partition_choice,
        "estimated_cycles",
        lambda task, *_: float(build_request.points(task.func)),
    )


@pytest.fixture
def quick_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that ask whether NVRTC takes a text, not how good its machine code is."""
    nvrtc = import_module("tilesmith.codegen.c.nvrtc")
    options_of = nvrtc.options_of
    monkeypatch.setattr(
        nvrtc, "options_of", lambda *given: [*options_of(*given), b"--Ofast-compile=max"]
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Compares the text of its argument with golden/<test name>.txt."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name.removeprefix("test_")).strip("-")
    path = GOLDEN / f"{name}.txt"

    def check(value: object) -> None:
        text = str(value).rstrip() + "\n"
        if request.config.getoption("--update-golden"):
            GOLDEN.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is not there; write it with pytest --update-golden"
        assert text == path.read_text(), f"differs from {path}; pytest --update-golden accepts it"

    return check
