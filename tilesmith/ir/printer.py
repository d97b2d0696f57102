"""Prints a Function as readable loops."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.expr.walk import show as show_expr
from tilesmith.expr.walk import show_parts, strip
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Join,
    Program,
    Stmt,
    Store,
    Sync,
    Write,
)


def show(func: Program) -> str:
    outs = func.outputs
    lines = [
        f"def {func.name}({', '.join(map(_param, func.inputs))}) -> {', '.join(map(_param, outs))}:"
    ]
    for b in func.buffers:
        lines.append(f"  {_buffer(b)}")
    for f in func.facts:
        sizes = "*".join(map(str, f.sizes))
        rest = "*".join(map(str, f.sizes[1:]))
        lines.append(
            f"  given {sizes} = {f.extent}"
            if f.exact
            else f"  given {f.sizes[0]} = ceil({f.extent} / {rest})"
        )
    for s in func.body:
        _stmt(s, 1, lines)
    return "\n".join(lines) + "\n"


def show_statement(s: Stmt) -> str:
    """The statement on one line, without what it contains."""
    inner = replace(s, body=()) if isinstance(s, For | If) else s
    lines: list[str] = []
    _stmt(inner, 0, lines)
    return "; ".join(lines)


def _param(b: Buffer) -> str:
    constant = "constant " if b.scope == "constant" else ""
    return f"{b.name}: {constant}{b.dtype.name}[{', '.join(map(str, b.shape))}]{_storage(b)}"


def _storage(b: Buffer) -> str:
    layout = f" as [{', '.join(map(str, b.layout))}]" if b.layout is not None else ""
    prepared = "".join(f" {s}" for s in b.prepared)
    return prepared + layout + (f" align{b.align}" if b.align else "")


def _buffer(b: Buffer) -> str:
    return f"{b.name} = {b.scope} {b.dtype.name}[{', '.join(map(str, b.shape))}]{_storage(b)}"


def _stmt(s: Stmt, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    match s:
        case For():
            kind = "" if s.kind == "serial" else f"  # {s.kind}"
            notes = "".join(f"  # {n.key}={n.value}" for n in s.notes)
            lines.append(f"{pad}for {s.name} in {s.extent}:{kind}{notes}")
            for t in s.body:
                _stmt(t, depth + 1, lines)
        case If():
            lines.append(f"{pad}if {' and '.join(f'{c} >= 0' for c in s.conds)}:")
            for t in s.body:
                _stmt(t, depth + 1, lines)
        case Block():
            _block(s, pad, lines)
        case Store():
            over = "".join(f" {n}:{e}" for n, e in s.tile)
            tail = f"  # {s.intrinsic.name} over{over}" if s.intrinsic else ""
            named, texts = _writes(s.writes, pad)
            lines.extend(named)
            stores = (f"{_target(w)} = {t}" for w, t in zip(s.writes, texts, strict=True))
            lines.append(pad + "; ".join(stores) + tail)
        case Alloc(buffer=b):
            lines.append(pad + _buffer(b))
        case Sync(scope=scope):
            lines.append(f"{pad}sync {scope}")
        case Join():
            group = f"{s.extent} threads" + (f", {s.stride} apart" if s.stride > 1 else "")
            values = ", ".join(show_expr(x) for x in s.values)
            op = s.combiner.op or ", ".join(strip(show_expr(v)) for v in s.combiner.values)
            lines.append(f"{pad}join {values} by {op} over {group}")


def _target(w: Write) -> str:
    return f"{w.buffer}[{', '.join(map(str, w.index))}]"


def _writes(writes: tuple[Write, ...], pad: str) -> tuple[list[str], list[str]]:
    """Lines that name the shared parts of long values, and each value in terms of them."""
    lines: list[str] = []
    texts = []
    for k, w in enumerate(writes):
        parts, text = show_parts(w.value, "v" if len(writes) == 1 else f"v{k}_")
        lines += [f"{pad}{name} = {part}" for name, part in parts]
        texts.append(strip(text))
    return lines, texts


_JOIN = {None: "join=", "add": "+=", "mul": "*=", "max": "max=", "min": "min="}


def join_sign(b: Block) -> str:
    """The operator between the target and the value of a write, such as += for a sum."""
    return "=" if b.combiner is None else _JOIN[b.combiner.op]


def _block(b: Block, pad: str, lines: list[str]) -> None:
    """`name(i, k: sum):` followed by the writes. A binding is printed unless it is the block's own
    loop of that name.
    """
    binds = [f"{i.name}={i.bind}" if i.kind == "S" else f"{i.name}:R={i.bind}" for i in b.iters]
    conds = [f"{p} >= 0" for p in sorted(b.where, key=str)]
    conds += [f"{p} >= 0" for p in sorted(b.domain, key=str)]
    guard = f" if {' and '.join(conds)}" if conds else ""
    over = "".join(f" {n} in {e}," for n, e in b.tile).rstrip(",")
    unit = f"  # over{over}" if b.tile else ""
    unit += f" by {b.intrinsic.name}" if b.intrinsic else ""
    lines.append(f"{pad}{b.name}({', '.join(binds)}){guard}:{unit}")
    pad += "  "
    named, texts = _writes(b.writes, pad)
    lines.extend(named)
    if b.combiner is None:
        lines.extend(f"{pad}{_target(w)} = {t}" for w, t in zip(b.writes, texts, strict=True))
        return
    op = b.combiner.op
    start = ", ".join(show_expr(c) for c in b.combiner.identity)
    first = f"  # from {start}" if b.init else ""
    for k, (w, text) in enumerate(zip(b.writes, texts, strict=True)):
        if op is not None:
            lines.append(f"{pad}{_target(w)} {join_sign(b)} {text}{first}")
        else:
            join = strip(show_expr(b.combiner.values[k]))
            lines.append(f"{pad}{_target(w)} join= {text}  # by {join}{first}")
