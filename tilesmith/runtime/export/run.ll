define i32 @tilesmith_$NAME_run(ptr %model, ptr %inputs, ptr %outputs) nounwind {
entry:
  %null = icmp eq ptr %model, null
  br i1 %null, label %say_null, label %in
say_null:
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.null_model)
  ret i32 -1
in:
  %in_ok = call i1 @are_usable(ptr %inputs, i64 $NUM_INPUTS, ptr @sizes.in, ptr @text.inputs)
  br i1 %in_ok, label %out, label %no
out:
  %out_ok = call i1 @are_usable(ptr %outputs, i64 $NUM_OUTPUTS, ptr @sizes.out, ptr @text.outputs)
  br i1 %out_ok, label %claim, label %no
claim:
  %busy.at = getelementptr %Model, ptr %model, i64 0, i32 2
  %was = atomicrmw xchg ptr %busy.at, i32 1 acquire
  %taken = icmp ne i32 %was, 0
  br i1 %taken, label %say_busy, label %go
say_busy:
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.busy)
  ret i32 -1
go:
  %file = load ptr, ptr %model
  %weights = getelementptr i8, ptr %file, i64 $WEIGHTS_AT
  %room.at = getelementptr %Model, ptr %model, i64 0, i32 1
  %arena = load ptr, ptr %room.at
  %workspace = getelementptr i8, ptr %arena, i64 $ARENA_NBYTES
  call void @plan(ptr %inputs, ptr %outputs, ptr %arena, ptr %weights, ptr %workspace)
  store atomic i32 0, ptr %busy.at release, align 4
  ret i32 0
no:
  ret i32 -1
}
