"""The loop IR: statements that say in which order, and with which buffers, a computation runs.

Meaning
-------
*For* runs its body for `name` = 0 .. extent-1. Extents never depend on loops. The kind says how the
iterations may run (`parallel`, `vectorize`, `unroll`, a GPU thread axis); it never changes the
result, which the schedule has checked. Perfectly nested `parallel` loops are one flattened loop to
the code generator, and so are nested loops bound to the same thread axis.

*Block* is a statement with iterators of its own. An iterator is spatial ("S", each point writes its
own elements) or reducing ("R"). `bind` gives the iterator's value over the loops around the block.
Indices and values use iterators only, so that a primitive such as split changes bindings and
nothing else. At one loop point:

  1. the instance is *alive* if every Int in `where` (over loops) and in `domain` (over iterators)
     that does not mention a reducing loop or iterator is >= 0;
  2. if it is alive, `init` is set, and all reducing loops are 0, the combiner's identity is stored;
  3. if all of `where` and `domain` are >= 0, the values are computed and stored. With a combiner
     they are joined with what the buffer holds. All values of a block are computed before any is
     stored.

With several writes, the index of one may depend on a reducing iterator: every partial result of the
reduction is *kept*, and there is nothing to initialise. Such a block joins in the order of its one
reducing iterator.

A block whose write index is loaded from a tensor *scatters*: it updates elements that a block
before it has written. It has a combiner and no `init`; its reducing loops run in order, but on a
GPU they may be bound to threads if the order does not matter: each update is then atomic.

A block that is a unit (blockize) has a `tile`: loops of its own, run in order, which bindings may
use like any other loop. With an `intrinsic`, one hardware instruction carries out the whole tile.

*Store* is a block after lowering: its values are computed, then all are written. *If* runs its body
when all its Ints are >= 0. *Alloc* creates a buffer that lives until the end of the statement list
it stands in. *Sync* is a barrier among the threads of a GPU block; it orders accesses to shared
memory if its scope is "shared", and to global memory as well if it is "global". With the scope
"cluster" it is one among the blocks of a cluster, for shared memory of them all. *Join* is carried
out by all threads of a GPU block together: afterwards, each thread holds in its elements
the reduction over the elements of all threads of its group.

A buffer's `scope` says where it lives: "global" (memory), "local" (private to a thread, registers
if they suffice), "shared" (private to a GPU block), "cluster" (shared memory of the blocks of a
cluster: the first index is the block's number in it), "fragment" (spread over the registers of a
group of GPU threads, which fill it by an instruction that they carry out together), or, for an
input, "constant" (memory whose contents stay the same from call to call, so that the caller may
convert them to any layout ahead of time). Distinct buffers never overlap.

GPU programs
------------
A Function for a GPU is a sequence of launches in stream order. Lowering (codegen/pipeline.py)
brings every launch into *launch form*, which is what one thread does, written once:

    for i.0 in 8:  # blockIdx.x
      for j.0 in 8:  # blockIdx.x
        A.shared = shared float32[16, 32]
        for i.1 in 16:  # threadIdx.x
          for j.1 in 16:  # threadIdx.x
            C.local = local float32[4]
            ...                               For, If, Store, Alloc, Sync("shared"), Join

One or more loops bound to blockIdx.x, then Allocs, then one or more loops bound to threadIdx.x are
perfectly nested. All have constant extents; no other loop is bound to an axis. Together they
number the blocks and threads, the outermost loop slowest: here thread 16 * i.1 + j.1 of 256. If
the innermost loop over blocks has the note `cluster`, its blocks form a cluster. A
thread sees what another one wrote to shared or global memory only after a Sync, and what another
block wrote only in a later launch. All threads of a block reach the same Syncs and Joins in the
same order: neither stands below a condition that two threads could decide differently. Buffers in
global scope that are not parameters are allocated at the top of the body. Local buffers are indexed
by constants once all unrolled and vectorized loops are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.errors import VerifyError
from tilesmith.base.given import checks_given
from tilesmith.expr.dynamic import index_loads, is_loaded, loads_of, map_dynamic, map_loads
from tilesmith.expr.intervals import bounds, row_major
from tilesmith.expr.ints import Int, of
from tilesmith.expr.nodes import COMBINERS, Binary, Combiner, Expr, Load, map_index, map_ints
from tilesmith.expr.sizes import OpenSize
from tilesmith.ir.notes import Count, Note
from tilesmith.ir.prepare import Merge, Prepare, shape_before


@dataclass(frozen=True, slots=True)
class Buffer:
    name: str
    shape: tuple[Int, ...]
    dtype: DType
    scope: str = "global"
    # The memory layout: one Int per physical dimension over the logical indices d0, d1, ...; None
    # is row-major.
    layout: tuple[Int, ...] | None = None
    # (dimension, multiple, offset): the stride of that physical dimension is padded to `offset`
    # modulo `multiple`, in elements.
    align: tuple[int, int, int] | None = None
    # What the caller does to its array ahead of time, in order; `shape` is the shape after that. On
    # an output, only a Merge.
    prepared: tuple[Prepare, ...] = ()

    @property
    def given_shape(self) -> tuple[Int, ...]:
        """The shape of the caller's array, before it is prepared."""
        return shape_before(self.prepared, self.shape)

    @property
    def is_as_given(self) -> bool:
        """Whether the caller's array is used as it is, in whatever shape."""
        return self.layout is None and all(isinstance(s, Merge) for s in self.prepared)

    @property
    def preparation(self) -> tuple[object, ...]:
        """What changes the elements or the order of the caller's array ahead of time."""
        return self.layout, *(s for s in self.prepared if not isinstance(s, Merge))

    def prepares(self, kind: type[Prepare]) -> bool:
        return any(isinstance(s, kind) for s in self.prepared)

    @property
    def physical_shape(self) -> tuple[Int, ...]:
        if self.layout is None:
            return self.shape
        ranges = {f"d{k}": n for k, n in enumerate(self.shape)}
        return tuple(bounds(p, ranges)[1] + 1 for p in self.layout)

    @property
    def strides(self) -> tuple[Int, ...]:
        """Strides of the physical dimensions, in elements."""
        return row_major(self.physical_shape, self.align)

    @property
    def size(self) -> Int:
        """Elements in memory, including padding by layout and alignment."""
        shape = self.physical_shape
        return self.strides[0] * shape[0] if shape else of(1)


