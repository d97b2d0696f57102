"""The reference kernel: some 100 us of arithmetic and memory traffic that never change, so that its
time tells what the machine is doing.

Threaded code is judged by a threaded reference, which sees every core it uses.
"""

from __future__ import annotations

from tilesmith.codegen.artifact import ENTRY, PARALLEL_FOR

# Per thread: a chain of dependent multiply-adds, which feels the clock, and passes over 64 KB,
# which feel the caches that a neighbour shares.
_CHAIN, _PASSES, _LINES = 8000, 8, 1024
WORKSPACE_NBYTES = _LINES * 64

_SOURCE = """
define internal void @part(ptr %memory, i64 %begin, i64 %end, i64 %thread) nounwind {
entry:
  br label %chain
chain:
  %i = phi i64 [ 0, %entry ], [ %i.next, %chain ]
  %x = phi double [ 1.0, %entry ], [ %x.next, %chain ]
  %y = fmul double %x, 0.5
  %x.next = fadd double %y, 0.5
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, $CHAIN
  br i1 %more, label %chain, label %pass
pass:
  %p = phi i64 [ 0, %chain ], [ %p.next, %passed ]
  %s.in = phi double [ %x.next, %chain ], [ %s.next, %passed ]
  br label %line
line:
  %l = phi i64 [ 0, %pass ], [ %l.next, %line ]
  %s = phi double [ %s.in, %pass ], [ %s.next, %line ]
  %at = shl i64 %l, 6
  %a = getelementptr i8, ptr %memory, i64 %at
  %v = load volatile double, ptr %a
  %s.next = fadd double %s, %v
  %l.next = add i64 %l, 1
  %l.more = icmp slt i64 %l.next, $LINES
  br i1 %l.more, label %line, label %passed
passed:
  %p.next = add i64 %p, 1
  %p.more = icmp slt i64 %p.next, $PASSES
  br i1 %p.more, label %pass, label %done
done:
  store volatile double %s.next, ptr %memory
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


def reference_source(num_threads: int) -> str:
    text = _SOURCE + (_ALONE if num_threads == 1 else _TOGETHER)
    values = {
        "CHAIN": _CHAIN, "LINES": _LINES, "PASSES": _PASSES, "ENTRY": ENTRY,
        "PARALLEL_FOR": PARALLEL_FOR, "THREADS": num_threads,
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"${name}", str(value))
    return text
