; A handle: the mapped file, the arena with the workspace behind it, whether a call runs, and the
; bytes of that memory. 14 is MADV_HUGEPAGE of Linux.
%Model = type { ptr, ptr, i32, i64 }
@message = internal thread_local global [512 x i8] zeroinitializer
@nothing = internal constant [64 x i8] zeroinitializer, align 64

declare i32 @snprintf(ptr, i64, ptr, ...)
declare i32 @munmap(ptr, i64)
declare i32 @madvise(ptr, i64, i32)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)

define ptr @tilesmith_$NAME_error() nounwind {
  ret ptr @message
}

define ptr @tilesmith_$NAME_open(ptr %path) nounwind {
entry:
  %block.p = alloca ptr
  %room.p = alloca ptr
  store ptr null, ptr %block.p
  store ptr null, ptr %room.p
  %fits = call i1 @processor_fits()
  br i1 %fits, label %read, label %no
read:
  %file = call ptr @map_weights(ptr %path)
  %mapped = icmp ne ptr %file, null
  br i1 %mapped, label %reserve, label %no
reserve:
  %e0 = call i32 @posix_memalign(ptr %block.p, i64 64, i64 64)
  %e1 = call i32 @posix_memalign(ptr %room.p, i64 $ROOM_ALIGNMENT, i64 $ROOM_NBYTES)
  %error = or i32 %e0, %e1
  %ok = icmp eq i32 %error, 0
  %block = load ptr, ptr %block.p
  %room = load ptr, ptr %room.p
  br i1 %ok, label %fill, label %no_memory
no_memory:
  %has_block = icmp eq i32 %e0, 0
  %gone0 = select i1 %has_block, ptr %block, ptr null
  call void @free(ptr %gone0)
  %has_room = icmp eq i32 %e1, 0
  %gone1 = select i1 %has_room, ptr %room, ptr null
  call void @free(ptr %gone1)
  call void @unmap_weights(ptr %file)
  %e2 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.memory)
  ret ptr null
fill:
  br i1 $IS_LARGE, label %advise, label %finish
advise: ; fewer misses of the translation buffer, where the system has large pages; else no harm
  %e3 = call i32 @madvise(ptr %room, i64 $ROOM_NBYTES, i32 14)
  br label %finish
finish:
  store ptr %file, ptr %block
  %room.at = getelementptr %Model, ptr %block, i64 0, i32 1
  store ptr %room, ptr %room.at
  %busy.at = getelementptr %Model, ptr %block, i64 0, i32 2
  store i32 0, ptr %busy.at
  %nbytes.at = getelementptr %Model, ptr %block, i64 0, i32 3
  store i64 $ROOM_NBYTES, ptr %nbytes.at
  $PREPARE
  ret ptr %block
no:
  ret ptr null
}

define void @tilesmith_$NAME_close(ptr %model) nounwind {
entry:
  %null = icmp eq ptr %model, null
  br i1 %null, label %done, label %free
free:
  %file = load ptr, ptr %model
  call void @unmap_weights(ptr %file)
  %room.at = getelementptr %Model, ptr %model, i64 0, i32 1
  %room = load ptr, ptr %room.at
  call void @free(ptr %room)
  call void @free(ptr %model)
  $RELEASE
  br label %done
done:
  ret void
}

define void @tilesmith_$NAME_set_threads(i32 %most) nounwind {
  $LIMIT
  ret void
}

; Whether the pointers that a caller gives can be used.
define internal i1 @are_usable(ptr %given, i64 %n, ptr %sizes, ptr %kind) nounwind {
entry:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %yes, label %list
list:
  %no_list = icmp eq ptr %given, null
  br i1 %no_list, label %say_list, label %loop
say_list:
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.null_list, ptr %kind)
  ret i1 false
loop:
  %k = phi i64 [ 0, %list ], [ %k.next, %good ]
  %p.p = getelementptr ptr, ptr %given, i64 %k
  %p = load ptr, ptr %p.p
  %size.p = getelementptr i64, ptr %sizes, i64 %k
  %size = load i64, ptr %size.p
  %is_empty = icmp eq i64 %size, 0
  br i1 %is_empty, label %good, label %look
look:
  %is_null = icmp eq ptr %p, null
  br i1 %is_null, label %say_null, label %align
say_null:
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.null, ptr %kind, i64 %k)
  ret i1 false
align:
  %address = ptrtoint ptr %p to i64
  %mask = sub i64 %size, 1
  %rest = and i64 %address, %mask
  %aligned = icmp eq i64 %rest, 0
  br i1 %aligned, label %good, label %say_aligned
say_aligned:
  %e2 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.aligned, ptr %kind, i64 %k, i64 %size)
  ret i1 false
good:
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %n
  br i1 %more, label %loop, label %yes
yes:
  ret i1 true
}
