"""Protobuf's wire format, as far as it takes to find the large data of a model: bytes of a
ModelProto in, the same message without that data out, and where the data lies.

Only messages that are large themselves are looked into, so this takes no time where there is
nothing to cut. What is left is read by the onnx package.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.dataclass import dataclass

CUT_BYTES = 4096  # data of this size is cut out; smaller data is cheaper to copy
_MAX_DEPTH = 100  # of messages in messages: protobuf's own limit

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# By the kind of a message: its fields that lead to tensors, by their numbers. Functions are left
# whole: they are small.
_INSIDE = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}
_DATA_TYPE, _RAW_DATA = 2, 9
# Packed fields that hold what raw_data would hold, by field: the data type they are for.
_PACKED = {4: 1, 10: 11}  # float_data of FLOAT, double_data of DOUBLE


class WireError(ValueError):
    """Bytes that are no protobuf message."""


@dataclass(frozen=True, slots=True)
class Field:
    number: int
    wire: int
    at: int  # of the tag
    start: int  # of the payload
    stop: int


@dataclass(frozen=True, slots=True)
class Slim:
    """`message` has a token in place of each cut: `mark` followed by the number of the cut."""

    message: bytes
    mark: bytes
    cuts: tuple[tuple[int, int], ...]  # first byte and the one after the last, in the file


def slim(data: memoryview, mark: bytes) -> Slim:
    """`mark` must be something that the file cannot know, such as random bytes."""
    cutter = _Cutter(data, mark)
    parts, _ = cutter.message("model", 0, len(data), 0)
    return Slim(b"".join(parts), mark, tuple(cutter.cuts))


def fields(data: memoryview, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message that lies there."""
    at = start
    while at < stop:
        tag, payload = _varint(data, at, stop)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"byte {at} does not begin a field")
        if wire == _VARINT:
            _, end = _varint(data, payload, stop)
        elif wire == _FIXED64:
            end = payload + 8
        elif wire == _FIXED32:
            end = payload + 4
        elif wire == _BYTES:
            length, payload = _varint(data, payload, stop)
            end = payload + length
        else:
            raise WireError(f"byte {at} begins a field of the unknown kind {wire}")
        if end > stop:
            raise WireError(f"the field at byte {at} goes on to byte {end}, behind the end, {stop}")
        yield Field(number, wire, at, payload, end)
        at = end


def _varint(data: memoryview, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError(f"the number at byte {at} has no end")


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Cutter:
    def __init__(self, data: memoryview, mark: bytes) -> None:
        self.data, self.mark = data, mark
        self.cuts: list[tuple[int, int]] = []

    def message(
        self, kind: str, start: int, stop: int, depth: int
    ) -> tuple[list[bytes | memoryview], int]:
        """The parts of the message without large data, and how long they are together."""
        if depth > _MAX_DEPTH:
            raise WireError(f"messages are nested more than {_MAX_DEPTH} deep")
        parts: list[bytes | memoryview] = []
        kept = start  # what lies before it is in `parts`
        inside = _INSIDE[kind]
        for f in fields(self.data, start, stop):
            child = inside.get(f.number)
            if child is None or f.wire != _BYTES or f.stop - f.start < CUT_BYTES:
                continue
            if child == "tensor":
                cut = self.tensor(f)
            else:
                cut = self.message(child, f.start, f.stop, depth + 1)
            parts += (
                self.data[kept : f.at], _encoded(f.number << 3 | _BYTES), _encoded(cut[1]), *cut[0],
            )  # fmt: skip
            kept = f.stop
        parts.append(self.data[kept:stop])
        return parts, sum(map(len, parts))

    def tensor(self, tensor: Field) -> tuple[list[bytes | memoryview], int]:
        inner = list(fields(self.data, tensor.start, tensor.stop))
        large = self._large(inner)
        if large is None:
            return [self.data[tensor.start : tensor.stop]], tensor.stop - tensor.start
        token = self.mark + len(self.cuts).to_bytes(8, "little")
        self.cuts.append((large.start, large.stop))
        parts: list[bytes | memoryview] = [
            self.data[tensor.start : large.at], _encoded(_RAW_DATA << 3 | _BYTES),
            _encoded(len(token)), token, self.data[large.stop : tensor.stop],
        ]  # fmt: skip
        return parts, sum(map(len, parts))

    def _large(self, inner: list[Field]) -> Field | None:
        """The field with all the data of a tensor, if it is large. A repeated field has its data
        in pieces; that is left to the onnx package.
        """
        raw = [f for f in inner if f.number == _RAW_DATA]
        packed = [f for f in inner if f.number in _PACKED]
        if len(raw) + len(packed) != 1:
            return None
        (f,) = (*raw, *packed)
        if f.wire != _BYTES or f.stop - f.start < CUT_BYTES:
            return None
        if packed:
            types = [t for t in inner if t.number == _DATA_TYPE and t.wire == _VARINT]
            if (
                not types
                or _varint(self.data, types[-1].start, types[-1].stop)[0] != (_PACKED[f.number])
            ):
                return None
        return f
