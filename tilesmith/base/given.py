"""Checks what a public function or class is given against its own annotations, before it does any
work: they are the schema. The error names the argument and what was given, and says what it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from dataclasses import is_dataclass
from functools import cache, partial, wraps
from numbers import Real
from types import FunctionType, UnionType
from typing import IO, Any, Literal, TypeVar, Union, get_args, get_origin, overload

import numpy as np

from tilesmith.base.dataclass import compiled, dataclass
from tilesmith.base.errors import ArgumentError, TilesmithError

T = TypeVar("T")
Accepts = Callable[[Any], bool]

_LONGEST = 40  # characters of a value that an error message shows

# What to say of a class, where its name would not do: with what makes one.
_WORDS = {
    "Array": "a NumPy array",
    "Axis": "an axis, as ts.reduce_axis(8)",
    "Budget": "a budget: ts.Budget(trials=500), ts.Budget(seconds=60) or both",
    "Candidate": "a ts.Candidate",
    "CostModel": "a cost model, as ts.Gbdt()",
    "Database": "what ts.open_database opened",
    "DType": "a dtype, as 'float32'",
    "FeatureExtractor": "features, as ts.StatementFeatures() or ts.RelationFeatures()",
    "Function": "what ts.function made",
    "Generator": "a random generator, as numpy.random.default_rng(0)",
    "Int": "an open size, as ts.size('n')",
    "Graph": "what ts.load_onnx or ts.from_torch returns",
    "Measurement": "a measurement, as db.of(task) lists",
    "Measurer": "a measurer, as ts.LocalMeasurer()",
    "Mutator": "a mutator, as ts.ChangeDecisions()",
    "ndarray": "a NumPy array",
    "Parts": "a ts.Parts",
    "PathLike": "a path",
    "Program": "what ts.load_onnx or ts.from_torch returns",
    "Schedule": "a ts.Schedule",
    "Space": "a space, as ts.SketchSpace()",
    "Step": "a step of a trace",
    "Strategy": "a strategy, as ts.Evolution()",
    "Target": "a target, as ts.cpu()",
    "Task": "a task, as ts.Task(func, ts.cpu())",
    "Tensor": "a tensor, such as a placeholder",
    "Trace": "a trace, as sch.trace",
    "Variant": "a ts.Variant",
}


def a(what: object) -> str:
    """An object as an error message names it: with its value, if that is short."""
    if isinstance(what, type):
        return f"the class {what.__name__}"
    if what is None:
        return "None"
    kind, text = type(what).__name__, repr(what)
    if isinstance(what, str):
        return f"the text {text}" if len(text) <= _LONGEST else "a text"
    if len(text) > _LONGEST or text.startswith("<") or "\n" in text:
        return f"{article(kind)} {kind}"
    return f"the {kind} {text}"


def article(word: str) -> str:
    return "an" if word[0].lower() in "aeiou" else "a"


def refused(
    who: str, name: str, value: object, kind: _Kind, error: type[TilesmithError]
) -> TilesmithError:
    """The error of an argument that is not of the kind it should be."""
    text, wants = repr(value), kind.words
    plain = value is None or isinstance(value, str | int | float)
    shown = text if plain and len(text) <= _LONGEST else "..."
    return error(
        f"{who}({name}={shown}) is given {a(value)}{_part(value, kind)}; it takes {wants}"
        f"{_hint(value, wants)}"
    )


def _part(value: object, kind: _Kind) -> str:
    """What in a list or dict is wrong, if it is otherwise what is taken."""
    if kind.each is not None and isinstance(value, Sequence) and not isinstance(value, str):
        for x in value:
            if not kind.each.accepts(x):
                return f" with {a(x)}"
    if kind.by_key is not None and isinstance(value, Mapping):
        for key, x in value.items():
            if not kind.by_key[0].accepts(key):
                return f" with {a(key)} as a key"
            if not kind.by_key[1].accepts(x):
                return f" with {a(x)} for {key!r}"
    return ""


def _hint(value: object, wants: str) -> str:
    """What to write instead, where that can be told from what was given."""
    if isinstance(value, type) and _WORDS.get(value.__name__, "") != wants:
        return f"; give an object of the class: {value.__name__}()"
    is_place = isinstance(value, str) or hasattr(value, "__fspath__")
    if is_place and "ts.open_database" in wants:
        return f": open it, as ts.open_database({str(value)!r})"
    if is_place and "ts.load_onnx" in wants:
        return f": load it, as ts.load_onnx({str(value)!r})"
    if hasattr(value, "named_modules") and ("ts.load_onnx" in wants or "ts.function" in wants):
        return (
            ": for a module of PyTorch say ts.from_torch(module, example_inputs), or call "
            'torch.compile(module, backend="tilesmith")'
        )
    if type(value).__name__ == "ModelProto" and "ts.load_onnx" in wants:
        return ": load it, as ts.load_onnx(model)"
    if isinstance(value, str) and "ts.cpu()" in wants and value != "cpu":
        return f", or ts.Target.named({value!r})"
    if callable(value) and "ts.SketchSpace()" in wants:
        return (
            f"; for a template say space=ts.TemplateSpace({getattr(value, '__name__', 'function')})"
        )
    if type(value).__name__ == "Schedule" and "ts.function" in wants:
        return "; tuning makes schedules of its own, or takes a template: ts.TemplateSpace(...)"
    return ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What an annotation takes."""

    accepts: Accepts
    words: str
    each: _Kind | None = None  # what is in a list or tuple
    by_key: tuple[_Kind, _Kind] | None = None  # keys and values of a dict


