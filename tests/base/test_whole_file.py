"""Files are there as a whole or not at all, whoever writes them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import ArgumentError, TilesmithError
from tilesmith.base.whole_file import whole_file, write_whole
from tilesmith.testing.measurements import measured, task_of
from tilesmith_contest.model_rows import ModelRow, write_model_rows
from tilesmith_contest.rows import Row, write_rows

LIMIT = 20_000


@contextmanager
def full_disk(nbytes: int = LIMIT) -> Iterator[None]:
    """No file can become larger than so many bytes: writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def rows(path: Path) -> None:
    write_rows(path, [Row("n" * 10 * LIMIT, 1.0)])


def model_rows(path: Path) -> None:
    write_model_rows(path, [ModelRow("n" * 10 * LIMIT, 1.0)])


def lines(path: Path) -> None:
    with ts.open_database(":memory:") as db:
        rng = np.random.default_rng(0)
        db.add([measured(task_of(), k, tuple(rng.random(40) + 1e-9)) for k in range(200)])
        db.export(path)


def chart(path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tilesmith_contest.chart import draw

    draw(path, [])


def text(path: Path) -> None:
    write_whole(path, "x" * 10 * LIMIT)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("write", "name"),
    [(text, "a.html"), (rows, "a.json"), (model_rows, "a.json"), (lines, "a.jsonl"),
     (lines, "a.jsonl.gz"), (lines, "a.jsonl.xz"), (chart, "a.png")],
)  # fmt: skip
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, write: Callable[[Path], None], name: str, there: bool
) -> None:
    file = tmp_path / name
    write(file)  # what is loaded late is loaded now
    limit = min(LIMIT, file.stat().st_size // 2)
    file.unlink()
    if there:
        file.write_text("before")
    says = rf"{name} cannot be written: .*; what was there before is unchanged"
    with full_disk(limit), pytest.raises(TilesmithError, match=says):
        write(file)
    assert [p.name for p in tmp_path.iterdir()] == [name] * there
    assert not there or file.read_text() == "before"


def test_an_export_to_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    a, b = ts.placeholder((1, 100), name="A"), ts.placeholder((100, 100), name="B")
    kernel = ts.build(ts.function([a, b, ts.ops.matmul(a, b)], constants=[b]), ts.cpu(1))
    weights = {"B": np.ones((100, 100), np.float32)}
    with full_disk(), pytest.raises(ArgumentError, match=f"{tmp_path} cannot be written"):
        kernel.export(tmp_path, "k", weights=weights, shared=False)
    assert [*tmp_path.iterdir()] == []
    assert kernel.export(tmp_path, "k", weights=weights, shared=False).weights.exists()


def test_an_error_of_the_writer_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("before")

    def interrupted() -> None:
        with whole_file(file) as f:
            f.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text() == "before"
    assert [*tmp_path.iterdir()] == [file]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "link"
    before = os.umask(0o027)
    try:
        write_whole(file, "1")
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o640
    file.chmod(0o604)
    link.symlink_to("a")
    write_whole(link, "2")
    assert link.is_symlink()
    assert file.read_text() == "2"
    assert file.stat().st_mode & 0o777 == 0o604


def test_what_others_put_beside_it_is_not_written_to(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    for name in ("a.part", ".a.part"):
        (tmp_path / name).symlink_to(target)
    write_whole(tmp_path / "a", "new")
    lines(tmp_path / "a")
    assert target.read_text() == "precious"


def test_what_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "x\ud800y")
    assert (tmp_path / "a").read_bytes() == b"x?y"


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"{tmp_path}/no/a cannot be written: No such file"):
        write_whole(tmp_path / "no" / "a", "x")
    with pytest.raises(ArgumentError, match=f"{tmp_path} cannot be written: Is a directory"):
        write_whole(tmp_path, "x")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_devices_and_pipes_are_written_to_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="/dev/full cannot be written: No space left"):
        write_whole(Path("/dev/full"), "x" * 100)
    write_whole(Path("/dev/null"), "x")
    assert not Path("/dev/null").is_file()
    code = "from pathlib import Path; from tilesmith.base.whole_file import write_whole as w; "
    code += "w(Path('/dev/stdout'), 'out')"
    words = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(words, capture_output=True, env=env, check=True).stdout == b"out"
    with (tmp_path / "redirected").open("wb") as f:
        subprocess.run(words, stdout=f, env=env, check=True)
    assert (tmp_path / "redirected").read_bytes() == b"out"
