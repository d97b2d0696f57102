struct __align__(64) TensorMap { unsigned long long words[16]; };
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void init_barriers(unsigned full, unsigned empty, int stages,
                                              int groups) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(full + 8*s));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(empty + 8*s), "r"(groups));
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("fence.proxy.async.shared::cta;");
  }
}
__device__ __forceinline__ void await_barrier(unsigned barrier, unsigned phase) {
  asm volatile(
    "{\n.reg .pred p;\n"
    "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
    "@p bra done;\nbra again;\ndone:\n}"
    :: "r"(barrier), "r"(phase) : "memory");
}
__device__ __forceinline__ void expect_bytes(unsigned barrier, unsigned nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    :: "r"(barrier), "r"(nbytes) : "memory");
}
__device__ __forceinline__ void release(unsigned barrier) {
  if (threadIdx.x % 128 == 0)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned address,
                                                              unsigned long long rest) {
  return (unsigned long long)((address & 0x3ffff) >> 4) | rest;
}
__device__ __forceinline__ void transpose_quad(unsigned* v) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  unsigned x;
  x = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
  if (odd) v[0] = x; else v[1] = x;
  x = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
  if (odd) v[2] = x; else v[3] = x;
  x = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
  if (high) v[0] = x; else v[2] = x;
  x = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
  if (high) v[1] = x; else v[3] = x;
}