@dataclass(frozen=True, slots=True)
class Iter:
    name: str
    kind: str  # "S" | "R"
    extent: Int
    bind: Int


@dataclass(frozen=True, slots=True)
class Write:
    buffer: str
    index: tuple[Int, ...]
    value: Expr

    @property
    def held(self) -> Load:
        """The buffer's element that this write replaces."""
        return Load(self.buffer, self.index, self.value.dtype)

    @property
    def accumulates(self) -> bool:
        """Whether it is `S = S op v` with the operator of a plain reduction."""
        e = self.value
        return (
            isinstance(e, Binary)
            and e.op in COMBINERS
            and isinstance(e.a, Load)
            and (e.a.buffer, e.a.index) == (self.buffer, self.index)
        )


def joined(writes: Sequence[Write], combiner: Combiner) -> list[Write]:
    """`S = S op v` for every `S = v`: one step of a reduction."""
    held, new = tuple(w.held for w in writes), tuple(w.value for w in writes)
    values = combiner.join(held, new)
    return [replace(w, value=v) for w, v in zip(writes, values, strict=True)]


@dataclass(frozen=True, slots=True)
class Fragment:
    """How a group of GPU threads holds the result of an instruction that they carry out together.

    Element (d0, d1) is in the register number `register` of the group's thread number `lane`.
    """

    threads: int  # of a group
    lane: Int
    register: Int
    registers: int  # of a thread


