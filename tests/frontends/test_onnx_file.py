"""Reading model files: what is mapped and what is copied, data beside the file, and every way in
which a file can be wrong.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.file import ModelFile
from tilesmith.frontends.onnx.load import load
from tilesmith.frontends.onnx.wire import CUT_BYTES
from tilesmith.graph.oracle import evaluate_program

RNG = np.random.default_rng(0)
BIG = RNG.standard_normal((64, 64)).astype(np.float32)
SMALL = np.arange(64, dtype=np.float32)


def add_model(
    w: TensorProto | np.ndarray[Any, Any], shape: list[Any] | None = None, **changes: Any
) -> onnx.ModelProto:
    """x + w."""
    t = w if isinstance(w, TensorProto) else numpy_helper.from_array(w, "w")
    dims = list(t.dims) if shape is None else shape
    info = helper.make_tensor_value_info("x", t.data_type, dims)
    out = helper.make_tensor_value_info("y", t.data_type, None)
    nodes = changes.pop("nodes", [helper.make_node("Add", ["x", "w"], ["y"], name="sum")])
    graph = helper.make_graph(nodes, "g", [info], [out], [t])
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", changes.pop("opset", 17))], **changes
    )
    made.ir_version = changes.get("ir_version", 8)
    return made


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def array_of_first(source: Any) -> np.ndarray[Any, Any]:
    file = ModelFile(source)
    return file.array(file.proto.graph.initializer[0])


def is_mapped(a: np.ndarray[Any, Any]) -> bool:
    base: Any = a
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview)


def aligned_file(model: onnx.ModelProto, path: Path, data: bytes) -> Path:
    """Saved so that `data` lies at a multiple of 8: a longer producer's name moves it."""
    for n in range(1, 9):
        model.producer_name = "p" * n
        raw = model.SerializeToString()
        if raw.index(data) % 8 == 0:
            path.write_bytes(raw)
            return path
    raise AssertionError


