"""The C program of a library that runs on NVIDIA GPUs: a Library in, text out. It has the same
functions as a library for CPUs, the cubins as arrays of numbers, and tables of what is launched
(launcher.c.in); the driver is loaded when a model is opened.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import cycle

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.identity import digest
from tilesmith.base.template import filled, template
from tilesmith.codegen.artifact import Artifact, Launch, TensorMap
from tilesmith.codegen.c.nvrtc import parted
from tilesmith.runtime.devices.cuda_driver import MAP_DTYPES, STATIC_SHARED_NBYTES
from tilesmith.runtime.export.c_files import in_comment
from tilesmith.runtime.export.library import Address, Call, Library, symbol_of
from tilesmith.runtime.export.opening import TEXTS as OPENING_TEXTS
from tilesmith.runtime.export.weights import HEADER_NBYTES, MAGIC, VERSION
from tilesmith.runtime.export.weights import TEXTS as WEIGHTS_TEXTS
from tilesmith.runtime.export.weights import header as weights_header

_ALIGNMENT = 16  # what vector loads of generated code need
_MAX_RANK = 5  # of a tensor map
# Regions of memory in front of the inputs.
_ARENA, _WEIGHTS, _WORKSPACE, _ALIGNED, _FIRST_INPUT = range(5)
_WORDS_PER_LINE = 8


@dataclass
class _Tables:
    """What the program launches, as rows of C."""

    library: Library
    codes: dict[bytes, int] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    aligned_nbytes: int = 0
    most_maps: int = 0
    most_places: int = 0

    def region(self, a: Address) -> int:
        match a.base:
            case "arena":
                return _ARENA
            case "weights":
                return _WEIGHTS
            case "input":
                return _FIRST_INPUT + a.number
            case _:
                return _FIRST_INPUT + len(self.library.inputs) + a.number

    def place(self, a: Address) -> str:
        return f"{{{self.region(a)}, {a.offset}}}"

    def copy(self, to: str, source: str, nbytes: int) -> None:
        if nbytes:
            self.step(-1, Launch("", 0, 0, ()), 0, [to, source], nbytes)

    def step(
        self, function: int, x: Launch, maps: int, places: Sequence[str], nbytes: int = 0
    ) -> None:
        row = [function, x.grid, x.threads, x.shared_nbytes, int(x.overlaps)]
        row += [len(self.maps) - maps, maps, len(self.places), len(places), nbytes]
        self.places += places
        self.most_maps = max(self.most_maps, maps)
        self.most_places = max(self.most_places, len(places))
        self.steps.append(_row(row))

    def call(self, call: Call, artifact: Artifact) -> None:
        entry = artifact.entries[0]
        where = {}
        for p, address in zip(entry.parameters, call.addresses, strict=True):
            where[p.name] = self.place(address)
            if address.offset % _ALIGNMENT == 0:
                continue
            if p.output:
                raise BuildError(
                    f"{artifact.name} writes {p.name} at byte {address.offset} of another array, "
                    "which GPUs do not allow; compile without join_in_place"
                )
            own = f"{{{_ALIGNED}, {self.aligned_nbytes}}}"
            self.copy(own, where[p.name], p.nbytes)
            self.aligned_nbytes += -(-p.nbytes // 256) * 256
            where[p.name] = own
        where |= {name: f"{{{_WORKSPACE}, {offset}}}" for name, offset in entry.scratch}
        # Each launch has a module of its own, or all share one.
        modules = cycle([self._number(self.codes, code) for code in parted(artifact.code)])
        for x in entry.launches:
            module = next(modules)
            symbol = json.dumps(x.symbol)
            function = self._number(self.functions, _row([module, symbol, x.shared_nbytes]))
            self.maps += (_map(m, where[m.buffer]) for m in x.maps)
            overlaps = x.overlaps and artifact.target.gpu.overlaps
            launch = Launch(x.symbol, x.grid, x.threads, (), x.shared_nbytes, overlaps=overlaps)
            self.step(function, launch, len(x.maps), [where[name] for name in x.arguments])

    @staticmethod
    def _number(known: dict[str, int] | dict[bytes, int], key: str | bytes) -> int:
        return known.setdefault(key, len(known))  # type: ignore[arg-type]


def _tables(library: Library) -> _Tables:
    tables = _Tables(library)
    artifacts = {symbol_of(a): a for a in library.artifacts}
    for call in library.calls:
        tables.call(call, artifacts[call.symbol])
    for c in library.copies:
        assert isinstance(c.nbytes, int)  # without open sizes
        tables.copy(
            tables.place(Address("output", number=c.output)), tables.place(c.source), c.nbytes
        )
    return tables


def _map(m: TensorMap, place: str) -> str:
    rank = len(m.shape)
    if rank > _MAX_RANK:
        raise BuildError(f"a tensor map of {m.buffer} has rank {rank}; at most {_MAX_RANK}")
    numbers = [_row(v) for v in (m.shape, m.strides or (0,), m.box, m.steps)]
    return _row([place, MAP_DTYPES[m.dtype], rank, *numbers])


def _row(values: Iterable[object]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def launcher_source(library: Library) -> tuple[str, str]:
    """The text of the program, and the digest that its weights file has."""
    tables = _tables(library)
    arch = re.fullmatch(r"sm_([0-9]+)([0-9])(a?)", library.target.arch)
    if arch is None:
        raise BuildError(f"{library.target.arch} is no architecture of NVIDIA's GPUs")
    sizes = [library.arena_nbytes, library.weights.nbytes, library.workspace_nbytes]
    sizes += [tables.aligned_nbytes, *(p.nbytes for p in (*library.inputs, *library.outputs))]
    rows = [*tables.places, *tables.maps, *tables.functions, *tables.steps]
    codes = [hashlib.sha256(code).hexdigest() for code in tables.codes]
    own = digest(str(VERSION), library.name, library.target.arch, str(sizes), *codes, *rows)
    values: dict[str, object] = {
        "NAME": library.name,
        "UPPER": library.name.upper(),
        "TITLE": in_comment(library.title),
        "PROCESSOR": in_comment(f"{library.target.name} ({library.target.arch})"),
        "REGION_NBYTES": ", ".join(map(str, sizes)),
        "CODE": _codes(tables.codes),
        "PLACES": _rows(tables.places, "{0, 0}"),
        "MAPS": _rows(tables.maps, "{{0, 0}, 0, 0, {0}, {0}, {0}, {0}}"),
        "FUNCTIONS": _rows(tables.functions, '{0, "", 0}'),
        "STEPS": _rows(tables.steps, "{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}"),
        "NUM_MODULES": len(tables.codes),
        "NUM_FUNCTIONS": len(tables.functions),
        "NUM_STEPS": len(tables.steps),
        "MOST_MAPS": tables.most_maps,
        "MOST_PLACES": tables.most_places,
        "HEADER_NBYTES": HEADER_NBYTES,
        "WEIGHTS_NBYTES": library.weights.nbytes,
        "HEADER": ", ".join(map(str, weights_header(library.weights, own, (0, 0)))),
        "MAJOR": arch[1],
        "MINOR": arch[2],
        "EXACT": int(bool(arch[3])),
        "STATIC_SHARED_NBYTES": STATIC_SHARED_NBYTES,
    }
    said = {"NAME": library.name, "MAGIC": MAGIC.decode(), "VERSION": VERSION, "DIGEST": own,
            "FILE_NBYTES": HEADER_NBYTES + library.weights.nbytes}  # fmt: skip
    texts = {**WEIGHTS_TEXTS, **OPENING_TEXTS}
    values |= {f"TEXT_{key}": json.dumps(filled(text, said)) for key, text in texts.items()}
    return template(__file__, "launcher.c.in", values), own


def _rows(rows: Iterable[str], empty: str) -> str:
    """C has no empty arrays."""
    return "\n  " + ",\n  ".join([*rows] or [empty]) + "\n"


def _codes(codes: Iterable[bytes]) -> str:
    """Arrays of 64-bit numbers, which C compilers read much faster than bytes."""
    texts, names = [], []
    for k, code in enumerate(codes):
        words = np.frombuffer(code + bytes(-len(code) % 8), "<u8").tolist()
        lines = [
            "  " + " ".join(f"{w:#x}u," for w in words[at : at + _WORDS_PER_LINE])
            for at in range(0, len(words), _WORDS_PER_LINE)
        ]
        body = "\n".join(lines)
        texts.append(f"static const uint64_t code{k}[] = {{\n{body}\n}};")
        names.append(f"code{k}")
    listed = ", ".join(names) or "NULL"
    return "\n".join([*texts, f"static const void *const codes[] = {{{listed}}};"])