@checks_given
@dataclass(frozen=True, slots=True, eq=False)
class Intrinsic:
    """A hardware instruction: what it computes, as a Function of one block over fixed extents, and
    the features that a target needs for it.

    Its buffers may have layouts, which the operands then need in memory.

    A back end emits the instructions it knows by name. `emitters` adds others, by the name of the
    back end: `{"llvm": emit}`; codegen/llvm/intrinsics.py describes the signature.
    """

    name: str
    # A Function whose one output is read, joined and written; or what makes it, when it is first
    # asked for: most targets have few of the built-in instructions.
    description: Any
    features: frozenset[str] = frozenset()
    emitters: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    cost: float = 1.0  # of one use, in vector instructions; only the analytic score asks for it
    # If not empty, the instruction reads and writes memory: an emitter gets addresses, not vectors.
    # The rows of these operands may be any number of elements apart.
    by_address: frozenset[str] = frozenset()
    # Whether its result stays in registers of its own from one use to the next; such an instruction
    # reads and writes memory. One result at a time is held.
    held: bool = False
    # GPUs: the threads that carry it out together; None: each thread by itself.
    fragment: Fragment | None = None
    roundoff: float = 0.0  # by which it rounds factors that have more digits than it reads
    _describe: Callable[[], Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if callable(self.description):
            object.__setattr__(self, "_describe", self.description)
            object.__delattr__(self, "description")

    if not TYPE_CHECKING:  # for which any name would be right

        def __getattr__(self, name: str) -> Any:
            """Called for attributes that are not there."""
            if name != "description" or self._describe is None:
                raise AttributeError(f"an Intrinsic has no {name!r}")
            object.__setattr__(self, "description", self._describe())
            return self.description

    @property
    def output(self) -> str:
        """The name of the output in the description."""
        name: str = self.description.outputs[0].name
        return name

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for instructions that differ in the order of their operands only."""
        types = sorted(p.dtype.name for p in self.description.params)
        sizes = [i.extent.const for _, b in walk(self.description.body) for i in b.iters]
        return (*types, *sizes)

    def nbits(self, operand: str) -> int:
        """The bits of an operand."""
        buffer: Buffer = self.description.all_buffers[operand]
        return buffer.size.number * buffer.dtype.bits

    def registers(self, operand: str, vector_bits: int) -> int:
        """The vector registers that an operand takes."""
        return max(1, -(-self.nbits(operand) // vector_bits))


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    iters: tuple[Iter, ...]
    writes: tuple[Write, ...]
    combiner: Combiner | None = None
    init: bool = False
    where: frozenset[Int] = frozenset()
    domain: frozenset[Int] = frozenset()
    tile: tuple[tuple[str, Int], ...] = ()
    intrinsic: Intrinsic | None = None
    operands: tuple[tuple[str, Load], ...] = ()  # the intrinsic's, by names of its description

    @property
    def spatial(self) -> tuple[Iter, ...]:
        return tuple(i for i in self.iters if i.kind == "S")

    @property
    def reducing(self) -> tuple[Iter, ...]:
        return tuple(i for i in self.iters if i.kind == "R")

    @property
    def binding(self) -> dict[str, Int]:
        return {i.name: i.bind for i in self.iters}

    @property
    def reducing_loops(self) -> frozenset[str]:
        loops: set[str] = set()
        for i in self.iters:
            if i.kind == "R":
                loops |= {n for n in i.bind.names if n[0] != "#"}
        return frozenset(loops)

    @property
    def loads(self) -> Iterator[Load]:
        for w in self.writes:
            yield from loads_of(w.value)
        if self.scatters:
            for p in (*self.writes[0].index, *self.domain):
                yield from index_loads(p)

    @property
    def keeps_partial(self) -> tuple[bool, ...]:
        """Of each write, whether its index depends on a reducing iterator: every partial result of
        the reduction is kept.
        """
        reducing = {i.name for i in self.iters if i.kind == "R"}
        if not reducing or len(self.writes) < 2:
            return (False,) * len(self.writes)
        return tuple(any(p.names & reducing for p in w.index) for w in self.writes)

    @property
    def is_running(self) -> bool:
        return any(self.keeps_partial)

    @property
    def scatters(self) -> bool:
        """Whether it writes at places that are loaded from a tensor."""
        return any(map(is_loaded, self.writes[0].index))


AnyNote = TypeVar("AnyNote", bound=Note)

# `unroll_depth` bounds the copies of a statement; so many vector lanes count as one copy, because a
# longer vector takes several instructions.
COPY_LANES = 16


TYPICAL_TRIPS = 64  # of a loop over an open size


@dataclass(frozen=True, slots=True)
class For:
    name: str
    extent: Int
    body: tuple[Stmt, ...]
    kind: str = "serial"
    notes: tuple[Note, ...] = ()
    # The block that the loop was created for; "" if there is none. Loop names may be anything.
    owner: str = ""

    @property
    def trips(self) -> int:
        """The extent as a number. Only loops of a sketch have none: see `lower` in codegen."""
        if (n := self.extent.const) is None:
            raise VerifyError(f"loop {self.name!r} has the open extent {self.extent}")
        return n

    @property
    def likely_trips(self) -> int:
        """The extent, or a typical number if it is open, to compare the work of loops."""
        return TYPICAL_TRIPS if (n := self.extent.const) is None else n

    def note(self, kind: type[AnyNote]) -> AnyNote | None:
        """The last note of a kind; None if there is none."""
        for n in reversed(self.notes):
            if isinstance(n, kind):
                return n
        return None

    def count(self, kind: type[Count]) -> int | None:
        """The number of a note; None if there is none, or if it is still open."""
        note = self.note(kind)
        return note.count if note is not None and isinstance(note.count, int) else None

    def without(self, kind: type[Note]) -> For:
        """The loop without its notes of a kind."""
        return replace(self, notes=tuple(n for n in self.notes if not isinstance(n, kind)))


@dataclass(frozen=True, slots=True)
class Store:
    writes: tuple[Write, ...]
    tile: tuple[tuple[str, Int], ...] = ()
    intrinsic: Intrinsic | None = None
    operands: tuple[tuple[str, Load], ...] = ()


@dataclass(frozen=True, slots=True)
class If:
    conds: tuple[Int, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Alloc:
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Sync:
    scope: str


@dataclass(frozen=True, slots=True)
class Join:
    """Joins private values across the threads of a block, whose numbers are 0, 1, ...

    Thread t belongs to the group of all threads u with u // (stride * extent) == t // (stride *
    extent) and u % stride == t % stride. `values` are elements of local buffers, at constant
    indices or indices over unrolled loops; the combiner joins them, as many as it has values, over
    the group in a fixed order. Every thread of the group gets the same result.
    """

    values: tuple[Load, ...]
    combiner: Combiner
    extent: int
    stride: int = 1


Stmt = For | Block | Store | If | Alloc | Sync | Join


@dataclass(frozen=True, slots=True)
class Fact:
    """A relation between the sizes of a split: their product is the extent (exact), or the first
    is ceil(extent / product of the rest).
    """

    sizes: tuple[Int, ...]
    extent: Int
    exact: bool


@dataclass(frozen=True, slots=True)
class Program:
    """`params` are in calling order; the last `num_outputs` of them are outputs. `buffers` are the
    intermediate ones.
    """

    name: str
    params: tuple[Buffer, ...]
    num_outputs: int
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    facts: tuple[Fact, ...] = ()
    declared: tuple[OpenSize, ...] = ()  # the open sizes of the parameters

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The input parameters."""
        return self.params[: len(self.params) - self.num_outputs]

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The output parameters."""
        return self.params[len(self.params) - self.num_outputs :]


# traversal and rewriting
Path = tuple[For, ...]


_Walked = tuple[tuple[Stmt, ...], list[tuple[Path, Block]]]
# The last body that was walked from its outermost loops, with what was found: the checks of a step
# walk the same one a dozen times. Set as a whole, so that threads need no lock.
_walked: _Walked = ((), [])


def walk(body: tuple[Stmt, ...], path: Path = ()) -> Iterator[tuple[Path, Block]]:
    """Every block with the loops around it, in program order."""
    global _walked
    last, pairs = _walked
    if last is body and not path:
        return iter(pairs)
    pairs = []
    _collect(body, path, pairs)
    if not path:
        _walked = body, pairs
    return iter(pairs)


def _collect(body: tuple[Stmt, ...], path: Path, to: list[tuple[Path, Block]]) -> None:
    """Collects into a list: a generator would pass each block through a frame per loop. Schedules
    walk hundreds of times, so loops directly inside one another are one step.
    """
    for s in body:
        if isinstance(s, For):
            chain, inner = [s], s.body
            while len(inner) == 1 and isinstance(only := inner[0], For):
                chain.append(only)
                inner = only.body
            _collect(inner, (*path, *chain), to)
        elif isinstance(s, Block):
            to.append((path, s))
        elif isinstance(s, If):
            _collect(s.body, path, to)


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, outer before inner."""
    for s in body:
        yield s
        if type(s) is For or type(s) is If:
            yield from statements(s.body)