class TestMapping:
    @pytest.mark.parametrize(
        "dtype",
        ["float32", "float16", "float64", "int8", "int64", "uint16", "bool", "bfloat16"],
    )
    def test_large_weights_are_views_of_the_file(self, tmp_path: Path, dtype: str) -> None:
        import ml_dtypes

        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        w = (RNG.standard_normal((80, 80)) * 8).astype(kind)
        model = add_model(w)
        path = aligned_file(model, tmp_path / "m.onnx", w.tobytes())
        a = array_of_first(path)
        assert a.dtype == kind
        assert a.tobytes() == w.tobytes()
        assert is_mapped(a)
        assert not a.flags.writeable

    def test_the_parsed_message_is_small(self, tmp_path: Path) -> None:
        path = saved(add_model(np.zeros((512, 512), np.float32)), tmp_path / "m.onnx")
        assert ModelFile(path).proto.ByteSize() < CUT_BYTES

    def test_data_at_an_odd_address_is_copied(self, tmp_path: Path) -> None:
        model = add_model(BIG)
        at = set()
        for n in range(1, 5):
            model.producer_name = "p" * n
            a = array_of_first(saved(model, tmp_path / f"{n}.onnx"))
            assert a.flags.aligned
            np.testing.assert_array_equal(a, BIG)
            at.add(is_mapped(a))
        assert at == {True, False}

    def test_numbers_in_packed_fields(self, tmp_path: Path) -> None:
        for dtype, field in (
            (np.float32, "float_data"), (np.float64, "double_data"), (np.int32, "int32_data"),
            (np.int64, "int64_data"), (np.uint64, "uint64_data"), (np.uint8, "int32_data"),
            (np.int8, "int32_data"), (np.bool_, "int32_data"),
        ):  # fmt: skip
            w = RNG.integers(0, 2 if dtype is np.bool_ else 100, 3000).astype(dtype)
            code = helper.np_dtype_to_tensor_dtype(w.dtype)
            t = TensorProto(name="w", data_type=code, dims=[3000])
            getattr(t, field).extend(map(int, w) if w.dtype.kind == "b" else w.tolist())
            np.testing.assert_array_equal(array_of_first(saved(add_model(t), tmp_path / "m")), w)

    def test_halves_in_int32_data_are_bits(self) -> None:
        w = np.array([1.5, -2, np.inf], np.float16)
        t = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=[3])
        t.int32_data.extend(w.view(np.uint16).tolist())
        np.testing.assert_array_equal(array_of_first(add_model(t)), w)

    def test_bools_are_0_or_1(self) -> None:
        t = TensorProto(name="w", data_type=TensorProto.BOOL, dims=[3], raw_data=b"\0\2\xff")
        assert array_of_first(add_model(t)).tobytes() == b"\0\1\1"

    def test_four_bit_integers(self, tmp_path: Path) -> None:
        t = helper.make_tensor("w", TensorProto.INT4, [20000], [k % 16 - 8 for k in range(20000)])
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t), "w"))
        got = array_of_first(saved(add_model(t), tmp_path / "m"))
        assert got.astype(np.int32).tolist() == [k % 16 - 8 for k in range(20000)]

    def test_bytes_and_messages(self) -> None:
        model = add_model(BIG)
        feeds = {"x": BIG}
        for source in (model, model.SerializeToString(), bytearray(model.SerializeToString())):
            got = evaluate_program(load(source), feeds)["y"]
            np.testing.assert_array_equal(got, BIG + BIG)

    def test_constants_and_bodies_are_cut_as_well(self, tmp_path: Path) -> None:
        value = numpy_helper.from_array(BIG)
        body = helper.make_graph(
            [helper.make_node("Add", ["x", "v"], ["z"])], "b", [],
            [helper.make_tensor_value_info("z", 1, None)], [numpy_helper.from_array(2 * BIG, "v")],
        )  # fmt: skip
        other = helper.make_graph(
            [helper.make_node("Constant", [], ["z"], value=value)], "b", [],
            [helper.make_tensor_value_info("z", 1, None)],
        )  # fmt: skip
        nodes = [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.bool_(True))),
            helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other),
        ]
        path = saved(add_model(BIG, nodes=nodes), tmp_path / "m.onnx")
        assert ModelFile(path).proto.ByteSize() < CUT_BYTES
        got = evaluate_program(load(path), {"x": BIG})["y"]
        np.testing.assert_array_equal(got, BIG * 3)

    def test_nodes_for_the_host_get_their_data_back(self, tmp_path: Path) -> None:
        node = helper.make_node("TreeLike", ["x"], ["y"], table=numpy_helper.from_array(BIG, "t"))
        node.domain = "other"
        model = add_model(BIG, nodes=[node])
        file = ModelFile(saved(model, tmp_path / "m.onnx"))
        assert file.proto.graph.node[0] != node
        assert file.whole(file.proto.graph.node[0]) == node

    def test_data_of_the_length_of_a_token_is_data(self) -> None:
        t = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[24], raw_data=bytes(24))
        assert array_of_first(add_model(t).SerializeToString()).tobytes() == bytes(24)


