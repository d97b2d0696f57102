"""What an architecture is, as data: one CpuMachine per architecture of processors (x86_64.py,
aarch64.py) and one GpuMachine per generation of GPUs (cuda.py, opencl.py). A Target has one, and
whoever needs a fact of the architecture asks it, so that a new processor is one new file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TargetError
from tilesmith.base.given import checks_given

NONE: frozenset[str] = frozenset()


@checks_given(error=TargetError)
class CpuVectors(NamedTuple):
    """The vector registers of processors that have these features."""

    features: frozenset[str]
    bits: int
    registers: int


@checks_given(error=TargetError)
class CpuModel(NamedTuple):
    """A processor that has a name. Sizes are those of its caches; L3 is shared by all cores."""

    cpu: str  # LLVM's name
    num_cores: int
    features: frozenset[str]
    l2_kb: int
    l3_mb: int
    l1_kb: int = 32


class GpuModel(NamedTuple):
    """A GPU that has a name."""

    arch: str
    num_multiprocessors: int
    shared_kb: int  # per block
    l2_mb: int


class DotProduct(NamedTuple):
    """An instruction that adds the products of neighbours which make 32 bits to each lane of 32
    bits: four of bytes, in int32, or two of bfloat16, in float32.
    """

    family: str
    lanes: int
    left: str  # the dtype of the neighbours that all lanes are multiplied by
    right: str
    features: frozenset[str]
    call: str  # LLVM's name, which takes the sums and two vectors
    left_first: bool  # the order of these two


class BlockProduct(NamedTuple):
    """An instruction that adds the product of two rows and two columns to 2 x 2 sums. Of each it
    takes as many neighbours in the sum as make 64 bits.
    """

    family: str
    left: str
    right: str
    total: str
    features: frozenset[str]
    call: str  # LLVM's name, which takes the sums and two vectors


class WideningProduct(NamedTuple):
    """Two instructions that multiply float16 and add to float32, with one rounding: `low` takes the
    first four of the eight lanes of both factors, `high` the others.
    """

    features: frozenset[str]
    low: str  # LLVM's names, which take the sums and two vectors
    high: str


class Tiles(NamedTuple):
    """Registers that hold tiles of a matrix (AMX)."""

    feature: str
    rows: int
    nbytes: int  # of a row
    permission: tuple[int, int, int]  # the system call by which Linux is asked for them
    calls: str  # how LLVM's names of instructions that move tiles begin


@dataclass(frozen=True, kw_only=True)
class CpuRates:
    """What the analytic score knows of an architecture besides the sizes of a processor: times in
    cycles, sizes in bytes. The defaults were fitted to measurements on several machines.
    """

    line_nbytes: int = 64
    ways: tuple[int, int, int] = (16, 16, 16)  # associativity of L1, L2, L3
    # L1 of x86-64 is indexed by the page offset, so a way is a page
    smallest_way_nbytes: int = 4096
    # Bytes per cycle and core from the next level or memory, and what that level could have
    # delivered during one miss: latency x bandwidth, minus what the hardware prefetcher hides.
    below: tuple[tuple[float, float], ...] = ((32.0, 64.0), (10.0, 256.0), (4.0, 256.0))
    # Rows of an array that the hardware prefetches side by side, each as one stream of lines.
    streams: int = 1
    ports: int = 2  # vector instructions per cycle, and loads per cycle
    fma_latency: float = 5.0  # between dependent FMAs: 4 of latency, 1 of scheduling loss
    usable_share: float = 0.75  # of a cache; the rest holds other data
    tail_speed: float = 0.98  # factor per non-dividing tile: partial tiles add code and branches
    # Share of the shorter of arithmetic and loads that does not overlap with the longer.
    overlap_loss: float = 0.35
    # Registers for what an instruction takes besides an accumulator and a vector of the tile: one
    # where arithmetic reads memory operands, three where every operand is loaded first (with two,
    # LLVM spills a 4 x 24 tile of float32 on Neoverse-N1: 30 instead of 36 GFLOP/s).
    scratch_registers: int = 3
    # Cycles per element of a sum whose vectors are not contiguous in the output. Such a sum cannot
    # stay in a register: each step loads, inserts, extracts and stores every element, and the next
    # step waits for that store (4.5 measured on Neoverse-N1).
    scattered_sum: float = 4.0
    # Cycles to add a vector of a chunk of float16 sums to float32 ones: to load and store these,
    # and to convert, for which Neoverse-N1 has one pipe that takes two cycles.
    chunk_sum: float = 2.5
    # Cycles of an iteration of a parallel loop besides its body: finding its indices, and addresses
    # that a serial loop would step along (9 to 24 measured on Neoverse-N1).
    parallel_turn: float = 16.0
    lane_factors: bool = False  # a vector may be multiplied by one lane of another (Neon)
    # Registers left for other operands when several such factors are loaded together. With four,
    # LLVM spills sums of an 8 x 12 tile of float32 on Neoverse-N1: 29 instead of 35 GFLOP/s.
    lane_operands: int = 6


@checks_given(error=TargetError)
@dataclass(frozen=True, kw_only=True)
class CpuMachine:
    """An architecture of processors, as `Target.machine`. The defaults are the careful ones: code
    is right without any of these facts. `Target.of` takes one that is not built in; see
    `examples/custom_cpu.py`.
    """

    arch: str
    triple: str = ""  # LLVM's, for Linux; empty if there is no code for it
    system_names: tuple[str, ...] = ()  # as Python's `platform.machine()` has it
    # The features that the code generator uses: by their names in /proc/cpuinfo, and LLVM's names.
    flags: Mapping[str, str] = field(default_factory=dict)
    llvm_features: Mapping[str, str] = field(default_factory=dict)
    always: frozenset[str] = NONE  # features that all have, and LLVM cannot do without
    # Those of a processor are the first whose features it has.
    vectors: tuple[CpuVectors, ...] = (CpuVectors(NONE, 128, 32),)
    scalable: bool = False  # registers hold a multiple of these bits, known at run time only
    models: Mapping[str, CpuModel] = field(default_factory=dict)
    model_names: Mapping[str, str] = field(default_factory=dict)  # of numbers in /proc/cpuinfo
    oldest: str = ""  # the model whose code all processors run

    # Instructions. LLVM's names of them begin with `calls`, and it aborts the process if it cannot
    # select one: `needs` has patterns of these names and the features, the first match counts.
    calls: str = ""
    needs: tuple[tuple[str, frozenset[str]], ...] = ()
    also: Mapping[str, frozenset[str]] = field(default_factory=dict)  # another extension with it
    dots: tuple[DotProduct, ...] = ()
    blocks: tuple[BlockProduct, ...] = ()
    widening: WideningProduct | None = None
    tiles: Tiles | None = None

    # What code generation asks. Of a set of features, any one will do; empty: all processors have
    # it.
    fuses_with: frozenset[str] = frozenset({"fma"})  # fused multiply-add
    halves_with: frozenset[str] = frozenset({"fp16"})  # conversions between float16 and float
    masks_with: frozenset[str] = frozenset({"avx512vl"})  # loads and stores of parts of registers
    propagates_nan: bool = False  # one instruction for a maximum that is NaN if an operand is
    saturates: bool = False  # one instruction converts to an integer, saturates and maps NaN to 0
    rounds_to_int32: str = ""  # LLVM's name of one that rounds to the nearest and converts
    # One instruction rounds to the nearest int32 where there is one, but does not saturate
    # (llvm.lrint).
    rounds_within_int32: bool = False
    # The multiply-add overwrites its addend: a constant there is copied first, on the pipes that
    # multiply, so it is loaded instead.
    overwrites_addend: bool = False
    subtracts_addend: bool = True  # x y - z is one instruction
    tests_masks: bool = True  # else a maximum over lanes is the way to see whether any is set
    # Registers for which each step of a function such as exp is issued, to hide its latency.
    function_vectors: int = 1
    stream_ahead_nbytes: int = 0  # how far ahead packed operands are prefetched
    rates: CpuRates = CpuRates()

    # The process and exported libraries. `spin` defines in LLVM's text what the thread pool waits
    # with: a hint, a clock that is read without a system call, and its ticks in 40 us.
    futex: int = 0  # the number of the system call
    spin: str = ""
    # Begins a function that has two words of the processor's features as %a and %b; by feature, the
    # word and its bits.
    feature_words: str = ""
    feature_bits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cross_compiler: str = ""
    compiler_package: str = ""  # of Debian
    emulator: str = ""

    def __hash__(self) -> int:
        return hash((self.arch, self.triple))

    def byte_dots(self, features: frozenset[str]) -> list[DotProduct]:
        """The dot products of bytes that processors with these features have."""
        return [d for d in self.dots if d.features <= features and d.left in ("int8", "uint8")]

    def multiplies(self, dtype: str, features: frozenset[str]) -> bool:
        """Whether such processors have dot products, or products of blocks, of a dtype."""
        dots = (d.left for d in self.dots if d.features <= features)
        blocks = (p.left for p in self.blocks if p.features <= features)
        return dtype in (*dots, *blocks)


@dataclass(frozen=True, kw_only=True)
class GpuRates:
    """What the analytic score knows of GPUs besides their sizes. Rates are per multiprocessor and
    cycle. The defaults are those of an H200: from NVIDIA's documents, measured, or fitted to
    recorded measurements (tests/data/gpu). Other GPUs differ in size more than in proportion.
    """

    most_blocks: int = 32  # of a multiprocessor
    l1_nbytes: int = 128 << 10  # what data of all blocks may take of L1
    issue: float = 4.0  # warp instructions
    math_cost: float = 8.0  # instructions of a function such as exp, of which part is on slow units
    divide_cost: float = 10.0
    fma_latency: float = 4.0
    shared_latency: float = 30.0  # cycles, as are the next three
    global_latency: float = 600.0
    sync_cycles: float = 40.0
    cluster_cycles: float = 2000.0  # to meet the other blocks of a cluster, and read what they have
    cluster_loss: float = 1.6  # slowdown of clusters of more than two blocks
    block_cycles: float = 80.0  # to begin a block, during which others compute little
    launch_cycles: float = 1500.0  # from one kernel of a graph to the next
    banks: int = 32  # of 4 bytes; each delivers one word per cycle
    sector_nbytes: int = 32  # what L2 delivers at least
    l1_sectors: float = 3.0  # per cycle
    # Of a sector that a store fills in part: L2 reads and writes it, and takes so much longer.
    part_of_sector: float = 3.0
    l2_rate: float = 30.0  # bytes per cycle while all multiprocessors read
    l2_alone: float = 64.0  # the most that one of them gets
    memory_rate: float = 17.0  # 4.5 TB/s over 132 multiprocessors at 1.98 GHz
    most_registers: int = 255  # of a thread
    base_registers: int = 24  # addresses and loop counters
    spill_cost: float = 4.0  # slowdown of code whose registers do not suffice
    # Instructions of a loop that is not unrolled, per iteration: counter, test, and the addresses
    # that unrolled code has as constants.
    loop_cost: float = 24.0
    overlap_loss: float = 0.1  # share of a block's latencies that other blocks do not hide
    # Warps per scheduler at which half of its cycles issue an instruction; fewer than one leave
    # schedulers without work.
    half_busy: float = 1.0
    half_parallel: float = 64.0  # independent instructions of a thread, from which on it is less
    # Instructions to find the place of an element in a padded image, and whether it is inside.
    padded_cost: float = 70.0
    copy_cost: float = 6.0  # instructions to copy an element or a vector to shared memory


@dataclass(frozen=True, kw_only=True)
class GpuMachine:
    """A generation of GPUs, as `Target.gpu`."""

    warp_products: bool = False  # matrix instructions of a warp (mma)
    group_products: bool = False  # those of four warps (wgmma), and the copy engine (TMA)
    clusters: bool = False  # blocks of a cluster see one another's shared memory
    overlaps: bool = False  # a launch may begin before the one in front of it is complete
    # Of a multiprocessor; 0 if it is not known: then two of the largest blocks fit.
    shared_nbytes: int = 0
    threads: int = 0
    rates: GpuRates = GpuRates()
