"""The reference kernel: about 100 us of arithmetic and memory traffic, as LLVM text for a target.

It never changes, so its time shows how fast the machine is at the moment. For targets with several
cores it has as many threads, so that it detects contention on each of them.
"""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.base.template import filled, template
from tilesmith.codegen.artifact import ENTRY, PARALLEL_FOR

# Per thread: first, independent chains of vector arithmetic that keep all ports busy. A process on
# the sibling hardware thread takes half of the ports; one dependent chain would not notice. Then
# passes over 64 KB, whose time depends on the caches but which evict little of a kernel's data.
_STEPS, _CHAINS, _PASSES, _LINES = 6000, 10, 8, 1024
WORKSPACE_NBYTES = _LINES * 64

_ALONE = """
define void @$ENTRY(ptr %args, ptr %workspace) nounwind {
  call void @part(ptr %workspace, i64 0, i64 1, i64 0)
  ret void
}
"""

_TOGETHER = """
declare void @$PARALLEL_FOR(ptr, ptr, i64, i64)
define void @$ENTRY(ptr %args, ptr %workspace) nounwind {
  call void @$PARALLEL_FOR(ptr @part, ptr %workspace, i64 $THREADS, i64 $THREADS)
  ret void
}
"""


def reference_source(target: Target) -> str:
    """LLVM text. Each chain computes c = c * 1/2 + 1, which stays near 2, in the widest vectors."""
    num_threads, lanes = target.num_cores, target.lanes(32)
    vector = f"<{lanes} x float>"
    half, one = ("<" + ", ".join([f"float {v}"] * lanes) + ">" for v in ("0.5", "1.0"))
    chains = range(_CHAINS)
    phis = [f"  %c{k} = phi {vector} [ {one}, %entry ], [ %d{k}, %step ]" for k in chains]
    # fmuladd is one instruction, or two where there is no FMA; fma would be a call there.
    fma = f"@llvm.fmuladd.v{lanes}f32"
    arithmetic = [
        f"  %d{k} = call {vector} {fma}({vector} %c{k}, {vector} {half}, {vector} {one})"
        for k in chains
    ]
    sums = ["%d0", *(f"%t{k}" for k in chains[1:-1])]
    total = [f"  %t{k} = fadd {vector} {sums[k - 1]}, %d{k}" for k in chains[1:]]
    values = {
        "PHIS": "\n".join(phis), "ARITHMETIC": "\n".join(arithmetic), "SUM": "\n".join(total),
        "TOTAL": f"{vector} %t{_CHAINS - 1}", "STEPS": _STEPS, "LINES": _LINES, "PASSES": _PASSES,
        "ENTRY": ENTRY, "PARALLEL_FOR": PARALLEL_FOR, "THREADS": num_threads,
    }  # fmt: skip
    text = f"declare {vector} {fma}({vector}, {vector}, {vector})\n"
    call = filled(_ALONE if num_threads == 1 else _TOGETHER, values)
    return f"{text}\n{template(__file__, 'reference_kernel.ll', values)}{call}"
