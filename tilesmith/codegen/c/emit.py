"""Emits a Function in launch form as the text of one C module, in CUDA or OpenCL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.launches import emit_launch
from tilesmith.codegen.c.statements import size_of
from tilesmith.codegen.c.tensor import emit_tensor_launch
from tilesmith.codegen.c.tensor_plan import is_tensor_nest
from tilesmith.ir.function import Function
from tilesmith.ir.launch_form import launch_form_of
from tilesmith.ir.nodes import Alloc, Buffer

_ALIGNMENT = 256  # of buffers in the workspace


@dataclass(frozen=True, slots=True)
class Emitted:
    source: str
    modules: tuple[str, ...]  # the text of each launch alone, with what it calls
    launches: tuple[Launch, ...]
    scratch: tuple[tuple[str, int], ...]  # buffers between launches: their offsets
    workspace_nbytes: int


def emit_launches(func: Function, dialect: Dialect) -> Emitted:
    """`func` is in launch form, as the GPU passes leave it."""
    buffers: dict[str, Buffer] = {b.name: b for b in func.params}
    scratch: list[tuple[str, int]] = []
    offset = 0
    for b in (*func.buffers, *(s.buffer for s in func.body if isinstance(s, Alloc))):
        if b.scope != "global":
            raise BuildError(
                f"{b.name!r} is {b.scope}, but it is allocated outside of all launches"
            )
        buffers[b.name] = b
        scratch.append((b.name, offset))
        offset += -(-size_of(b) * b.dtype.nbytes // _ALIGNMENT) * _ALIGNMENT
    nests = [launch_form_of(s) for s in func.body if not isinstance(s, Alloc)]
    base = re.sub(r"\W", "_", func.name, flags=re.ASCII)
    base = f"k{base}" if not base or base[0].isdigit() else base
    texts, launches, modules = [], [], []
    called: dict[str, str] = {}
    for k, nest in enumerate(nests):
        symbol = f"{base}_kernel" if len(nests) == 1 else f"{base}_kernel{k}"
        helpers = Helpers(dialect)
        if is_tensor_nest(nest):
            text, launch = emit_tensor_launch(nest, symbol, buffers, dialect, helpers)
        else:
            followed = k + 1 < len(nests)
            text, launch = emit_launch(nest, symbol, buffers, dialect, helpers, followed)
        texts.append(text)
        launches.append(launch)
        modules.append(_module([text], helpers.texts, dialect))
        called |= helpers.texts
    source = _module(texts, called, dialect)
    return Emitted(source, tuple(modules), tuple(launches), tuple(scratch), offset)


def _module(texts: list[str], helpers: Mapping[str, str], dialect: Dialect) -> str:
    return "\n\n".join([*_prologue(texts, dialect), *helpers.values(), *texts]) + "\n"


def _prologue(texts: list[str], dialect: Dialect) -> list[str]:
    lines = []
    for word, needed in dialect.prologue:
        if any(word in t for t in texts):
            lines.append(needed)
    return ["\n".join(lines)] if lines else []
