"""`OpenKernel`: a kernel whose sizes are open. The shapes of the arrays of a call determine them,
and nothing is compiled in a call. `PortfolioKernel`: several of them, each for the sizes that it is
fastest at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy import ndarray

from tilesmith.base.errors import BuildError
from tilesmith.base.given import checks_given
from tilesmith.codegen.artifact import Artifact, Parameter
from tilesmith.runtime.arrays import convert
from tilesmith.runtime.dispatch import Region, choice_of, leaves, member_of, renumbered
from tilesmith.runtime.entry_at import entry_at
from tilesmith.runtime.export.library import Library, kernel_library
from tilesmith.runtime.kernel import AS_GIVEN, Kernel, OfOpenSizes, Origin, Timing, expected_of


@checks_given
class OpenKernel(OfOpenSizes[Kernel]):
    """A kernel that takes arrays of any size: dimensions that the Function was written with as
    `ts.size(...)` may have another length in every call. Otherwise it is like any Kernel.

    Example:

        n = ts.size("n")
        X = ts.placeholder((n, 64), name="X")
        kernel = ts.build(ts.function([X, ts.ops.softmax(X)]), ts.cpu(num_cores=1))
        out = kernel(np.ones((17, 64), np.float32))
    """

    def __init__(
        self, artifact: Artifact, origin: Origin = AS_GIVEN, *, threads: int | None = None
    ) -> None:
        super().__init__(artifact, origin, threads=threads)
        self._open_all()

    def _sized(self, sizes: Mapping[str, int]) -> Kernel:
        fixed = replace(self.artifact, entries=(entry_at(self.artifact, sizes),))
        kernel = _SizedKernel.__new__(_SizedKernel)
        kernel.__dict__.update(self.__dict__)
        kernel.artifact = fixed
        kernel._inputs = [expected_of(p) for p in fixed.inputs]
        kernel._outputs = [expected_of(p) for p in fixed.outputs]
        kernel._nbytes = [p.nbytes for p in fixed.parameters]
        kernel._sizes = tuple(sizes[n.removeprefix("#")] for n in self._open.names)
        return kernel

    def _for(self, arrays: Sequence[Any]) -> tuple[Kernel, tuple[Any, ...]]:
        if len(arrays) != len(self.artifact.inputs):
            self._refuse_count(len(arrays))
        given = tuple(
            a if type(a) is ndarray else convert(a, p)
            for a, p in zip(arrays, self.artifact.inputs, strict=True)
        )
        return self.sized(*(a.shape for a in given)), given

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        shapes = tuple([a.shape for a in arrays if type(a) is ndarray])
        kernel = self._known.get(shapes) if len(shapes) == len(arrays) else None
        if kernel is None:  # a shape for the first time, or arrays that are not NumPy's
            kernel, _ = self._for(arrays)
        return kernel(*arrays, out=out)

    def bind(self, *arrays: Any, out: Any = None) -> Callable[[], Any]:
        kernel, _ = self._for(arrays)
        return kernel.bind(*arrays, out=out)

    def time(
        self, *arrays: Any, out: Any = None, repeats: int = 10, min_seconds: float = 0.01
    ) -> Timing:
        self._require_arrays(arrays)
        kernel, _ = self._for(arrays)
        return kernel.time(*arrays, out=out, repeats=repeats, min_seconds=min_seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenKernel, (self.artifact, self.origin)

    def __repr__(self) -> str:
        shapes = iter(self._open.shapes)

        def show(parameters: Sequence[Parameter]) -> str:
            return ", ".join(
                f"{p.name}: {p.dtype}[{', '.join(str(e).removeprefix('#') for e in next(shapes))}]"
                for p in parameters
            )

        a = self.artifact
        return f"<OpenKernel {a.name}({show(a.inputs)}) -> {show(a.outputs)}, from {self.origin}>"


class _SizedKernel(Kernel):
    """An OpenKernel for certain sizes. All of its kernels share the memory of calls."""

    def _raw(self, addresses: Sequence[int]) -> None:
        free, nbytes = self._free, self.artifact.workspace_nbytes
        try:
            frame = free.pop()
        except IndexError:
            frame = self._new_frame()
        if frame.workspace.nbytes < nbytes:
            frame = self._new_frame()
        frame.pointers[:] = [*addresses, *self._sizes]
        self._run(frame.address, frame.workspace_address)
        free.append(frame)


@checks_given
class PortfolioKernel(OpenKernel):
    """A kernel with open sizes that is several kernels: `members`, of which `regions` says which
    one runs at which sizes, and the first one runs at sizes outside of `limits`.

    All members take their inputs in the same layout. The choice is made when a shape is seen for
    the first time, and is a lookup from then on.
    """

    def __init__(
        self,
        members: Sequence[OpenKernel],
        regions: Sequence[Region],
        limits: Mapping[str, tuple[int, int]],
    ) -> None:
        first = members[0]
        if any(layouts_of(m) != layouts_of(first) for m in members):
            raise BuildError(f"the kernels of {first.name!r} take inputs in different layouts")
        self.__dict__.update(first.__dict__)
        self._known = {}
        self.members, self.regions, self.limits = tuple(members), tuple(regions), dict(limits)
        self.choice = choice_of(self.regions, self.limits)

    def member_for(self, sizes: Mapping[str, int]) -> int:
        """The number of the kernel that runs at these sizes."""
        return member_of(self.choice, sizes)

    def _sized(self, sizes: Mapping[str, int]) -> Kernel:
        return OpenKernel._sized(self.members[self.member_for(sizes)], sizes)

    def _exported(self, name: str, weights: Mapping[str, Any]) -> Library:
        used = sorted(set(leaves(self.choice)))
        first, *others = (self.members[k].artifact for k in used)
        choice = renumbered(self.choice, {k: n for n, k in enumerate(used)})
        return kernel_library(first, name, weights, others, choice)

    def __reduce__(self) -> tuple[Any, ...]:
        return PortfolioKernel, (self.members, self.regions, self.limits)


def layouts_of(kernel: Kernel) -> tuple[object, ...]:
    """The memory layouts in which a kernel takes its parameters."""
    return tuple(p.packed and (p.packed.layout, p.packed.prepared) for p in kernel.artifact.inputs)
