"""`OpenDeviceKernel`: a kernel for a GPU whose sizes are open: the shapes of the arrays of a call
determine them. `DevicePortfolio`: several of them, each for the sizes that it is fastest at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tilesmith.base.errors import ArgumentError, BuildError
from tilesmith.base.given import checks_given
from tilesmith.codegen.artifact import Artifact, OpenSizes
from tilesmith.ir.open_shapes import sizes_of
from tilesmith.runtime.arrays import Array, convert
from tilesmith.runtime.device_kernel import DeviceKernel, Frame
from tilesmith.runtime.devices.open import Memory, Module
from tilesmith.runtime.dispatch import Region, choice_of, member_of
from tilesmith.runtime.entry_at import entry_at
from tilesmith.runtime.kernel import AS_GIVEN, Kernel, Origin, Timing
from tilesmith.runtime.open_kernel import OpenKernel, PortfolioKernel, layouts_of

_MOST_SHAPES = 256  # kept, each with memory on the device for arrays of the host
Shapes = tuple[tuple[int, ...], ...]


@checks_given
class OpenDeviceKernel(DeviceKernel):
    """A kernel on a GPU that takes arrays of any size: dimensions that the Function was written
    with as `ts.size(...)` may have another length in every call. The blocks of its launches are
    counted on the host. Otherwise it is like any DeviceKernel.

    Example:

        n = ts.size("n")
        X = ts.placeholder((n, 64), name="X")
        kernel = ts.build(ts.function([X, ts.ops.softmax(X)]), ts.opencl())
        out = kernel(np.ones((17, 64), np.float32))
    """

    def __init__(self, artifact: Artifact, origin: Origin = AS_GIVEN) -> None:
        super().__init__(artifact, origin)
        sizes = artifact.entries[0].open
        assert sizes is not None
        self._open: OpenSizes = sizes
        self._known: dict[Shapes, DeviceKernel] = {}

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The names of the open sizes, in the order in which the launches take them."""
        return tuple(n.removeprefix("#") for n in self._open.names)

    def sizes_of(self, *shapes: tuple[int, ...]) -> dict[str, int]:
        """The sizes that inputs of these shapes have. Raises an ArgumentError if two of them
        contradict each other.
        """
        names = [p.name for p in self.artifact.inputs]
        return sizes_of(self.name, names, self._open.shapes, shapes)

    def sized(self, *shapes: tuple[int, ...]) -> DeviceKernel:
        """The same code for inputs of these shapes, as a kernel of fixed sizes."""
        found = self._known.get(shapes)
        if found is None:
            found = self._sized(self.sizes_of(*shapes))
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            self._known[shapes] = found
        return found

    def _sized(self, sizes: Mapping[str, int]) -> DeviceKernel:
        return _SizedDeviceKernel(self, sizes)

    def _for(self, arrays: Sequence[Any]) -> DeviceKernel:
        if len(arrays) != len(self.artifact.inputs):
            self._refuse_count(len(arrays))
        shapes = []
        for a, p in zip(arrays, self.artifact.inputs, strict=True):
            shape = a.shape if hasattr(a, "shape") else convert(a, p).shape
            shapes.append(tuple(map(int, shape)))
        return self.sized(*shapes)

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None) -> Any:
        return self._for(arrays)(*arrays, out=out, stream=stream)

    def bind(self, *arrays: Any, out: Any = None, stream: Any = None) -> Callable[[], Any]:
        return self._for(arrays).bind(*arrays, out=out, stream=stream)

    def raw(self, addresses: Sequence[Any]) -> None:
        names = ", ".join(self.open_sizes)
        raise BuildError(f"{self.name!r} has the open sizes {names}; call sized(...).raw")

    def time(
        self, *arrays: Any, out: Any = None, repeats: int = 10, min_seconds: float = 0.01
    ) -> Timing:
        if not arrays:
            names = ", ".join(self.open_sizes)
            raise ArgumentError(
                f"{self.name!r} has the open sizes {names}; give the arrays to time it with"
            )
        kernel = self._for(arrays)
        return kernel.time(*arrays, out=out, repeats=repeats, min_seconds=min_seconds)

    def pack(self, name: str, array: Any) -> Array:
        p = next((p for p in self.artifact.inputs if p.name == name), None)
        if p is not None and p.packed is not None and -1 in p.shape:
            raise ArgumentError(f"{name!r} of {self.name!r} has open sizes and is not packed")
        return super().pack(name, array)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenDeviceKernel, (self.artifact, self.origin)


