; Adds blocks of 256 bytes to a state: 32 keys, then 32 sums. Each word of a block is multiplied with
; itself, its upper half by its lower one, after a key that changes from block to block was mixed in;
; its neighbour's sum gets the word as it is, for those whose product is zero.
declare <32 x i64> @llvm.fshl.v32i64(<32 x i64>, <32 x i64>, <32 x i64>)

define void @tilesmith_checksum(ptr %data, i64 %blocks, ptr %state) nounwind {
entry:
  %sums_at = getelementptr <32 x i64>, ptr %state, i64 1
  %keys = load <32 x i64>, ptr %state, align 8
  %sums = load <32 x i64>, ptr %sums_at, align 8
  %half0 = insertelement <32 x i64> poison, i64 32, i32 0
  %half = shufflevector <32 x i64> %half0, <32 x i64> poison, <32 x i32> zeroinitializer
  %low0 = insertelement <32 x i64> poison, i64 4294967295, i32 0
  %low = shufflevector <32 x i64> %low0, <32 x i64> poison, <32 x i32> zeroinitializer
  %turn0 = insertelement <32 x i64> poison, i64 29, i32 0
  %turn = shufflevector <32 x i64> %turn0, <32 x i64> poison, <32 x i32> zeroinitializer
  %step0 = insertelement <32 x i64> poison, i64 -7046029254386353131, i32 0
  %step = shufflevector <32 x i64> %step0, <32 x i64> poison, <32 x i32> zeroinitializer
  %none = icmp eq i64 %blocks, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %key = phi <32 x i64> [ %keys, %entry ], [ %next_key, %loop ]
  %sum = phi <32 x i64> [ %sums, %entry ], [ %next_sum, %loop ]
  %at = getelementptr <32 x i64>, ptr %data, i64 %i
  %words = load <32 x i64>, ptr %at, align 1
  %mixed = xor <32 x i64> %words, %key
  %lower = and <32 x i64> %mixed, %low
  %upper = lshr <32 x i64> %mixed, %half
  %product = mul <32 x i64> %lower, %upper
  %swapped = shufflevector <32 x i64> %words, <32 x i64> poison, <32 x i32> <
    i32 1, i32 0, i32 3, i32 2, i32 5, i32 4, i32 7, i32 6,
    i32 9, i32 8, i32 11, i32 10, i32 13, i32 12, i32 15, i32 14,
    i32 17, i32 16, i32 19, i32 18, i32 21, i32 20, i32 23, i32 22,
    i32 25, i32 24, i32 27, i32 26, i32 29, i32 28, i32 31, i32 30>
  %turned = call <32 x i64> @llvm.fshl.v32i64(<32 x i64> %sum, <32 x i64> %sum, <32 x i64> %turn)
  %partial = add <32 x i64> %turned, %product
  %next_sum = add <32 x i64> %partial, %swapped
  %next_key = add <32 x i64> %key, %step
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %blocks
  br i1 %more, label %loop, label %done
done:
  %last = phi <32 x i64> [ %sums, %entry ], [ %next_sum, %loop ]
  store <32 x i64> %last, ptr %sums_at, align 8
  ret void
}
