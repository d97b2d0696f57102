"""Dialects of C for GPUs: what CUDA and OpenCL call the same things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType

# Functions of the float dtypes. In CUDA a name that ends with `f` is for float32.
_FLOAT_FUNCTIONS = {
    "exp": "exp", "log": "log", "log2": "log2", "log10": "log10",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "erf": "erf",
    "sin": "sin", "cos": "cos", "atan": "atan", "expm1": "expm1", "floor": "floor", "ceil": "ceil",
    "round": "rint", "trunc": "trunc", "abs": "fabs", "pow": "pow", "fmod": "fmod",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    # The C types of elements in memory, by the name of the dtype. Half precision is stored as bits.
    types: Mapping[str, str]
    long_suffix: str  # of a 64-bit literal
    kernel: str  # before a kernel's name, over {threads}
    function: str  # before a helper function's type
    block: str  # the number of the block
    thread: str  # the number of the thread in its block
    barriers: Mapping[str, str]  # by the scope of the memory that it orders
    spaces: Mapping[str, str]  # qualifiers of pointers into memory of a scope
    restrict: str
    # The type of a pointer to where a thread's elements of a parameter begin; "": it is a number.
    pointer: str
    aligned: str  # before the declaration of an array that vectors are moved to and from
    shared: str  # before the declaration of an array in shared memory
    # Vector types by element type and lanes. They only move data; nothing is computed in them.
    vectors: Mapping[tuple[str, int], str]
    # One `extern` array of shared memory whose size the launch gives; None: arrays of any size
    # are declared in the kernel.
    static_shared_nbytes: int | None = None
    arena: str = ""  # the declaration of that array, over {name}
    shuffle: bool = False  # threads of a warp exchange registers
    # Blocks that see one another's shared memory: the attribute of a kernel, over {blocks}, and the
    # declaration of a pointer to what another block has, over {type}, {name}, {own} and {rank}.
    cluster: str = ""
    remote: tuple[str, ...] = ()
    fence: str = ""  # the compiler moves no load across it; no instruction comes of it
    prologue: tuple[tuple[str, str], ...] = ()  # (word, what a module that uses it begins with)
    float_suffix: str = ""  # of a function's name for float32
    functions: Mapping[str, str] = field(default_factory=lambda: _FLOAT_FUNCTIONS)

    def type_of(self, d: DType) -> str:
        """The type in memory."""
        return self.types[d.name]

    def value_type(self, d: DType) -> str:
        """The type in which a value is computed."""
        if d.kind == "b":
            return "bool"
        return "float" if d.is_float and d.bits == 16 else self.types[d.name]

    def call(self, op: str, d: DType) -> str:
        """The function of a float dtype."""
        return self.functions[op] + (self.float_suffix if d.bits <= 32 else "")

    def vector(self, d: DType, lanes: int) -> str | None:
        """The type that moves so many elements at once, if there is one."""
        return self.vectors.get((self.types[d.name], lanes))


_CUDA_TYPES = {
    "float16": "unsigned short", "bfloat16": "unsigned short", "float32": "float",
    "float64": "double", "int8": "signed char", "int16": "short", "int32": "int",
    "int64": "long long", "uint8": "unsigned char", "uint16": "unsigned short",
    "uint32": "unsigned", "uint64": "unsigned long long", "bool": "unsigned char",
}  # fmt: skip
_OPENCL_TYPES = {
    "float16": "ushort", "bfloat16": "ushort", "float32": "float", "float64": "double",
    "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
    "uint16": "ushort", "uint32": "uint", "uint64": "ulong", "bool": "uchar",
}  # fmt: skip

# CUDA has no vectors of eight 16-bit or of more than four 8-bit elements: words move them.
CUDA = Dialect(
    name="cuda",
    types=_CUDA_TYPES,
    long_suffix="ll",
    kernel='extern "C" __global__ void __launch_bounds__({threads})',
    function="__device__ __forceinline__",
    block="blockIdx.x",
    thread="threadIdx.x",
    barriers={
        "shared": "__syncthreads();",
        "global": "__syncthreads();",
        "cluster": 'asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" '
        '::: "memory");',
    },
    spaces={"global": "", "constant": "", "shared": "", "local": ""},
    restrict="__restrict__",
    pointer="const auto",
    aligned="__align__(16) ",
    shared="__shared__ ",
    vectors={
        ("float", 2): "float2", ("float", 4): "float4", ("double", 2): "double2",
        ("int", 2): "int2", ("int", 4): "int4", ("unsigned", 2): "uint2",
        ("unsigned", 4): "uint4", ("long long", 2): "longlong2",
        ("unsigned long long", 2): "ulonglong2", ("short", 2): "short2", ("short", 4): "short4",
        ("short", 8): "int4", ("unsigned short", 2): "ushort2", ("unsigned short", 4): "ushort4",
        ("unsigned short", 8): "uint4", ("signed char", 2): "char2", ("signed char", 4): "char4",
        ("signed char", 8): "int2", ("signed char", 16): "int4", ("unsigned char", 2): "uchar2",
        ("unsigned char", 4): "uchar4", ("unsigned char", 8): "uint2",
        ("unsigned char", 16): "uint4",
    },
    static_shared_nbytes=48 << 10,
    arena="extern __shared__ __align__(16) unsigned char {name}[];",
    shuffle=True,
    cluster="__cluster_dims__({blocks}, 1, 1)",
    fence='asm volatile("" ::: "memory");',
    remote=(
        "const {type}* {name};",
        'asm("mapa.u64 %0, %1, {rank};" : "=l"({name}) : "l"({own}));',
    ),
    prologue=(
        ("INFINITY", "#define INFINITY __int_as_float(0x7f800000)"),
        ("NAN", "#define NAN __int_as_float(0x7fc00000)"),
    ),
    float_suffix="f",
)  # fmt: skip

OPENCL = Dialect(
    name="opencl",
    types=_OPENCL_TYPES,
    long_suffix="l",
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void",
    function="static inline",
    block="(int)get_group_id(0)",
    thread="(int)get_local_id(0)",
    barriers={
        "shared": "barrier(CLK_LOCAL_MEM_FENCE);",
        "global": "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    },
    spaces={"global": "__global ", "constant": "__global ", "shared": "__local ", "local": ""},
    restrict="restrict",
    pointer="",
    aligned="__attribute__((aligned(16))) ",
    shared="__local ",
    vectors={
        (t, n): f"{t}{n}"
        for t, nbytes in (
            ("float", 4), ("double", 8), ("char", 1), ("uchar", 1), ("short", 2), ("ushort", 2),
            ("int", 4), ("uint", 4), ("long", 8), ("ulong", 8),
        )
        for n in (2, 4, 8, 16)
        if n * nbytes <= 16
    },
    prologue=(
        ("double", "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"),
        ("atomic64_", "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"
         "#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable"),
    ),
)  # fmt: skip
