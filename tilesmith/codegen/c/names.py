"""Names of C variables, made from the names of loops and buffers."""

from __future__ import annotations

import re

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
    INFINITY NAN member step rank
"""
_RESERVED = frozenset(_WORDS.split())
# Vector types and helper functions.
_PATTERN = re.compile(
    r"(?:(?:u?(?:char|short|int|long|longlong)|float|double|half)\d+|\w+_to_\w+"
    r"|(?:floordiv|mod|truncdiv|fmod|shl|shr|max|min|abs|sigmoid)_\w+)$"
)


class Names:
    """The names that are taken where the text stands."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

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
