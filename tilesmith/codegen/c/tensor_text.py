"""The CUDA text of matrix instructions, bulk copies and their barriers, as functions that the
emitter calls.
"""

from __future__ import annotations

from tilesmith.codegen.c.helpers import Helpers
from tilesmith.ir.nodes import Intrinsic

HELPERS = """\
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
    "{\\n.reg .pred p;\\n"
    "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"
    "@p bra done;\\nbra again;\\ndone:\\n}"
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
}"""


def bulk_copy(helpers: Helpers, rank: int) -> str:
    """The function that copies a box of a tensor of so many dimensions to shared memory."""
    name = f"bulk_copy_{rank}d"
    if name not in helpers.texts:
        at = ", ".join(f"int c{d}" for d in range(rank))
        holes = ", ".join(f"%{d + 2}" for d in range(rank))
        values = ", ".join(f'"r"(c{d})' for d in range(rank))
        helpers.texts[name] = (
            f"__device__ __forceinline__ void {name}(unsigned to, const TensorMap& map, {at}, "
            "unsigned barrier) {\n"
            f'  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::'
            f'complete_tx::bytes [%0], [%1, {{{holes}}}], [%{rank + 2}];"\n'
            f'    :: "r"(to), "l"(&map), {values}, "r"(barrier) : "memory");\n}}'
        )
    return name


def instruction(helpers: Helpers, unit: Intrinsic, turned_a: bool, turned_b: bool) -> str:
    """The function of a matrix instruction. An operand is turned if its rows (of A) or columns (of
    B) run fastest in memory.
    """
    assert unit.fragment is not None
    name = f"{unit.name.removeprefix('cuda.')}_{int(turned_a)}{int(turned_b)}"
    if name not in helpers.texts:
        _, short, size = unit.name.removeprefix("cuda.").split("_")
        rows, columns, depth = size.split("x")
        n = unit.fragment.registers
        held = ", ".join(f"%{i}" for i in range(n))
        values = ", ".join(f'"+f"(d[{i}])' for i in range(n))
        helpers.texts[name] = (
            f"__device__ __forceinline__ void {name}(float* d, unsigned long long a, "
            "unsigned long long b) {\n"
            '  asm volatile("{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"\n'
            f'    "wgmma.mma_async.sync.aligned.m{rows}n{columns}k{depth}.f32.{short}.{short} "\n'
            f'    "{{{held}}}, "\n    "%{n}, %{n + 1}, p, 1, 1, {int(turned_a)}, {int(turned_b)};'
            '\\n}"\n'
            f'    : {values} : "l"(a), "l"(b));\n}}'
        )
    return name
