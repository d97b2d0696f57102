"""`Step`: one primitive with its arguments, as a frozen record. It rewrites a Function and converts
to and from JSON by its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, ClassVar, Self

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TraceError
from tilesmith.ir.function import Function
from tilesmith.ir.notes import freeze


@dataclass(frozen=True, slots=True)
class Step:
    """Subclasses define `name` and `apply`. Fields hold numbers, text, None, or tuples of these."""

    name: ClassVar[str]

    def apply(self, func: Function) -> Function:
        """Checks first, with an error that names the loop or block; then rewrites."""
        raise NotImplementedError

    def decide(self, sizes: Mapping[str, int]) -> Self:
        """The same step with numbers in place of size variables, by name; others stay open."""

        def put(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(put, value))
            return sizes.get(value, value) if isinstance(value, str) else value

        old = self.values_by_name
        new = {name: put(value) for name, value in old.items()}
        return self.with_values(new) if new != old else self

    def to_json(self) -> list[Any]:
        return [self.name, self.values_by_name]

    @property
    def values_by_name(self) -> dict[str, Any]:
        """The values of the fields by name."""
        kind: Any = type(self)
        return {name: getattr(self, name) for name in _names(kind)}

    def with_values(self, values: dict[str, Any]) -> Self:
        """The same step with other `values_by_name`."""
        return replace(self, **values)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Step:
        kind: Any = cls
        names = _names(kind)
        for name in values:
            if name not in names:
                raise TraceError(f"{cls.name} has no field {name!r}; it has {sorted(names)}")
        try:
            return cls(**{k: freeze(v) if isinstance(v, list) else v for k, v in values.items()})
        except TypeError as e:
            raise TraceError(f"{cls.name}: {e}") from None

    def __str__(self) -> str:
        parts = [f"{name}={_text(value)}" for name, value in self.values_by_name.items()]
        return f"{self.name}({', '.join(parts)})"


@cache
def _names(kind: type[Step]) -> tuple[str, ...]:
    """The field names of a step, cached: `dataclasses.fields` is slower than all else done here."""
    return tuple(f.name for f in fields(kind))


def _text(value: Any) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, tuple) else repr(value)
