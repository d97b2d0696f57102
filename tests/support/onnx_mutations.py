"""Damaged ONNX models: a number in, always the same damaged model out. Bytes are flipped, cut and
repeated; fields of messages are dropped, doubled, swapped and given other values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import onnx

from tests.support.onnx_seeds import Seed, seeds

_INTS = (
    0, 1, -1, 2, 3, 5, 7, 8, 16, 31, 255, 256, 1000, 2**16, 10**6, 2**31 - 1, 2**31, -(2**31),
    10**9, 10**12, 10**15, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"))
_WORDS = (
    "", "x", "y", "nobody", "Add", "Relu", "MatMul", "Conv", "Reshape", "Gather", "Loop", "If",
    "Softmax", "Transpose", "Concat", "Slice", "Expand", "NonZero", "axis", "axes", "perm", "pads",
    "SAME_LOWER", "VALID", "ai.onnx", "own", "../w.bin", "/dev/zero", "w.bin", "cubic", "linear",
    "ij->k", "a" * 300, "\0", "é",
)  # fmt: skip


@cache
def _seeds() -> tuple[Seed, ...]:
    return seeds()


def mutation(number: int) -> tuple[str, bytes, dict[str, bytes]]:
    """What was done, the damaged model and the files beside it. Below 0 nothing is done."""
    rng = random.Random(number)
    k = number % len(_seeds())
    seed = _seeds()[k]
    files = dict(seed.files)
    if number < 0:
        return f"seed {k}, whole", seed.model.SerializeToString(), files
    if files and rng.random() < 0.2:
        name = next(iter(files))
        files[name] = files[name][: rng.randrange(len(files[name]))]
        return f"seed {k}, file cut", seed.model.SerializeToString(), files
    if rng.random() < 0.2:
        what, data = _bytes_changed(rng, seed.model.SerializeToString())
        return f"seed {k}, {what}", data, files
    model = onnx.ModelProto()
    model.CopyFrom(seed.model)
    done = [_field_changed(rng, model) for _ in range(rng.choice((1, 1, 2, 3)))]
    return f"seed {k}, {'; '.join(done)}", model.SerializeToString(), files


def _bytes_changed(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    at, n = rng.randrange(len(data)), rng.choice((1, 2, 8, 64))
    match rng.randrange(5):
        case 0:
            return f"cut at {at}", data[:at]
        case 1:
            return f"{n} bytes at {at} removed", data[:at] + data[at + n :]
        case 2:
            return f"{n} bytes at {at} doubled", data[: at + n] + data[at:]
        case 3:
            return f"{n} bytes at {at} put in", data[:at] + rng.randbytes(n) + data[at:]
        case _:
            out = bytearray(data)
            places = [rng.randrange(len(data)) for _ in range(rng.choice((1, 1, 2, 4, 16)))]
            for p in places:
                out[p] ^= 1 << rng.randrange(8)
            return f"bits at {places} flipped", bytes(out)


def _messages(message: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, message
    for f, value in message.ListFields():
        if f.type != f.TYPE_MESSAGE:
            continue
        if f.is_repeated:
            for j, one in enumerate(value):
                yield from _messages(one, f"{path}.{f.name}[{j}]")
        else:
            yield from _messages(value, f"{path}.{f.name}")


def _field_changed(rng: random.Random, model: onnx.ModelProto) -> str:
    found = [(p, m) for p, m in _messages(model) if m.ListFields()]
    if not found:
        return "nothing"
    if rng.random() < 0.6:  # what decides the meaning, rather than whether names fit together
        meaning = onnx.AttributeProto, onnx.TensorProto, onnx.TensorShapeProto.Dimension
        found = [(p, m) for p, m in found if isinstance(m, meaning)] or found
        path, message = rng.choice(found)
        named = [(f, v) for f, v in message.ListFields() if f.name not in ("name", "type")]
        f, value = rng.choice(named or message.ListFields())
        return _changed(rng, path, message, f, value)
    path, message = rng.choice(found)
    f, value = rng.choice(message.ListFields())
    return _changed(rng, path, message, f, value)


def _changed(rng: random.Random, path: str, message: Any, f: Any, value: Any) -> str:
    where = f"{path}.{f.name}"
    if f.is_repeated:
        return f"{where} {_repeated_changed(rng, f, value)}"
    if f.type == f.TYPE_MESSAGE or rng.random() < 0.2:
        message.ClearField(f.name)
        return f"{where} dropped"
    new = _other(rng, f, value)
    try:
        setattr(message, f.name, new)
    except (ValueError, TypeError):  # out of the field's range
        message.ClearField(f.name)
        return f"{where} dropped"
    return f"{where} = {new!r}"


def _repeated_changed(rng: random.Random, f: Any, value: Any) -> str:
    j = rng.randrange(len(value))
    kind = rng.randrange(4)
    if kind == 0:
        del value[j]
        return f"[{j}] dropped"
    if kind == 1:
        value.extend([value[j]] * rng.choice((1, 1, 3, 40)))
        return f"[{j}] doubled"
    other = rng.randrange(len(value))
    if f.type == f.TYPE_MESSAGE:
        kept = type(value[j])()
        kept.CopyFrom(value[j])
        value[j].CopyFrom(value[other])
        value[other].CopyFrom(kept)
        return f"[{j}] and [{other}] swapped"
    if kind == 2:
        value[j], value[other] = value[other], value[j]
        return f"[{j}] and [{other}] swapped"
    new = _other(rng, f, value[j])
    try:
        value[j] = new
    except (ValueError, TypeError):
        del value[:]
        return "dropped"
    return f"[{j}] = {new!r}"


def _other(rng: random.Random, f: Any, value: Any) -> Any:
    if f.type == f.TYPE_STRING:
        return rng.choice(_WORDS)
    if f.type == f.TYPE_BYTES:
        return _other_bytes(rng, value)
    if f.type in (f.TYPE_FLOAT, f.TYPE_DOUBLE):
        return rng.choice(_FLOATS)
    if f.type == f.TYPE_ENUM:
        return rng.choice([v.number for v in f.enum_type.values])
    if f.name in ("data_type", "elem_type", "type"):
        return rng.randrange(28)
    return rng.choice((*_INTS, value + 1, value - 1, -value, 2 * value))


def _other_bytes(rng: random.Random, value: bytes) -> bytes:
    if rng.random() < 0.3:  # a word, such as an attribute of text
        return rng.choice(_WORDS).encode()
    if len(value) and len(value) % 8 == 0 and rng.random() < 0.5:  # as sizes and indices are held
        at = 8 * rng.randrange(len(value) // 8)
        number = rng.choice(_INTS).to_bytes(8, "little", signed=True)
        return value[:at] + number + value[at + 8 :]
    match rng.randrange(3):
        case 0:
            return value[: rng.randrange(len(value) + 1)]
        case 1:
            return value + rng.randbytes(rng.choice((1, 4, 8)))
        case _:
            return rng.randbytes(len(value))
