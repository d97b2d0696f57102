"""Model: a compiled graph or program. Arrays by name go in, arrays by name come out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tilesmith.base.errors import GraphError
from tilesmith.base.given import checks_given
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.device_executor import DeviceExecutor, are_on_device
from tilesmith.graph.executor import Executor
from tilesmith.graph.export import cannot_export, model_library
from tilesmith.graph.graph import Array, Graph
from tilesmith.graph.layer_notes import WHOLE, PrecisionReport
from tilesmith.graph.model_archive import write_archive
from tilesmith.graph.model_lock import write_lock
from tilesmith.graph.open_export import open_model_library
from tilesmith.graph.open_run import OpenRun
from tilesmith.graph.profile import Profile, profile
from tilesmith.graph.program import HostStep, Program, Signature
from tilesmith.graph.saved_open_plan import saved_open_plan
from tilesmith.graph.saved_plan import saved_plan
from tilesmith.graph.stages import CompiledStage, StagedRun, checked_feeds, named_feeds
from tilesmith.graph.summary import summary
from tilesmith.runtime.arrays import is_torch, torch_tensor
from tilesmith.runtime.export.write import Exported, write_library
from tilesmith.runtime.kernel import Kernel
from tilesmith.runtime.open_kernel import PortfolioKernel
from tilesmith.task.network import ModelTuning
from tilesmith.task.task import CODEGEN_VERSION

CompileGraph = Callable[[Graph], Executor]


@checks_given(error=GraphError)
class Model:
    """A compiled model: call it with a dict of arrays by name, and it returns a dict of arrays by
    name. Calls may come from several threads at once.

    Example:

        model = ts.compile_model(ts.load_onnx("model.onnx", dims={"batch": 1}))
        feeds = {"x": np.zeros((1, 8), np.float32)}
        y = model(feeds)["y"]
        print(model.summary())                 # what runs where, and the memory
        print(model.profile(feeds))            # seconds of each kernel in place
    """

    def __init__(
        self, source: Graph | Program, compile_graph: CompileGraph, codegen: str = CODEGEN_VERSION,
        opened: OpenRun | None = None, opening: str = "",
    ) -> None:  # fmt: skip
        """`opened` runs it at all sizes; or else `opening` says why it is compiled for each."""
        self.name, self.codegen = source.name, codegen
        self.why_not_open = opening  # empty for models that are, and those with fixed sizes
        self.tuning: ModelTuning | None = None  # how it got faster, if ts.tune_model made it
        self._stated = source.precision if isinstance(source, Graph) else WHOLE
        if isinstance(source, Graph):
            values = (source.values[x] for x in source.inputs)
            self.inputs = tuple(Signature(v.name, v.dtype, v.shape) for v in values)
            self.outputs = source.shown_outputs
            self._run: Any = compile_graph(source)
        else:
            self.inputs, self.outputs = source.inputs, source.outputs
            self._run = opened or StagedRun(source, compile_graph)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name: arrays of NumPy, or tensors of PyTorch if an input is one. Of a model on
        a GPU, if all inputs are tensors on that GPU (PyTorch, CuPy), so are the outputs; they are
        ready on the caller's stream.
        """
        if isinstance(self._run, DeviceExecutor) and are_on_device(feeds):
            return self._run.on_device(named_feeds(self.inputs, feeds, self.name))
        given = checked_feeds(self.inputs, feeds, self.name)
        try:
            result: dict[str, Array] = self._run(given)
        except MemoryError:
            raise GraphError(f"there is not enough memory to run {self.name}") from None
        return _as_tensors(result) if is_torch(feeds.values()) else result

    def bind(self, feeds: Mapping[str, Any]) -> Callable[[], dict[str, Array]]:
        """A function without arguments that runs the model on these arrays, whose contents may
        change between calls. On a CPU they are checked only here, and each call writes its outputs
        into the same arrays, so that a call costs about a microsecond. One function must not run
        twice at once; bind several for that.
        """
        given = checked_feeds(self.inputs, feeds, self.name)
        at = self._run.at(given) if isinstance(self._run, OpenRun) else self._run
        if not isinstance(at, Executor) or isinstance(at, DeviceExecutor):
            return lambda: self(feeds)
        run = at.bind(given)
        return (lambda: _as_tensors(run())) if is_torch(feeds.values()) else run

    @property
    def is_open(self) -> bool:
        """Whether it was compiled once for all values of its open sizes."""
        return isinstance(self._run, OpenRun)

    @property
    def executors(self) -> tuple[Executor, ...]:
        """What has been compiled: of an open model, what its calls needed so far."""
        if isinstance(self._run, Executor):
            return (self._run,)
        return tuple(s.run for s in _stages(self._run) if isinstance(s.run, Executor))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those of all steps that have been compiled, and of portfolios all members."""
        own = [k for e in self.executors for k in e.kernels]
        if isinstance(self._run, OpenRun):
            own += self._run.executor.kernels
        return tuple(
            m for k in own for m in (k.members if isinstance(k, PortfolioKernel) else (k,))
        )

    @property
    def parts(self) -> tuple[Executor | HostStep, ...]:
        """Compiled graphs and nodes on the host, in the order in which they run, without the bodies
        of control flow: of an open model, what its calls needed so far.
        """
        if isinstance(self._run, Executor):
            return (self._run,)
        both = ((s.run, s.stage.host) for s in self._run.known_stages())
        return tuple(p for pair in both for p in pair if isinstance(p, Executor | HostStep))

    @property
    def host_steps(self) -> tuple[HostStep, ...]:
        """Those that calls came to so far, each once; the ones in bodies of others included."""
        if isinstance(self._run, Executor):
            return ()
        found = (s.stage.host for s in _stages(self._run))
        return tuple({id(h): h for h in found if h is not None}.values())

    @property
    def precision(self) -> PrecisionReport:
        """Its layers in narrow numbers, as they were chosen or as passes made them; of an open
        model, those that calls needed so far.
        """
        return PrecisionReport.of(self._stated, (e.plan.graph.precision for e in self.executors))

    def profile(
        self, feeds: Mapping[str, Any], runs: int = 5, *, processor_time: bool = False
    ) -> Profile:
        """The seconds of every kernel and of every step on the host, in place: the median of some
        runs after a first one. With `processor_time`, the processor time of the calling thread: on
        a busy machine, that of a model compiled for one thread says more.
        """
        given = checked_feeds(self.inputs, feeds, self.name)
        at = self._run.at(given) if isinstance(self._run, OpenRun) else None
        return profile(at or self._run, given, runs, processor_time)

    def summary(self, match: str = "") -> str:
        """A table of its kernels with their shapes and the nodes they compute, what runs on the
        host, and the memory it takes; of a model in narrow numbers also the type, the time and the
        error of each layer. `match` shows the kernels in whose name, shapes or nodes all
        of its words occur, as "conv2d features.3". Of an open model it tells what the calls needed
        so far.
        """
        return summary(
            self.name, self.inputs, self.outputs, self.executors, self.host_steps, match,
            self.precision, self._run if isinstance(self._run, OpenRun) else None,
            self.why_not_open,
        )  # fmt: skip

    def export(
        self,
        folder: str | os.PathLike[str],
        name: str = "model",
        *,
        shared: bool = True,
        compiler: str = "",
    ) -> Exported:
        """Writes a library that runs the model without Python, into a folder: `libmodel.so` and
        `libmodel.a`, `model.h` with the C functions `tilesmith_model_open`, `_run`, `_error` and
        `_close`, the file `model.weights`, `model.cmake` and `example.c`. Another `name` stands in
        the place of "model" everywhere, so that one program may have several models.

        A C compiler links the shared library: `cc` here, that of the architecture when the model
        is compiled for another, or the one that `compiler` names. With `shared=False` there is no
        `libmodel.so`, and none is needed.

        Of a model that was compiled for all of its sizes, the functions take the sizes: `model.h`
        lists them with their ranges. Two more tell the bytes of the arrays and of the workspace.

        A model for an NVIDIA GPU, which need not be here, becomes a C program `model.c` with the
        same functions, which has the kernels inside and loads the driver; it is compiled to
        the libraries unless `shared=False`.
        """
        if isinstance(self._run, OpenRun):
            library = open_model_library(self.name, self._run, name)
        elif isinstance(self._run, Executor):
            library = model_library(self.name, self._run, name)
        else:
            raise cannot_export(self._run.program)
        return write_library(library, folder, shared, compiler)

    def save(
        self, path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None
    ) -> str:
        """Writes the compiled model to one file, from which `ts.load_model` has it again within
        a fraction of a second: kernels, weights, the target, and the keys of the records used.
        `weights` names a file for the weights, to which the model then refers by its path, relative
        to the model's folder unless it is absolute, and by hashes.

        Returns the digest of all of it, which `ts.load_model(path, digest=...)` asks for. The model
        must be for a CPU and run no node on the host. One that was compiled for all of its sizes
        is saved for the ranges that it was given, and refuses other sizes when it is loaded.
        """
        if isinstance(self._run, DeviceExecutor):
            raise GraphError(
                f"{self.name} is compiled for {self._run.target.name}; models for CPUs can be "
                "saved: compile it for ts.cpu(), or export it"
            )
        if isinstance(self._run, OpenRun):
            saved = saved_open_plan(self.name, self._run)
        elif isinstance(self._run, Executor):
            saved = saved_plan(self.name, self._run)
        else:
            raise cannot_export(self._run.program, "saved")
        apart = None if weights is None else Path(weights)
        return write_archive(Path(path), saved.description, saved.kernels, saved.weights, apart)

    def save_lock(self, path: str | os.PathLike[str]) -> str:
        """Writes the schedules of all kernels to a lock file: `ts.compile_model(graph, lock=path)`
        then has the same kernels, which compute the same bits, on every machine with the same
        instructions. Returns a digest of the schedules. Of a model that was compiled for all of its
        sizes, the file has the sizes, too, and all kernels of each portfolio. Of one that is
        compiled at the first call with each size, it has the kernels that calls needed so far.
        """
        kernels = [
            (step.func, kernel)
            for e in self.executors
            for step, kernel in zip(e.plan.steps, e.kernels, strict=True)
        ]
        sizes: dict[str, OpenSize] = {}
        if isinstance(self._run, OpenRun):
            opened, sizes = self._run.executor, self._run.declared
            kernels += zip((s.func for s in opened.plan.steps), opened.kernels, strict=True)
        return write_lock(self.name, kernels, sizes, self.codegen, path)

    def __repr__(self) -> str:
        given = ", ".join(map(str, self.inputs))
        return f"<Model {self.name}({given}) -> {', '.join(self.outputs)}>"


def _as_tensors(results: Mapping[str, Array]) -> dict[str, Any]:
    """Of PyTorch, as a caller gave."""
    return {name: torch_tensor(a) for name, a in results.items()}


def _stages(run: StagedRun) -> Iterator[CompiledStage]:
    """Those of bodies behind the stage that calls them."""
    for stage in run.known_stages():
        yield stage
        for body in stage.bodies:
            if isinstance(body, StagedRun):
                yield from _stages(body)
