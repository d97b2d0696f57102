; A step is three pointers. Times are in nanoseconds.
declare i32 @clock_gettime(i32, ptr)

define void @tilesmith_run_chain(ptr %steps, i64 %n) nounwind {
entry:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %step = getelementptr { ptr, ptr, ptr }, ptr %steps, i64 %i
  %entry_point = load ptr, ptr %step
  %args_at = getelementptr { ptr, ptr, ptr }, ptr %steps, i64 %i, i32 1
  %args = load ptr, ptr %args_at
  %workspace_at = getelementptr { ptr, ptr, ptr }, ptr %steps, i64 %i, i32 2
  %workspace = load ptr, ptr %workspace_at
  call void %entry_point(ptr %args, ptr %workspace)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}

define internal i64 @now(i32 %clock) nounwind {
  %t = alloca { i64, i64 }
  %ignored = call i32 @clock_gettime(i32 %clock, ptr %t)
  %seconds = load i64, ptr %t
  %rest_at = getelementptr { i64, i64 }, ptr %t, i32 0, i32 1
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}

define void @tilesmith_run_chain_timed(ptr %steps, i64 %n, ptr %nanoseconds,
                                       i32 %clock) nounwind {
entry:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %step = getelementptr { ptr, ptr, ptr }, ptr %steps, i64 %i
  %begin = call i64 @now(i32 %clock)
  call void @tilesmith_run_chain(ptr %step, i64 1)
  %end = call i64 @now(i32 %clock)
  %took = sub i64 %end, %begin
  %at = getelementptr i64, ptr %nanoseconds, i64 %i
  store i64 %took, ptr %at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
