"""GPUs that OpenCL drives. It tells their sizes and little else, so nothing is assumed."""

from __future__ import annotations

from tilesmith.base.machines.machine import GpuMachine

OPENCL = GpuMachine()
# By the extensions that a device states.
EXTENSIONS = {"cl_khr_fp64": "fp64", "cl_khr_fp16": "fp16"}
