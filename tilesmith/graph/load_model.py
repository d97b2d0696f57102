"""ts.load_model: the file of a saved model in, a Model out that runs its kernels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.base.given import checks_given
from tilesmith.codegen.artifact import foreign
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Graph
from tilesmith.graph.model import Model
from tilesmith.graph.model_archive import damaged, read_archive
from tilesmith.graph.saved_open_plan import compiles_nothing, loaded_open_run
from tilesmith.graph.saved_plan import loaded_executor, target_of
from tilesmith.runtime.affinity import cores_of
from tilesmith.task.task import CODEGEN_VERSION

_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


@checks_given(error=GraphError)
def load_model(
    path: str | os.PathLike[str],
    *,
    digest: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    affinity: Sequence[int] | None = None,
) -> Model:
    """A model that `model.save` wrote. Nothing is compiled, and it computes what the saved one did,
    bit for bit.

    - `digest`: what `model.save` returned; another model is then refused. A saved model is machine
      code, which runs as you: load files of those whom you would let install a program.
    - `weights`: the file of weights that were saved apart, where it has moved.
    - `threads`: at most so many in a call, beside the cores that the model was compiled for.
    - `affinity`: the cores that calls run on, as [2, 3]; see `ts.compile_model`.

    A GraphError says why a file is refused: it is damaged, the processor lacks what its kernels
    need, another version of the code generator made them, or its weights are missing or others.

    Example:

        model = ts.compile_model(ts.load_onnx("model.onnx", dims={"batch": 1}))
        digest = model.save("model.tsm")
        same = ts.load_model("model.tsm", digest=digest)
    """
    place = Path(path)
    if not place.is_file():
        raise GraphError(f"there is no file {place}")
    if threads is not None and threads < 1:
        raise GraphError(f"threads is {threads}; a model runs on at least one")
    cores = cores_of(affinity)
    if threads is None and cores is not None:
        threads = len(cores)
    archive = read_archive(place, digest, None if weights is None else Path(weights))
    d = archive.description
    try:
        if d["codegen"] != CODEGEN_VERSION:
            raise GraphError(
                f"{place} was saved by Tilesmith {d['tilesmith']} with version {d['codegen']} of "
                f"the code generator, and this one has {CODEGEN_VERSION}; compile the model and "
                "save it again"
            )
        target = target_of(d)
        if (what := foreign(target)) is not None:
            raise GraphError(
                f"{place} was saved for {what}; compile the model for this machine, or for one "
                "that both can run, as ts.Target.named(...)"
            )
        if "trusted" in d:
            run = loaded_open_run(d, archive.kernels, archive.weights, target, threads, cores)
            return Model(run.program, compiles_nothing, opened=run)
        executor = loaded_executor(d, archive.kernels, archive.weights, target, threads, cores)
    except GraphError:
        raise
    except TilesmithError as error:
        raise GraphError(f"{place} cannot be loaded: {error}") from None
    except _UNREADABLE as error:
        raise damaged(place, f"{type(error).__name__} {error}") from None

    def compiled(_graph: Graph) -> Executor:
        return executor

    return Model(executor.plan.graph, compiled)
