@report = internal global ptr null
declare void @_exit(i32) noreturn nounwind
declare ptr @malloc(i64)
declare ptr @calloc(i64, i64)
declare ptr @aligned_alloc(i64, i64)

define void @$REPORT_TO(ptr %page) nounwind {
  store ptr %page, ptr @report
  ret void
}

define void @$FAULT(i32 %number, ptr %siginfo, ptr %ignored) nounwind {
  %page = load ptr, ptr @report
  %code.p = getelementptr i8, ptr %siginfo, i64 8
  %code = load i32, ptr %code.p
  %address.p = getelementptr i8, ptr %siginfo, i64 16
  %address = load i64, ptr %address.p
  %to.code = getelementptr i8, ptr %page, i64 4
  %to.address = getelementptr i8, ptr %page, i64 8
  store volatile i32 %number, ptr %page
  store volatile i32 %code, ptr %to.code
  store volatile i64 %address, ptr %to.address
  call void @_exit(i32 $FAULTED)
  unreachable
}

define internal ptr @given(ptr %p) alwaysinline nounwind {
  %none = icmp eq ptr %p, null
  br i1 %none, label %end, label %go
end:
  call void @_exit(i32 $NO_MEMORY)
  unreachable
go:
  ret ptr %p
}

define ptr @$ALLOCATE(i64 %n) nounwind {
  %p = call ptr @malloc(i64 %n)
  %q = call ptr @given(ptr %p)
  ret ptr %q
}

define ptr @$ALLOCATE_ZEROED(i64 %n, i64 %size) nounwind {
  %p = call ptr @calloc(i64 %n, i64 %size)
  %q = call ptr @given(ptr %p)
  ret ptr %q
}

define ptr @$ALLOCATE_ALIGNED(i64 %alignment, i64 %n) nounwind {
  %p = call ptr @aligned_alloc(i64 %alignment, i64 %n)
  %q = call ptr @given(ptr %p)
  ret ptr %q
}