@overload
def checks_given(made: T, /) -> T: ...
@overload
def checks_given(*, error: type[TilesmithError] = ..., name: str = ...) -> Callable[[T], T]: ...
def checks_given(
    made: Any = None, /, *, error: type[TilesmithError] = ArgumentError, name: str = ""
) -> Any:
    """A decorator of a function, or of a class: then of its constructor and its public methods.

    `error` is what it raises, and `name` the public one where that is another than its own.
    """
    if made is None:
        return partial(_checking, error=error, name=name)
    return _checking(made, error, name)


def _checking(made: Any, error: type[TilesmithError], name: str) -> Any:
    label = name or made.__name__
    if not isinstance(made, type):
        return _wrapped(made, made, error, label)
    for key, member in list(vars(made).items()):
        if key == "__init__" or (key == "__new__" and hasattr(made, "_fields")):
            setattr(made, key, _wrapped(compiled(member), made, error, label))
        elif key.startswith("_"):
            continue
        elif isinstance(member, FunctionType):
            setattr(made, key, _wrapped(member, member, error, f"{label}.{key}"))
        elif isinstance(member, staticmethod | classmethod):
            inner = _wrapped(member.__func__, member.__func__, error, f"{label}.{key}")
            setattr(made, key, type(member)(inner))
    return made


def _wrapped(
    function: Callable[..., Any], stated: Any, error: type[TilesmithError], label: str
) -> Callable[..., Any]:
    """The `stated` annotations are the function's own, or those of the fields of its class."""
    known: list[tuple[dict[str, _Kind], list[tuple[str, Accepts]], list[str]]] = []

    def prepare() -> None:
        """At the first call, when all modules that the annotations name are loaded. Threads may be
        here at once, so that what they find is whole.
        """
        kinds: dict[str, _Kind] = {}
        positional: list[tuple[str, Accepts]] = []
        rest: list[str] = []
        has_fields = is_dataclass(stated) or hasattr(stated, "_fields")  # or is a NamedTuple
        hints = _annotations(stated if has_fields else function)
        for p in inspect.signature(function).parameters.values():
            kind = kinds[p.name] = kind_of(hints.get(p.name, Any))
            if p.kind is p.VAR_POSITIONAL:
                rest.append(p.name)
            elif p.kind is not p.VAR_KEYWORD and p.kind is not p.KEYWORD_ONLY:
                positional.append((p.name, kind.accepts))
        known.append((kinds, positional, rest))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not known:
            prepare()
        kinds, positional, rest = known[0]
        for (key, accepts), value in zip(positional, args, strict=False):
            if not accepts(value):
                raise refused(label, key, value, kinds[key], error)
        for key in rest:
            for value in args[len(positional) :]:
                if not kinds[key].accepts(value):
                    raise refused(label, f"*{key}", value, kinds[key], error)
        for key, value in kwargs.items():
            if key in kinds and not kinds[key].accepts(value):
                raise refused(label, key, value, kinds[key], error)
        return function(*args, **kwargs)

    return call


def _annotations(stated: Any) -> dict[str, Any]:
    """Those of a function, or of the fields of a class, each evaluated where it stands. Unlike
    typing.get_type_hints, this leaves texts alone that stand inside of an alias.
    """
    found: dict[str, Any] = {}
    for holder in reversed(stated.__mro__) if isinstance(stated, type) else (stated,):
        texts = {
            name: getattr(hint, "__forward_arg__", hint)  # a NamedTuple wraps its texts
            for name, hint in inspect.get_annotations(holder).items()
            if name != "return"
        }
        named = {"__module__": holder.__module__, "__annotations__": texts}
        found |= inspect.get_annotations(type("Stated", (), named), eval_str=True)
    return found


