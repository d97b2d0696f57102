"""Reads the JSON text of a Function; `serialize` describes the format. Any other text raises a
TraceError that says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from tilesmith.base.dtype import DType, dtype
from tilesmith.base.errors import ExpressionError, ScheduleError, TraceError
from tilesmith.base.given import checks_given
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.ints import ZERO, FloorDiv, Int, Maximum, atom, of, product, var
from tilesmith.expr.nodes import (
    BINARY,
    UNARY,
    Arg,
    Binary,
    Cast,
    Combiner,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
)
from tilesmith.expr.sizes import OpenSize
from tilesmith.ir import prepare
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    Fact,
    For,
    If,
    Intrinsic,
    Iter,
    Join,
    Stmt,
    Store,
    Sync,
    Write,
)
from tilesmith.ir.notes import NOTES, RETIRED, Note, note_of
from tilesmith.ir.serialize import VERSION, named_owner

_MOST_TERMS = 1000  # of an integer whose products are expanded; they have a few


@checks_given
def function_from_json(
    text: str,
    intrinsics: Sequence[Intrinsic] = INTRINSICS,
    notes: tuple[type[Note], ...] = NOTES,
) -> Function:
    """`intrinsics` and `notes` are the instructions and the notes that the text may name."""
    try:
        data = json.loads(text)
        version = data["version"]
        if version == VERSION:
            return _Reader(data["values"], intrinsics, notes).function(data)
    except (
        *(ValueError, KeyError, TypeError, IndexError, RecursionError),
        *(ExpressionError, ScheduleError),
    ) as e:
        what = f"{e} is missing" if isinstance(e, KeyError) else str(e)
        raise TraceError(f"this is not the text of a Function: {what}") from None
    raise TraceError(
        f"this Function is of version {version!r}; this library reads version {VERSION}"
    )


def buffer_from_json(data: Any) -> Buffer:
    """What `buffer_to_json` gave. Other values raise a ValueError, TypeError or TilesmithError."""
    return _Reader([]).buffer(data)


def _declared(data: Any) -> OpenSize:
    name, limits, samples = data
    return OpenSize(
        _name(name),
        None if limits is None else (_number(limits[0]), _number(limits[1])),
        tuple((_number(value), float(weight)) for value, weight in samples),
    )


class _Reader:
    def __init__(
        self,
        values: Any,
        intrinsics: Sequence[Intrinsic] = (),
        notes: tuple[type[Note], ...] = NOTES,
    ) -> None:
        self.intrinsics, self.notes = {i.name: i for i in intrinsics}, (*notes, *RETIRED)
        self.values: list[Expr] = []
        self.blocks: frozenset[str] = frozenset()
        for node in _list(values):
            self.values.append(self._node(node))

    def function(self, data: Any) -> Function:
        self.blocks = frozenset(_blocks(data["body"]))
        return Function(
            name=_name(data["name"]),
            params=tuple(map(self.buffer, _list(data["params"]))),
            num_outputs=_number(data["num_outputs"]),
            buffers=tuple(map(self.buffer, _list(data["buffers"]))),
            body=self.body(data["body"]),
            facts=tuple(
                Fact(self.integers(sizes), self.integer(extent), bool(exact))
                for sizes, extent, exact in data["facts"]
            ),
            declared=tuple(map(_declared, _list(data.get("declared", [])))),
        )

    # integers
    def integer(self, data: Any) -> Int:
        match data:
            case bool():
                pass
            case int():
                return of(data)
            case str():
                return var(data)
            case list():
                total = ZERO
                if _terms(data) > _MOST_TERMS:
                    raise ValueError(f"{_short(data)} has more than {_MOST_TERMS} terms")
                for factor, *atoms in data:
                    total = total + product([of(_number(factor)), *map(self._atom, atoms)])
                return total
        raise ValueError(f"{data!r} is no integer")

    def integers(self, data: Any) -> tuple[Int, ...]:
        return tuple(map(self.integer, _list(data)))

    def _atom(self, data: Any) -> Int:
        match data:
            case str():
                return var(data)
            case ["//", a, b]:
                return atom(FloorDiv(self.integer(a), self.integer(b)))
            case ["max", a, b]:
                return atom(Maximum(self.integer(a), self.integer(b)))
            case ["value", place]:
                return atom(Dynamic(self.value(place)))
        raise ValueError(f"{data!r} is no part of an integer")

    # values
    def value(self, place: Any) -> Expr:
        k = _number(place)
        if not 0 <= k < len(self.values):
            raise ValueError(f"value {k} is used before it is there")
        return self.values[k]

    def _node(self, data: Any) -> Expr:
        *rest, kind = _list(data)
        d = dtype(_name(kind))
        match rest:
            case ["const", ("inf" | "-inf" | "nan") as text]:
                return Const(float(text), d)
            case ["const", (bool() | int() | float()) as v]:
                return Const(v, d)
            case ["int", p]:
                return IntValue(self.integer(p), d)
            case ["arg", name]:
                return Arg(_name(name), d)
            case ["load", buffer, index]:
                return Load(_name(buffer), self.integers(index), d)
            case [op, x] if op in UNARY:
                return Unary(op, self.value(x), d)
            case [op, a, b] if op in BINARY:
                return Binary(op, self.value(a), self.value(b), d)
            case ["select", c, a, b]:
                return Select(self.value(c), self.value(a), self.value(b), d)
            case ["cast", x]:
                return Cast(self.value(x), d)
        raise ValueError(f"{data!r} is no value")

    # statements
    def buffer(self, data: Any) -> Buffer:
        match data:
            case [name, kind, shape]:
                return Buffer(_name(name), self.integers(shape), _dtype(kind))
            case [name, kind, shape, scope, layout, align, *rest] if len(rest) <= 4:
                return Buffer(
                    _name(name),
                    self.integers(shape),
                    _dtype(kind),
                    _name(scope),
                    None if layout is None else self.integers(layout),
                    None if align is None else _align(align),
                    prepare.from_json(rest, self.integers),
                )
        raise ValueError(f"{data!r} is no buffer")

    def body(self, data: Any) -> tuple[Stmt, ...]:
        return tuple(map(self.stmt, _list(data)))

    def stmt(self, data: Any) -> Stmt:
        match data:
            case ["for", name, extent, body, *rest]:
                kind, notes, *owner = rest or ("serial", ())
                return For(
                    _name(name),
                    self.integer(extent),
                    self.body(body),
                    _name(kind),
                    tuple(note_of(k, v, self.notes) for k, v in notes),
                    _name(owner[0]) if owner else named_owner(name, self.blocks),
                )
            case ["block", dict(b)]:
                return Block(
                    name=_name(b["name"]),
                    iters=tuple(self._iter(i) for i in _list(b["iters"])),
                    combiner=self._combiner(b["combiner"]) if "combiner" in b else None,
                    init=bool(b.get("init", False)),
                    where=frozenset(self.integers(b.get("where", []))),
                    domain=frozenset(self.integers(b.get("domain", []))),
                    writes=self._writes(b),
                    tile=self._tile(b),
                    intrinsic=self._intrinsic(b),
                    operands=self._operands(b),
                )
            case ["store", dict(s)]:
                return Store(self._writes(s), self._tile(s), self._intrinsic(s), self._operands(s))
            case ["if", conds, body]:
                return If(self.integers(conds), self.body(body))
            case ["alloc", buffer]:
                return Alloc(self.buffer(buffer))
            case ["sync", scope]:
                return Sync(_name(scope))
            case ["join", values, combiner, int(extent), int(stride)]:
                loads = [self.value(v) for v in values]
                if not all(isinstance(x, Load) for x in loads):
                    raise ValueError("a join is over elements of buffers")
                joined = tuple(x for x in loads if isinstance(x, Load))
                return Join(joined, self._combiner(combiner), extent, stride)
        raise ValueError(f"{_short(data)} is no statement")

    def _iter(self, data: Any) -> Iter:
        name, kind, extent, bind = data
        if kind not in ("S", "R"):
            raise ValueError(f"{kind!r} is no kind of iterator; S and R are")
        return Iter(_name(name), kind, self.integer(extent), self.integer(bind))

    def _combiner(self, data: Any) -> Combiner:
        values, identity = data
        neutral = []
        for place in identity:
            e = self.value(place)
            if not isinstance(e, Const):
                raise ValueError(f"value {place} is no constant, so it is not neutral")
            neutral.append(e)
        return Combiner(tuple(map(self.value, values)), tuple(neutral))

    def _writes(self, data: dict[str, Any]) -> tuple[Write, ...]:
        return tuple(
            Write(_name(buffer), self.integers(index), self.value(value))
            for buffer, index, value in data["writes"]
        )

    def _tile(self, data: dict[str, Any]) -> tuple[tuple[str, Int], ...]:
        return tuple((_name(n), self.integer(e)) for n, e in data.get("tile", []))

    def _intrinsic(self, data: dict[str, Any]) -> Intrinsic | None:
        name = data.get("intrinsic")
        if name is None:
            return None
        if name not in self.intrinsics:
            names = ", ".join(sorted(self.intrinsics))
            raise ValueError(
                f"unknown intrinsic {name!r}; known are {names}: pass your own in intrinsics="
            )
        return self.intrinsics[name]

    def _operands(self, data: dict[str, Any]) -> tuple[tuple[str, Load], ...]:
        out = []
        for name, place in data.get("operands", []):
            e = self.value(place)
            if not isinstance(e, Load):
                raise ValueError(f"operand {name!r} is no load")
            out.append((_name(name), e))
        return tuple(out)


def _terms(data: Any) -> int:
    """How many terms the text of an integer may come to have, if divisions in it go away."""
    match data:
        case ["//" | "max", a, b]:
            return max(_terms(a), _terms(b))
        case [[int(), *_], *_]:
            return sum(prod(map(_terms, atoms)) for _, *atoms in data)
    return 1


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{_short(data)} stands where a list is due")
    return data


def _name(data: Any) -> str:
    if not isinstance(data, str):
        raise ValueError(f"{_short(data)} stands where a name is due")
    return data


def _number(data: Any) -> int:
    if type(data) is not int:
        raise ValueError(f"{_short(data)} stands where a number is due")
    return data


def _dtype(data: Any) -> DType:
    return dtype(_name(data))


def _align(data: Any) -> tuple[int, int, int]:
    dimension, multiple, offset = data
    return _number(dimension), _number(multiple), _number(offset)


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) < 60 else f"{text[:57]}..."


def _blocks(body: Any) -> Iterator[str]:
    """The names of all blocks in the text of a body."""
    for s in body if isinstance(body, list) else ():
        match s:
            case ["for", _, _, inner, *_] | ["if", _, inner]:
                yield from _blocks(inner)
            case ["block", {"name": str(name)}]:
                yield name
