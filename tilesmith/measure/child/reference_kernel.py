"""The reference kernel: about 100 us of arithmetic and memory traffic, as LLVM text for a target.

It never changes, so its time shows how fast the machine is at the moment. For targets with several
cores it has as many threads, so that it detects contention on each of them.
"""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.codegen.artifact import ENTRY, PARALLEL_FOR

# Per thread: first, independent chains of vector arithmetic that keep all ports busy. A process on
# the sibling hardware thread takes half of the ports; one dependent chain would not notice. Then
# passes over 64 KB, whose time depends on the caches but which evict little of a kernel's data.
_STEPS, _CHAINS, _PASSES, _LINES = 6000, 10, 8, 1024
WORKSPACE_NBYTES = _LINES * 64

_PART = """
define internal void @part(ptr %memory, i64 %begin, i64 %end, i64 %thread) nounwind {
entry:
  br label %step
step:
  %i = phi i64 [ 0, %entry ], [ %i.next, %step ]
$PHIS
$ARITHMETIC
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, $STEPS
  br i1 %more, label %step, label %join
join:
$SUM
  %x = extractelement $TOTAL, i64 0
  br label %pass
pass:
  %p = phi i64 [ 0, %join ], [ %p.next, %passed ]
  %s.in = phi float [ %x, %join ], [ %s.next, %passed ]
  br label %line
line:
  %l = phi i64 [ 0, %pass ], [ %l.next, %line ]
  %s = phi float [ %s.in, %pass ], [ %s.next, %line ]
  %at = shl i64 %l, 6
  %a = getelementptr i8, ptr %memory, i64 %at
  %v = load volatile float, ptr %a
  %s.next = fadd float %s, %v
  %l.next = add i64 %l, 1
  %l.more = icmp slt i64 %l.next, $LINES
  br i1 %l.more, label %line, label %passed
passed:
  %p.next = add i64 %p, 1
  %p.more = icmp slt i64 %p.next, $PASSES
  br i1 %p.more, label %pass, label %done
done:
  store volatile float %s.next, ptr %memory
  ret void
}
"""

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
    text += _PART + (_ALONE if num_threads == 1 else _TOGETHER)
    for name, value in values.items():
        text = text.replace(f"${name}", str(value))
    return text