class TestExternalData:
    def model(self, location: str = "w.bin", **entries: Any) -> onnx.ModelProto:
        t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64])
        t.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            t.external_data.add(key=key, value=str(value))
        return add_model(t)

    def write(self, folder: Path, model: onnx.ModelProto, data: bytes = SMALL.tobytes()) -> Path:
        (folder / "w.bin").write_bytes(data)
        return saved(model, folder / "m.onnx")

    @pytest.mark.parametrize("entries", [{}, {"offset": 0, "length": 256}])
    def test_is_mapped(self, tmp_path: Path, entries: dict[str, int]) -> None:
        a = array_of_first(self.write(tmp_path, self.model(**entries)))
        np.testing.assert_array_equal(a, SMALL)
        assert is_mapped(a)

    def test_offset(self, tmp_path: Path) -> None:
        data = b"123" + SMALL.tobytes() + b"456"
        a = array_of_first(self.write(tmp_path, self.model(offset=3, length=256), data))
        np.testing.assert_array_equal(a, SMALL)

    def test_behind_two_gigabytes(self, tmp_path: Path) -> None:
        at = (5 << 30) + 64
        path = self.write(tmp_path, self.model(offset=at, length=256))
        with open(tmp_path / "w.bin", "r+b") as f:  # a hole, which takes no room on the disk
            f.seek(at)
            f.write(SMALL.tobytes())
        np.testing.assert_array_equal(array_of_first(path), SMALL)

    def test_in_a_folder_of_the_folder_and_by_a_link_within(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "w.bin").write_bytes(SMALL.tobytes())
        (tmp_path / "link.bin").symlink_to(tmp_path / "data" / "w.bin")
        for location in ("data/w.bin", "./data/w.bin", "link.bin"):
            path = saved(self.model(location), tmp_path / "m.onnx")
            np.testing.assert_array_equal(array_of_first(path), SMALL)

    def test_more_files_than_may_be_open(self, tmp_path: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        tensors = []
        for k in range(300):
            (tmp_path / f"{k}.bin").write_bytes(SMALL.tobytes())
            t = self.model(f"{k}.bin").graph.initializer[0]
            t.name = f"w{k}"
            tensors.append(t)
        model = self.model()
        del model.graph.initializer[:]
        model.graph.initializer.extend(tensors)
        del model.graph.node[:]
        model.graph.node.append(helper.make_node("Add", ["x", "w299"], ["y"]))
        path = saved(model, tmp_path / "m.onnx")
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        try:
            got = evaluate_program(load(path), {"x": SMALL})["y"]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        np.testing.assert_array_equal(got, SMALL * 2)

    @pytest.mark.parametrize(
        "location", ["/etc/hostname", "../w.bin", "a/../../w.bin", "", ".", "a\0b", "..", "/"]
    )
    def test_never_outside_of_the_folder(self, tmp_path: Path, location: str) -> None:
        (tmp_path / "inner").mkdir()
        (tmp_path / "w.bin").write_bytes(SMALL.tobytes())
        path = saved(self.model(location), tmp_path / "inner" / "m.onnx")
        with pytest.raises(GraphError, match=r"'w'.*folder"):
            load(path)

    def test_no_link_that_leads_outside(self, tmp_path: Path) -> None:
        (tmp_path / "inner").mkdir()
        (tmp_path / "secret").write_bytes(SMALL.tobytes())
        (tmp_path / "inner" / "w.bin").symlink_to("../secret")
        (tmp_path / "inner" / "sub").symlink_to("..")
        for location in ("w.bin", "sub/secret"):
            path = saved(self.model(location), tmp_path / "inner" / "m.onnx")
            with pytest.raises(GraphError, match="leads out of the model's folder"):
                load(path)

    def test_no_circle_of_links_pipe_folder_or_missing_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "folder").mkdir()
        for location in ("a", "pipe", "folder", "absent", "x" * 5000):
            path = saved(self.model(location), tmp_path / "m.onnx")
            with pytest.raises(GraphError, match="'w'"):
                load(path)

    @pytest.mark.parametrize(
        "entries",
        [{"offset": 4}, {"length": 255}, {"length": 10**12}, {"offset": -4}, {"offset": "1e3"},
         {"length": "NaN"}, {"offset": 10**18}, {"offset": "9" * 400}, {"length": ""}],
    )  # fmt: skip
    def test_places_are_checked(self, tmp_path: Path, entries: dict[str, Any]) -> None:
        path = self.write(tmp_path, self.model(**entries))
        with pytest.raises(GraphError, match=r"m\.onnx: .*'w'"):
            load(path)

    def test_a_message_has_no_folder(self) -> None:
        for source in (self.model(), self.model().SerializeToString()):
            with pytest.raises(GraphError, match="load the model by its path"):
                load(source)


