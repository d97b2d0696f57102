"""The functions of an exported library that C programs call, except for the plan that they run.
They are the same for all libraries: LLVM functions that depend on libc only (opening.ll), with
`$NAME` for what differs. The weights are read by those of `weights.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.base.template import filled, template


# Text of LLVM modules: constants, and templates with `$NAME` for what differs.
def functions_of(name: str, texts: Mapping[str, str], values: Mapping[str, object]) -> str:
    """The functions in a file, and a constant `@text.KEY` for each of the texts that they use."""
    constants = (text_constant(f"text.{key}", filled(text, values)) for key, text in texts.items())
    return "\n".join([*constants, template(__file__, name, values)])


def text_constant(name: str, text: str) -> str:
    return bytes_constant(name, text.encode() + b"\0")


def bytes_constant(name: str, data: bytes) -> str:
    shown = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
    return f'@{name} = private unnamed_addr constant [{len(data)} x i8] c"{shown}"'


# What `tilesmith_NAME_error` may say. Formats of snprintf.
TEXTS = {
    "memory": "there is not enough memory: $ROOM_NBYTES bytes are needed",
    "null_model": "the model is NULL; the error of the call that opened it says why",
    "busy": "this model runs in another thread; open one for each thread",
    "null_list": "the list of %ss is NULL",
    "null": "%s %lld is NULL",
    "aligned": "%s %lld is at an address that is no multiple of %lld, the size of its elements",
    "inputs": "input",
    "outputs": "output",
}


def opening_source(values: Mapping[str, object]) -> str:
    return functions_of("opening.ll", TEXTS, values)
