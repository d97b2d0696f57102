; Reads the weights file; weights.py has its format. The flags are O_RDONLY | O_CLOEXEC | O_NONBLOCK (a
; pipe has no writer to wait for), SEEK_END, PROT_READ and MAP_PRIVATE of Linux.
declare ptr @__errno_location()
declare ptr @strerror(i32)
declare i32 @open(ptr, i32, ...)
declare i64 @lseek(i32, i64, i32)
declare i32 @close(i32)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @memcmp(ptr, ptr, i64)

define internal ptr @reason() nounwind {
  %at = call ptr @__errno_location()
  %number = load i32, ptr %at
  %text = call ptr @strerror(i32 %number)
  ret ptr %text
}

; The sum of 64-bit words, and the sum of all sums on the way: whether they are those of the header.
define internal i1 @is_whole(ptr %file) nounwind {
entry:
  %plain.p = getelementptr i8, ptr %file, i64 56
  %plain = load i64, ptr %plain.p
  %weighted.p = getelementptr i8, ptr %file, i64 64
  %weighted = load i64, ptr %weighted.p
  %begin = getelementptr i8, ptr %file, i64 $HEADER_NBYTES
  %end = getelementptr i8, ptr %file, i64 $FILE_NBYTES
  %none = icmp eq ptr %begin, %end
  br i1 %none, label %compare, label %loop
loop:
  %at = phi ptr [ %begin, %entry ], [ %at.next, %loop ]
  %a = phi i64 [ 0, %entry ], [ %a.next, %loop ]
  %b = phi i64 [ 0, %entry ], [ %b.next, %loop ]
  %word = load i64, ptr %at
  %a.next = add i64 %a, %word
  %b.next = add i64 %b, %a.next
  %at.next = getelementptr i8, ptr %at, i64 8
  %last = icmp eq ptr %at.next, %end
  br i1 %last, label %compare, label %loop
compare:
  %sum = phi i64 [ 0, %entry ], [ %a.next, %loop ]
  %sums = phi i64 [ 0, %entry ], [ %b.next, %loop ]
  %same.a = icmp eq i64 %sum, %plain
  %same.b = icmp eq i64 %sums, %weighted
  %same = and i1 %same.a, %same.b
  ret i1 %same
}

; Whether a mapped file of at least a header is the weights of this library.
define internal i1 @is_ours(ptr %file, i64 %nbytes, ptr %path) nounwind {
entry:
  %m = call i32 @memcmp(ptr %file, ptr @magic, i64 8)
  %is_weights = icmp eq i32 %m, 0
  br i1 %is_weights, label %look, label %no_magic
no_magic:
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.magic, ptr %path)
  ret i1 false
look:
  %version.p = getelementptr i8, ptr %file, i64 8
  %version = load i32, ptr %version.p
  %known = icmp eq i32 %version, $VERSION
  br i1 %known, label %whose, label %no_version
no_version:
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.version, ptr %path, i32 %version)
  ret i1 false
whose:
  %digest.p = getelementptr i8, ptr %file, i64 16
  %d = call i32 @memcmp(ptr %digest.p, ptr @digest, i64 32)
  %same = icmp eq i32 %d, 0
  br i1 %same, label %long, label %no_digest
no_digest:
  %e2 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.digest, ptr %path)
  ret i1 false
long:
  %complete = icmp eq i64 %nbytes, $FILE_NBYTES
  br i1 %complete, label %head, label %no_size
no_size:
  %e3 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.size, ptr %path, i64 %nbytes)
  ret i1 false
head: ; all of it but the checksum of the arrays, at byte 56, is known
  %h0 = call i32 @memcmp(ptr %file, ptr @header, i64 56)
  %behind = getelementptr i8, ptr %file, i64 72
  %zeros = getelementptr i8, ptr @header, i64 72
  %h1 = call i32 @memcmp(ptr %behind, ptr %zeros, i64 $BEHIND_SUMS)
  %h = or i32 %h0, %h1
  %same_head = icmp eq i32 %h, 0
  br i1 %same_head, label %sum, label %no_head
no_head:
  %e5 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.header, ptr %path)
  ret i1 false
sum:
  %whole = call i1 @is_whole(ptr %file)
  br i1 %whole, label %yes, label %no_sums
no_sums:
  %e4 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.sums, ptr %path)
  ret i1 false
yes:
  ret i1 true
}

; The mapped file; null with a message. Without weights, no file is needed.
define internal ptr @map_weights(ptr %path) nounwind {
entry:
  %null = icmp eq ptr %path, null
  br i1 %null, label %no_path, label %find
no_path:
  br i1 $NEEDS_NO_FILE, label %none, label %say_path
none:
  ret ptr @nothing
say_path:
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.no_path)
  ret ptr null
find:
  %fd = call i32 (ptr, i32, ...) @open(ptr %path, i32 526336)
  %found = icmp sge i32 %fd, 0
  br i1 %found, label %measure, label %no_file
no_file:
  %why = call ptr @reason()
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.no_file, ptr %path, ptr %why)
  ret ptr null
measure:
  %nbytes = call i64 @lseek(i32 %fd, i64 0, i32 2)
  %is_file = icmp sge i64 %nbytes, 0
  br i1 %is_file, label %weigh, label %no_map
weigh:
  %has_header = icmp sge i64 %nbytes, $HEADER_NBYTES
  br i1 %has_header, label %map, label %no_header
no_header:
  %e2 = call i32 @close(i32 %fd)
  %e3 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.short, ptr %path, i64 %nbytes)
  ret ptr null
map:
  %file = call ptr @mmap(ptr null, i64 %nbytes, i32 1, i32 2, i32 %fd, i64 0)
  %failed = icmp eq ptr %file, inttoptr (i64 -1 to ptr)
  br i1 %failed, label %no_map, label %check
no_map:
  %cause = call ptr @reason()
  %e4 = call i32 (ptr, i64, ptr, ...) @snprintf(
      ptr @message, i64 512, ptr @text.no_map, ptr %path, ptr %cause)
  %e5 = call i32 @close(i32 %fd)
  ret ptr null
check:
  %e6 = call i32 @close(i32 %fd)
  %ours = call i1 @is_ours(ptr %file, i64 %nbytes, ptr %path)
  br i1 %ours, label %done, label %refuse
refuse:
  %e7 = call i32 @munmap(ptr %file, i64 %nbytes)
  ret ptr null
done:
  ret ptr %file
}

define internal void @unmap_weights(ptr %file) nounwind {
entry:
  %none = icmp eq ptr %file, @nothing
  br i1 %none, label %done, label %unmap
unmap:
  %e0 = call i32 @munmap(ptr %file, i64 $FILE_NBYTES)
  br label %done
done:
  ret void
}
