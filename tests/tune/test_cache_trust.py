"""The cache runs what it keeps as code: only what this user alone can have written is read."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tilesmith.tune.cache import Cache

FLOAT = np.dtype("float32")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
NOBODY = 65534


def filled(folder: Path) -> Cache:
    cache = Cache(folder)
    cache.put("k", b"code")
    cache.put_array("w", np.ones(4, FLOAT))
    assert holds(cache)
    return cache


def holds(cache: Cache) -> bool:
    found = cache.get("k") == b"code", cache.get_array("w", (4,), FLOAT) is not None
    assert len(set(found)) == 1
    return found[0]


def refused(cache: Cache, *parts: str) -> None:
    """Not read, not written, and one warning that has these parts tells of it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = sorted(cache.folder.iterdir())
        assert not holds(cache)
        assert not holds(Cache(cache.folder))
        cache.put("new", b"code")
        assert sorted(cache.folder.iterdir()) == before
    (told,) = seen
    text = str(told.message)
    assert str(cache.folder) in text
    for part in parts:
        assert part in text


class Runs:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("suffix", [".kernel", ".artifact", ".weights"])
def test_nothing_is_unpickled(tmp_path: Path, suffix: str) -> None:
    cache = Cache(tmp_path / "cache")
    cache.put("k", pickle.dumps(Runs(tmp_path / "ran")))
    written = tmp_path / "cache" / "k.artifact"
    data = written.read_bytes()
    written.unlink()
    (tmp_path / "cache" / f"k{suffix}").write_bytes(data)
    Cache(tmp_path / "cache").get("k")
    Cache(tmp_path / "cache").get_array("k", (len(data) - 64,), np.dtype("uint8"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    cache = filled(tmp_path / "cache")
    cache.folder.chmod(mode)
    refused(cache, f"others may write to {cache.folder}", f"chmod go-w {cache.folder}")
    cache.folder.chmod(0o755)
    assert holds(cache)


@pytest.mark.parametrize("mode", [0o770, 0o707])
@pytest.mark.parametrize("above", [".", ".."])
def test_nor_one_that_others_could_replace(tmp_path: Path, mode: int, above: str) -> None:
    cache = filled(tmp_path / "a" / "b" / "cache")
    parent = (tmp_path / "a" / "b" / above).resolve()
    parent.chmod(mode)
    refused(cache, f"chmod go-w {parent}")
    parent.chmod(mode | 0o1000)  # sticky, as /tmp is: nobody can rename what is another's
    assert holds(cache)


@AS_ROOT
def test_nor_one_that_belongs_to_another(tmp_path: Path) -> None:
    cache = filled(tmp_path / "cache")
    os.chown(cache.folder, NOBODY, -1)
    refused(cache, f"{cache.folder} belongs to user {NOBODY}")


@AS_ROOT
def test_nor_one_below_a_folder_of_another(tmp_path: Path) -> None:
    cache = filled(tmp_path / "his" / "cache")
    os.chown(tmp_path / "his", NOBODY, -1)
    refused(cache, f"{tmp_path / 'his'} belongs to user {NOBODY}")


def damaged(path: Path, how: str, elsewhere: Path) -> None:
    if how == "written by others":
        path.chmod(0o622)
    elif how == "of another":
        os.chown(path, NOBODY, -1)
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.replace(elsewhere)
        path.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "how",
    ["written by others", "pipe", "folder", "link", pytest.param("of another", marks=AS_ROOT)],
)
def test_files_are_those_of_this_user(tmp_path: Path, how: str) -> None:
    cache = filled(tmp_path / "cache")
    for name in ("k.artifact", "w.weights"):
        damaged(cache.folder / name, how, tmp_path / name)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert not holds(cache)
        assert not holds(cache)
    assert len(seen) == (how != "link")  # a link is as good as no file
    if how != "folder":  # it is replaced
        filled(cache.folder)


def test_a_link_to_a_private_folder_is_as_good_as_that(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    filled(tmp_path / "real")
    assert holds(Cache(tmp_path / "link"))
    (tmp_path / "real").chmod(0o777)
    refused(Cache(tmp_path / "link"), f"chmod go-w {tmp_path / 'real'}")


def test_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        filled(tmp_path / "a" / "b" / "cache")
    finally:
        os.umask(before)
    for path in (tmp_path / "a").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0


def test_a_file_under_the_name_of_another_is_absent(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    (tmp_path / "k.artifact").replace(tmp_path / "other.artifact")
    assert cache.get("other") is None


def test_files_of_the_former_format_are_removed(tmp_path: Path) -> None:
    old = tmp_path / ("0" * 32 + ".kernel")
    old.write_bytes(b"tilesmith cache 1\n" + pickle.dumps(Runs(tmp_path / "ran")))
    mine = tmp_path / "popcorn.kernel"
    mine.write_text("not of a cache")
    filled(tmp_path)
    assert not old.exists()
    assert mine.exists()
    assert not (tmp_path / "ran").exists()


def test_only_files_of_a_cache_are_removed_to_make_room(tmp_path: Path) -> None:
    others = ["thesis.txt", "model.weights", "notes.part", ".hidden.part", "a.artifact"]
    for name in others:
        (tmp_path / name).write_bytes(b"x" * 1000)
        os.utime(tmp_path / name, (1, 1))
    cache = Cache(tmp_path, max_nbytes=2000)
    for k in range(10):
        cache.put(f"k{k}", bytes(900))
    assert {p.name for p in tmp_path.iterdir()} >= set(others)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    for k, data in enumerate([b"", b"tilesmith cache 2\n" + bytes(5000)]):
        part = tmp_path / f".abcdefg{k}.part"
        part.write_bytes(data)
        os.utime(part, (k, k))
    Cache(tmp_path, max_nbytes=1000).put("k", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["k.artifact"]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filled(tmp_path)
    before = sorted(tmp_path.iterdir())
    real = open

    def full(path: object, mode: str) -> object:
        return real("/dev/full", mode)

    monkeypatch.setitem(vars(sys.modules[Cache.__module__]), "open", full)
    cache.put("new", bytes(100_000))
    monkeypatch.undo()
    assert cache.get("new") is None
    assert sorted(tmp_path.iterdir()) == before
