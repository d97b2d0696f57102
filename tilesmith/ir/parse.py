"""Parses the text of an integer expression: `j // 16`, `3*i + r - 1`. Only what an Int can
represent is accepted.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from tilesmith.base.errors import TraceError
from tilesmith.expr.ints import Int, of, var

Size = int | str  # a number, or the name of a size variable such as "#C.i.0"

# The name of a fused loop contains a plus: #C.i.0+j.0.1 is one size. Sums are written with spaces.
_SIZE = re.compile(r"#[A-Za-z_][\w.]*(?:\+[A-Za-z_][\w.]*)*")


@lru_cache(maxsize=4096)  # all candidates share the layouts of their sketch
def parse_int(text: str) -> Int:
    """Names may be size variables, which start with #."""
    sizes: dict[str, str] = {}

    def stand_in(m: re.Match[str]) -> str:
        name = f"_size{len(sizes)}"
        sizes[name] = m.group()
        return name

    try:
        tree = ast.parse(_SIZE.sub(stand_in, text), mode="eval").body
    except SyntaxError:
        raise TraceError(f"{text!r} is not an integer expression") from None

    def go(node: ast.expr) -> Int:
        match node:
            case ast.Constant(value=int(v)):
                return of(v)
            case ast.Name(id=name):
                return var(sizes.get(name, name))
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return -go(x)
            case ast.BinOp(left=left, op=op, right=right):
                a, b = go(left), go(right)
                if isinstance(op, ast.FloorDiv | ast.Mod) and b.const == 0:
                    raise ZeroDivisionError(f"({a}) // 0")
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.FloorDiv():
                        return a // b
                    case ast.Mod():
                        return a % b
        raise TraceError(f"{text!r}: {ast.unparse(node)} is not made of + - * // % and names")

    return go(tree)


def as_int(size: Size) -> Int:
    if not isinstance(size, str):
        return of(size)
    # The name of a fused loop may contain a plus, but only expressions contain stars or spaces.
    return var(size) if size[:1] == "#" and not set(size) & set("* (") else parse_int(size)
