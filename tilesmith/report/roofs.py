"""The roofs of a roofline: what the arithmetic units and the memory of this machine can do."""

from __future__ import annotations

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.target import CpuConstants, Target, cpu
from tilesmith.measure.this_machine import peak_of


@dataclass(frozen=True, slots=True)
class Roof:
    """`gflops` is measured. The bandwidths, in GB/s from the L2 cache and from memory, are those
    that the analytic score assumes.
    """

    label: str
    gflops: float
    l2: float
    memory: float


def roof_of(target: Target, d: DType) -> Roof | None:
    """None for a target that is not this machine's CPU, and for types without FMA instructions."""
    here = target.kind == "cpu" and target.num_cores <= cpu().num_cores
    if not here or target.fingerprint != cpu().with_cores(target.num_cores).fingerprint:
        return None
    peak = peak_of(d, target.num_cores)
    if peak is None:
        return None
    constants = CpuConstants.of(target)
    l1, _, l3 = constants.caches
    cycles = peak / (2 * constants.ports * target.lanes(d.bits))  # per second, of all cores
    label = f"{d}, {target.label}"
    return Roof(
        label, peak / 1e9, l1.bandwidth_below * cycles / 1e9, l3.bandwidth_below * cycles / 1e9
    )
