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
