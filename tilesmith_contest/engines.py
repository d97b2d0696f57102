"""The inference engines we compare with: a model file and a number of threads in, calls to time
out. Each is an optional install in a file of its own, and one that is missing is named.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith_contest.engine import Engine, ModelFile
from tilesmith_contest.peer import Contestant, Start
from tilesmith_contest.process import Make


def _onnxruntime() -> Engine:
    # Imported late, here and below: each loads hundreds of megabytes and may be missing.
    from tilesmith_contest.engine_onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine()


def _openvino() -> Engine:
    from tilesmith_contest.engine_openvino import OpenVinoEngine

    return OpenVinoEngine()


def _mnn() -> Engine:
    from tilesmith_contest.engine_mnn import MnnEngine

    return MnnEngine()


def _torch() -> Engine:
    from tilesmith_contest.engine_torch import TorchEngine

    return TorchEngine()


def _torch_compile() -> Engine:
    from tilesmith_contest.engine_torch import TorchCompileEngine

    return TorchCompileEngine()


@dataclass(frozen=True)
class EngineLibrary:
    """How to load an engine, the modules that it needs, and its name among installed packages.
    `obstacle` says why it cannot run a file, if so.
    """

    load: Callable[[], Engine]
    modules: tuple[str, ...]
    package: str
    obstacle: Callable[[Path], str | None] = lambda _: None


def _no_program(path: Path) -> str | None:
    program = path.with_suffix(".pt2")
    if program.exists():
        return None
    return f"it reads no ONNX files, and there is no {program.name} of torch.export.save beside it"


def _no_compiler(path: Path) -> str | None:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "torch.compile needs a C++ compiler"
    return _no_program(path)


ENGINES: dict[str, EngineLibrary] = {
    "onnxruntime": EngineLibrary(_onnxruntime, ("onnxruntime",), "onnxruntime"),
    "openvino": EngineLibrary(_openvino, ("openvino",), "openvino"),
    "mnn": EngineLibrary(_mnn, ("MNN", "_tools"), "MNN"),
    "torch": EngineLibrary(_torch, ("torch",), "torch", _no_program),
    "torch-compile": EngineLibrary(_torch_compile, ("torch",), "torch", _no_compiler),
}


def usable_engines(names: Sequence[str], path: Path) -> tuple[list[str], dict[str, str]]:
    """Those that are installed and can run the file, and why each of the others is absent. Nothing
    is imported for it.
    """
    usable: list[str] = []
    absent: dict[str, str] = {}
    for name in names:
        if name not in ENGINES:
            raise ArgumentError(f"unknown engine {name!r}; known are {', '.join(ENGINES)}")
        library = ENGINES[name]
        missing = [m for m in library.modules if find_spec(m) is None]
        if missing:
            absent[name] = f"no module named {missing[0]!r}; pip install 'tilesmith[peers]'"
        elif why := library.obstacle(path):
            absent[name] = why
        else:
            usable.append(name)
    return usable, absent


def engine_contestants(name: str, model: ModelFile, threads: int) -> list[Contestant]:
    """Called in the process of that engine."""
    return prepared(ENGINES[name].load(), model, threads)


def engine_recipe(name: str, model: ModelFile, threads: int) -> Make:
    """For the process of that engine."""
    return Make(engine_contestants, (name, model, threads))


def prepared(engine: Engine, model: ModelFile, threads: int) -> list[Contestant]:
    """The engine's contestant, with how long its start took."""
    began, processor = time.perf_counter(), _processor_seconds()
    contestant = engine.prepare(model, threads)
    start = Start(time.perf_counter() - began, _processor_seconds() - processor)
    return [replace(contestant, start=start)]


def _processor_seconds() -> float:
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def engine_versions(names: Sequence[str]) -> str:
    packages = dict.fromkeys(ENGINES[name].package for name in names)
    return ", ".join(f"{p} {metadata.version(p)}" for p in packages)
