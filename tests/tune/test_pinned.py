"""Kernels of a record that is named, and models by a lock file: the same bits after a restart and
on other machines of the kind, and a refusal with the reason elsewhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import tilesmith as ts
from tests.support.command_line import run
from tests.support.open_models import COPIES, TAGGER, compiled, with_portfolios
from tilesmith.graph.builder import GraphBuilder
from tilesmith.ops.elementwise import gelu
from tilesmith.ops.matmul import matmul
from tilesmith.ops.norm import softmax
from tilesmith.records.database import Recorded, find_records
from tilesmith.task import task as task_module
from tilesmith.testing.measurers import FakeMeasurer

HERE = ts.cpu(1)
pytestmark = pytest.mark.usefixtures("built_here", "short_drafts")


def product(names: str = "ABC", n: int = 33) -> ts.Function:
    a, b, c = names
    A, B = ts.placeholder((n, 37), name=a), ts.placeholder((37, 40), name=b)
    return ts.function([A, B, ts.ops.matmul(A, B, name=c)], name="product")


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((33, 37)), rng.standard_normal((37, 40))
    return a.astype(np.float32), b.astype(np.float32)


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with ts.open_database(tmp_path / "t.db", packs=()) as database:
        ts.tune(
            product(), HERE, budget=ts.Budget(trials=3), database=database, quiet=True,
            measurer=FakeMeasurer(), strategy=ts.Random(),
        )  # fmt: skip
        yield database


def test_a_record_is_built_whatever_is_faster(db: Any) -> None:
    for m in db.of(ts.Task(product(), HERE)):
        kernel = ts.build(product(), HERE, database=db, record=m.candidate.key)
        assert kernel.origin.record == m.candidate.key
        assert (kernel.origin.kind, kernel.origin.seconds) == ("record", m.cost)
        assert kernel.source == ts.build(m.candidate.trace.apply(product()), HERE).source
        short = ts.build(product(), HERE, database=db, record=m.candidate.key[:10])
        assert short.source == kernel.source
        renamed = ts.build(product("XYZ"), HERE, database=db, record=m.candidate.key)
        assert np.array_equal(renamed(*arrays()), kernel(*arrays()))


def test_it_is_found_on_another_machine_of_the_kind(db: Any, tmp_path: Path) -> None:
    key = db.best(ts.Task(product(), HERE)).candidate.key
    other = replace(HERE, model="Another 7", l3_nbytes=1 << 20).with_cores(8)
    first = ts.build(product(), HERE, database=db, record=key)
    assert ts.build(product(), other, database=db, record=key).origin.record == key
    db.pack(tmp_path / "some.pack")
    with ts.open_database(":memory:", packs=[tmp_path / "some.pack"]) as elsewhere:
        again = ts.build(product(), other, database=elsewhere, record=key)
    assert np.array_equal(again(*arrays()), first(*arrays()))


def test_a_database_of_a_user_is_searched(db: Any) -> None:
    class Plain:
        """Without `find`."""

        def __init__(self) -> None:
            self.tasks, self.of = db.tasks, db.of

    key = db.best(ts.Task(product(), HERE)).candidate.key
    ((found,), own) = find_records(Plain(), key[:12]), db.find(key[:12])  # type: ignore[arg-type]
    assert found == own[0]
    assert find_records(Plain(), "0" * 32) == db.find("0" * 32) == []  # type: ignore[arg-type]


def test_records_that_would_give_other_bits_are_refused(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = db.best(ts.Task(product(), HERE)).candidate
    key = best.key

    def refused(text: str, func: Any = None, target: ts.Target = HERE, **given: Any) -> None:
        settings = {"database": db, "record": key, **given}
        with pytest.raises(ts.BuildError, match=text):
            ts.build(product() if func is None else func, target, **settings)

    refused(r"is of product .*33.*, not of product .*34", product(n=34))
    if HERE.features:
        less = replace(HERE, features=frozenset(sorted(HERE.features)[1:]))
        refused("cannot give the same bits here: it is for a processor with", target=less)
    more = replace(HERE, features=HERE.features | {"quantum"})
    refused("a processor without quantum", target=more)
    refused("the vector bits", target=replace(HERE, vector_bits=HERE.vector_bits * 2))
    refused("there is no record", record="0123456789abcdef")
    refused("at least its first 8 hexadecimal digits", record="0123")
    refused("at least its first 8 hexadecimal digits", record="not a hash!")
    refused("takes a kernel of a database; give one", database=None)
    refused("takes neither checked= nor backend=", checked=True)
    refused("takes a Function as ts.function made it", ts.Schedule(product()))
    monkeypatch.setattr(task_module, "CODEGEN_VERSION", "next")
    refused("of the code generator, this is next, which may round")


def test_a_beginning_that_several_records_have_is_refused(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, *_ = db.of(ts.Task(product(), HERE))
    found = [Recorded(f"abcdef0123{k}", m.candidate, 1.0, "12") for k, m in enumerate((one, other))]
    monkeypatch.setattr(type(db), "find", lambda self, key: found)
    with pytest.raises(ts.BuildError, match=r"several records in .* begin with abcdef012"):
        ts.build(product(), HERE, database=db, record="abcdef0123")


def network() -> ts.Graph:
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    x = b.input("x", (24, 40), "float32")
    for n in (96, 40):
        w = b.constant(rng.standard_normal((x.shape[1], n)).astype(np.float32))
        x = b.add(gelu, b.add(matmul, x, w))
    return b.finish({"y": b.add(softmax, x)})


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((24, 40)).astype(np.float32)}


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[[], ts.Model]:
    """Compiles the network by records of random schedules."""

    def make() -> ts.Model:
        with ts.open_database(tmp_path / "net.db", packs=()) as database:
            return ts.tune_model(
                network(), HERE, budget=ts.Budget(trials=30), database=database, quiet=True,
                measurer=FakeMeasurer(), strategy=ts.Random(), cache=None,
            )  # fmt: skip

    return make


def test_a_locked_model_computes_the_same_bits(tuned: Any, tmp_path: Path) -> None:
    model, path = tuned(), tmp_path / "net.lock"
    want = model(feeds())["y"]
    digest = model.save_lock(path)
    kinds = {k.origin.kind for e in model.executors for k in e.kernels}
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        again = ts.compile_model(network(), HERE.with_cores(2), lock=path, cache=cache)
        assert np.array_equal(again(feeds())["y"], want)
        assert again.save_lock(tmp_path / "again.lock") == digest
        for e in again.executors:
            assert all("pinned by" in str(k.origin) or k.origin.kind == "naive" for k in e.kernels)
    drafts = ts.compile_model(network(), HERE, cache=None)
    schedules = [[k.origin.schedule for k in m.executors[0].kernels] for m in (model, drafts)]
    assert schedules[0] != schedules[1]  # so it is the lock that decides
    assert "record" in kinds


def test_drafts_and_plain_nests_are_locked_too(tmp_path: Path) -> None:
    path = tmp_path / "net.lock"
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        model = ts.compile_model(network(), HERE, cache=cache)
        model.save_lock(path)
        again = ts.compile_model(network(), HERE, lock=path, cache=None)
        assert np.array_equal(again(feeds())["y"], model(feeds())["y"])
    model.save(tmp_path / "net.tsm")
    loaded = ts.load_model(tmp_path / "net.tsm")
    assert loaded.save_lock(tmp_path / "loaded.lock") == model.save_lock(path)


def test_the_lock_decides_how_groups_are_divided(tuned: Any, tmp_path: Path) -> None:
    """A product with gelu behind it may be one kernel or two."""
    model, path = tuned(), tmp_path / "net.lock"
    model.save_lock(path)
    again = ts.compile_model(network(), HERE, lock=path, cache=None)
    names = [[s.func.name for s in m.executors[0].plan.steps] for m in (model, again)]
    assert names[0] == names[1]


def test_locks_that_would_give_other_bits_are_refused(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.lock"
    tuned().save_lock(path)

    def refused(text: str, graph: ts.Graph | None = None, target: ts.Target = HERE) -> None:
        with pytest.raises(ts.GraphError, match=text):
            ts.compile_model(graph or network(), target, lock=path, cache=None)

    other = replace(HERE, features=HERE.features | {"quantum"})
    refused(r"net.lock cannot give the same bits here: .* without quantum", target=other)
    arm = ts.Target.named("neoverse-n1" if HERE.arch == "x86-64" else "skylake-avx512")
    refused(f"with the arch {HERE.arch}, here it is {arm.arch}", target=arm)
    refused(r"has no kernel of softmax 5x7.*written for another model", more())
    good = path.read_text()
    path.write_text(good.replace('"decision"', '"decisions"').replace('"loop":"', '"loop":"no'))
    refused("net.lock")
    path.write_text(good[:-100])
    refused("is no lock file of a model, or is damaged")
    path.write_text(json.dumps({**json.loads(good), "tilesmith lock": 99}))
    refused("it is of version 99, this library reads 1")
    path.unlink()
    refused("cannot be read")
    path.write_text(good)
    monkeypatch.setattr(task_module, "CODEGEN_VERSION", "next")
    refused("of the code generator, this is next, which may round")


def more() -> ts.Graph:
    b = GraphBuilder("more")
    return b.finish({"y": b.add(softmax, b.input("x", (5, 7), "float32"))})


MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    layer (float[8, 24] x, float[24, 32] w) => (float[8, 32] y) {p = MatMul(x, w) y = Softmax(p)}"""
RUN = """import numpy as np, sys, tilesmith as ts
model = ts.compile_model(ts.load_onnx(sys.argv[1]), ts.cpu(1), lock=sys.argv[2], cache=None)
rng = np.random.default_rng(0)
feeds = {n: rng.random(s, np.float32) for n, s in (("x", (8, 24)), ("w", (24, 32)))}
print(model(feeds)["y"].tobytes().hex())"""


