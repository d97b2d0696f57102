"""The order of the stages: a stage imports only stages above it, at the top of the file, from the
file that defines the name.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The contest with other libraries and engines: beside the package, and in the same wheel.
CONTEST = "tilesmith_contest"
STAGES = (
    "base", "expr", "ops", "ir", "schedule", "task", "space", "search", "codegen", "runtime",
    "workers", "measure", "records", "graph", "frontends", "tune", "report", "testing", "cli",
)  # fmt: skip
# What only one leaf file may import: llvmlite loads 60 MB, the others more.
HEAVY = {
    "llvmlite", "xgboost", "torch", "onnx", "onnxruntime", "sqlalchemy", "ray", "scipy",
    "matplotlib", "plotly", "openvino", "MNN", "onnxscript", "cuda", "pyopencl",
}  # fmt: skip
# codegen knows ir, and nothing of how a Function was found.
FORBIDDEN = {"codegen": {"schedule", "task", "space", "search"}, "search": {"measure", "records"}}
# The places where a stage's parts are imported late, because they load LLVM, SQLAlchemy or what is
# an optional install; see the comments there.
LATE = {
    "codegen/llvm/backend.py", "runtime/kernel.py", "runtime/affinity.py", "records/open.py",
    "search/gbdt.py", "search/classic/tree_gru.py", "measure/this_machine.py", "runtime/chain.py",
    "runtime/checksum.py", "search/learned/model.py",
    "frontends/open.py", "tune/progress.py", "runtime/export/write.py", "runtime/devices/open.py",
    "__init__.py", "tilesmith_contest/peers.py", "tilesmith_contest/bench.py",
    "tilesmith_contest/engines.py",
}  # fmt: skip
# The only files of the package that know the contest: they list its command and its peers.
KNOW_THE_CONTEST = {"cli/main.py", "cli/doctor.py"}


OF_ITS_FOLDER = {"conftest.py", "__init__.py"}  # of tests


def sources() -> list[Path]:
    return [p for folder in ("tilesmith", CONTEST) for p in sorted((ROOT / folder).rglob("*.py"))]


def place_of(path: Path) -> str:
    """The path below the package; that of the contest has the name of its folder before it."""
    return str(path.relative_to(ROOT)).removeprefix("tilesmith/")


def stage_of(path: Path) -> str:
    return place_of(path).split("/")[0]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file, which takes most of the time of these tests."""
    return tuple(ast.walk(parsed(path)))


@cache
def imports(path: Path) -> tuple[tuple[str, bool, bool], ...]:
    """(module, whether it stands at the top, whether it is for the type checker only)."""
    top = set(map(id, parsed(path).body))
    typing_only = {
        id(s)
        for node in nodes(path)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for s in node.body
    }
    out = []
    for node in nodes(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [node.module or ""]
        for name in names:
            out.append((name, id(node) in top, id(node) in typing_only))
    return tuple(out)


def taken(path: Path) -> set[tuple[str, str]]:
    """(module, name) of what is imported by name."""
    found = (n for n in nodes(path) if isinstance(n, ast.ImportFrom))
    return {(n.module or "", a.name) for n in found for a in n.names}


def test_every_folder_is_a_known_stage() -> None:
    folders = {p.name for p in (ROOT / "tilesmith").iterdir() if p.is_dir()} - {"__pycache__"}
    assert folders <= set(STAGES), f"unknown stages: {folders - set(STAGES)}"


def test_imports_go_one_way() -> None:
    wrong = []
    for path in sources():
        if path.parent == ROOT / "tilesmith":
            continue
        own, where = stage_of(path), place_of(path)
        for name in {name for name, _, _ in imports(path) if name.startswith("tilesmith")}:
            if name == "tilesmith":
                wrong.append(f"{where} imports the package's public face")
            elif name.startswith(f"{CONTEST}."):
                if own != CONTEST and where not in KNOW_THE_CONTEST:
                    wrong.append(f"{where} imports {name}")
            elif own != CONTEST:
                stage = name.split(".")[1]
                if STAGES.index(stage) > STAGES.index(own):
                    wrong.append(f"{where} imports {name} from below")
                if stage in FORBIDDEN.get(own, set()):
                    wrong.append(f"{where} imports {name}")
    assert wrong == []


def test_imports_stand_at_the_top() -> None:
    wrong = []
    for path in sources():
        where = place_of(path)
        for name, top, typing_only in imports(path):
            late = where in LATE or name.split(".")[0] in ("ml_dtypes", *HEAVY)
            if not (top or typing_only or late):
                wrong.append(f"{where} imports {name} inside")
    assert wrong == []


def test_late_imports_load_an_optional_or_large_package() -> None:
    """That is the reason for a late import; without one it belongs at the top of its file."""
    for where in sorted(LATE - {"__init__.py"}):  # the public face imports all names when used
        found = imports(ROOT / where if where.startswith(CONTEST) else ROOT / "tilesmith" / where)
        late = [name for name, top, typing_only in found if not (top or typing_only)]
        assert late, f"{where} imports nothing late"
        for name in late:
            assert _packages(name) - {"numpy"}, f"{where} imports {name} late"


@cache
def _packages(module: str) -> frozenset[str]:
    """The packages that importing a module loads, besides this one and the standard library."""
    if not module.startswith("tilesmith"):
        return frozenset({module.split(".")[0]} - sys.stdlib_module_names)
    path = ROOT / f"{module.replace('.', '/')}.py"
    if not path.exists():
        return frozenset()
    names = [name for name, top, _ in imports(path) if top]
    return frozenset().union(*map(_packages, names))


def test_nothing_is_inherited_through_a_chain_of_files() -> None:
    """A class and all its bases in this package are in at most two files."""
    bases: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path in sources():
        tree = parsed(path)
        taken = {
            a.asname or a.name: (node.module or "", a.name)
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom)
            for a in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(b).split("[")[0] for b in node.bases]
                bases[_module(path), node.name] = [taken.get(n, (_module(path), n)) for n in names]

    def files(key: tuple[str, str]) -> set[str]:
        return {key[0]}.union(*(files(b) for b in bases[key] if b in bases))

    assert [name for key in bases if len(files(key)) > 2 for name in key] == []


