; Whether a library can run at these sizes: fills in the bytes of its arrays and the sizes of their
; elements, 0 for an empty array.
define internal i1 @are_sizes(ptr %sizes, ptr %nbytes, ptr %elements) nounwind {
entry:
  %null = icmp eq ptr %sizes, null
  br i1 %null, label %say_null, label %look
say_null:
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.no_sizes)
  ret i1 false
look:
  %wrong = call i64 @sized(ptr %sizes, ptr %nbytes, ptr %elements)
  %ok = icmp slt i64 %wrong, 0
  br i1 %ok, label %yes, label %no
yes:
  ret i1 true
no:
  %name.p = getelementptr ptr, ptr @names, i64 %wrong
  %name = load ptr, ptr %name.p
  %is_size = icmp slt i64 %wrong, $NUM_SIZES
  br i1 %is_size, label %say_size, label %say_array
say_size:
  %size.p = getelementptr i64, ptr %sizes, i64 %wrong
  %size = load i64, ptr %size.p
  %low.p = getelementptr i64, ptr @lows, i64 %wrong
  %low = load i64, ptr %low.p
  %high.p = getelementptr i64, ptr @highs, i64 %wrong
  %high = load i64, ptr %high.p
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.size_range, ptr %name, i64 %size, i64 %low, i64 %high)
  ret i1 false
say_array:
  %e2 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.no_shape, ptr %name)
  ret i1 false
}

define i32 @tilesmith_$NAME_nbytes(ptr %sizes, ptr %inputs, ptr %outputs) nounwind {
entry:
  %nbytes = alloca [$NUM_ARRAYS x i64]
  %elements = alloca [$NUM_ARRAYS x i64]
  %ok = call i1 @are_sizes(ptr %sizes, ptr %nbytes, ptr %elements)
  br i1 %ok, label %in, label %no
in:
  %no_in = icmp eq ptr %inputs, null
  br i1 %no_in, label %out, label %copy_in
copy_in:
  call void @llvm.memmove.p0.p0.i64(ptr %inputs, ptr %nbytes, i64 $IN_NBYTES, i1 false)
  br label %out
out:
  %no_out = icmp eq ptr %outputs, null
  br i1 %no_out, label %yes, label %copy_out
copy_out:
  %from = getelementptr i64, ptr %nbytes, i64 $NUM_INPUTS
  call void @llvm.memmove.p0.p0.i64(ptr %outputs, ptr %from, i64 $OUT_NBYTES, i1 false)
  br label %yes
yes:
  ret i32 0
no:
  ret i32 -1
}

define i64 @tilesmith_$NAME_workspace_nbytes(ptr %sizes) nounwind {
entry:
  %nbytes = alloca [$NUM_ARRAYS x i64]
  %elements = alloca [$NUM_ARRAYS x i64]
  %ok = call i1 @are_sizes(ptr %sizes, ptr %nbytes, ptr %elements)
  br i1 %ok, label %yes, label %no
yes:
  %n = call i64 @workspace_of(ptr %sizes)
  ret i64 %n
no:
  ret i64 0
}

define i32 @tilesmith_$NAME_run(
    ptr %model, ptr %sizes, ptr %inputs, ptr %outputs, ptr %given) nounwind {
entry:
  %nbytes = alloca [$NUM_ARRAYS x i64]
  %elements = alloca [$NUM_ARRAYS x i64]
  %new.p = alloca ptr
  %null = icmp eq ptr %model, null
  br i1 %null, label %say_null, label %measure
say_null:
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.null_model)
  ret i32 -1
measure:
  %sizes_ok = call i1 @are_sizes(ptr %sizes, ptr %nbytes, ptr %elements)
  br i1 %sizes_ok, label %in, label %no
in:
  %in_ok = call i1 @are_usable(ptr %inputs, i64 $NUM_INPUTS, ptr %elements, ptr @text.inputs)
  br i1 %in_ok, label %out, label %no
out:
  %behind = getelementptr i64, ptr %elements, i64 $NUM_INPUTS
  %out_ok = call i1 @are_usable(ptr %outputs, i64 $NUM_OUTPUTS, ptr %behind, ptr @text.outputs)
  br i1 %out_ok, label %align, label %no
align:
  %address = ptrtoint ptr %given to i64
  %rest = and i64 %address, 63
  %aligned = icmp eq i64 %rest, 0
  br i1 %aligned, label %claim, label %say_aligned
say_aligned:
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.workspace)
  ret i32 -1
claim:
  %busy.at = getelementptr %Model, ptr %model, i64 0, i32 2
  %was = atomicrmw xchg ptr %busy.at, i32 1 acquire
  %taken = icmp ne i32 %was, 0
  br i1 %taken, label %say_busy, label %room
say_busy:
  %e2 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.busy)
  ret i32 -1
room:
  %room.at = getelementptr %Model, ptr %model, i64 0, i32 1
  %have.at = getelementptr %Model, ptr %model, i64 0, i32 3
  %has_own = icmp ne ptr %given, null
  br i1 %has_own, label %go, label %compare
compare:
  %have = load i64, ptr %have.at
  %need = call i64 @workspace_of(ptr %sizes)
  %small = icmp ult i64 %have, %need
  br i1 %small, label %grow, label %go
grow:
  %large = icmp uge i64 %need, $LARGE_NBYTES
  %alignment = select i1 %large, i64 $PAGE_NBYTES, i64 64
  %e3 = call i32 @posix_memalign(ptr %new.p, i64 %alignment, i64 %need)
  %grown = icmp eq i32 %e3, 0
  br i1 %grown, label %replace, label %say_memory
say_memory:
  %e4 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.workspace_memory, i64 %need)
  store atomic i32 0, ptr %busy.at release, align 4
  ret i32 -1
replace:
  %old = load ptr, ptr %room.at
  call void @free(ptr %old)
  %new = load ptr, ptr %new.p
  store ptr %new, ptr %room.at
  store i64 %need, ptr %have.at
  br i1 %large, label %advise, label %go
advise: ; large pages, as in opening.ll
  %e5 = call i32 @madvise(ptr %new, i64 %need, i32 14)
  br label %go
go:
  %file = load ptr, ptr %model
  %weights = getelementptr i8, ptr %file, i64 $WEIGHTS_AT
  %own = load ptr, ptr %room.at
  %workspace = select i1 %has_own, ptr %given, ptr %own
  call void @plan(ptr %sizes, ptr %inputs, ptr %outputs, ptr %weights, ptr %workspace)
  store atomic i32 0, ptr %busy.at release, align 4
  ret i32 0
no:
  ret i32 -1
}