def piece(number: int, data: bytes) -> bytes:
    """A field of bytes in protobuf's wire format."""
    length, n = bytearray(), len(data)
    while n >= 0x80:
        length.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([number << 3 | 2, *length, n]) + data


def damaged(kind: str) -> bytes | onnx.ModelProto:
    model = add_model(BIG)
    graph = model.graph
    w = graph.initializer[0]
    match kind:
        case "truncated":
            return model.SerializeToString()[:-100]
        case "truncated small":
            return add_model(SMALL).SerializeToString()[:-3]
        case "not protobuf":
            return b"#!/bin/sh\nrm -rf /\n" * 100
        case "zeros":
            return bytes(10000)
        case "no graph":
            model.ClearField("graph")
        case "no opset":
            del model.opset_import[:]
        case "ir version":
            model.ir_version = 1000
        case "new opset":
            model.opset_import[0].version = 1000
        case "old opset":
            model.opset_import[0].version = 5
        case "two opsets":
            model.opset_import.add(domain="ai.onnx", version=8)
        case "cycle":
            graph.node[0].input[0] = "z"
            graph.node.append(helper.make_node("Relu", ["y"], ["z"], name="back"))
        case "own result":
            graph.node[0].input[0] = "y"
        case "made twice":
            graph.node.append(helper.make_node("Relu", ["x"], ["y"], name="again"))
        case "makes an input":
            graph.node.append(helper.make_node("Relu", ["w"], ["x"], name="again"))
        case "unmade input":
            graph.node[0].input[0] = "nobody"
        case "unmade output":
            graph.output[0].name = "nobody"
        case "no data":
            w.ClearField("raw_data")
        case "short data":
            w.raw_data = w.raw_data[:-4]
        case "huge shape":
            w.dims[:] = [10**5, 10**5, 10**5]
        case "negative shape":
            w.dims[:] = [-64, -64]
        case "overflow":
            w.dims[:] = [2**62, 4, 64, 64]
        case "high rank":
            w.dims[:] = [64, 64, *[1] * 100]
        case "unknown type":
            w.data_type = 12345
        case "two inputs":
            graph.input.append(graph.input[0])
        case "two initializers":
            graph.initializer.append(w)
        case "empty op":
            graph.node[0].op_type = ""
        case "unknown op":
            graph.node[0].op_type = "Nonsense"
        case "unknown domain":
            graph.node[0].domain = "somewhere"
        case "huge input":
            for d in graph.input[0].type.tensor_type.shape.dim:
                d.dim_value = 10**9
        case "sequence input":
            graph.input[0].type.Clear()
            graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
        case "untyped input":
            graph.input[0].ClearField("type")
        case "not text":
            return model.SerializeToString().replace(b"sum", b"s\xffm").replace(b"Add", b"A\xfed")
        case "nested":
            inner = b""
            for _ in range(10_000):
                attribute = piece(1, b"then_branch") + piece(6, inner) + b"\xa0\x01\x05"
                inner = piece(1, piece(4, b"If") + piece(5, attribute))
            return piece(7, inner)
        case _:
            raise AssertionError(kind)
    return model


