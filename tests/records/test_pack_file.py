"""Record packs: what is in the file, what is refused, and what is found for which task."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.records.pack import Pack, distance, open_packs
from tilesmith.schedule.kinds import Vectorize
from tilesmith.schedule.loops import Split
from tilesmith.task.task import Ranking
from tilesmith.testing.measurers import FakeMeasurer

HERE = ts.cpu(1)


def product(n: int, m: int = 40, k: int = 24, names: str = "ABC") -> ts.Function:
    a, b, c = names
    A, B = ts.placeholder((n, k), name=a), ts.placeholder((k, m), name=b)
    return ts.function([A, B, ts.ops.matmul(A, B, name=c)], name=f"product{n}_{m}_{k}")


def tuned(db: ts.Database, *funcs: ts.Function, target: ts.Target = HERE, trials: int = 8) -> None:
    for func in funcs:
        ts.tune(
            func, target, budget=ts.Budget(trials=trials), database=db, measurer=FakeMeasurer(),
            strategy=ts.Random(), quiet=True,
        )  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """Makes a pack of what is tuned for some Functions."""

    def make(*funcs: ts.Function, keep: int = 3, **settings: Any) -> Path:
        path = tmp_path / "some.pack"
        with ts.open_database(":memory:") as db:
            tuned(db, *funcs, **settings)
            db.pack(path, keep)
        return path

    return make


def test_the_best_of_each_task_are_there(tmp_path: Path) -> None:
    path = tmp_path / "two.pack"
    with ts.open_database(tmp_path / "t.db") as db:
        tuned(db, product(16), product(48))
        written = db.pack(path, keep=2)
        best = {n: Ranking(db.of(ts.Task(product(n), HERE))).ranked for n in (16, 48)}
    assert (written.tasks, written.records, written.left_out) == (2, 4, {})
    assert written.nbytes == path.stat().st_size
    pack = Pack(path)
    assert (pack.num_tasks, pack.num_records) == (2, 4)
    assert pack.sha256 == written.sha256 == hashlib.sha256(content(path)).hexdigest()
    assert pack.targets == (HERE,)
    assert len([*pack.records()]) == 4
    packs = open_packs([path])
    for n in (16, 48):
        found = packs.packed(ts.Task(product(n), HERE))
        assert [p.candidate for p in found] == [m.candidate for m in best[n][:2]]
        assert [p.seconds for p in found] == [m.cost for m in best[n][:2]]
        assert [p.key for p in found] == [m.candidate.key for m in best[n][:2]]
        assert str(path) in found[0].origin
    assert packs.packed(ts.Task(product(17), HERE)) == []


def test_the_same_database_gives_the_same_content(made: Callable[..., Path]) -> None:
    """But for when it was made, and when measurements were taken."""
    one = made(product(16))
    text = json.loads(one.read_bytes().splitlines()[0])
    assert text.keys() == {
        "tilesmith pack", "sha256", "made", "library", "codegen", "tasks", "records", "targets",
    }  # fmt: skip
    index, *lines = lzma.decompress(content(one)).splitlines()
    ((_, _, extents, target, first, keys),) = json.loads(index)
    assert extents == [16, 40, 24]
    assert (target, first, len(keys)) == (0, 0, len(lines)) == (0, 0, 3)
    assert all("run" not in json.loads(line) for line in lines)  # who measured it stays at home


def test_names_do_not_matter(made: Callable[..., Path]) -> None:
    path = made(product(16))
    task = ts.Task(product(16, names="XYZ"), HERE)
    first, *_ = open_packs([path]).packed(task)
    assert first.candidate.task == task
    assert "Z" in str(first.candidate.trace)
    assert "C." not in str(first.candidate.trace)
    first.candidate.trace.apply(task.func)


def test_the_most_similar_machine_comes_first(tmp_path: Path) -> None:
    sibling = replace(HERE, model="Sibling 7", l3_nbytes=HERE.l3_nbytes * 2)
    more = HERE.with_cores(4)
    func = product(16)
    path = tmp_path / "three.pack"
    with ts.open_database(":memory:") as db:
        for target in (sibling, more, HERE):
            tuned(db, func, target=target)
        db.pack(path, keep=1)
    found = open_packs([path]).packed(ts.Task(func, HERE))
    assert [p.where for p in found] == [HERE, more, sibling]
    assert all(p.candidate.task.target == HERE for p in found)
    other = replace(HERE, features=HERE.features | {"another"})
    assert open_packs([path]).packed(ts.Task(func, other)) == []


def test_distances_of_machines() -> None:
    h200, v100 = ts.Target.named("nvidia-h200"), ts.Target.named("nvidia-v100")
    n1, skylake = ts.Target.named("neoverse-n1"), ts.Target.named("skylake-avx512")
    assert distance(n1, n1) == 0
    assert distance(n1, n1.with_cores(n1.num_cores + 1)) == 1
    assert distance(n1, replace(n1, model="another")) == 2
    assert distance(n1, skylake) is None
    assert distance(h200, h200) == 0
    assert distance(h200, v100) is None
    assert distance(h200, n1) is None


def test_near_sizes(made: Callable[..., Path]) -> None:
    path = made(product(16), product(24), product(30), product(48), product(96), keep=1)
    packs = open_packs([path])

    def near(n: int, m: int = 40) -> list[str]:
        return [p.candidate.task.func.name for p in packs.near(ts.Task(product(n, m), HERE))]

    assert near(32) == ["product30_40_24", "product24_40_24", "product48_40_24"]
    assert near(16) == ["product24_40_24", "product30_40_24"]  # and not itself
    assert near(192) == ["product96_40_24"]
    assert near(193) == []
    assert near(32, 100) == []
    X = ts.placeholder((16, 40), name="A")
    other = ts.function([X, ts.ops.softmax(X)], name="other")
    assert packs.near(ts.Task(other, HERE)) == []


def content(path: Path) -> bytes:
    return path.read_bytes().partition(b"\n")[2]


def rewritten(path: Path, change: Callable[[list[bytes]], list[bytes]], **header: Any) -> Path:
    """The same pack with other lines, and the hash that belongs to them."""
    first, _, data = path.read_bytes().partition(b"\n")
    lines = change(lzma.decompress(data).splitlines())
    data = lzma.compress(b"\n".join(lines) + b"\n")
    new = {**json.loads(first), "sha256": hashlib.sha256(data).hexdigest(), **header}
    path.write_bytes(json.dumps(new).encode() + b"\n" + data)
    return path


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda b: b"", "is no pack of records"),
        (lambda b: b"SQLite format 3\0" + b, "is no pack of records"),
        (lambda b: b"[1]\n" + b, "is no pack of records"),
        (lambda b: b'{"tilesmith pack": 99}\n' + b, "is of version 99, this library reads 1"),
        (lambda b: b.replace(b'"targets"', b'"Targets"'), "header of the pack .* is damaged"),
        (lambda b: b[:-40], "is damaged or was changed"),
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), "is damaged or was changed"),
        (lambda b: b + b"x", "is damaged or was changed"),
    ],
)
def test_damage_is_an_error(
    made: Callable[..., Path], damage: Callable[[bytes], bytes], text: str
) -> None:
    path = made(product(16), keep=1)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ts.RecordsError, match=text):
        open_packs([path]).packed(ts.Task(product(16), HERE))


def test_there_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ts.RecordsError, match=r"none\.pack cannot be read"):
        ts.open_database(":memory:", packs=[tmp_path / "none.pack"])
    with pytest.raises(ts.RecordsError, match="packs"):
        ts.open_database(":memory:", packs="one.pack")


def test_what_cannot_be_read_is_left_out(made: Callable[..., Path]) -> None:
    """Packs come from anywhere: whatever a line says, what is found is a schedule of the task."""
    path, task = made(product(16), product(48), keep=2), ts.Task(product(16), HERE)
    rewritten(path, lambda lines: [lines[0], b"{}", *lines[2:]])
    assert len(open_packs([path]).packed(task)) == 1
    assert len(open_packs([path]).packed(ts.Task(product(48), HERE))) == 2
    with pytest.raises(ts.RecordsError, match=r"some\.pack, line 3"):
        [*Pack(path).records()]

    def swapped(lines: list[bytes]) -> list[bytes]:
        one, other = json.loads(lines[0])
        return [json.dumps([[other[0], *one[1:]], [one[0], *other[1:]]]).encode(), *lines[1:]]

    rewritten(path, swapped)  # records under the names of other tasks
    assert open_packs([path]).packed(task) == []
    rewritten(path, lambda lines: [b'[["x", "y", "z", 0, 0]]', *lines[1:]])
    with pytest.raises(ts.RecordsError, match="cannot be read"):
        open_packs([path]).packed(task)


def test_only_what_can_be_applied_here_is_packed(tmp_path: Path) -> None:
    good, broken = ts.Task(product(16), HERE), ts.Task(product(20), HERE)
    stale = ts.Trace((Vectorize("not a loop"),))
    split = ts.Trace((Split("C.i", (None, 4)),))
    path = tmp_path / "some.pack"
    with ts.open_database(":memory:") as db:
        with pytest.raises(ts.RecordsError, match="there is nothing to pack"):
            db.pack(path)
        db.add([
            ts.Measurement(ts.Candidate(good, ts.Trace()), (2e-3,)),
            ts.Measurement(ts.Candidate(good, split), (3e-3,)),
            ts.Measurement(ts.Candidate(good, stale), (1e-3,)),
            ts.Measurement(ts.Candidate(broken, ts.Trace()), failure=ts.Failure("wrong", "no")),
        ])  # fmt: skip
        with pytest.raises(ts.RecordsError, match="keep is 0"):
            db.pack(path, keep=0)
        written = db.pack(path)
    assert written.left_out == {"no schedule of them could be timed": 1}
    found = open_packs([path]).packed(good)
    assert [p.candidate.trace for p in found] == [ts.Trace(), split]
