"""Binds a node to the function that imports it, whose parameters are the operator's schema.

- Positional parameters are inputs, in ONNX's order; one that may be left out admits None, and `*xs`
  takes any number. The annotation says what of the input is wanted: `Value` the value of the graph,
  `Array` its contents, `list[int]` and `list[float]` a vector by its contents. Contents that are
  known at run time only are waited for.
- Keyword-only parameters are attributes by ONNX's names: `int`, `float`, `bool` (a whole number in
  the file), `str`, `Array`, or a `tuple` of these; required where they have no default.
  Attributes that several operators share are a TypedDict, `**window: Unpack[Window]`; it has those
  that a node states.
- Old opsets give some inputs as attributes. A list, `list[int] | int` or `Value | float` is taken
  from the attribute of its name too, where the input is left out.

An operator of the DSL is an importer as it stands: its tensors are the inputs, and its settings,
but for its `name`, the attributes.

    "Elu": ops.elu              # def elu(X: Tensor, alpha: float = 1.0, name: str = "elu")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, Unpack, get_args, get_origin, get_type_hints

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith.expr.dsl import Tensor
from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.graph.graph import Array, Value

# What an attribute's annotation admits in a file, and how messages call that.
_SCALARS: dict[Any, tuple[Any, str]] = {
    bool: (int, "0 or 1"), int: (int, "a whole number"), float: (float | int, "a number"),
    str: (str, "a string"), Array: (np.ndarray, "a tensor"),
}  # fmt: skip
_LISTS = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of strings"}
_LISTS[Array] = "a list of tensors"

_ABSENT = object()  # the default of an attribute that a function gets only where a node states it


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kinds: tuple[Any, ...]  # what its annotation admits, without None
    default: Any

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function says of its operator."""

    inputs: tuple[Parameter, ...]
    attributes: Mapping[str, Parameter]
    takes_more: bool  # inputs, of the kind of the last one
    takes_any: bool  # attribute
    is_operator: bool  # of the DSL

    def __str__(self) -> str:
        names = [p.name if p.is_required else f"{p.name} or none" for p in self.inputs]
        return f"({', '.join([*names, *(['...'] if self.takes_more else [])])})"


@lru_cache(maxsize=1024)
def signature_of(function: Importer) -> Signature:
    own = function if inspect.isroutine(function) else type(function).__call__
    hints = get_type_hints(own)
    parameters = [*inspect.signature(function).parameters.values()]
    is_operator = not parameters or parameters[0].name != "call"
    inputs, attributes = [], {}
    takes_more = takes_any = False
    for p in parameters[0 if is_operator else 1 :]:
        hint = hints.get(p.name, Any)
        may_be_none = p.default is p.empty and NoneType in get_args(hint)
        made = Parameter(p.name, _kinds(hint), None if may_be_none else p.default)
        if p.kind is p.VAR_POSITIONAL:
            takes_more = True
        elif p.kind is p.VAR_KEYWORD and get_origin(made.kinds[0]) is Unpack:
            for name, hint in get_type_hints(get_args(made.kinds[0])[0]).items():
                attributes[name] = Parameter(name, _kinds(hint), _ABSENT)
        elif p.kind is p.VAR_KEYWORD:
            takes_any = True
        elif is_operator and Tensor not in made.kinds:
            if p.name != "name":
                attributes[p.name] = made
        elif p.kind is p.KEYWORD_ONLY:
            attributes[p.name] = made
        else:
            inputs.append(made)
    return Signature(tuple(inputs), attributes, takes_more, takes_any, is_operator)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    is_union = get_origin(annotation) in (Union, UnionType)
    return tuple(
        a for a in (get_args(annotation) if is_union else (annotation,)) if a is not NoneType
    )


def imported(function: Importer, call: Call) -> Any:
    """What the function makes of the node."""
    s = signature_of(function)
    attributes = dict(call.node.attributes)
    bound = {name: _attribute(call, p, attributes) for name, p in s.attributes.items()}
    settings = {name: v for name, v in bound.items() if v is not _ABSENT}
    inputs = _inputs(call, s, attributes)
    if attributes and not s.takes_any:
        known = f"it takes {', '.join(s.attributes)}" if s.attributes else "it takes none"
        call.refuse(f"attribute {next(iter(attributes))!r} is unknown; {known}")
    if s.takes_any:
        settings |= attributes
    wanted = [_wanted(call, p, x) for p, x in inputs]
    if not s.is_operator:
        return function(call, *wanted, **settings)
    tensors = [v for v in wanted if v is not None]
    if wanted[: len(tensors)] != tensors:
        call.refuse(f"input {wanted.index(None)} is missing in front of one that is given")
    return call.add_several(function, *tensors, **settings)


