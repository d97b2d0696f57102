"""What concerns the running process as a whole: the version of its code, public names that are
imported when they are first used, the lock around LLVM, how often garbage is collected, and when
Ctrl-C takes effect.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple, TypeVar

from tilesmith.base.dataclass import dataclass

T = TypeVar("T")

# Every use of LLVM in this process holds it; it is here because this file does not load LLVM.
# A fork holds it, too: a child must never inherit LLVM in the middle of a compilation.
LLVM_LOCK = threading.RLock()
os.register_at_fork(
    before=LLVM_LOCK.acquire,
    after_in_parent=LLVM_LOCK.release,
    after_in_child=LLVM_LOCK.release,
)


@cache
def version() -> str:
    """The version of the running code. Its only source is `version` in pyproject.toml: read from
    that file in a source tree, which takes precedence, or from the metadata of an installed copy.
    """
    root = Path(__file__).parents[2]
    try:
        text = (root / "pyproject.toml").read_text()
        # Two lines of it: a parser of TOML would be loaded with `import tilesmith`.
        project = dict(re.findall(r'^(name|version) = "([^"]*)"$', text, re.MULTILINE))
        if project["name"] == "tilesmith":
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass
    return version_of("tilesmith") or "unknown"


def version_of(package: str) -> str | None:
    """That of an installed package; None if there is none."""
    # By name: it loads a parser of e-mail and more, a tenth of what a start takes.
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version(package))
    except metadata.PackageNotFoundError:
        return None


class Home(NamedTuple):
    module: str
    name: str


def homes_of(source: str) -> dict[str, Home]:
    """Where the imports under `if TYPE_CHECKING:` find each name."""
    blocks = (
        s for s in ast.parse(source).body
        if isinstance(s, ast.If) and isinstance(s.test, ast.Name) and s.test.id == "TYPE_CHECKING"
    )  # fmt: skip
    return {
        a.asname or a.name: Home(s.module or "", a.name)
        for block in blocks
        for s in block.body
        if isinstance(s, ast.ImportFrom)
        for a in s.names
    }


class LazyPackage(ModuleType):
    """A package whose public names are found by their homes.

    It states its names as imports under `if TYPE_CHECKING:`, where type checkers and editors find
    them. At run time the same statements are read as a table. A process that needs a part of the
    package, such as one that measures kernels, then loads that part only.
    """

    homes: dict[str, Home]

    def __getattr__(self, name: str) -> Any:
        home = self.homes.get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with few_collections():
            if home.module == self.__name__:  # a folder of the package
                return import_module(f"{home.module}.{home.name}")
            value = getattr(import_module(home.module), home.name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Importing a folder sets an attribute of its name, which a public name (`tune`) keeps."""
        home = self.homes.get(name)
        if home is None or home.module == self.__name__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.homes})


def make_lazy(package: str) -> None:
    """Called by the package itself while it is imported."""
    module = sys.modules[package]
    spec = module.__spec__
    source = spec.loader.get_source(package)  # type: ignore[union-attr]
    module.__dict__["homes"] = homes_of(source)
    module.__class__ = LazyPackage


@dataclass(slots=True)
class Interrupts:
    """Whether Ctrl-C was pressed."""

    pressed: bool = False

    def check(self) -> None:
        if self.pressed:
            raise KeyboardInterrupt


class _Collections:
    """The threads that want few collections, and the thresholds from before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wanted, self.before = 0, gc.get_threshold()


_COLLECTIONS = _Collections()


@contextmanager
def few_collections() -> Iterator[None]:
    """Compiling makes very many small objects that stay alive, and so does importing: looking for
    garbage among them every 700 objects, as is usual, takes an eighth of the time. Several threads
    may be here at once.
    """
    c = _COLLECTIONS
    with c.lock:
        if not c.wanted:
            c.before = gc.get_threshold()
            gc.set_threshold(300_000, *c.before[1:])
        c.wanted += 1
    try:
        yield
    finally:
        with c.lock:
            c.wanted -= 1
            if not c.wanted:
                gc.set_threshold(*c.before)


@contextmanager
def noticed() -> Iterator[Interrupts]:
    """Python drops a KeyboardInterrupt that is raised during garbage collection or in a callback.
    Within this block Ctrl-C works as usual, and `check` raises it again if it was lost.
    """
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupts
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.pressed = True
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def whole() -> Iterator[None]:
    """The block is not interrupted by a first Ctrl-C, but by a second one. Only the main thread is
    ever interrupted, so elsewhere this does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signals: list[tuple[int, FrameType | None]] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if signals:
            before(number, frame)
        signals.append((number, frame))

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if signals:
            before(*signals[0])


@contextmanager
def with_whole_ends(manager: AbstractContextManager[T]) -> Iterator[T]:
    """The same context, whose beginning and end a first Ctrl-C does not interrupt: it is raised
    behind them. What is done inside is interrupted as usual.
    """

    def leave(*error: Any) -> bool | None:
        with whole():
            return manager.__exit__(*error)

    with ExitStack() as stack:
        with whole():
            value = manager.__enter__()
            stack.push(leave)
        yield value