@cache
def kind_of(hint: Any) -> _Kind:
    """What a resolved annotation takes. What cannot be told from outside, it takes."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is None or hint is type(None):
        return _Kind(lambda x: x is None, "None")
    if origin in (Union, UnionType):
        kinds = [kind_of(i) for i in inner]
        ordered = sorted((k.words for k in kinds), key=lambda w: w.startswith("a list"))
        words = " or ".join(dict.fromkeys(ordered))
        each = next((k.each for k in kinds if k.each is not None), None)
        by_key = next((k.by_key for k in kinds if k.by_key is not None), None)
        # Most of what is given is of one of the classes themselves.
        named = frozenset(i for i in inner if isinstance(i, type) and not _is_protocol(i))
        return _Kind(
            lambda x: type(x) in named or any(k.accepts(x) for k in kinds), words, each, by_key
        )
    if origin is Literal:
        return _Kind(
            lambda x: any(type(x) is type(i) and x == i for i in inner),
            " or ".join(map(repr, inner)),
        )
    if origin is tuple:
        return _tuple(inner)
    if origin is type:
        return _Kind(lambda x: isinstance(x, type), "a class")
    if origin is Callable or hint is Callable:
        takes = inner[0] if inner and isinstance(inner[0], list) else []
        names = [t.__name__ for t in takes if isinstance(t, type) and t.__module__ != "builtins"]
        of = " of " + ", ".join(f"{article(n)} {n}" for n in names) if names else ""
        return _Kind(callable, f"a function{of}")
    held = origin or hint
    if not isinstance(held, type) or held is object or held is Any:
        return _ANYTHING
    if issubclass(held, Mapping):
        return _mapping(inner)
    if inner and issubclass(held, Iterable) and not issubclass(held, np.ndarray | Set):
        return _list(held, inner)
    if held in _PLAIN:
        return _PLAIN[held]
    name = held.__name__
    if name == "DType":  # NumPy's are taken everywhere, too
        return _Kind(lambda x: isinstance(x, held | np.dtype), _WORDS[name])
    if issubclass(held, IO):
        return _Kind(lambda x: hasattr(x, "write"), "an open file")
    words = _WORDS.get(name, f"{article(name)} {name}")
    if _is_protocol(held):
        return _protocol(held, words)
    return _Kind(lambda x: isinstance(x, held), words)


_ANYTHING = _Kind(lambda x: True, "anything")


def _is_whole(x: Any) -> bool:
    if isinstance(x, bool | np.bool_) or not hasattr(x, "__index__"):
        return False
    return not isinstance(x, np.ndarray) or x.ndim == 0


_PLAIN = {
    bool: _Kind(lambda x: isinstance(x, bool | np.bool_), "True or False"),
    int: _Kind(_is_whole, "a whole number"),
    float: _Kind(lambda x: isinstance(x, Real) and not isinstance(x, bool), "a number"),
    str: _Kind(lambda x: isinstance(x, str), "a text"),
}


def _tuple(inner: tuple[Any, ...]) -> _Kind:
    kinds = [kind_of(i) for i in inner if i is not ...]
    if inner[1:] == (...,):
        (each,) = kinds
        return _Kind(
            lambda x: isinstance(x, tuple | list) and all(map(each.accepts, x)),
            f"a tuple, each {each.words}",
            each,
        )
    return _Kind(
        lambda x: isinstance(x, tuple)
        and len(x) == len(kinds)
        and all(k.accepts(i) for k, i in zip(kinds, x, strict=True)),
        f"a tuple of {len(kinds)}: {', '.join(k.words for k in kinds)}",
    )


def _list(held: type, inner: tuple[Any, ...]) -> _Kind:
    each = kind_of(inner[0])

    def accepts(x: Any) -> bool:
        if isinstance(x, Iterator):  # what can be gone through once only is not looked at
            return not issubclass(held, Sequence)
        is_list = isinstance(x, Sequence | Set | MappingView | Mapping | np.ndarray)
        return is_list and not isinstance(x, str | bytes) and all(map(each.accepts, x))

    return _Kind(accepts, "a list" if each is _ANYTHING else f"a list, each {each.words}", each)


def _mapping(inner: tuple[Any, ...]) -> _Kind:
    if not inner:
        return _Kind(lambda x: isinstance(x, Mapping), "a dict")
    key, value = map(kind_of, inner)
    return _Kind(
        lambda x: isinstance(x, Mapping)
        and all(map(key.accepts, x))
        and all(map(value.accepts, x.values())),
        f"a dict from {key.words} to {value.words}",
        by_key=(key, value),
    )


def _is_protocol(held: type) -> bool:
    return bool(getattr(held, "_is_protocol", False))


def _protocol(held: type, words: str) -> _Kind:
    """Of an object with the names that the protocol states: a built-in one or a user's own."""
    stated = [c for c in held.__mro__ if c.__dict__.get("_is_protocol", False)]
    names = sorted(
        {n for c in stated for n in (*c.__dict__, *c.__dict__.get("__annotations__", ()))
         if not n.startswith("_") or n == "__call__"}
    )  # fmt: skip
    if names == ["__call__"]:
        return _Kind(callable, words)
    if len(names) < 3:
        path = held.__module__.replace(".", "/")
        words += f", or an object of your own with {' and '.join(names)}, see {path}.py"

    def accepts(x: Any) -> bool:
        return not isinstance(x, type) and all(hasattr(type(x), n) or hasattr(x, n) for n in names)

    return _Kind(accepts, words)