def test_the_bits_are_the_same_after_a_restart_and_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, lock = tmp_path / "m.onnx", tmp_path / "m.lock"
    onnx.save(onnx.parser.parse_model(MODEL), file)
    status, said, err = run(
        capsys, "compile", file, "-o", tmp_path / "m.tsm", "--cores", 1, "--save-lock", lock
    )
    assert status == 0, err
    assert str(lock) in said
    rng = np.random.default_rng(0)
    given = {n: rng.random(s, np.float32) for n, s in (("x", (8, 24)), ("w", (24, 32)))}
    want = ts.load_model(tmp_path / "m.tsm")(given)["y"].tobytes().hex()
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(file), str(lock)], capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.stdout.strip() == want, done.stderr
    status, _, err = run(capsys, "run", file, "--random", "--lock", tmp_path / "none.lock")
    assert (status, "none.lock cannot be read" in err) == (2, True)
    status, _, err = run(capsys, "run", tmp_path / "m.tsm", "--random", "--lock", lock)
    assert (status, "--lock" in err) == (2, True)
    status, said, err = run(capsys, "run", file, "--random", "--lock", lock, "--cores", 1)
    assert status == 0, err


def test_a_locked_model_with_open_sizes_computes_the_same_bits(tmp_path: Path) -> None:
    """All kernels of its portfolios, at all lengths, with the sizes that the lock file has."""
    program, path = TAGGER.program(), tmp_path / "tagger.lock"
    drafts = compiled(program, TAGGER.sizes)
    model = with_portfolios(drafts)
    digest = model.save_lock(path)
    assert digest != drafts.save_lock(tmp_path / "drafts.lock")
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        again = ts.compile_model(program, HERE.with_cores(2), lock=path, cache=cache)
        assert again.is_open
        assert again.save_lock(tmp_path / "again.lock") == digest
        for feeds in TAGGER.feeds(program):
            want = model(feeds)
            assert all(np.array_equal(a, want[n]) for n, a in again(feeds).items())
    same = ts.compile_model(program, HERE, lock=path, sizes=TAGGER.sizes, cache=None)
    assert same.save_lock(tmp_path / "again.lock") == digest
    model.save(tmp_path / "m.tsm")
    assert ts.load_model(tmp_path / "m.tsm").save_lock(tmp_path / "loaded.lock") == digest


