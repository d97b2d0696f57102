"""`entry_at`: a kernel with open sizes as one of fixed sizes, whose code is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilesmith.base.dtype import dtype
from tilesmith.base.errors import ArgumentError
from tilesmith.codegen.artifact import Artifact, Entry, TensorMap
from tilesmith.expr.ints import Int, of

_MAX_GRID = (1 << 31) - 1


def entry_at(artifact: Artifact, sizes: Mapping[str, int]) -> Entry:
    """The first entry with numbers in place of all that depends on the sizes."""
    entry = artifact.entries[0]
    sizes_of = entry.open
    assert sizes_of is not None
    env = {f"#{n}": of(v) for n, v in sizes.items()}
    at = ", ".join(f"{n} = {v}" for n, v in sizes.items())
    parameters = []
    for p, extents in zip(entry.parameters, sizes_of.shapes, strict=True):
        shape = tuple(_number(e, env) for e in extents)
        if min(shape, default=0) < 0:
            raise ArgumentError(
                f"{p.name} of {artifact.name!r} would have the shape {shape} at {at}: these sizes "
                "are too small"
            )
        parameters.append(replace(p, shape=shape))
    launches = []
    parts = zip(entry.launches, sizes_of.grids, sizes_of.maps, strict=True)
    for x, extent, shapes in parts:
        grid = _number(extent, env)
        grid = min(grid, x.grid or grid)
        for name, most in x.sizes:
            if sizes[name.removeprefix("#")] > most:
                raise ArgumentError(
                    f"{artifact.name!r} is compiled for sizes {name.removeprefix('#')} of at most "
                    f"{most}, and this one is {sizes[name.removeprefix('#')]}; give ts.size a range"
                )
        if grid > _MAX_GRID:
            raise ArgumentError(
                f"{artifact.name!r} needs {grid} blocks at {at}; a launch has at most {_MAX_GRID}"
            )
        values = tuple(sizes[n.removeprefix("#")] for n, _ in x.sizes)
        maps = tuple(
            _map_of(m, [_number(e, env) for e in shape])
            for m, shape in zip(x.maps, shapes, strict=True)
        )
        launches.append(replace(x, grid=grid, values=values, maps=maps))
    names = (name for name, _ in entry.scratch)
    offsets = (_number(p, env) for p in sizes_of.scratch)
    return replace(
        entry,
        parameters=tuple(parameters),
        workspace_nbytes=_number(sizes_of.workspace, env),
        launches=tuple(launches),
        scratch=tuple(zip(names, offsets, strict=True)),
        open=None,
    )


def _map_of(tensor: TensorMap, shape: Sequence[int]) -> TensorMap:
    nbytes = dtype(tensor.dtype).nbytes
    strides = tuple(prod(shape[:d]) * nbytes for d in range(1, len(shape)))
    return replace(tensor, shape=tuple(shape), strides=strides)


def _number(p: Int, env: Mapping[str, Int]) -> int:
    return p.substitute(env).number