DAMAGE = {
    "truncated": "damaged", "truncated small": "damaged", "not protobuf": "damaged",
    "zeros": "damaged", "no graph": "no graph", "no opset": "which opset",
    "ir version": f"up to {onnx.IR_VERSION}", "two opsets": "two versions",
    "new opset": f"1000.*to {onnx.defs.onnx_opset_version()}", "old opset": "5.*opsets 6 to",
    "cycle": "own result", "own result": "Add 'sum' reads 'y'.*own result",
    "made twice": "Relu 'again' makes the value 'y', which Add 'sum' makes already",
    "makes an input": "Relu 'again' makes the value 'x', which an input",
    "unmade input": "Add 'sum' reads 'nobody', which nothing makes",
    "unmade output": "the output 'nobody'", "no data": "'w'.*no data",
    "short data": "'w'.*16384 bytes.*16380", "huge shape": "'w'.*bytes",
    "negative shape": "'w'.*impossible", "overflow": "'w'.*impossible", "high rank": "'w'.*32",
    "unknown type": "'w'.*12345", "two inputs": "'x'", "two initializers": "'w'",
    "empty op": "'sum'.*which operator", "unknown op": "Nonsense 'sum'",
    "unknown domain": "Add 'sum'.*'somewhere'",
    "huge input": r"x: float32\[1000000000", "sequence input": "'x'.*sequence",
    "untyped input": "'x'", "not text": "A.d 's.m'", "nested": "nested",
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_wrong_is_named(kind: str, tmp_path: Path) -> None:
    bad = damaged(kind)
    with pytest.raises(GraphError, match=f"^the model: .*{DAMAGE[kind]}"):
        load(bad)
    path = tmp_path / "bad.onnx"
    path.write_bytes(bad if isinstance(bad, bytes) else bad.SerializeToString())
    with pytest.raises(GraphError, match=r"bad\.onnx: "):
        load(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.onnx").touch()
    for path in (
        tmp_path,
        tmp_path / "pipe",
        tmp_path / "absent",
        tmp_path / "empty.onnx",
        "/dev/zero",
    ):
        with pytest.raises(GraphError, match=str(path)):
            load(path)
    with pytest.raises(GraphError, match="int"):
        load(3)


def test_nodes_may_be_in_any_order() -> None:
    model = add_model(SMALL)
    model.graph.node.insert(0, helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    got = evaluate_program(load(model), {"x": SMALL})["z"]
    np.testing.assert_array_equal(got, SMALL * 2)


class TestDims:
    def test_put_in(self) -> None:
        graph = load(add_model(SMALL, shape=["n", 64]), dims={"n": np.int64(3)})
        assert graph.values["x"].shape == (3, 64)

    @pytest.mark.parametrize(
        ("dims", "why"),
        [
            ({"m": 1}, "'m'.*open dimensions are n"),
            ({"n": -1}, "'n'.*-1"),
            ({"n": 1.0}, "'n'.*1.0"),
            ({"n": float("nan")}, "'n'.*nan"),
            ({"n": True}, "'n'.*True"),
            ({"n": "4"}, "'n'.*'4'"),
            ({"n": 10**15}, "x: float32"),
            ({1: 1}, "by name"),
            ([("n", 1)], "by name"),
            ("n", "by name"),
        ],
    )
    def test_what_is_wrong_is_named(self, dims: Any, why: str) -> None:
        with pytest.raises(GraphError, match=why):
            load(add_model(SMALL, shape=["n", 64]), dims=dims)


def test_a_large_file_is_not_read_into_memory(tmp_path: Path) -> None:
    """512 MB of weights, loaded where 128 MB may be had."""
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 27])
    t.data_location = TensorProto.EXTERNAL
    t.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").touch()
    os.truncate(tmp_path / "w.bin", 4 << 27)
    saved(add_model(t), tmp_path / "m.onnx")
    code = f"""
import resource
from tilesmith.frontends.onnx.load import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
graph = load({str(tmp_path / "m.onnx")!r})
assert graph.constants["w"].nbytes == 4 << 27
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert int(out.stdout) < 128, out.stderr


@pytest.mark.parametrize("name", ["g", "main_graph", "torch_jit"])
def test_a_name_that_every_model_has_is_replaced_by_the_files(name: str, tmp_path: Path) -> None:
    model = add_model(SMALL)
    model.graph.name = name
    assert load(saved(model, tmp_path / "tiny-net.onnx")).name == (
        "g" if name == "g" else "tiny-net"
    )
    assert load(model).name == name