def test_locks_are_refused_for_other_sizes(tmp_path: Path) -> None:
    path, program = tmp_path / "rows.lock", COPIES.program()
    compiled(program, {"rows": (0, 20, {4: 1, 16: 2})}).save_lock(path)

    def refused(text: str, model: Any = program, **settings: Any) -> None:
        with pytest.raises(ts.GraphError, match=text):
            ts.compile_model(model, HERE, lock=path, cache=None, **settings)

    refused(r"for rows from 0 to 20 with .* 4 \(1\), 16 \(2\), and sizes= has rows from 0 to 9",
            sizes={"rows": (0, 9)})  # fmt: skip
    refused("rows.lock is for all of rows from 0 to 20.*copies is compiled for fixed", sizes="each")
    refused("rows.lock is for all of rows from 0 to 20", network())
    refused("tagger has no open dimension 'rows' here", TAGGER.program(), sizes=TAGGER.sizes)
    good = path.read_text()
    path.write_text(good.replace('"regions":[]', '"regions":[[[["rows",4]],7]]'))
    refused("damaged.*names a kernel that it does not have")
    path.write_text(good.replace("[0,20]", "[20,0]"))
    refused("damaged.*range of size")
    ts.compile_model(network(), HERE, cache=None).save_lock(path)
    refused("has schedules of fixed sizes, and 'rows' of copies is open", sizes={"rows": (0, 20)})