def test_no_import_circle_of_files() -> None:
    """Neither by imports inside of functions nor by those for the type checker: what imports each
    other in any way cannot be read or changed apart.
    """
    names = {_module(path): path for path in sources() if path.parent != ROOT / "tilesmith"}
    needs = {name: _imported(path) & names.keys() for name, path in names.items()}
    circles = [sorted(c) for c in _strong_components(needs) if len(c) > 1]
    assert circles == []


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _imported(path: Path) -> set[str]:
    """Modules of ours, also as `from tilesmith.space import analysis`."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return {name for name in found if name.startswith(("tilesmith.", f"{CONTEST}."))}


def _strong_components(needs: dict[str, set[str]]) -> list[list[str]]:
    """Modules that reach each other (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in sorted(needs[name]):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            at = stack.index(name)
            out.append(stack[at:])
            del stack[at:]

    for name in needs:
        if name not in number:
            visit(name)
    return out


def test_inits_are_empty_but_for_the_public_face() -> None:
    for path in sources():
        if path.name == "__init__.py" and path.parent != ROOT / "tilesmith":
            rest = [s for s in parsed(path).body if not isinstance(s, ast.ImportFrom)]
            names = [s for s in rest if not isinstance(s, ast.Assign | ast.Expr)]
            assert not names, f"{path} holds code"


def test_import_is_light() -> None:
    heavy = sorted(HEAVY | {"ml_dtypes", "rich", "typer"})
    code = f"import sys, tilesmith; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert out.stdout.strip() == "[]", out.stdout + out.stderr


# Where objects are unpickled: what our own processes send each other through pipes and memory that
# no other process has, and what is kept in the cache, whose files are code that nobody else can
# write. Nothing that comes from another file, a database or another user is.
UNPICKLES = {
    "codegen/c/nvrtc.py", "workers/wire.py", "measure/child/build_worker.py",
    "measure/child/fault_handler.py", "testing/models.py", "tune/kept_plan.py",
}  # fmt: skip
# Python files that a user names on the command line, and constructors made of names of fields.
EXECUTES = {"cli/user_file.py", "base/dataclass.py"}
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}


def calls(every: Iterable[ast.AST]) -> list[str]:
    return [_named(n.func) for n in every if isinstance(n, ast.Call)]


def _named(func: ast.expr) -> str:
    """As ast.unparse writes it, which takes a hundred times as long for a name with dots."""
    attributes: list[str] = []
    at = func
    while isinstance(at, ast.Attribute):
        attributes.append(at.attr)
        at = at.value
    if not isinstance(at, ast.Name):
        return ast.unparse(func)
    return ".".join((at.id, *reversed(attributes)))


def runs_code(text: str, every: Iterable[ast.AST] | None = None) -> set[str]:
    """What in a module may run code that comes with data."""
    found = set()
    for name in calls(ast.walk(ast.parse(text)) if every is None else every):
        owner, _, method = name.rpartition(".")
        if owner.split(".")[0] in LOADERS and method.startswith(("load", "Unpickler", "open")):
            found.add("unpickle")
        if name in ("eval", "exec", "builtins.eval", "builtins.exec", "torch.load"):
            found.add(name)
    if "allow_pickle=True" in text:
        found.add("allow_pickle")
    return found


def test_data_is_not_code() -> None:
    found = {}
    for path in sources():
        name = place_of(path)
        allowed = {"unpickle"} if name in UNPICKLES else {"exec"} if name in EXECUTES else set()
        found[name] = runs_code(path.read_text(), nodes(path)) - allowed
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_the_check_of_data_finds_loaders() -> None:
    assert runs_code("import pickle\npickle.loads(x)") == {"unpickle"}
    assert runs_code("marshal.load(f)\neval(x)") == {"unpickle", "eval"}
    assert runs_code("np.load(f, allow_pickle=True)") == {"allow_pickle"}
    assert runs_code("json.loads(x)\nmodel.eval()\npickle.dumps(x)") == set()


def test_the_quick_tests_cover_every_folder() -> None:
    """Those of `make quick`."""
    quick = _listed("core.txt")
    folders = {p.parent.name for p in (ROOT / "tilesmith").glob("*/__init__.py")}
    # testing/ has the contracts that the tests of strategies run.
    assert folders - {p.parts[1] for p in quick} <= {"testing"}


def test_files_of_tests_have_names_of_their_own() -> None:
    """Their folders are no packages: of two files of one name, pytest could import only one."""
    files = [p for p in (ROOT / "tests").rglob("*.py") if p.name not in OF_ITS_FOLDER]
    names = Counter(p.stem for p in files)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("name", ["core.txt", "long.txt"])
def test_tests_that_are_listed_exist(name: str) -> None:
    assert [p for p in _listed(name) if not (ROOT / p).is_file()] == []


def _listed(name: str) -> list[Path]:
    lines = (ROOT / "tests" / name).read_text().split()
    return [Path(line.partition("::")[0]) for line in lines]


def test_dataclasses_are_made_by_the_quick_decorator() -> None:
    """`base/dataclass.py` says why."""
    slow = [place_of(p) for p in sources() if ("dataclasses", "dataclass") in taken(p)]
    assert slow == ["base/dataclass.py"], "take it from tilesmith.base.dataclass"