def rewrite(body: tuple[Stmt, ...], f: Callable[[Stmt], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """Applies f to every statement, inner before outer. Loops left without a body are removed."""
    out: list[Stmt] = []
    same = True
    for s in body:
        t: Stmt = s
        if type(s) is For or type(s) is If:  # a third of the time of isinstance
            inner = rewrite(s.body, f)
            if not inner:
                same = False
                continue
            if inner is s.body:
                t = s
            elif isinstance(s, For):
                t = For(s.name, s.extent, inner, s.kind, s.notes, s.owner)
            else:
                t = If(s.conds, inner)
        new = f(t)
        same = same and len(new) == 1 and new[0] is s
        out += new
    return body if same else tuple(out)


def nested(around: Sequence[For | If], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements inside of these loops and conditions, the last one innermost."""
    for s in reversed(around):
        body = (replace(s, body=body),)
    return body


def rewrite_blocks(body: tuple[Stmt, ...], f: Callable[[Block], Block]) -> tuple[Stmt, ...]:
    return rewrite(body, lambda s: (f(s),) if isinstance(s, Block) else (s,))


def map_bindings(b: Block, f: Callable[[Int], Int]) -> Block:
    """Applies f to everything that refers to loops."""
    return replace(
        b,
        iters=tuple(Iter(i.name, i.kind, i.extent, f(i.bind)) for i in b.iters),
        where=frozenset(map(f, b.where)),
    )


def map_writes(writes: tuple[Write, ...], f: Callable[[Int], Int]) -> tuple[Write, ...]:
    return tuple(Write(w.buffer, tuple(map(f, w.index)), map_ints(w.value, f)) for w in writes)


Operands = tuple[tuple[str, Load], ...]


def map_operands(operands: Operands, f: Callable[[Int], Int]) -> Operands:
    return tuple((n, Load(x.buffer, tuple(map(f, x.index)), x.dtype)) for n, x in operands)


def map_write_loads(writes: tuple[Write, ...], f: Callable[[Load], Expr]) -> tuple[Write, ...]:
    def put(p: Int) -> Int:
        return map_dynamic(p, f)

    return tuple(Write(w.buffer, map_index(w.index, put), map_loads(w.value, f)) for w in writes)