class _SizedDeviceKernel(DeviceKernel):
    """An OpenDeviceKernel for certain sizes. All of them share the code on the device, and the
    memory of calls.
    """

    def __init__(self, whole: OpenDeviceKernel, sizes: Mapping[str, int]) -> None:
        entry = entry_at(whole.artifact, sizes)
        fixed = Artifact(
            whole.artifact.name, whole.artifact.target, (entry,), whole.artifact.source,
            whole.artifact.code, language=whole.artifact.language,
        )  # fmt: skip
        super().__init__(fixed, whole.origin)
        self._whole = whole

    @cached_property
    def _module(self) -> Module:
        return self._whole.module.sized(self.artifact.entries[0])

    def _frame(self, stream: int | None, on_device: bool, alone: bool) -> Frame:
        if on_device or alone:
            return super()._frame(stream, on_device, alone)
        try:
            frame = self._whole._frames.pop()
        except IndexError:
            return Frame(self._new_scratch())
        need = self.artifact.workspace_nbytes
        if need and (frame.scratch is None or frame.scratch.nbytes < need):
            frame.scratch = self._new_scratch()
        for k, p in enumerate(self.artifact.parameters):
            if k in frame.copies and frame.copies[k].nbytes < p.nbytes:
                del frame.copies[k]
        return frame

    def _release(self, frame: Frame) -> None:
        self._whole._release(frame)

    def _stream_scratch(self, stream: int | None) -> Memory | None:
        key, shared = -1 if stream is None else stream, self._whole._scratch
        known, need = shared.get(key), self.artifact.workspace_nbytes
        if need and (known is None or known.nbytes < need):
            memory = self._new_scratch()
            assert memory is not None
            shared[key] = known = memory
        return known if need else None


@checks_given
class DevicePortfolio(OpenDeviceKernel):
    """A kernel with open sizes that is several kernels: `members`, of which `regions` says which
    one runs at which sizes, and the first one runs at sizes outside of `limits`.
    """

    def __init__(
        self,
        members: Sequence[OpenDeviceKernel],
        regions: Sequence[Region],
        limits: Mapping[str, tuple[int, int]],
    ) -> None:
        first = members[0]
        if any(layouts_of(m) != layouts_of(first) for m in members):
            raise BuildError(f"the kernels of {first.name!r} take inputs in different layouts")
        super().__init__(first.artifact, first.origin)
        self.members, self.regions, self.limits = tuple(members), tuple(regions), dict(limits)
        self.choice = choice_of(self.regions, self.limits)

    def member_for(self, sizes: Mapping[str, int]) -> int:
        """The number of the kernel that runs at these sizes."""
        return member_of(self.choice, sizes)

    def _sized(self, sizes: Mapping[str, int]) -> DeviceKernel:
        member = self.members[self.member_for(sizes)]
        return _SizedDeviceKernel(member, sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        return DevicePortfolio, (self.members, self.regions, self.limits)


AnyOpenKernel = OpenKernel | OpenDeviceKernel
AnyPortfolio = PortfolioKernel | DevicePortfolio


def portfolio_kernel(
    members: Sequence[AnyOpenKernel], regions: Sequence[Region],
    limits: Mapping[str, tuple[int, int]],
) -> AnyPortfolio:  # fmt: skip
    """The kernel that dispatches to kernels of one kind of target."""
    on_device = [m for m in members if isinstance(m, OpenDeviceKernel)]
    if on_device:
        return DevicePortfolio(on_device, regions, limits)
    return PortfolioKernel([m for m in members if isinstance(m, OpenKernel)], regions, limits)


def kernel_of(artifact: Artifact, origin: Origin = AS_GIVEN) -> Kernel:
    """The Kernel of an artifact, whatever its target."""
    is_open = artifact.entries[0].open is not None
    if artifact.target.kind == "cpu":
        return (OpenKernel if is_open else Kernel)(artifact, origin)
    return (OpenDeviceKernel if is_open else DeviceKernel)(artifact, origin)
