"""ModelFile: a path, bytes or a ModelProto in; the model's messages without large data, and each
tensor as an array, out. Files are mapped, and arrays are views of the mapping.

A mapping shows the file as it is: whoever changes a model's file must load it again.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.tensors import ODD, array_of, nbytes_of, tensor_array
from tilesmith.frontends.onnx.wire import Slim, WireError, slim
from tilesmith.graph.graph import Array

_MAX_MAPPINGS = 128  # of files beside the model

# The importers read these by their attributes, never by the message.
_NOT_ON_HOST = {"Constant", "If", "Loop", "Scan"}


class ModelFile:
    """`proto` has tokens in place of large data; `array` and `whole` put the data back."""

    def __init__(self, source: Any) -> None:
        self.folder: Path | None = None
        self._data = memoryview(b"")
        self._slim = Slim(b"", b"", ())
        self._external: dict[Path, memoryview] = {}
        if isinstance(source, onnx.ModelProto):
            self.proto = source
            return
        if isinstance(source, bytes | bytearray | memoryview):
            self._data = memoryview(source).cast("B").toreadonly()
        elif isinstance(source, str | os.PathLike):
            path = Path(os.fspath(source))
            self.folder = path.absolute().parent
            self._data = _mapped(path, "the model")
        else:
            raise GraphError(
                f"a model is a path, bytes or an onnx.ModelProto; this is a {type(source).__name__}"
            )
        self.proto = self._parsed()

    def _parsed(self) -> onnx.ModelProto:
        if not len(self._data):
            raise GraphError("it is empty")
        try:
            self._slim = slim(self._data, secrets.token_bytes(16))
            proto: onnx.ModelProto = onnx.ModelProto.FromString(self._slim.message)
        except (WireError, DecodeError) as error:
            raise GraphError(f"it is damaged, or no ONNX model: {error}") from None
        return proto

    def array(self, tensor: onnx.TensorProto) -> Array:
        """What a tensor of the model holds."""
        data = self._data_of(tensor)
        if data is None:
            return tensor_array(tensor)
        if tensor.data_type in ODD:
            return tensor_array(_filled(tensor, data))
        return array_of(tensor, data)

    def whole(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node as the file has it, for operators that run on the host."""
        if node.op_type in _NOT_ON_HOST and node.domain in ("", "ai.onnx"):
            return node
        out = node
        for k, a in enumerate(node.attribute):
            for j, t in enumerate((a.t, *a.tensors)):
                if (data := self._data_of(t)) is None:
                    continue
                if out is node:
                    out = onnx.NodeProto()
                    out.CopyFrom(node)
                b = out.attribute[k]
                (b.t if j == 0 else b.tensors[j - 1]).CopyFrom(_filled(t, data))
        return out

    def _data_of(self, tensor: onnx.TensorProto) -> memoryview | None:
        """The bytes of a tensor whose message does not have them: they lie in another file, or
        the message has a token in their place.
        """
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return self._external_data(tensor)
        mark = self._slim.mark
        if not mark or not tensor.HasField("raw_data"):
            return None
        held = tensor.raw_data
        if len(held) != len(mark) + 8 or not held.startswith(mark):
            return None
        start, stop = self._slim.cuts[int.from_bytes(held[len(mark) :], "little")]
        return self._data[start:stop]

    def _external_data(self, tensor: onnx.TensorProto) -> memoryview:
        entries = {e.key: e.value for e in tensor.external_data}
        what = f"the data of the tensor {tensor.name!r}"
        need = nbytes_of(tensor)
        location = entries.get("location", "")
        offset = _count(entries.get("offset", "0"), f"the offset of {what}")
        length = _count(entries.get("length", str(need)), f"the length of {what}")
        if length != need:
            raise GraphError(f"{what} has a length of {length}; its shape needs {need} bytes")
        data = self._beside(location, what)
        if offset + length > len(data):
            raise GraphError(
                f"{what} is at bytes {offset} to {offset + length} of {location!r}, which has "
                f"{len(data)}"
            )
        return data[offset : offset + length]

    def _beside(self, location: str, what: str) -> memoryview:
        """A file in the model's folder, and nowhere else."""
        if self.folder is None:
            raise GraphError(f"{what} lies in the file {location!r}; load the model by its path")
        parts = PurePosixPath(location).parts if isinstance(location, str) else ()
        if not parts or "\0" in location or location.startswith("/") or ".." in parts:
            raise GraphError(
                f"{what} is said to lie in {location!r}; it must be a file in the model's folder"
            )
        try:
            folder = self.folder.resolve()
            path = folder.joinpath(*parts).resolve()
        except (OSError, RuntimeError) as error:  # a circle of links
            raise GraphError(f"{what}: {location!r} cannot be read: {error}") from None
        if not path.is_relative_to(folder) or path == folder:
            raise GraphError(
                f"{what} is said to lie in {location!r}, which leads out of the model's folder; "
                "put the file itself there"
            )
        if path not in self._external:
            # A mapping keeps its file open, and there are models of thousands of files.
            keep_open = len(self._external) < _MAX_MAPPINGS
            self._external[path] = _mapped(path, what, keep_open)
        return self._external[path]


def _mapped(path: Path, what: str, keep_open: bool = True) -> memoryview:
    """The bytes of a regular file: mapped, or read where the file is not to be kept open."""
    try:
        # Not blocking: to open a pipe would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise GraphError(f"{what} cannot be read from {str(path)!r}: {reason}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise GraphError(f"{what} cannot be read from {str(path)!r}: it is not a file")
        if info.st_size == 0:
            return memoryview(b"")
        if keep_open:
            return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
        with os.fdopen(os.dup(fd), "rb") as f:
            return memoryview(f.read())
    except OSError as error:
        raise GraphError(f"{what} cannot be read from {str(path)!r}: {error.strerror}") from None
    finally:
        os.close(fd)


def _count(text: str, what: str) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20):
        raise GraphError(f"{what} is {text!r}; it must be a number of bytes")
    return int(text)


def _filled(tensor: onnx.TensorProto, data: memoryview) -> onnx.TensorProto:
    """The tensor with its data in the message."""
    out = onnx.TensorProto()
    out.CopyFrom(tensor)
    out.ClearField("data_location")
    out.ClearField("external_data")
    out.raw_data = bytes(data)
    return out
