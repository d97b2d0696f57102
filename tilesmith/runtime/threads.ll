; state, sleeps, body, ctx, n, chunk, thread, number of threads of the region
%Slot = type { i32, i32, ptr, ptr, i64, i64, i64, i64, [72 x i8] }
@slots = internal global [$MAX_WORKERS x %Slot] zeroinitializer, align 128
%Line = type { i64, [120 x i8] }
@lock = internal global %Line zeroinitializer, align 128
@taken = internal global [$MAX_THREADS x %Line] zeroinitializer, align 128 ; of each thread's part
@sleepers = internal global %Line zeroinitializer, align 128
@workers = internal global %Line zeroinitializer, align 128
@caller_core = internal global i32 -1 ; the core that workers are kept off, -1 for none
@limit = internal global i64 $MAX_THREADS ; on the threads of a region, the caller's included

declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_attr_setdetachstate(ptr, i32)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_getcpu()
declare i64 @llvm.ctpop.i64(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sigdelset(ptr, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal void @sleep_while(ptr %state, i32 %value) nounwind noinline {
  %r = call i64 (i64, ...) @syscall(
      i64 $FUTEX, ptr %state, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

define internal void @wake(ptr %state) nounwind noinline {
  %r = call i64 (i64, ...) @syscall(
      i64 $FUTEX, ptr %state, i32 129, i32 1, ptr null, ptr null, i32 0)
  ret void
}

; Runs chunks until none is left: of the thread's own part, then of the next ones.
define internal void @work(
    ptr %body, ptr %ctx, i64 %n, i64 %chunk, i64 %thread, i64 %team) nounwind {
entry:
  br label %part
part:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %sum = add i64 %thread, %k
  %past = icmp uge i64 %sum, %team
  %wrapped = sub i64 %sum, %team
  %owner = select i1 %past, i64 %wrapped, i64 %sum
  %after = add i64 %owner, 1
  %low.sum = mul i64 %owner, %n
  %low = udiv i64 %low.sum, %team
  %high.sum = mul i64 %after, %n
  %high = udiv i64 %high.sum, %team
  %count = sub i64 %high, %low
  %taken = getelementptr [$MAX_THREADS x %Line], ptr @taken, i64 0, i64 %owner
  %seen = load atomic i64, ptr %taken monotonic, align 128
  %open = icmp ult i64 %seen, %count
  br i1 %open, label %take, label %next
take:
  %at = atomicrmw add ptr %taken, i64 %chunk monotonic
  %some = icmp ult i64 %at, %count
  br i1 %some, label %run, label %next
run:
  %left = sub i64 %count, %at
  %size = call i64 @llvm.umin.i64(i64 %left, i64 %chunk)
  %begin = add i64 %low, %at
  %end = add i64 %begin, %size
  call void %body(ptr %ctx, i64 %begin, i64 %end, i64 %thread)
  br label %take
next:
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %team
  br i1 %more, label %part, label %done
done:
  ret void
}

define internal ptr @worker(ptr %slot) nounwind {
entry:
  %sleeps.p = getelementptr %Slot, ptr %slot, i64 0, i32 1
  %body.p = getelementptr %Slot, ptr %slot, i64 0, i32 2
  %ctx.p = getelementptr %Slot, ptr %slot, i64 0, i32 3
  %n.p = getelementptr %Slot, ptr %slot, i64 0, i32 4
  %chunk.p = getelementptr %Slot, ptr %slot, i64 0, i32 5
  %team.p = getelementptr %Slot, ptr %slot, i64 0, i32 7
  %base = ptrtoint ptr @slots to i64
  %here = ptrtoint ptr %slot to i64
  %offset = sub i64 %here, %base
  %index = udiv i64 %offset, 128
  %thread = add i64 %index, 1
  %spin_ticks = call i64 @spin_ticks()
  br label %idle
idle:
  %since = call i64 @now()
  br label %spin
spin:
  %seen = load atomic i32, ptr %slot acquire, align 128
  %posted = icmp eq i32 %seen, 1
  br i1 %posted, label %claim, label %wait
wait:
  %ended = icmp eq i32 %seen, 4
  br i1 %ended, label %end, label %pause
end:
  ret ptr null
pause:
  call void @relax()
  %t = call i64 @now()
  %waited = sub i64 %t, %since
  %timed_out = icmp ugt i64 %waited, %spin_ticks
  br i1 %timed_out, label %sleep, label %spin
sleep:
  store atomic i32 1, ptr %sleeps.p seq_cst, align 4
  %s0 = atomicrmw add ptr @sleepers, i64 1 seq_cst
  call void @sleep_while(ptr %slot, i32 0)
  store atomic i32 0, ptr %sleeps.p seq_cst, align 4
  %s1 = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  br label %idle
claim:
  %swap = cmpxchg ptr %slot, i32 1, i32 2 acq_rel monotonic
  %mine = extractvalue { i32, i1 } %swap, 1
  br i1 %mine, label %run, label %idle
run:
  %body = load ptr, ptr %body.p
  %ctx = load ptr, ptr %ctx.p
  %n = load i64, ptr %n.p
  %chunk = load i64, ptr %chunk.p
  %team = load i64, ptr %team.p
  call void @work(ptr %body, ptr %ctx, i64 %n, i64 %chunk, i64 %thread, i64 %team)
  %was = atomicrmw xchg ptr %slot, i32 0 acq_rel
  %awaited = icmp eq i32 %was, 3
  br i1 %awaited, label %tell, label %idle
tell:
  call void @wake(ptr %slot)
  br label %idle
}

; Starts workers until there are as many as wanted, or the system refuses. Workers block all signals
; except for those of a crash, so that the threads of Python receive them.
define internal void @start(i64 %wanted) nounwind noinline {
entry:
  %attr = alloca [128 x i8], align 16
  %all = alloca [128 x i8], align 16
  %before = alloca [128 x i8], align 16
  %e0 = call i32 @sigfillset(ptr %all)
  %e1 = call i32 @sigdelset(ptr %all, i32 4)
  %e2 = call i32 @sigdelset(ptr %all, i32 6)
  %e3 = call i32 @sigdelset(ptr %all, i32 7)
  %e4 = call i32 @sigdelset(ptr %all, i32 8)
  %e5 = call i32 @sigdelset(ptr %all, i32 11)
  %e6 = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %before)
  %e7 = call i32 @pthread_attr_init(ptr %attr)
  %e8 = call i32 @pthread_attr_setstacksize(ptr %attr, i64 $STACK_NBYTES)
  %e9 = call i32 @pthread_attr_setdetachstate(ptr %attr, i32 $DETACHED)
  br label %more
more:
  %have = load i64, ptr @workers
  %enough = icmp uge i64 %have, %wanted
  br i1 %enough, label %done, label %create
create:
  %slot = getelementptr [$MAX_WORKERS x %Slot], ptr @slots, i64 0, i64 %have
  %thread.p = getelementptr %Slot, ptr %slot, i64 0, i32 6
  %failed = call i32 @pthread_create(ptr %thread.p, ptr %attr, ptr @worker, ptr %slot)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %count, label %done
count:
  %now = add i64 %have, 1
  store i64 %now, ptr @workers
  store i32 -1, ptr @caller_core
  br label %more
done:
  %e10 = call i32 @pthread_attr_destroy(ptr %attr)
  %e11 = call i32 @pthread_sigmask(i32 2, ptr %before, ptr null)
  ret void
}

; The number of cores that this process may use, and in `mask`, which they are.
define internal i64 @cores(ptr %mask) nounwind {
entry:
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 128, i1 false)
  %e0 = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  br label %tally
tally:
  %word = phi i64 [0, %entry], [%word.next, %tally]
  %sum = phi i64 [0, %entry], [%sum.next, %tally]
  %word.p = getelementptr i64, ptr %mask, i64 %word
  %bits = load i64, ptr %word.p
  %ones = call i64 @llvm.ctpop.i64(i64 %bits)
  %sum.next = add i64 %sum, %ones
  %word.next = add i64 %word, 1
  %counted = icmp eq i64 %word.next, 16
  br i1 %counted, label %done, label %tally
done:
  ret i64 %sum.next
}

; Removes the caller's core from the affinity of all workers, unless it is the only one.
define internal void @leave_core(i32 %cpu) nounwind noinline {
entry:
  %mask = alloca [128 x i8], align 8
  store i32 %cpu, ptr @caller_core
  %sum = call i64 @cores(ptr %mask)
  %count = load i64, ptr @workers
  %named = icmp ult i32 %cpu, 1024
  br i1 %named, label %known, label %done
known:
  %several = icmp ugt i64 %sum, 1
  %some = icmp ne i64 %count, 0
  %apart = and i1 %several, %some
  br i1 %apart, label %clear, label %done
clear:
  %cpu.wide = zext i32 %cpu to i64
  %at = lshr i64 %cpu.wide, 6
  %own.p = getelementptr i64, ptr %mask, i64 %at
  %own = load i64, ptr %own.p
  %shift = and i64 %cpu.wide, 63
  %bit = shl i64 1, %shift
  %rest = xor i64 %bit, -1
  %others = and i64 %own, %rest
  store i64 %others, ptr %own.p
  br label %each
each:
  %i = phi i64 [0, %clear], [%i.next, %each]
  %thread.p = getelementptr [$MAX_WORKERS x %Slot], ptr @slots, i64 0, i64 %i, i32 6
  %thread = load i64, ptr %thread.p
  %e1 = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %mask)
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %count
  br i1 %more, label %each, label %done
done:
  ret void
}

define void @tilesmith_parallel_for(ptr %body, ptr %ctx, i64 %n, i64 %num_threads) nounwind {
entry:
  %empty = icmp sle i64 %n, 0
  br i1 %empty, label %out, label %some
some:
  %many = call i64 @llvm.smax.i64(i64 %num_threads, i64 1)
  %limit = load atomic i64, ptr @limit monotonic, align 8
  %team = call i64 @llvm.umin.i64(i64 %many, i64 %limit)
  %parts = shl i64 %team, 3
  %share = udiv i64 %n, %parts
  %chunk = call i64 @llvm.umax.i64(i64 %share, i64 1)
  %useful = call i64 @llvm.umin.i64(i64 %team, i64 %n)
  %others = sub i64 %useful, 1
  %single = icmp eq i64 %others, 0
  br i1 %single, label %alone, label %try
try:
  %swap = cmpxchg ptr @lock, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %ensure_workers, label %alone
alone:
  call void %body(ptr %ctx, i64 0, i64 %n, i64 0)
  br label %out

ensure_workers:
  %have = load i64, ptr @workers
  %enough = icmp uge i64 %have, %others
  br i1 %enough, label %where, label %start_more
start_more:
  call void @start(i64 %others)
  br label %where
where:
  %cpu = call i32 @sched_getcpu()
  %old = load i32, ptr @caller_core
  %stayed = icmp eq i32 %cpu, %old
  br i1 %stayed, label %open, label %moved
moved:
  call void @leave_core(i32 %cpu)
  br label %open
open:
  %started = load i64, ptr @workers
  %helpers = call i64 @llvm.umin.i64(i64 %started, i64 %others)
  %helped = icmp ne i64 %helpers, 0
  %here = add i64 %helpers, 1 ; threads that take part
  br label %reset
; Every part is open before the first worker may look for work in it.
reset:
  %z = phi i64 [ 0, %open ], [ %z.next, %reset ]
  %taken = getelementptr [$MAX_THREADS x %Line], ptr @taken, i64 0, i64 %z
  store atomic i64 0, ptr %taken monotonic, align 128
  %z.next = add i64 %z, 1
  %z.more = icmp ult i64 %z.next, %here
  br i1 %z.more, label %reset, label %ready
ready:
  br i1 %helped, label %post, label %posted
post:
  %i = phi i64 [ 0, %ready ], [ %i.next, %post ]
  %slot = getelementptr [$MAX_WORKERS x %Slot], ptr @slots, i64 0, i64 %i
  %body.p = getelementptr %Slot, ptr %slot, i64 0, i32 2
  %ctx.p = getelementptr %Slot, ptr %slot, i64 0, i32 3
  %n.p = getelementptr %Slot, ptr %slot, i64 0, i32 4
  %chunk.p = getelementptr %Slot, ptr %slot, i64 0, i32 5
  store ptr %body, ptr %body.p
  store ptr %ctx, ptr %ctx.p
  store i64 %n, ptr %n.p
  store i64 %chunk, ptr %chunk.p
  %team.p = getelementptr %Slot, ptr %slot, i64 0, i32 7
  store i64 %here, ptr %team.p
  store atomic i32 1, ptr %slot release, align 128
  %i.next = add i64 %i, 1
  %i.more = icmp ult i64 %i.next, %helpers
  br i1 %i.more, label %post, label %posted
posted:
  fence seq_cst
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 128
  %any = icmp ne i64 %asleep, 0
  %wake_any = and i1 %any, %helped
  br i1 %wake_any, label %look, label %join
look:
  %j = phi i64 [ 0, %posted ], [ %j.next, %looked ]
  %j.slot = getelementptr [$MAX_WORKERS x %Slot], ptr @slots, i64 0, i64 %j
  %j.sleeps.p = getelementptr %Slot, ptr %j.slot, i64 0, i32 1
  %j.sleeps = load atomic i32, ptr %j.sleeps.p seq_cst, align 4
  %j.is = icmp ne i32 %j.sleeps, 0
  br i1 %j.is, label %call, label %looked
call:
  call void @wake(ptr %j.slot)
  br label %looked
looked:
  %j.next = add i64 %j, 1
  %j.more = icmp ult i64 %j.next, %helpers
  br i1 %j.more, label %look, label %join

join:
  call void @work(ptr %body, ptr %ctx, i64 %n, i64 %chunk, i64 0, i64 %here)
  br i1 %helped, label %gather, label %close
gather:
  %k = phi i64 [ 0, %join ], [ %k.next, %gathered ]
  %k.slot = getelementptr [$MAX_WORKERS x %Slot], ptr @slots, i64 0, i64 %k
  %spin_ticks = call i64 @spin_ticks()
  %since = call i64 @now()
  br label %check
check:
  %state = load atomic i32, ptr %k.slot acquire, align 128
  switch i32 %state, label %gathered [
    i32 1, label %revoke
    i32 2, label %running
    i32 3, label %sleep_until_done
  ]
revoke:
  %r.swap = cmpxchg ptr %k.slot, i32 1, i32 0 acq_rel monotonic
  %revoked = extractvalue { i32, i1 } %r.swap, 1
  br i1 %revoked, label %gathered, label %check
running:
  call void @relax()
  %t = call i64 @now()
  %waited = sub i64 %t, %since
  %timed_out = icmp ugt i64 %waited, %spin_ticks
  br i1 %timed_out, label %announce, label %check
announce:
  %a.swap = cmpxchg ptr %k.slot, i32 2, i32 3 acq_rel monotonic
  br label %check
sleep_until_done:
  call void @sleep_while(ptr %k.slot, i32 3)
  br label %check
gathered:
  %k.next = add i64 %k, 1
  %k.more = icmp ult i64 %k.next, %helpers
  br i1 %k.more, label %gather, label %close
close:
  store atomic i64 0, ptr @lock release, align 128
  br label %out
out:
  ret void
}

; A forked child inherits this memory, but no threads.
define void @tilesmith_reset_threads() nounwind {
  call void @llvm.memset.p0.i64(ptr @slots, i8 0, i64 $SLOTS_NBYTES, i1 false)
  store i64 0, ptr @lock
  store i64 0, ptr @sleepers
  store i64 0, ptr @workers
  store i32 -1, ptr @caller_core
  ret void
}

define void @tilesmith_repeat(ptr %entry_point, ptr %args, ptr %workspace, i64 %n) nounwind {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  call void %entry_point(ptr %args, ptr %workspace)
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
