"""A readable name for a Target."""

from __future__ import annotations

from tilesmith.base.target import Target

# On ARM the system reports numbers of the implementer and the part instead of a name.
_ARM = {
    "0x41 0xd03": "Arm Cortex-A53",
    "0x41 0xd05": "Arm Cortex-A55",
    "0x41 0xd08": "Arm Cortex-A72",
    "0x41 0xd0b": "Arm Cortex-A76",
    "0x41 0xd0c": "Arm Neoverse-N1",
    "0x41 0xd40": "Arm Neoverse-V1",
    "0x41 0xd49": "Arm Neoverse-N2",
    "0x41 0xd4f": "Arm Neoverse-V2",
    "0x41 0xd8e": "Arm Neoverse-N3",
    "0x41 0xd84": "Arm Neoverse-V3",
}


def machine_name(target: Target) -> str:
    """The model, or LLVM's name of the processor if the model is unknown."""
    numbers = " ".join(target.model.split()[:2])
    return _ARM.get(numbers, target.model) or target.cpu


def machine_and_cores(target: Target) -> str:
    cores = "1 core" if target.num_cores == 1 else f"{target.num_cores} cores"
    return f"{machine_name(target)}, {cores}"
