"""A task in words: the shapes, layout and dtype of its function, and where in the user's model it
comes from. Lists of tasks show both, and take a part of either as a filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilesmith.expr.nodes import Load, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, walk

_MOST_INPUTS = 3  # whose shapes are shown
_MOST_NODES = 6  # of a group, whose names are shown


def shapes_text(func: Function) -> str:
    """`1x64x56x56, 128x64x3x3 -> 1x128x56x56 float32 NCHW`: the first input and those that are more
    than vectors, then outputs.
    """
    wide = [b for b in func.inputs[1:] if sum(n.const != 1 for n in b.shape) > 1]
    given = [*func.inputs[:1], *wide]
    shapes = [_dims(b) for b in given[:_MOST_INPUTS]]
    if len(given) > _MOST_INPUTS:
        shapes.append("...")
    made = ", ".join(dict.fromkeys(_dims(b) for b in func.outputs))
    kinds = dict.fromkeys(str(b.dtype) for b in (*given, *func.outputs))
    words = [", ".join(shapes), "->", made, "/".join(kinds), layout_of(func)]
    return " ".join(w for w in words if w)


def _dims(b: Buffer) -> str:
    return "x".join(map(str, b.shape)) or "scalar"


def layout_of(func: Function) -> str:
    """NCHW or NHWC for what slides a window over images, and likewise for one or three dimensions;
    "" for other functions.
    """
    for _, block in walk(func.body):
        for load in _loads(block):
            reduced = {i.name for i in block.iters if i.kind == "R"}
            slides = [len(p.names) > 1 and bool(reduced & set(p.names)) for p in load.index]
            if not 3 <= len(slides) <= 5 or not any(slides):
                continue
            space = "DHW"[5 - len(slides) :]
            if slides[-1] and not slides[1]:
                return f"NC{space}"
            if slides[1] and not slides[-1]:
                return f"N{space}C"
    return ""


def _loads(block: Block) -> Iterable[Load]:
    return (
        e for w in block.writes for e in preorder(w.value, children) if isinstance(e, Load)
    )  # fmt: skip


def place_text(nodes: Sequence[str]) -> str:
    """The nodes of a model that one kernel computes, with what their names share said once:
    `/stem/{Conv, Relu}` or `features.0.{conv, bn}`.
    """
    shared, mark, rest = _place(nodes)
    if not shared or not rest:
        return shared or ", ".join(rest)
    return f"{shared}{mark}{rest[0]}" if len(rest) == 1 else f"{shared}{mark}{{{', '.join(rest)}}}"


def module_path(nodes: Sequence[str]) -> tuple[str, ...]:
    """The modules of a model around one kernel, from the outside in, and at the end its nodes:
    `("stem", "Conv, Relu")` or `("features", "0", "conv, bn")`.
    """
    shared, mark, rest = _place(nodes)
    modules = [m for m in shared.split(mark) if m]
    return (*modules, ", ".join(rest)) if rest else tuple(modules)


def _place(nodes: Sequence[str]) -> tuple[str, str, list[str]]:
    """What the names of some nodes have in common, what separates their parts, and the rest of
    each.
    """
    names = list(dict.fromkeys(map(_node_name, nodes)))
    mark = "/" if any("/" in n for n in names) else "."
    shared = names[0] if names else ""
    while shared and not all(n == shared or n.startswith(f"{shared}{mark}") for n in names):
        shared = shared.rpartition(mark)[0]
    rest = [n.removeprefix(f"{shared}{mark}") for n in names if n != shared] if shared else names
    return shared, mark, [*rest[:_MOST_NODES], "..."] if len(rest) > _MOST_NODES else rest


def _node_name(origin: str) -> str:
    """The name alone, of `Conv '/stem/Conv'` or `aten.silu.default features.0`, where it says which
    node it is.
    """
    op, _, name = origin.partition(" ")
    name = name.strip("'\"")
    is_named = op.startswith("aten.") or op.lower() in name.lower()
    return name if is_named and name else origin.replace("'", "")


def places_text(places: Sequence[Sequence[str]]) -> str:
    """Of a task that several kernels of a model have: the first place, and how many there are."""
    if not places:
        return ""
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{place_text(places[0])}{more}"


def is_match(text: str, func: Function, places: Iterable[Sequence[str]] = ()) -> bool:
    """Whether all words of a text are parts of what is known of a task, in any letter case."""
    return has_words(text, func.name, shapes_text(func), *(n for p in places for n in p))


def has_words(text: str, *known: str) -> bool:
    every = " ".join(known).lower()
    return all(word in every for word in text.lower().split())