def _attribute(call: Call, p: Parameter, left: dict[str, Any]) -> Any:
    if p.name not in left:
        if p.is_required:
            call.refuse(f"attribute {p.name!r} is missing; it must be {_admitted(p)}")
        return p.default
    return _converted(call, p, left.pop(p.name))


def _converted(call: Call, p: Parameter, v: Any) -> Any:
    for kind in p.kinds:
        if get_origin(kind) in (tuple, list):
            each = get_args(kind)[0]
            if isinstance(v, tuple) and all(isinstance(x, _SCALARS[each][0]) for x in v):
                return get_origin(kind)(v if each is Array else map(each, v))
        elif kind in _SCALARS and isinstance(v, _SCALARS[kind][0]):
            return v if kind is Array else kind(v)
    shown = list(v) if isinstance(v, tuple) else v
    return call.refuse(f"attribute {p.name!r} is {shown!r}; it must be {_admitted(p)}")


def _admitted(p: Parameter) -> str:
    words = [
        _LISTS[get_args(k)[0]] if get_args(k) and k not in _SCALARS else _SCALARS[k][1]
        for k in p.kinds
        if k is not Value
    ]
    return " or ".join(words)


def _inputs(call: Call, s: Signature, left: dict[str, Any]) -> list[tuple[Parameter, Any]]:
    """Each parameter with the value of its input; what an attribute of its name holds, or its
    default, where that is left out.
    """
    given = list(call.inputs)
    while given and given[-1] is None:
        given.pop()
    if len(given) > len(s.inputs) and not s.takes_more:
        call.refuse(f"it has {len(given)} inputs; it takes {len(s.inputs)}: {s}")
    bound: list[tuple[Parameter, Any]] = []
    for k, p in enumerate(s.inputs):
        v = given[k] if k < len(given) else None
        if v is None and p.name in left and p.kinds != (Value,) and Tensor not in p.kinds:
            v = _converted(call, p, left.pop(p.name))
        elif v is None:
            if p.is_required:
                call.refuse(f"input {k} is missing; it takes {s}")
            v = p.default
        bound.append((p, v))
    more = Parameter("more", (Value,), inspect.Parameter.empty)
    for k, v in enumerate(given[len(s.inputs) :], len(s.inputs)):
        if v is None and not s.takes_any:
            call.refuse(f"input {k} is missing; it takes {s}")
        bound.append((more, v))
    return bound


def _wanted(call: Call, p: Parameter, v: Any) -> Any:
    """Of an input what its parameter asks for."""
    if not isinstance(v, Value) or Value in p.kinds or Tensor in p.kinds:
        return v
    readers: dict[Any, Callable[[Value], Any]] = {
        Array: call.array, list[int]: call.ints, list[float]: call.floats
    }  # fmt: skip
    return readers[p.kinds[0]](v)


@dataclass(frozen=True, slots=True)
class Since:
    """Importers of an operator whose meaning changed, by the opset that each begins with."""

    importers: Mapping[int, Importer]

    def at(self, version: int) -> Importer:
        return self.importers[max(v for v in self.importers if v <= version)]


def checked_operators(operators: Any) -> dict[tuple[str, str], Importer]:
    """A user's operators, {"com.example.HardShrink": function}, by domain and name."""
    if not isinstance(operators, Mapping):
        raise ArgumentError(
            f"operators is {operators!r}; it must give functions by the names of ONNX operators, "
            'as {"com.example.HardShrink": hard_shrink}'
        )
    found = {}
    for name, function in operators.items():
        if not isinstance(name, str) or not callable(function):
            raise ArgumentError(
                f"operators has {name!r}: {function!r}; it must give a function by the name of an "
                'ONNX operator, with its domain in front, as "com.example.HardShrink"'
            )
        signature_of(function)
        domain, _, op = name.rpartition(".")
        found["" if domain == "ai.onnx" else domain, op] = function
    return found
