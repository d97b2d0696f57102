"""Position: where the emitter stands in the text, which all its parts share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.expr.ints import Atom, Int
from tilesmith.ir.nodes import Buffer

# Names of C variables, made from the names of loops and buffers.
# Words that a variable must not be called: keywords and built-in types of both dialects, and what
# generated code itself refers to.
_WORDS = """
    alignas alignof and asm auto bool break case catch char class const constexpr continue decltype
    default delete do double else enum explicit export extern false float for friend goto half if
    image1d_t inline int long mutable namespace new noexcept not nullptr operator or private
    protected public register restrict return short signed sizeof static struct switch template
    this throw true try typedef typeid typename union unsigned using virtual void volatile while xor
    kernel global local constant generic read_only write_only read_write event_t sampler_t size_t
    ptrdiff_t uchar ushort uint ulong quad complex imaginary barrier convert
    threadIdx blockIdx blockDim gridDim warpSize dim3 max min abs exp log sqrt rsqrt tanh erf sin
    cos atan expm1 floor ceil rint trunc fabs pow fmod expf logf sqrtf rsqrtf tanhf erff sinf cosf
    atanf expm1f log2 log2f log10 log10f floorf ceilf rintf truncf fabsf powf fmodf
    INFINITY NAN member step rank TensorMap
    await_previous_launch begin_next_launch shared_address init_barriers await_barrier expect_bytes
    release tile_descriptor transpose_quad pin round_to_tf32
"""
_RESERVED = frozenset(_WORDS.split())
# Vector types and helper functions.
_PATTERN = re.compile(
    r"(?:(?:u?(?:char|short|int|long|longlong)|float|double|half)\d+|\w+_to_\w+"
    r"|(?:floordiv|mod|truncdiv|fmod|shl|shr|max|min|abs|sigmoid)_\w+"
    r"|(?:wgmma|mma|bulk_copy|load|power_of_two)_\w+)$"
)


class Names:
    """The names that are taken where the text stands; `own` are those that the text around the
    kernel's body declares, whatever tensors and loops are called.
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self.taken = set(own)

    def fresh(self, hint: str) -> str:
        """The hint as an identifier; with a number behind it if that is taken."""
        base = re.sub(r"\W", "_", hint, flags=re.ASCII).strip("_") or "x"
        if base[0].isdigit():
            base = f"x{base}"
        if base in _RESERVED or _PATTERN.match(base):
            base += "_"
        name, n = base, 0
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        return name

    def release(self, names: list[str]) -> None:
        """Names whose scope has ended."""
        self.taken.difference_update(names)


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer as the C text knows it."""

    name: str
    dtype: DType
    scope: str
    strides: tuple[Int, ...]
    single: bool = False  # a variable rather than an array


@dataclass(slots=True)
class Scope:
    """A pair of braces: its lines so far, and the C names of the integers computed in it."""

    lines: list[str] = field(default_factory=list)
    integers: dict[Int, str] = field(default_factory=dict)
    pointers: dict[tuple[str, Int], str] = field(default_factory=dict)  # by array and number
    declared: list[str] = field(default_factory=list)


# Parts of loops' names that need the part before them.
_SUFFIXES = frozenset({"init", "lane", "turn", "v"})
UNROLL = "#pragma unroll"
ROLL = "#pragma unroll 1"


class Position:
    def __init__(self, dialect: Dialect, helpers: Helpers, names: Names, threads: int) -> None:
        self.dialect, self.helpers, self.names = dialect, helpers, names
        self.threads = threads
        self.scopes = [Scope()]
        self.loops: dict[str, str] = {}  # C names
        self.extents: dict[str, int] = {}
        self.single: set[Atom] = set()  # loops of one iteration, which are 0
        self.depth: dict[str, int] = {}  # the number of the scope in which a loop runs
        self.written_out: set[str] = set()  # loops that the compiler unrolls whole
        self.memories: dict[str, Memory] = {}

    def write(self, line: str) -> None:
        self.scopes[-1].lines.append(line)

    def fresh(self, hint: str, depth: int = -1) -> str:
        """A name for a variable of a scope; the present one by default."""
        name = self.names.fresh(hint)
        self.scopes[depth].declared.append(name)
        return name

    def bind(self, loop: str, extent: int) -> str:
        """The C name of a loop of the present scope."""
        name = self.fresh(_short(loop))
        self.loops[loop], self.extents[loop] = name, extent
        self.depth[loop] = len(self.scopes) - 1
        (self.single.add if extent == 1 else self.single.discard)(loop)
        return name

    def size(self, name: str, largest: int) -> str:
        """The C name of an open size, which is at most the largest."""
        self.loops[name], self.extents[name] = self.fresh(name.removeprefix("#")), largest + 1
        self.depth[name] = 0
        return self.loops[name]

    @contextmanager
    def loop(
        self, loop: str, extent: int, pragma: str = "", step: int = 1, end: str = ""
    ) -> Iterator[str]:
        """What is written inside is the body of a loop, whose C name is given. If the extent is
        only an upper bound, `end` is its text.
        """
        self.scopes.append(Scope())
        name = self.bind(loop, extent - step + 1)
        (self.written_out.add if pragma == UNROLL else self.written_out.discard)(loop)
        yield name
        increment = f"++{name}" if step == 1 else f"{name} += {step}"
        self._close(f"for (int {name} = 0; {name} < {end or extent}; {increment})", pragma)

    def declare(self, b: Buffer, name: str, single: bool = False) -> None:
        self.memories[b.name] = Memory(name, b.dtype, b.scope, b.strides, single)

    @contextmanager
    def braces(self, head: str, pragma: str = "") -> Iterator[None]:
        """What is written inside is the body of `head`, or a block of its own."""
        self.scopes.append(Scope())
        yield
        self._close(head, pragma)

    def _close(self, head: str, pragma: str) -> None:
        inner = self.scopes.pop()
        self.names.release(inner.declared)
        lines = self.scopes[-1].lines
        if pragma:
            lines.append(pragma)
        lines.append(f"{head} {{" if head else "{")
        lines.extend(f"  {line}" for line in inner.lines)
        lines.append("}")


def _short(loop: str) -> str:
    """The part of a loop's name that says which one of its block's loops it is: `i.0` of
    `C.local.i.0`, `ax0.lane` of `A.shared.ax0.lane`.
    """
    parts = loop.split(".")
    k = len(parts) - 1
    while k > 0 and (not parts[k][:1].isalpha() or parts[k] in _SUFFIXES):
        k -= 1
    return ".".join(parts[k:])
