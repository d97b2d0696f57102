; Kernels ask for as many threads as the target has cores. Where they run there may be fewer, and more
; threads than cores would wait for each other.
@prepared = internal global i32 0
@handles = internal global i64 0
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_atfork(ptr, ptr, ptr)

; As many threads as this process has cores.
define internal i64 @all_cores() nounwind {
  %mask = alloca [128 x i8], align 8
  %n = call i64 @cores(ptr %mask)
  ret i64 %n
}

define internal void @set_limit(i64 %wanted) nounwind {
  %some = call i64 @llvm.umax.i64(i64 %wanted, i64 1)
  %possible = call i64 @llvm.umin.i64(i64 %some, i64 $MAX_THREADS)
  store atomic i64 %possible, ptr @limit monotonic, align 8
  ret void
}

define internal void @prepare() nounwind {
entry:
  %was = atomicrmw xchg ptr @prepared, i32 1 acq_rel
  %first = icmp eq i32 %was, 0
  br i1 %first, label %prepare, label %done
prepare:
  %e0 = call i32 @pthread_atfork(ptr null, ptr null, ptr @tilesmith_reset_threads)
  %n = call i64 @all_cores()
  call void @set_limit(i64 %n)
  br label %done
done:
  ret void
}

; Called for every handle that is opened.
define void @tilesmith_threads_1_prepare() nounwind {
  %before = atomicrmw add ptr @handles, i64 1 acq_rel
  call void @prepare()
  ret void
}

; Called for every handle that is closed. The last one ends the workers, unless another was opened
; and runs already: it then has the lock.
define void @tilesmith_threads_1_release() nounwind {
entry:
  %before = atomicrmw sub ptr @handles, i64 1 acq_rel
  %last = icmp eq i64 %before, 1
  br i1 %last, label %try, label %out
try:
  %swap = cmpxchg ptr @lock, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %count, label %out
count:
  %n = load i64, ptr @workers
  %none = icmp eq i64 %n, 0
  br i1 %none, label %close, label %each
each:
  %i = phi i64 [ 0, %count ], [ %i.next, %each ]
  %slot = getelementptr [$MAX_WORKERS x %Slot], ptr @slots, i64 0, i64 %i
  store atomic i32 4, ptr %slot seq_cst, align 128
  call void @wake(ptr %slot)
  %thread.p = getelementptr %Slot, ptr %slot, i64 0, i32 6
  %thread = load i64, ptr %thread.p
  %e0 = call i32 @pthread_join(i64 %thread, ptr null)
  store atomic i32 0, ptr %slot seq_cst, align 128
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %n
  br i1 %more, label %each, label %close
close:
  store i64 0, ptr @workers
  store i32 -1, ptr @caller_core
  store atomic i64 0, ptr @lock release, align 128
  br label %out
out:
  ret void
}

; At most so many threads; 0: as many as there are cores.
define void @tilesmith_threads_1_limit(i64 %most) nounwind {
  call void @prepare()
  %all = icmp sle i64 %most, 0
  %n = call i64 @all_cores()
  %wanted = select i1 %all, i64 %n, i64 %most
  call void @set_limit(i64 %wanted)
  ret void
}
