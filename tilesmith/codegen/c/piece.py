"""Pieces of C text that know how tightly they bind, so that parentheses stand only where they are
needed.
"""

from __future__ import annotations

from typing import NamedTuple

# How tightly C's operators bind.
PRIMARY, UNARY, MUL, ADD, SHIFT, LESS, EQUAL, AND, XOR, OR, BOTH, EITHER, CHOICE = range(16, 3, -1)

_LEVELS = {
    "*": MUL, "/": MUL, "%": MUL, "+": ADD, "-": ADD, "<<": SHIFT, ">>": SHIFT, "<": LESS,
    "<=": LESS, ">": LESS, ">=": LESS, "==": EQUAL, "!=": EQUAL, "&": AND, "^": XOR, "|": OR,
    "&&": BOTH, "||": EITHER,
}  # fmt: skip
# Operators of which compilers and people expect parentheses around any other one.
_STRICT = frozenset({SHIFT, AND, XOR, OR, BOTH, EITHER})


class Piece(NamedTuple):
    text: str
    level: int = PRIMARY
    # The same value as an unsigned integer, if it is a cast of one: unsigned arithmetic wraps
    # around, where signed arithmetic would be undefined.
    unsigned: Piece | None = None

    def __str__(self) -> str:
        return self.text

    def at(self, level: int) -> str:
        """The text as an operand of an operator that binds at `level`."""
        return self.text if self.level >= level else f"({self.text})"


def operation(sign: str, a: Piece, b: Piece) -> Piece:
    level = _LEVELS[sign]
    left, right = (level, level + 1)
    if level in _STRICT:  # a chain of the same operator stays as it is
        left = level if a.level == level else UNARY
        right = UNARY
        if level in (BOTH, EITHER):
            left, right = (level if a.level == level else EQUAL), EQUAL
    return Piece(f"{a.at(left)} {sign} {b.at(right)}", level)


def prefix(sign: str, a: Piece) -> Piece:
    text = a.at(UNARY)
    return Piece(f"{sign}({text})" if text[0] == sign else f"{sign}{text}", UNARY)


def cast(to: str, a: Piece) -> Piece:
    return Piece(f"({to}){a.at(UNARY)}", UNARY)


def call(name: str, *args: Piece) -> Piece:
    return Piece(f"{name}({', '.join(a.text for a in args)})")


def choice(cond: Piece, a: Piece, b: Piece) -> Piece:
    return Piece(f"{cond.at(EITHER)} ? {a.at(EITHER)} : {b.at(CHOICE)}", CHOICE)
