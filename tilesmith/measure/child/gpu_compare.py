"""Compares an output with the expected one on the device, so that the host need not read it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilesmith.base.dtype import dtype
from tilesmith.base.errors import DeviceError
from tilesmith.codegen.artifact import Artifact
from tilesmith.measure.child.check import Expected
from tilesmith.measure.gpu_support import comparison
from tilesmith.runtime.devices.protocol import Device, Memory, Module, Pointer

Array = np.ndarray[Any, Any]


class OnDevice:
    """An expected output in the memory of the device."""

    @staticmethod
    def of(
        device: Device, module: Module, support: Artifact, expected: Expected
    ) -> OnDevice | None:
        """None if the host has to compare: float64, integers that may differ, or too little memory.
        `support` are the kernels of gpu_support.py, which the module has.
        """
        d = dtype(expected.want.dtype)
        if not comparison(d) or not (d.is_float or expected.is_exact):
            return None
        entry = [e.name for e in support.entries].index(comparison(d))
        limits = [np.ascontiguousarray(expected.limits)] if d.is_float else []
        count = expected.want.size if d.is_float else expected.want.nbytes
        try:
            return OnDevice(
                device, module, entry, [expected.want, *limits, np.array([count], np.int64)]
            )
        except DeviceError as error:
            if error.kind == "fault":
                raise
            return None

    def __init__(self, device: Device, module: Module, entry: int, data: list[Array]) -> None:
        self._device, self._module, self._entry = device, module, entry
        self._data = [np.ascontiguousarray(a) for a in data]
        self._memory: list[Memory] = [device.allocate(a.nbytes) for a in self._data]
        self._differs = device.allocate(4)
        self.restore()

    def restore(self) -> None:
        """Undoes what a bad kernel may have written here."""
        for memory, data in zip(self._memory, self._data, strict=True):
            self._device.write(memory, data)

    def is_near(self, output: Pointer) -> bool:
        """Whether all elements of an output are right."""
        device, found = self._device, np.ones(1, np.int32)
        device.fill(self._differs, 0)
        given = [m.at(0, m.nbytes) for m in (*self._memory, self._differs)]
        device.run((device.call(self._module, self._entry, [output, *given], None),))
        device.read(self._differs, found)
        return not found[0]
