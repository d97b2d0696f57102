"""Text of LLVM modules: constants, and templates with `$NAME` for what differs."""

from __future__ import annotations

from collections.abc import Mapping


def filled(texts: Mapping[str, str], functions: str, values: Mapping[str, object]) -> str:
    """The functions, and a constant `@text.KEY` for each of the texts that they use."""
    constants = (text_constant(f"text.{key}", _put(text, values)) for key, text in texts.items())
    return "\n".join([*constants, _put(functions, values)])


def _put(text: str, values: Mapping[str, object]) -> str:
    for name, value in values.items():
        text = text.replace(f"${name}", str(value))
    return text


def text_constant(name: str, text: str) -> str:
    return bytes_constant(name, text.encode() + b"\0")


def bytes_constant(name: str, data: bytes) -> str:
    shown = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
    return f'@{name} = private unnamed_addr constant [{len(data)} x i8] c"{shown}"'
