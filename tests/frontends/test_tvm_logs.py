"""Logs of TVM's tuners: which workloads are found in them, which tiles the seeds have, and what is
left out. The lines are written by the documented formats.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.frontends.tvm.import_log import import_log
from tilesmith.frontends.tvm.logs import TvmLog, TvmRecord
from tilesmith.frontends.tvm.seeds import seeds
from tilesmith.frontends.tvm.workloads import Unmapped, Workload, convolution, inferred
from tilesmith.records.pack import open_packs

HERE = ts.cpu(1)


def tensor(*shape: int, dtype: str = "float32") -> list[Any]:
    return ["TENSOR", list(shape), dtype]


def autotvm(
    task: str, args: Sequence[Any], entity: Sequence[Any] = (), costs: Sequence[float] = (1e-3,),
    error: int = 0,
) -> str:  # fmt: skip
    return json.dumps({
        "input": ["llvm -keys=cpu", task, list(args), {}],
        "config": {"index": 1, "code_hash": None, "entity": list(entity)},
        "result": [list(costs), error, 0.5, 1.6e9], "version": 0.2, "tvm_version": "0.19.0",
    })  # fmt: skip


CONV = [tensor(1, 16, 14, 14), tensor(32, 16, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW",
        "float32"]  # fmt: skip


def ansor(key: Sequence[Any], steps: Sequence[Any], costs: Sequence[float] = (1e-3,)) -> str:
    workload = [json.dumps(list(key)), "llvm -keys=cpu", [8, 64, 64, 0, 0, 0, 0, 0], "", 2, []]
    return json.dumps({"i": [workload, [[], list(steps)]], "r": [list(costs), 0, 1, 1.6e9],
                       "v": "v0.6"})  # fmt: skip


def metaschedule(
    tiles: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], seconds: Any = (1e-3,)
) -> str:
    loops = [f"l{k}" for k in range(len(tiles))]
    instructions = [
        ["GetBlock", [], ["pad", "main"], ["b0"]], ["GetBlock", [], ["C", "main"], ["b1"]],
        ["GetLoops", ["b1"], [], loops],
        *(["SamplePerfectTile", [loop], [len(t), 64], [f"v{loop}{k}" for k in range(len(t))]]
          for loop, t in zip(loops, tiles, strict=True)),
        ["EnterPostproc", [], [], []],
    ]  # fmt: skip
    decisions = [[3 + k, list(t)] for k, t in enumerate(tiles)]
    arguments = [["TENSOR", "float32", list(s)] for s in shapes]
    return json.dumps([0, [[instructions, decisions], seconds and list(seconds), {"kind": "llvm"},
                           arguments]])  # fmt: skip


def read(path: Path, *lines: str) -> tuple[list[TvmRecord], dict[str, int]]:
    path.write_text("\n".join(lines) + "\n")
    log = TvmLog(path)
    return list(log.records()), dict(log.left_out)


def test_autotvm(tmp_path: Path) -> None:
    entity = [["tile_ic", "sp", [-1, 8]], ["tile_oc", "sp", [-1, 16]], ["tile_ow", "sp", [-1, 7]],
              ["unroll_kw", "ot", True]]  # fmt: skip
    (conv, dense, deep, batch), left = read(
        tmp_path / "log",
        autotvm("conv2d_NCHWc.x86", CONV, entity, [3e-3, 1e-3, 2e-3]),
        autotvm("dense_pack.x86", [tensor(4, 64), tensor(128, 64), None, "float32"],
                [["tile_y", "sp", [-1, 1, 4]], ["tile_x", "sp", [-1, 2, 16]],
                 ["tile_k", "sp", [-1, 8]]]),
        autotvm("depthwise_conv2d_nhwc.generic",
                [tensor(1, 14, 14, 8), tensor(3, 3, 8, 1), [2, 2], [1, 1], [1, 1], "float32"]),
        autotvm("batch_matmul.x86", [tensor(2, 8, 16), tensor(2, 24, 16), [2, 8, 24], "float32",
                                     False, True]),
    )  # fmt: skip
    assert left == {}
    assert conv.workload == Workload("conv2d", ((1, 16, 14, 14), (32, 16, 3, 3)), "float32", (
        ("stride", (1, 1)), ("padding", (1, 1)), ("layout", "NCHW"),
    ))  # fmt: skip
    # n, f, h, w, rc, rh, rw
    assert conv.tiles == {4: (-1, 8), 1: (-1, 16), 3: (-1, 7)}
    assert conv.seconds == 2e-3
    assert dense.workload.operator == "dense"
    assert dense.tiles == {0: (-1, 1, 4), 1: (-1, 2, 16), 2: (-1, 8)}
    assert deep.workload.shapes == ((1, 14, 14, 8), (3, 3, 1, 8))
    assert dict(deep.workload.settings)["stride"] == (2, 2)
    assert batch.workload.shapes == ((2, 8, 16), (2, 24, 16))
    assert dict(batch.workload.settings) == {"transpose_b": True}
    for r in (conv, dense, deep, batch):
        func = r.workload.function(constant=False)
        assert func.params[-1].shape


def test_ansor(tmp_path: Path) -> None:
    key = ["0a1b", [8, 32], [32, 48], [8, 48]]
    split = [["SP", 2, 0, 8, [1, 2, 4], 1], ["SP", 2, 4, 48, [1, 3, 16], 1],
             ["SP", 2, 8, 32, [8], 1], ["RE", 2, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]],
             ["SP", 3, 0, 8, [4], 1], ["PR", 2, 0, "auto_unroll_max_step$16"]]  # fmt: skip
    conv = [["SP", 3, 4 * k, n, [1, 1, t], 1] for k, (n, t) in enumerate(
        ((1, 1), (7, 1), (7, 7), (24, 8)))]  # fmt: skip
    conv += [["SP", 3, 16 + 2 * k, n, [t], 1] for k, (n, t) in enumerate(((3, 3), (3, 1), (16, 4)))]
    (matmul, image), left = read(
        tmp_path / "log",
        ansor(key, split),
        ansor(["2c3d", [1, 14, 14, 16], [3, 3, 16, 24], [1, 7, 7, 24]], conv),
        ansor(["4e5f", 1, 14, 14, 16, 3, 3, 16, 24], conv),
        ansor(key, [["AN", 0, 0, 3]]),
        ansor(key, split, [1e10]),
    )  # fmt: skip
    assert matmul.workload == Workload("matmul", ((8, 32), (32, 48)))
    assert matmul.tiles == {0: (1, 1, 2, 4), 1: (1, 1, 3, 16), 2: (4, 8)}
    assert image.workload == convolution(
        (1, 14, 14, 16), (3, 3, 16, 24), "float32", "NHWC", (2, 2), (1, 1)
    )
    assert image.tiles[3] == (3, 1, 1, 8)
    assert image.tiles[6] == (4, 4)
    assert left == {
        "computations that are known by their hash only": 1,
        "computations that were not tiled": 1, "candidates that failed there": 1,
    }  # fmt: skip


def test_metaschedule(tmp_path: Path) -> None:
    (tmp_path / "database_tuning_record.json").write_text(
        metaschedule([[1, 2, 2, 2], [3, 1, 1, 16], [4, 8]], [(8, 32), (48, 32), (8, 48)]) + "\n"
        + metaschedule([[1, 2, 2, 2], [3, 1, 1, 16], [4, 8]], [(8, 32), (48, 32), (8, 48)], None)
        + "\n" + metaschedule([[8, 1, 1, 1]], [(8,), (8,)]) + "\n"
    )  # fmt: skip
    log = TvmLog(tmp_path)
    (record,) = log.records()
    assert record.workload == Workload("dense", ((8, 32), (48, 32)))
    assert record.tiles == {0: (1, 2, 2, 2), 1: (3, 1, 1, 16), 2: (4, 8)}
    assert dict(log.left_out) == {
        "candidates that failed there": 1, "computations that sum nothing": 1,
    }  # fmt: skip


@pytest.mark.parametrize("size", [7, 14, 28, 33])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (3, 2, 1), (7, 2, 3)]
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_settings_are_told_from_sizes(
    size: int, kernel: int, stride: int, padding: int, layout: str
) -> None:
    """Those that give the same result, at least."""
    x = (2, 8, size, size) if layout == "NCHW" else (2, size, size, 8)
    w = (16, 8, kernel, kernel) if layout == "NCHW" else (kernel, kernel, 8, 16)
    made = convolution(x, w, "float32", layout, stride, padding)
    out = made.function(constant=False).outputs[0]
    (spatial, reduced) = ([int(n.const) for n in out.shape], [8, kernel, kernel])
    if layout == "NHWC":
        reduced = [kernel, kernel, 8]
    found = inferred(spatial, reduced, [x, w, tuple(spatial)], "float32")
    assert found.function(constant=False).outputs[0].shape == out.shape
    assert dict(found.settings)["layout"] == layout
    if size != 7:  # where several settings would do
        assert found == made


def test_what_has_no_operator_is_counted(tmp_path: Path) -> None:
    records, left = read(
        tmp_path / "log",
        autotvm("conv2d_NCHWc.x86", CONV),
        autotvm("conv2d_NCHWc.x86", CONV, (), [1e9], 6),
        autotvm("conv2d_nchw_winograd.cuda", CONV),
        autotvm("my_template", [512, 512, "float32"]),
        autotvm("dense_int8.cuda", [tensor(4, 8, dtype="int8"), tensor(4, 8, dtype="uint8")]),
        autotvm("conv2d_NCHWc.x86", [tensor(1, 2, 14, 14, 8), tensor(4, 2, 3, 3, 8, 8), 1, 1]),
        autotvm("conv2d_nchw.x86", [tensor(1, 16, 14, 14), tensor(32, 16, 3, 3)]),
        "not json", "{}", json.dumps({"input": 3, "config": {}, "result": []}), "",
    )  # fmt: skip
    assert len(records) == 1
    assert left == {
        "candidates that failed there": 1, "the task conv2d_nchw_winograd": 1,
        "the task my_template": 1, "inputs of the types int8 and uint8": 1,
        "tensors whose channels are in blocks": 1, "records that lack something": 1,
        "lines that are no records": 3,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["not json\n", '{"input": 1}\n', "\x00\xff\xfe", "[]\n"])
def test_a_file_that_is_no_log_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ts.RecordsError, match=r"log"):
        list(TvmLog(path).records())
    with pytest.raises(ts.RecordsError, match="cannot be read"):
        list(TvmLog(tmp_path / "none").records())


def innermost(c: ts.Candidate, loop: str) -> int:
    (step,) = (
        s for s in c.trace.steps if s.name == "sample_tile" and s.loop.replace(".local", "") == loop
    )
    return int(step.decision[-1])


def test_seeds_have_the_tiles_of_the_log() -> None:
    A, B = ts.placeholder((64, 96), name="A"), ts.placeholder((96, 128), name="B")
    task = ts.Task(ts.function([A, B, ts.ops.matmul(A, B, name="C")]), HERE)
    lanes = HERE.lanes(32)
    found = seeds(task, {0: (-1, 2, 4), 1: (-1, 2, 2 * lanes), 2: (-1, 8)}, 3)
    assert 1 <= len(found) <= 3
    for c in found:
        assert innermost(c, "C.i") == 4
        assert innermost(c, "C.j") == 2 * lanes
        c.trace.apply(task.func)
    assert found == seeds(task, {0: (-1, 2, 4), 1: (-1, 2, 2 * lanes), 2: (-1, 8)}, 3)
    # Tiles that do not divide, or that are of another length, have something near them.
    assert seeds(task, {0: (-1, 5), 1: (3, 1, 1, 1, 1, 1, 9), 9: (-1, 4)}, 1)
    assert seeds(task, {}, 1) == []


def test_a_log_becomes_a_pack(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join([
        *(autotvm("dense_pack.x86", [tensor(16, 64), tensor(48, 64)],
                  [["tile_y", "sp", [-1, y]], ["tile_x", "sp", [-1, 16]]], [seconds])
          for y, seconds in ((1, 3e-3), (2, 2e-3), (4, 1e-3), (8, 4e-3))),
        autotvm("my_template", [1]),
    ]) + "\n")  # fmt: skip
    done = import_log(tmp_path / "log", HERE, tmp_path / "tvm.pack", keep=2)
    assert done.lines == 5
    (func,) = done.functions
    assert done.left_out == {"slower than others of their workload": 2, "the task my_template": 1}
    packs = open_packs([tmp_path / "tvm.pack"])
    X, W = ts.placeholder((16, 64), name="X"), ts.placeholder((48, 64), name="W")
    for constants in ([], [W]):  # whatever they are called
        own = ts.function([X, W, ts.ops.dense(X, W)], constants=constants)
        found = packs.packed(ts.Task(own, HERE))
        assert [p.seconds for p in found] == [1e-3, 2e-3][: len(found)]
        assert innermost(found[0].candidate, "dense.i") == 4
    x, w = np.random.default_rng(0).random((2, 48, 64), np.float32)
    kernel = ts.build(found[0].candidate.trace.apply(own), HERE)
    np.testing.assert_allclose(kernel(x[:16], kernel.pack("W", w)), x[:16] @ w.T, rtol=1e-4)
    assert func.name == "dense_16_64_48_64"


def test_times_of_tvm_are_never_believed(tmp_path: Path) -> None:
    """A record of a nanosecond is one seed among others: what is measured decides."""
    line = autotvm("dense_pack.x86", [tensor(16, 64), tensor(48, 64)],
                   [["tile_x", "sp", [-1, 16]]], [1e-9])  # fmt: skip
    (tmp_path / "log").write_text(line)
    done = import_log(tmp_path / "log", HERE, tmp_path / "tvm.pack")
    with ts.open_database(":memory:", packs=[tmp_path / "tvm.pack"]) as db:
        result = ts.tune(
            done.functions[0], HERE, budget=ts.Budget(trials=3), database=db, quiet=True
        )
        assert result.trials == 3
        assert result.best.cost > 1e-7
        (seed, *_) = db.packed(result.task)
        assert seed.candidate in {m.candidate for m in db.of(result.task)}
        with pytest.raises(ts.BuildError, match="of version tvm of the code generator"):
            ts.build(done.functions[0], HERE, database=db, record=seed.key)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, pack, db = tmp_path / "log", tmp_path / "tvm.pack", tmp_path / "t.db"
    log.write_text(autotvm("dense_pack.x86", [tensor(4, 16), tensor(24, 16)],
                           [["tile_x", "sp", [-1, 8]]]) + "\n" + autotvm("x", []))  # fmt: skip
    status, said, err = run(capsys, "import-tvm", log, "-o", pack, "--cores", 1)
    assert status == 0, err
    assert said.splitlines()[0] == f"{log}: 2 records, 1 workloads"
    assert "1 left out: the task x" in said
    assert "  dense 4x16" in said
    words = ("import-tvm", log, "-o", pack, "--cores", 1, "--time", "2s", "--db", db)
    status, said, err = run(capsys, *words)
    assert status == 0, err
    assert "dense" in said.splitlines()[-1]
    with ts.open_database(db) as d:
        assert d.count() > 0
    log.write_text(autotvm("x", []))
    status, _, err = run(capsys, "import-tvm", log, "-o", pack)
    assert (status, "nothing to pack (1: the task x)" in err) == (2, True)


def test_other_ranks() -> None:
    with pytest.raises(Unmapped, match="a computation over 1 axes that sums over 1"):
        inferred([8], [9], [], "float32")
    with pytest.raises(Unmapped, match="cannot be told from its sizes"):
        inferred([1, 99, 99, 16], [3, 3, 8], [(1, 7, 7, 8), (3, 3, 8, 16)], "float32")
    with pytest.raises(Unmapped, match="not plain matrices"):
        inferred([8, 9], [4], [(8, 9)], "float32")
